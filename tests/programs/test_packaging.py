"""What is installed, what importing it loads, and what the wheel holds."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version
from torch.utils import _pytree as pytree

import functional_rb
import functional_rb as frb
import torch_backend
from functional_rb import __main__ as command_line
from tests.support import gpu
from tests.support.children import program
from tests.support.tools import PROJECT, ROOT, tool

PACKAGES = ("functional_rb", "jax_backend", "torch_backend")


pin = tool("pin")
check_wheel = tool("check_wheel")


def names(lines: list[str]) -> set[str]:
    """The names of the distributions that some requirements name."""
    return {pin.canonical(Requirement(line).name) for line in lines}


# -- imports


OF_TEXT = {"tokenizers", "transformers", "datasets", "pyarrow"}
# What takes long to import, and only some need.
LATE = {"torch._dynamo", *(f"functional_rb.{name}" for name in ("datasets", "ted", "testing", "text", "trees"))}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Checkpoints of what modules define that are imported late."""
    spec = frb.trees.TreeSpec({"x": frb.Unbounded((3,))}, 4, 2)
    root = frb.trees.Expansion({"x": torch.zeros(1, 3)}, torch.zeros(1, 2), torch.zeros(1))
    text = frb.text.RewardData(torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, 3, dtype=torch.bool))
    values = {
        "tree": torch_backend.init(spec, items=root),
        "forest": torch_backend.init(frb.trees.ForestSpec({"x": frb.Unbounded((3,))}, frb.Categorical(2), 4, 2)),
        "map": torch_backend.init(frb.HashMapSpec({"x": frb.Unbounded((3,))}, 4)),
        "text": frb.text.PairwiseDataset(text, text),
    }
    folder = tmp_path_factory.mktemp("saved")
    for name, value in values.items():
        frb.save(value, folder / name)
    return [folder / name for name in values]


@pytest.mark.parametrize(
    ("package", "foreign"),
    [
        ("functional_rb", {"jax", "jaxlib", "torch", "tensordict", *OF_TEXT}),
        ("jax_backend", {"torch", "tensordict", "torchrl", *OF_TEXT}),
        ("torch_backend", {"jax", "jaxlib", "flax", "chex", "tensordict", *OF_TEXT}),
    ],
)
def test_import_neither_needs_nor_looks_for_what_is_not_there(
    package: str, foreign: set[str], saved: list[Path]
) -> None:
    read = [frb.checkpoint.load_spec(path) for path in saved]
    counts = [len(pytree.tree_leaves(frb.load(path, torch_backend))) for path in saved]
    expected = [repr(str(spec)) for spec in read] if package == "functional_rb" else [str(count) for count in counts]
    arguments = program("import_without", package, ",".join(sorted(foreign)), ",".join(sorted(LATE)), *saved)
    run = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == expected


# -- extras


def test_core_requires_numpy_only() -> None:
    assert names(PROJECT["dependencies"]) == {"numpy"}


def test_extras_are_those_promised() -> None:
    brought = PROJECT["optional-dependencies"]
    assert set(brought) == {
        *("jax", "torch", "tensordict", "checkpoint", "datasets", "hdf5", "plot", "text", "trees", "testing"),
        *("ray", "transfer-queue", "examples", "bench", "dev"),
    }
    assert names(brought["jax"]) == {"jax"}
    assert names(brought["torch"]) == {"torch"}
    assert names(brought["tensordict"]) == {"functional-rb", "tensordict"}
    for extra in brought.keys() - {"text", "dev"}:
        assert not names(brought[extra]) & (OF_TEXT - {"pyarrow"})
    for extra in ("examples", "bench", "dev"):
        assert {"jax", "torch", "numpy"} <= {requirement.name for requirement in pin.requirements([extra])}


def test_ranges_are_open() -> None:
    for requirement in pin.requirements(PROJECT["optional-dependencies"]):
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators == {">="}, f"{requirement} is not an open range"


@pytest.mark.parametrize("extra", ["jax", "torch"])
def test_extra_of_a_backend_brings_nothing_of_the_other(extra: str) -> None:
    brought = set(pin.closure([extra]))
    assert {extra, "numpy"} <= brought
    assert "numba" not in brought
    assert not brought & check_wheel.FOREIGN[extra]


def test_constraints_pin_all_that_is_installed_for_development() -> None:
    pinned = check_wheel.pins((ROOT / "constraints.txt").read_text())
    missing = set(pin.closure(["dev"])) - set(pinned)
    assert not missing, f"constraints.txt lacks {sorted(missing)}; run `make constraints`"


def test_constraints_satisfy_what_pyproject_accepts() -> None:
    pinned = check_wheel.pins((ROOT / "constraints.txt").read_text())
    for requirement in pin.requirements(PROJECT["optional-dependencies"]):
        version = pinned[pin.canonical(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}, but constraints.txt pins {version}"


def test_constraints_are_exact_sorted_and_portable() -> None:
    text = (ROOT / "constraints.txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line), line
    found = [line.partition("==")[0] for line in lines]
    assert found == sorted(set(found))


# -- versions


def test_one_version_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    version = functional_rb.__version__
    assert "version" in PROJECT["dynamic"]
    assert metadata.version("functional-rb") == version
    assert str(Version(version)) == version
    with pytest.raises(SystemExit, match=r"^0$"):
        command_line.main(["--version"])
    assert capsys.readouterr().out == f"functional_rb {version}\n"


def test_supported_python_is_the_one_that_ruff_and_mypy_check_for() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert tools["mypy"]["python_version"] == oldest
    assert tools["ruff"]["target-version"] == "py" + oldest.replace(".", "")


# -- the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without the extension, which takes long to compile: `make wheel-check` builds one with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUNCTIONAL_RB_NATIVE", "0")
        built: Path = check_wheel.build_wheel(tmp_path_factory.mktemp("wheel"), "--wheel")
    return built


@pytest.fixture(scope="module")
def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_holds_the_three_packages_and_nothing_else(members: set[str]) -> None:
    info = f"functional_rb-{functional_rb.__version__}.dist-info"
    assert {name.partition("/")[0] for name in members} == {*PACKAGES, info}
    assert f"{info}/licenses/LICENSE" in members


def test_wheel_holds_every_module_and_the_type_markers(members: set[str]) -> None:
    sources = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for pattern in ("*.py", "*.pyi", "py.typed", "sources.json", "native/src/*")
        for path in (ROOT / package).rglob(pattern)
    }
    assert {f"{package}/{name}" for package in PACKAGES for name in ("__init__.py", "py.typed")} <= sources
    assert {name for name in members if name.startswith(tuple(f"{p}/" for p in PACKAGES))} == sources


def test_wheel_without_the_extension_is_for_all_machines_and_says_what_it_needs(wheel: Path) -> None:
    version = functional_rb.__version__
    assert wheel.name == f"functional_rb-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        said = email.message_from_bytes(archive.read(f"functional_rb-{version}.dist-info/METADATA"))
    assert said["Version"] == version
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Requires-Python"] == PROJECT["requires-python"]
    assert set(said.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert dict(url.split(", ") for url in said.get_all("Project-URL")) == PROJECT["urls"]
    assert said["Author"]
    assert said["Keywords"].split(",") == PROJECT["keywords"]
    assert said["Description-Content-Type"] == "text/markdown"
    assert said.get_payload(decode=True).decode() == (ROOT / "README.md").read_text()


# -- the README, which the package index shows too


def test_links_of_the_readme_are_absolute() -> None:
    """They are written as references by path, which have the repository's address at the end of the page."""
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"\]\((?!https://)[^)]*\)", text)
    references = dict(re.findall(r"^\[(\S+)\]: (\S+)$", text, re.MULTILINE))
    body = re.sub(r"^\[\S+\]: .*$", "", text, flags=re.MULTILINE)
    used = {label or text for text, label in re.findall(r"\[([^][]+)\](?:\[([^][]+)\])?", body)}
    assert used == set(references)
    assert len(used) > 20
    for path, address in references.items():
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        assert address == f"{PROJECT['urls']['Homepage']}/{kind}/main/{path}"
        file, _, anchor = path.partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(), re.MULTILINE) if anchor else []
        anchors = [re.sub(r"[^\w -]", "", heading).replace(" ", "-").lower() for heading in headings]
        assert (ROOT / file).exists()
        assert not anchor or anchor in anchors


def test_wheel_with_the_extension_is_for_machines_like_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all Pythons since the oldest one that is supported, as the extension says of itself."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    hook, built = tool("build_hook"), []
    native = hook.native_build.ROOT / "functional_rb"
    monkeypatch.setattr(hook.native_build, "build", lambda: built.append(0) or native / "_native.abi3.so")
    monkeypatch.setattr(hook.native_build, "build_gpu", lambda: native / "native" / "gpu-1.fatbin")
    filled = {}
    for switch in ("0", "1"):
        monkeypatch.setenv("FUNCTIONAL_RB_NATIVE", switch)
        filled[switch] = {"pure_python": True, "artifacts": []}
        made = hook.NativeHook(str(ROOT), {}, None, None, str(ROOT), "wheel")
        made.initialize("standard", filled[switch])
        assert len(built) == int(switch)
        assert made.dependencies() == ([] if hook.native_build.compiler() or switch == "0" else ["ziglang"])
    assert filled["0"] == {"pure_python": True, "artifacts": []}
    oldest = PROJECT["requires-python"].removeprefix(">=").replace(".", "")
    assert not filled["1"]["pure_python"]
    assert re.fullmatch(rf"cp{oldest}-abi3-(linux|macosx|win)\w*", filled["1"]["tag"])
    assert filled["1"]["artifacts"] == ["/functional_rb/_native.abi3.so", "/functional_rb/native/gpu-1.fatbin"]
    editable: dict[str, list[str]] = {"artifacts": []}
    hook.NativeHook(str(ROOT), {}, None, None, str(ROOT), "wheel").initialize("editable", editable)
    assert editable["artifacts"] == ["/functional_rb/_native.abi3.so"]
    major, minor = (int(x) for x in PROJECT["requires-python"].removeprefix(">=").split("."))
    limited = (ROOT / "functional_rb/native/src/exports.h").read_text()
    assert f"#define Py_LIMITED_API 0x{major:02X}{minor:02X}0000" in limited


# -- the tools of CI, which have to notice


def test_quickstart_is_found_by_its_info_string() -> None:
    blocks = [("", "no"), (" jax", "a = 1"), (" torch", "b"), (" jax", "c"), (" jaxlike", "no")]
    readme = "text\n".join(f"```python{info}\n{code}\n```\n" for info, code in blocks)
    assert check_wheel.quickstart(readme, "jax") == "a = 1\n\nc\n"
    assert check_wheel.quickstart(readme, "torch") == "b\n"


def test_missing_quickstart_is_named() -> None:
    with pytest.raises(ValueError, match=r'README\.md has no quickstart for torch: expected .* "```python torch"'):
        check_wheel.quickstart("```python jax\na\n```\n", "torch")


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ({"jax": "1", "pip": "9"}, []),
        ({"jax": "1+local"}, []),
        ({"jax": "2"}, ["[jax] brought jax 2, and constraints.txt says 1"]),
        ({"jax": "1", "six": "3"}, ["[jax] brought six 3, and constraints.txt says nothing"]),
        ({"jax": "1", "torch": "1"}, ["[jax] brought torch"]),
        ({"torch": "1"}, ["[jax] brought torch", "[jax] did not bring jax"]),
    ],
)
def test_wheel_check_complains(installed: dict[str, str], expected: list[str]) -> None:
    assert check_wheel.complaints("jax", installed, {"jax": "1", "torch": "1"}) == expected


def test_ci_can_be_started() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize(
    ("target", "program"),
    [
        ("demo", "examples/dqn_jax.py"),
        ("demo-torch", "examples/dqn_torch.py"),
        ("bench", "-m benchmarks"),
        ("test", "-m pytest"),
        ("wheel", "-m build"),
        ("wheel-check", "tools/check_wheel.py"),
    ],
)
def test_make_target_installs_and_then_runs(target: str, program: str, tmp_path: Path) -> None:
    command = ["make", "-n", "-C", str(ROOT), f"VENV={tmp_path / 'fresh'}", target]
    plan = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    steps = [plan.find(part) for part in ("-m venv", "--no-deps torch", "--editable", program)]
    assert -1 not in steps, plan
    assert steps == sorted(steps), plan
    if path := re.fullmatch(r"\S+\.py", program):
        assert (ROOT / path[0]).is_file()


@pytest.mark.long
def test_the_suite_for_a_gpu_says_that_it_is_skipped() -> None:
    if not gpu.missing():
        pytest.skip("there is a GPU here")
    arguments = ["-n0", "-q", "-p", "no:cacheprovider", "tests/unit/test_schedules.py"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        env={**os.environ, "TESTS_DEVICE": "gpu"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"no GPU for (jax|torch)( and torch)? here\n\d+ skipped", ran.stdout), ran.stdout


def test_no_test_module_imports_another() -> None:
    """What several of them use lies in tests/support."""
    imports = re.compile(r"^ *(from|import) tests\.(\w+\.)*test_\w+|^ *from tests\.\w+ import .*\btest_", re.MULTILINE)
    assert [path for path in (ROOT / "tests").rglob("*.py") if imports.search(path.read_text())] == []
