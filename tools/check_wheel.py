"""Builds the source distribution, and of it the wheel, and proves that this works by itself.

For each backend there is an empty environment. First the wheel alone is installed there, with NumPy: it tells its
version, and what to install for the backend. Then it is installed with the backend's extra: what is there must be what
constraints.txt pins, the other backend must not be among it, and the README's quickstart of this backend must run, from
another folder and importing the installed packages. Run it as `make wheel-check`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# For each extra, the distributions that it must not bring.
FOREIGN = {
    "jax": {"torch", "tensordict", "torchrl"},
    "torch": {"jax", "jaxlib", "flax", "optax", "chex"},
}
LISTING = """
import json
from importlib import metadata
print(json.dumps({found.name: found.version for found in metadata.distributions()}))
"""


def canonical(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def quickstart(readme: str, backend: str) -> str:
    """The fenced blocks that open with "```python jax" (or torch), as one program."""
    blocks = re.findall(rf"^```python {backend}[ \t]*\n(.*?)^```[ \t]*$", readme, re.DOTALL | re.MULTILINE)
    if not blocks:
        raise ValueError(f'README.md has no quickstart for {backend}: expected a block fenced by "```python {backend}"')
    return "\n".join(blocks)


def pins(constraints: str) -> dict[str, str]:
    """Versions by name from the text of a constraints file."""
    lines = (line.partition("#")[0].strip() for line in constraints.splitlines())
    return dict(line.split("==") for line in lines if line)


def complaints(backend: str, installed: dict[str, str], pinned: dict[str, str]) -> list[str]:
    """What is wrong with the versions that installing the extra of a backend brought."""
    foreign = [f"[{backend}] brought {name}" for name in sorted(FOREIGN[backend] & set(installed))]
    missing = [f"[{backend}] did not bring {backend}"] if backend not in installed else []
    loose = [
        f"[{backend}] brought {name} {version}, and constraints.txt says {pinned.get(name, 'nothing')}"
        for name, version in sorted(installed.items())
        if name not in {"functional-rb", "pip", "setuptools"} and version.partition("+")[0] != pinned.get(name)
    ]
    return foreign + missing + loose


def build_wheel(folder: Path, *options: str) -> Path:
    """Builds into a folder the source distribution of this checkout and of that the wheel, or what options say."""
    command = [sys.executable, "-m", "build", *options, "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_kernels(wheel: Path) -> None:
    """Wants kernels for GPUs in it where they could be compiled."""
    with zipfile.ZipFile(wheel) as archive:
        if shutil.which("nvcc") and not any(name.endswith(".fatbin") for name in archive.namelist()):
            raise SystemExit(f"{wheel.name} has no kernels for GPUs, though there is nvcc")


def check_alone(backend: str, python: Path, wheel: Path, folder: Path) -> None:
    """Runs what works without any backend, in an environment that has the wheel and NumPy."""
    version = wheel.name.split("-")[1]
    said = subprocess.run(
        [str(python), "-I", "-m", "functional_rb", "--version"],
        check=True,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    if said != f"functional_rb {version}\n":
        raise SystemExit(f"{wheel.name}: python -m functional_rb --version printed {said!r}")
    refused = subprocess.run(
        [str(python), "-I", "-c", f"import {backend}_backend"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    ).stderr
    if f"ImportError: {backend}_backend needs {backend}: pip install " not in refused:
        raise SystemExit(f"{wheel.name}: import {backend}_backend without {backend} said:\n{refused}")


def check(backend: str, wheel: Path, program: str, folder: Path, torch_index: str) -> None:
    """Installs the wheel for one backend in an empty environment under `folder` and runs `program` there."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    install += ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([*install, f"functional-rb @ {wheel.as_uri()}"], check=True)
    check_alone(backend, python, wheel, folder)
    if backend == "torch" and torch_index:  # torch by itself first, for the reason given in the Makefile
        index = ["--extra-index-url", torch_index, "--retries", "1", "--timeout", "15"]
        subprocess.run([*install, *index, "--no-deps", "torch"], check=True)
    subprocess.run([*install, f"functional-rb[{backend}] @ {wheel.as_uri()}"], check=True)

    found = subprocess.run([str(python), "-I", "-c", LISTING], check=True, stdout=subprocess.PIPE).stdout
    installed = {canonical(name): version for name, version in json.loads(found).items()}
    if wrong := complaints(backend, installed, pins((ROOT / "constraints.txt").read_text())):
        raise SystemExit("\n".join(wrong))

    # -I keeps the current folder and PYTHONPATH out, so that only the installed packages can be imported.
    probe = f"import functional_rb, functional_rb._native as n, {backend}_backend as b; "
    probe += "print(functional_rb.__file__, n.__file__, b.__file__, sep='\\n')"
    where = subprocess.run(
        [str(python), "-I", "-c", probe], check=True, cwd=folder, stdout=subprocess.PIPE, text=True
    ).stdout.split()
    if strays := [path for path in where if not Path(path).is_relative_to(folder / "venv")]:
        raise SystemExit(f"imported from outside the environment: {strays}")
    script = folder / "quickstart.py"
    script.write_text(program)
    try:
        subprocess.run([str(python), "-I", str(script)], check=True, cwd=folder)
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"the README's quickstart for {backend} failed with the installed wheel (exit status "
            f"{error.returncode}):\n{textwrap.indent(program, '    ')}"
        ) from None
    absent = ", ".join(sorted(FOREIGN[backend]))
    print(f"{wheel.name}[{backend}]: {len(installed)} distributions, none of {absent}; the quickstart ran")


def main() -> None:
    """Checks both backends, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-index", default="", help="an extra index, for the CPU build of torch")
    parser.add_argument("backends", nargs="*", default=list(FOREIGN), help="default: both")
    arguments = parser.parse_args()
    readme = (ROOT / "README.md").read_text()
    programs = {backend: quickstart(readme, backend) for backend in arguments.backends}  # first: it fails fast
    os.environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="functional-rb-wheel-") as folder:
        wheel = build_wheel(Path(folder).resolve())
        check_kernels(wheel)
        for backend, program in programs.items():
            home = Path(folder).resolve() / backend
            home.mkdir()
            check(backend, wheel, program, home, arguments.torch_index)


if __name__ == "__main__":
    main()
