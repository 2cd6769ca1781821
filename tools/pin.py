"""Writes constraints.txt: the versions, in the environment it runs in, of all that the extras bring.

`make constraints` runs it in a new environment with the newest versions of everything. What it writes is for
installing reproducibly; which versions the library accepts is said in pyproject.toml.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# Exact versions of every extra and of all that they require, written by `make constraints`. Only the Makefile
# and CI install under these; what the library accepts is said in pyproject.toml. Local versions ("+cpu") are
# left out, so that whichever build of torch is at hand satisfies its pin.
"""


def canonical(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(extras: Iterable[str]) -> list[Requirement]:
    """What pyproject.toml requires directly, with these extras and those that they name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [Requirement(line) for line in project["dependencies"]]
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            requirement = Requirement(line)
            if canonical(requirement.name) == canonical(project["name"]):
                found += requirements(sorted(requirement.extras))
            else:
                found.append(requirement)
    return found


def closure(extras: Iterable[str]) -> dict[str, str]:
    """Versions, by name, of all that these extras bring in here, transitively.

    Args:
        extras: names of extras in pyproject.toml.

    Returns:
        Installed versions without their local part ("+cpu").

    Raises:
        importlib.metadata.PackageNotFoundError: if a part is not installed.
    """
    versions: dict[str, str] = {}
    waiting = requirements(extras)
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonical(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            distribution = metadata.distribution(name)
            versions[name] = distribution.version.partition("+")[0]
            for line in distribution.requires or []:
                further = Requirement(line)
                if further.marker is None or further.marker.evaluate({"extra": extra}):
                    waiting.append(further)
    return versions


def main() -> None:
    """Writes the file."""
    versions = closure(["bench", "dev", "ray", "transfer-queue"])
    lines = [f"{name}=={version}\n" for name, version in sorted(versions.items())]
    (ROOT / "constraints.txt").write_text(HEADER + "".join(lines))
    print(f"constraints.txt: {len(lines)} versions pinned")


if __name__ == "__main__":
    main()
