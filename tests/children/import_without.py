"""Imports a package where libraries are absent: PACKAGE, their NAMES with commas, what is not to be imported, PATHS.

Prints which of the absent ones somebody has looked for, and what is told of the checkpoints at the paths.
"""

import importlib
import sys
from typing import Any

package, absent, late, *paths = sys.argv[1:]


class Absent:
    """Finds everything but the libraries."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name.partition(".")[0] in absent.split(","):
            print(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def leaves_of(path: str) -> int:
    """How many arrays a checkpoint holds, by the package's own library."""
    value = frb.load(path, rb)
    if package == "jax_backend":
        import jax

        return len(jax.tree.leaves(value))
    from torch.utils import _pytree as pytree

    return len(pytree.tree_leaves(value))


def without_tensordict() -> None:
    """Items stay what they are, and a TensorDict is refused."""
    import dataclasses
    import typing

    import torch

    class Pair(typing.NamedTuple):
        x: Any

    @dataclasses.dataclass
    class Data:
        x: Any

    for item in ({"x": torch.ones(2)}, Pair(torch.ones(2)), Data(torch.ones(2))):
        state = rb.add(rb.init(frb.BufferSpec(frb.specs.spec_of(item), 4)), item)
        assert type(rb.sample(state, rb.key(0), 3)[1].items) is type(item)


def without_gymnasium() -> None:
    """Graphs are decoded to what has the fields of its class, and encoded again."""
    import numpy as np

    sys.modules["gymnasium"] = None  # type: ignore[assignment]  # so that it cannot be imported
    graphs = frb.specs.Graph(frb.Binary(), None, 2)
    found = rb.decode(graphs, {"nodes": np.array([True, False]), "n_nodes": np.array(1, "int32")})
    assert type(found).__module__.startswith("functional_rb.")
    assert found.nodes.tolist() == [True]
    assert found[1:] == (None, None)
    again = rb.encode(graphs, found)
    assert (again["nodes"].tolist(), int(again["n_nodes"])) == ([True, False], 1)


def without_ray() -> None:
    """Threads need none, and else what is missing is said."""
    sys.modules["ray"] = None  # type: ignore[assignment]  # so that it cannot be imported
    spec = frb.BufferSpec({"x": frb.Unbounded(())}, 8)
    frb.ray.start(spec, local=True)
    try:
        frb.ray.start(spec)
    except ImportError as error:
        assert str(error).startswith("frb.ray needs ray: pip install '.[ray]'")
    else:
        raise AssertionError("it is not there")


def without_ml_dtypes() -> None:
    """Values of bfloat16, though NumPy does not know that dtype, which JAX teaches it."""
    spec = {
        "x": frb.Bounded(-1, 1, (2,), "bfloat16"),
        "one": frb.specs.OneHot(3, dtype="bfloat16"),
        "some": frb.specs.Sequence(frb.Unbounded((), "bfloat16"), 2),
        "none": frb.specs.Sequence(frb.Unbounded((), "bfloat16"), 2, stack=True),
    }
    value = rb.encode(spec, {"x": [0.3, 1], "one": 2, "some": (1.5,), "none": []})
    assert bool(rb.contains(spec, value))
    assert value["x"].tolist() == [0.30078125, 1.0]
    again = rb.decode(spec, value)
    assert again["x"].tolist() == [0.30078125, 1.0]
    assert again["one"] == 2
    assert again["some"] == (1.5,)
    assert "ml_dtypes" not in sys.modules


sys.meta_path.insert(0, Absent)  # type: ignore[arg-type]  # a finder needs no more
rb: Any = importlib.import_module(package)
found = set(late.split(",")) & set(sys.modules)
assert not found, f"what takes long to import, and only some need: {found}"
import functional_rb as frb  # noqa: E402

for one in paths:
    print(repr(str(frb.checkpoint.load_spec(one))) if package == "functional_rb" else leaves_of(one))
for module in (frb, rb):
    assert all(hasattr(module, name) for name in module.__all__)  # as `from functional_rb import *` asks for them
if package == "torch_backend":
    without_ml_dtypes()
    without_tensordict()
    without_gymnasium()
    without_ray()
