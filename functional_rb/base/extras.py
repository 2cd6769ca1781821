"""Libraries that the core does without: what brings each, and what is said where one is missing or too old."""

from __future__ import annotations

import importlib
import importlib.util
import re
from types import ModuleType
from typing import Final

# How an extra is installed; every error that names one says it in these words.
COMMAND: Final = "pip install '.[{}]' in a checkout of functional_rb"

# The extra of pyproject.toml that brings a module; what is not here is no part of any.
EXTRAS: Final = {
    "crc32c": "datasets",
    "google": "datasets",
    "h5py": "hdf5",
    "hypothesis": "testing",
    "jax": "jax",
    "matplotlib": "plot",
    "minari": "datasets",
    "ml_dtypes": "jax",
    "omegaconf": "transfer-queue",
    "PIL": "datasets",
    "plotly": "trees",
    "pyarrow": "datasets",
    "ray": "ray",
    "tensordict": "tensordict",
    "torch": "torch",
    "tqdm": "checkpoint",
    "transformers": "text",
    "transfer_queue": "transfer-queue",
    "xxhash": "checkpoint",
}

# The packages of modules that no extra brings, because their users have them.
PACKAGES: Final = {"av": "av", "dm_env": "dm-env", "gymnasium": "gymnasium", "torchrl": "torchrl"}


def remedy(module: str) -> str:
    """How to install the library that a module belongs to."""
    library = module.partition(".")[0]
    return COMMAND.format(EXTRAS[library]) if library in EXTRAS else f"pip install {PACKAGES[library]}"


def is_there(module: str) -> bool:
    """Whether a library can be found, without importing it."""
    return importlib.util.find_spec(module) is not None


def needed_first(module: str) -> str:
    """What is said after a remedy that takes a library which is not installed; nothing if it is, or is none of ours."""
    library = module.partition(".")[0]
    if library not in EXTRAS or is_there(library):
        return ""
    return f"; {library} is not installed: {remedy(library)}"


def imported(module: str, who: str) -> ModuleType:
    """Import a module of a library that the core does without."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(module, who, error) from error


def missing(module: str, who: str, why: ImportError | None = None) -> ImportError:
    """The error for a library that is not installed, or cannot be imported for a reason that is told."""
    library = module.partition(".")[0]
    reason = "" if why is None or getattr(why, "name", None) == library else f" ({why})"
    return ImportError(f"{who} needs {library}: {remedy(module)}{reason}", name=library)


def check_version(module: ModuleType, oldest: str, who: str) -> None:
    """Refuse a library that is older than what the tests run on."""
    if not is_version(module, oldest):
        name, installed = module.__name__, module.__version__
        raise ImportError(
            f"{who} needs {name} {oldest} or newer, and {installed} is installed: {newer(name, oldest)}", name=name
        )


def newer(library: str, version: str) -> str:
    """How a version of a library is installed, or a newer one."""
    return f"pip install '{library}>={version}'"


def is_version(module: ModuleType, version: str) -> bool:
    """Whether a library is of a version, given as numbers with dots between them, or of a newer one."""
    asked = _numbers(version)
    return _numbers(module.__version__)[: len(asked)] >= asked


# What a version begins with, and what follows: 2, 8, 0, 1, 128 of "2.8.0rc1+cu128".
def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(x) for x in re.findall(r"\d+", version))
