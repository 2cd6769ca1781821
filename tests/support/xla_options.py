"""How XLA compiles the programs of tests: quickly rather than well, unless a test asks for what users get."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

_JAX: Final = tuple(map(int, version("jaxlib").split(".")[:2]))
# An option of XLA for the CPU before JAX 0.11. A later XLA that finds it in `XLA_FLAGS` ends the process.
FUSION: Final = "xla_cpu_use_fusion_emitters"
HAS_FUSION: Final = _JAX < (0, 11)

# For `compiler_options=`: of XLA's own time a quarter.
QUICKLY: Final[dict[str, int | bool]] = {
    "xla_backend_optimization_level": 0,
    **({FUSION: False} if HAS_FUSION else {}),
}

# For `compile(...)`: XLA fuses as it does for users.
AS_USERS: Final[dict[str, int | bool]] = {FUSION: True} if HAS_FUSION else {}

_WHOLE: Final[dict[str, int | bool]] = {"xla_cpu_parallel_codegen_split_count": 1} if _JAX >= (0, 7) else {}

# For `XLA_FLAGS`: every program that names no options of its own is compiled quickly.
FLAGS: Final = " ".join(f"--{name}={str(value).lower()}" for name, value in (QUICKLY | _WHOLE).items())
