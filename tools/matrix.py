"""Runs the tests on the oldest and the newest versions of what the library needs, and keeps what came out.

    python tools/matrix.py oldest                    as `make test-oldest` does
    python tools/matrix.py newest --python 3.12      on one Python only
    python tools/matrix.py oldest --fast             what `.ci/run` takes: a selection, on the oldest Python, unrecorded
    python tools/matrix.py table                     writes the table of docs/install.md anew

For each Python that is found here, an environment is built and, in it, the contract suite, the agreement suite and the
README's quickstarts run. The oldest versions are the lower bounds of pyproject.toml, resolved from that file itself, so
that what is promised and what is run cannot differ: on the oldest Python each bound must be the very version that was
installed, on a newer one a later version may stand for it, the first that has a wheel there. The newest are what the
package index has at that time, and the middle ones those that `MIDDLE` holds back.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
import venv
import xml.etree.ElementTree
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv-matrix"
RESULTS = ROOT / "docs" / "matrix.json"
PAGE = ROOT / "docs" / "install.md"
BEGIN, END = "<!-- the matrix, written by tools/matrix.py -->", "<!-- the end of the matrix -->"

LEVELS = ("oldest", "middle", "newest")
# What applications that hold versions back have, a year after the oldest ones and before the newest ones.
MIDDLE = ("jax==0.9.*", "torch==2.11.*")
# The extras for users: all of them stand side by side in each environment.
EXTRAS = ("jax", "torch", "tensordict", "checkpoint", "hdf5", "plot", "trees", "text", "datasets", "testing")
# What the tests need besides; no promise is made of these, so that each is the newest that fits.
TOOLS = ("av", "chex", "dm-env", "gymnasium", "packaging", "pytest>=9", "pytest-xdist")
# A tool whose lower bound in `dev` is kept too: that others read what checkpoints are is a promise.
READER = "safetensors"
# Modules that call every function of the backends' `compat`, in a minute or two.
SELECTION = (
    *("tests/agreement/test_switch.py", "tests/contract/test_arguments.py", "tests/contract/test_containers.py"),
    *("tests/contract/test_keys.py", "tests/contract/test_tensorclasses.py", "tests/unit/test_extras.py"),
    *("tests/programs/test_meshes.py",),
)
SUITES = {
    "contract": ("tests/contract",),
    "agreement": ("tests/agreement",),
    "selection": SELECTION,
    "extras": ("tests/checkpoint", "tests/datasets", "tests/formats", "tests/text", "tests/trees/test_reading.py"),
}
SHOWN = ("torch", "jax", "numpy", "tensordict")
BACKENDS = ("jax", "torch")
PYTHONS = ("3.11", "3.12", "3.13")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one run of tests came to.

    Attributes:
        passed, failed, skipped: numbers of tests; an error in a fixture is a failure.
        failures: the names of those that failed.
    """

    passed: int
    failed: int
    skipped: int
    failures: tuple[str, ...] = ()


def canonical(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def outcome(report: str) -> Outcome:
    """What a run came to, from the report that pytest's --junitxml writes."""
    cases = list(xml.etree.ElementTree.fromstring(report).iter("testcase"))
    failed = [x for x in cases if x.find("failure") is not None or x.find("error") is not None]
    skipped = sum(1 for x in cases if x.find("skipped") is not None and x not in failed)
    # A test whose fixture fails at its end too is in the report twice.
    names = tuple(sorted({f"{x.get('classname', '').replace('.', '/')}::{x.get('name')}" for x in failed}))
    return Outcome(len(cases) - len(failed) - skipped, len(names), skipped, names)


def bounds(project: Mapping[str, Any], extras: Iterable[str]) -> dict[str, str]:
    """The lower bounds, by name, that pyproject.toml sets for some extras and for those that they name."""
    found: dict[str, str] = {}
    for line in [*project["dependencies"], *(x for extra in extras for x in project["optional-dependencies"][extra])]:
        if own := re.fullmatch(rf"{re.escape(project['name'])}\[(.*)\]", line):
            found |= bounds({**project, "dependencies": []}, own[1].split(","))
        else:
            name, bound = line.split(">=")
            found[canonical(name)] = bound
    return found


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers, without what follows them and without zeros at the end: 2.8 is 2.8.0."""
    found = re.findall(r"\d+", re.split(r"[+a-zA-Z]", version.strip("'\""))[0])
    while found and int(found[-1]) == 0:
        found.pop()
    return tuple(map(int, found))


def complaints(lower: Mapping[str, str], versions: Mapping[str, str], exact: bool) -> list[str]:
    """Bounds that are not what was installed; a later version may stand for one if `exact` is false."""
    wrong = []
    for name, bound in lower.items():
        found = versions.get(name, "none")
        if found == "none" or (exact and numbers(found) != numbers(bound)) or numbers(found) < numbers(bound):
            wrong.append(f"pyproject.toml says {name}>={bound}, and the oldest that can be installed is {found}")
    return wrong


def pins(requirements: str) -> dict[str, str]:
    """Versions by name from a file of requirements."""
    return dict(re.findall(r"^([a-z0-9.-]+)==([^\s;]+)", requirements, re.MULTILINE))


def interpreter(version: str, uv: Path) -> str | None:
    """A Python of this version: one on the PATH, of pyenv, or of uv; None where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    known = [*sorted(pyenv.glob(f"{version}.*/bin/python")), shutil.which(f"python{version}")]
    asked = subprocess.run(
        [uv, "python", "find", "--no-python-downloads", "--no-project", version], capture_output=True, text=True
    )
    for path in (*known, asked.stdout.strip()):
        if path and _version_of(path) == version:
            return str(path)
    return None


def _version_of(path: str | Path) -> str:
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([path, "-c", program], capture_output=True, text=True).stdout.strip()


def get_uv() -> Path:
    """The resolver, which alone knows how to take the lowest versions: the one that is here, or one of our own."""
    found = shutil.which("uv")
    if found:
        return Path(found)
    made = HOME / "uv"
    if not (made / "bin" / "uv").exists():
        venv.create(made, with_pip=True)
        subprocess.run([made / "bin" / "python", "-m", "pip", "install", "--quiet", "uv"], check=True)
    return made / "bin" / "uv"


def answers(index: str) -> bool:
    """Whether an index of packages can be reached."""
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=15):
            return True
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


@dataclasses.dataclass(frozen=True)
class Environment:
    """Where tests run.

    Attributes:
        level: one of `LEVELS`.
        python: its version, "3.11".
        interpreter: the Python that it is made of.
        uv: the resolver.
        index: torch's own index, for the build for the CPU; "" where it is not to be had.
        held: a version of torch instead of the one that would be resolved, or "".
    """

    level: str
    python: str
    interpreter: str
    uv: Path
    index: str
    held: str = ""

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return HOME / f"{self.level}-{self.python}"

    def resolve(self) -> str:
        """The exact versions of everything, as a file of requirements."""
        HOME.mkdir(exist_ok=True)
        asked = [*self._direct().splitlines(), *TOOLS, *(MIDDLE if self.level == "middle" else ())]
        if self.level != "oldest":
            return self._compiled("\n".join(asked))
        # Minari asks for NumPy 2, and works with the oldest too, which all others are to have: so it comes last, beside
        # what suits that NumPy. To take away what all of them ask would bring a pandas and a SciPy that refuse it.
        others = self._compiled("\n".join(x for x in asked if "minari" not in pins(x)))
        numpy = [f"numpy=={pins(others)['numpy']}"]
        return self._compiled("\n".join((*asked, *others.splitlines())), overridden=numpy)

    def _direct(self) -> str:
        """What the library itself requires: for the oldest versions exactly its bounds."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        lower = bounds(project, EXTRAS) | {READER: bounds(project, ["dev"])[READER]}
        if self.held:
            del lower["torch"]
        if self.level != "oldest":
            return "\n".join(f"{name}>={bound}" for name, bound in lower.items())
        extras = [x for extra in EXTRAS for x in ("--extra", extra)]
        arguments = ("--no-deps", "--resolution", "lowest", *extras, ROOT / "pyproject.toml")
        lowest = self._compiled(f"{READER}>={lower[READER]}", *arguments)
        if wrong := complaints(lower, pins(lowest), exact=project["requires-python"] == f">={self.python}"):
            raise SystemExit("\n".join(wrong))
        return lowest

    def _compiled(self, text: str, *arguments: Any, overridden: Sequence[str] = ()) -> str:
        """What uv makes of some requirements, with a hold on torch where one is told, and on others in spite of all."""
        override = HOME / "override.txt"
        override.write_text("".join(f"{x}\n" for x in (*([f"torch=={self.held}"] if self.held else []), *overridden)))
        command = [self.uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-build"]
        command += ["--python", self.interpreter, "--override", override, *self._sources(), *arguments, "-"]
        run = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        if run.returncode:
            raise SystemExit(f"no environment of the {self.level} versions for Python {self.python}: see above")
        return run.stdout

    def _sources(self) -> list[str]:
        """Where packages come from, besides the index: what pip finds, uv is to find too."""
        found = [x for folder in os.environ.get("PIP_FIND_LINKS", "").split() for x in ("--find-links", folder)]
        return [*found, *(("--torch-backend", "cpu") if self.index else ())]

    def build(self) -> dict[str, str]:
        """Make it anew; the versions that it has, by name."""
        requirements = self.resolve()
        listing = HOME / f"{self.level}-{self.python}.txt"
        listing.write_text(requirements)
        subprocess.run(
            [self.uv, "venv", "--quiet", "--clear", "--python", self.interpreter, self.folder], check=True, cwd=ROOT
        )
        install = [self.uv, "pip", "install", "--quiet", "--no-build", "--python", self.folder]
        subprocess.run([*install, *self._sources(), "--no-deps", "-r", listing], check=True, cwd=ROOT)
        return pins(requirements)

    def quickstarts(self) -> Outcome:
        """Run the README's programs, one for each backend."""
        sys.path.insert(0, str(ROOT / "tools"))
        import check_wheel

        failures = []
        for backend in BACKENDS:
            program = check_wheel.quickstart((ROOT / "README.md").read_text(), backend)
            print(f"   quickstart for {backend}", flush=True)
            if self._run([self.folder / "bin" / "python", "-W", "error", "-c", program]):
                failures.append(f"README.md::{backend}")
        return Outcome(len(BACKENDS) - len(failures), len(failures), 0, tuple(failures))

    def tests(self, paths: Sequence[str], jobs: int) -> Outcome:
        """Run some tests with pytest."""
        report = HOME / f"{self.level}-{self.python}.xml"
        report.unlink(missing_ok=True)
        workers = jobs if jobs > 1 else 0  # a single worker that crashes leaves pytest waiting
        command = [self.folder / "bin" / "python", "-m", "pytest", "-n", str(workers), "-q", "--tb=short"]
        self._run([*command, f"--junitxml={report}", *paths])
        if not report.exists():
            raise SystemExit(f"pytest ended without a report, on Python {self.python}, {self.level} versions")
        return outcome(report.read_text())

    def _run(self, command: Sequence[Any]) -> int:
        # What Python compiles is kept, as the Makefile has it: a hundred processes import the same.
        own = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}
        return subprocess.run(command, cwd=ROOT, env=os.environ | own).returncode


def record(environment: Environment, versions: Mapping[str, str], outcomes: Mapping[str, Outcome]) -> None:
    """Keep what came out in the file of results, beside what other suites gave with these versions of everything."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    entry = {
        "level": environment.level,
        "python": environment.python,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": {name: versions[name] for name in SHOWN},
        "outcomes": {name: dataclasses.asdict(found) for name, found in outcomes.items()},
    }
    same = [x for x in results if (x["level"], x["python"]) == (entry["level"], entry["python"])]
    for before in same:
        if before["versions"] == entry["versions"]:
            entry["outcomes"] = {**before["outcomes"], **entry["outcomes"]}
    kept = [x for x in results if x not in same]
    kept.append(entry)
    kept.sort(key=lambda x: (LEVELS.index(x["level"]), numbers(x["python"])))
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """The results as a table of Markdown: a row for each environment, its suites together."""
    head = ["versions", "Python", *SHOWN, "passed / failed / skipped", "platform", "date"]
    rows = [
        [
            *(entry["level"], entry["python"]),
            *(entry["versions"][name] for name in SHOWN),
            " / ".join(
                str(sum(x[told] for x in entry["outcomes"].values())) for told in ("passed", "failed", "skipped")
            ),
            *(entry["platform"], entry["date"]),
        ]
        for entry in results
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rows])


def page(text: str, results: Sequence[Mapping[str, Any]]) -> str:
    """A page with the table between its two marks."""
    before, _, rest = text.partition(f"{BEGIN}\n")
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(results)}\n{END}{after}"


def write_table() -> None:
    """Write the table of docs/install.md anew."""
    PAGE.write_text(page(PAGE.read_text(), json.loads(RESULTS.read_text())))


def carried_out(environment: Environment, suites: Sequence[str], arguments: argparse.Namespace) -> bool:
    """Build an environment, run everything in it, say and keep what came out; whether all passed."""
    versions = environment.build()
    shown = ", ".join(f"{name} {versions[name]}" for name in SHOWN)
    print(f"== {environment.level} on Python {environment.python}: {shown}", flush=True)
    outcomes = {"quickstarts": environment.quickstarts()}
    for name in suites:
        outcomes[name] = environment.tests(SUITES[name], arguments.jobs)
        if not arguments.fast:
            record(environment, versions, outcomes)
            write_table()
    if not arguments.keep:
        shutil.rmtree(environment.folder)
    for name, found in outcomes.items():
        numbers_of = f"{found.passed} passed, {found.failed} failed, {found.skipped} skipped"
        print(f"{environment.level} on Python {environment.python}, {name}: {numbers_of}")
        print("".join(f"   failed: {x}\n" for x in found.failures), end="", flush=True)
    return not any(x.failed for x in outcomes.values())


def main() -> None:
    """Carry out what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=(*LEVELS, "table"))
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="what is not here is left out")
    parser.add_argument("--suites", nargs="+", choices=tuple(SUITES), default=("contract", "agreement"))
    parser.add_argument("--fast", action="store_true", help="the selection, on the first Python, and nothing recorded")
    parser.add_argument("--jobs", type=int, default=2, help="processes that run tests")
    parser.add_argument("--keep", action="store_true", help="leave the environments in .venv-matrix")
    parser.add_argument("--torch-index", default="", help="where the builds of torch for the CPU lie")
    arguments = parser.parse_args()
    if arguments.what == "table":
        write_table()
        return
    HOME.mkdir(exist_ok=True)
    uv = get_uv()
    index = arguments.torch_index if arguments.torch_index and answers(arguments.torch_index) else ""
    held = ""
    if arguments.fast and not index:
        held = pins((ROOT / "constraints.txt").read_text())["torch"]
        print(f"no index of torch's builds for the CPU, and others bring 4 GB: torch {held} stands for the oldest")
    found = {version: interpreter(version, uv) for version in arguments.python}
    for version, path in found.items():
        if path is None:
            print(f"no Python {version} here: left out")
    here = [
        Environment(arguments.what, version, path, uv, index, held)
        for version, path in found.items()
        if path is not None
    ]
    if not here:
        raise SystemExit(f"none of these Pythons is here: {', '.join(arguments.python)}")
    suites = ("selection",) if arguments.fast else arguments.suites
    passed = [carried_out(x, suites, arguments) for x in (here[:1] if arguments.fast else here)]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
