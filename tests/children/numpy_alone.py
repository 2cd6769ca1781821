"""What needs NumPy alone: `import`, `inspect PATH`, `forms FROM TO`. Fails if another library has been imported."""

import sys

OTHERS = {"dm_env", "gymnasium", "h5py", "jax", "matplotlib", "tensordict", "torch", "torchrl", "functional_rb._native"}
what, *paths = sys.argv[1:]
if what == "import":
    import functional_rb as frb
elif what == "inspect":
    from functional_rb.__main__ import main

    assert main(["inspect", *paths]) == 0
else:
    import functional_rb as frb

    frb.ted.to_form(paths[0]).save(paths[1])
assert not OTHERS & sys.modules.keys(), OTHERS & sys.modules.keys()
