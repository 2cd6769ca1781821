"""What `frb.ray` does where Ray is missing: in threads it needs none, and else it says what is missing."""

import sys

sys.modules["ray"] = None  # type: ignore[assignment]  # so that it cannot be imported
import functional_rb as frb  # noqa: E402

spec = frb.BufferSpec({"x": frb.Unbounded(())}, 8)
frb.ray.start(spec, local=True)
assert "jax" not in sys.modules
try:
    frb.ray.start(spec)
except ImportError as error:
    print(error)
