"""Hatch's hook: compiles the extension of kernels before a wheel, or an editable install, is made."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))
import native_build


class NativeHook(BuildHookInterface[Any]):
    """One file for all Pythons from 3.11 on, by CPython's limited API."""

    def dependencies(self) -> list[str]:
        """A compiler, where the machine has none."""
        return native_build.required()

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say for which machines the wheel is."""
        if os.environ.get(native_build.VARIABLE) == "0":
            return
        made = [native_build.build(), *([native_build.build_gpu()] if version == "standard" else [])]
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data |= {"pure_python": False, "tag": f"cp311-abi3-{platform}"}
        build_data["artifacts"] += [f"/{x.relative_to(native_build.ROOT).as_posix()}" for x in made if x is not None]
