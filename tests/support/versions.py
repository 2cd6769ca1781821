"""What versions of other libraries the tests have."""

from __future__ import annotations

from types import ModuleType

from packaging.version import Version


def is_version(library: ModuleType, asked: str) -> bool:
    """Whether it is of this version or of a newer one."""
    return Version(library.__version__) >= Version(asked)
