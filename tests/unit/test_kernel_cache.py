"""Kernels are kept on disk: out of date when what they are made of is, and not before; a bad cache is no cache."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import functional_rb
from functional_rb.cpu_kernels import beforehand, cache, descriptor, fixed_point, folder, xla_frame
from functional_rb.cpu_kernels.content import content_of
from functional_rb.ops import fixed_point as exact

PACKAGE = Path(functional_rb.__file__).parent
PROGRAM = """
import numpy as np
from functional_rb.cpu_kernels import descriptor, fixed_point
import functional_rb as frb
spec = frb.BufferSpec(item=(), capacity=4, sampler=frb.Prioritized(alpha=1.0))
print(fixed_point.stored_value(descriptor.encode(spec), np.float32(1e38).view(np.int32)))
"""
COMPILES = "compiles kernels"


def test_only_what_a_kernel_is_made_of_is_compiled_anew(tmp_path: Path) -> None:
    copy = tmp_path / "functional_rb"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "FUNCTIONAL_RB_CACHE": str(tmp_path / "cache")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # Python does not see an edit in the same second that keeps the size

    def edit(name: str, old: str, new: str) -> None:
        text = (copy / name).read_text()
        assert old in text
        (copy / name).write_text(text.replace(old, new, 1))

    def run() -> tuple[float, bool]:
        """The largest value that is stored, and whether anything was compiled."""
        command = [sys.executable, "-c", PROGRAM]
        ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        return float(ran.stdout), COMPILES in ran.stderr

    assert run() == (2.0**95, True)
    kept = sorted((tmp_path / "cache").iterdir())
    edit("cpu_kernels/fixed_point.py", '"""`2 ** y` for', '"""Another docstring, of\n\n    more lines, of `2 ** y` for')
    edit("cpu_kernels/fixed_point.py", "    whole = np.int64(beta)", "    # A comment.\n    whole = np.int64(beta)")
    edit("cpu_kernels/buffer.py", "SPARSE = 2", "SPARSE = 3")  # a kernel, and none that this one calls
    edit("ops/fixed_point.py", '"""Powers of', '"""The powers of')
    edit("buffer/checks.py", "def ", "NEW = 1\n\n\ndef ")
    assert run() == (2.0**95, False)
    assert sorted((tmp_path / "cache").iterdir()) == kept
    edit("ops/fixed_point.py", "MAX_EXPONENT: Final = 95", "MAX_EXPONENT: Final = 94")
    assert run() == (2.0**94, True)


def test_what_a_kernel_is_made_of() -> None:
    def made(source: str, **names: Any) -> str:
        """The hash of what a source defines as `f`."""
        space = {"__name__": "functional_rb.cpu_kernels.made_up", "np": np, "numba": numba, **names}
        exec(source, space)
        return content_of(space["f"])

    plain = made("def f(x): return x + K", K=1)
    assert plain == made("# Comment.\n\ndef f(x):\n  'Docstring.'\n  return x + K", K=1)
    assert plain == made("def f(x): return x + K\nOTHER = 3", K=1)
    others = [
        made("def f(x): return x - K", K=1),
        *(made("def f(x): return x + K", K=other) for other in (2, 1.0, True, np.int64(1), np.int32(1), (1, 2))),
        *(made("def f(x): return x + K", K=np.array(table, np.int32)) for table in ([1, 2], [1, 3])),
        *(made(f"def g(x): return x * {k}\ndef f(x): return g(x) + 1") for k in (2, 3)),
        *(made(f"g = numba.njit(lambda x: x * {k})\ndef f(x): return g(x) + 1") for k in (2, 3)),
        *(made("def h(k):\n  def f(x): return x + k\n  return f\nf = h(K)", K=k) for k in (2, 3)),
        *(made("def f(x): return [y * K for y in x]", K=k) for k in (2, 3)),
        *(made(f"def f(x): return fixed.{name} + x", fixed=fixed_point) for name in ("BIAS", "C1", "times", "exp2")),
        made("def f(x): return np.sin(x)"),
        made("def f(x): return np.cos(x)"),
    ]
    assert len({plain, *others}) == 1 + len(others)
    assert made("def f(x): return at.BIAS + x", at=fixed_point) == made("def f(x): return at.BIAS + x", at=exact)
    with pytest.raises(TypeError, match="a kernel takes"):
        made("def f(x): return x + K", K=descriptor.NO_LEAVES)


# --- what is wrong with the cache ------------------------------------------------------------------------------------


def double(x: Any) -> Any:
    return 2 * x


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where kernels are kept."""
    monkeypatch.setattr(cache, "_said", set())
    path = tmp_path / "kernels"
    monkeypatch.setenv("FUNCTIONAL_RB_CACHE", str(path))
    folder.folder.cache_clear()
    yield path
    monkeypatch.undo()
    folder.folder.cache_clear()


def loads(argument: float = 4) -> bool:
    """Call a kernel as a new process does: whether it was loaded from the disk."""
    kernel = cache.compiled(double)
    assert kernel(argument) == 2 * argument
    return sum(kernel.stats.cache_hits.values()) == 1


def the_file(path: Path) -> Path:
    (file,) = (file for file in path.iterdir() if file.suffix == ".kernel")
    return file


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def turn_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def make_whole_nonsense(file: Path) -> None:
    content = pickle.dumps(("nonsense",))
    file.write_bytes(hashlib.sha256(content).digest() + content)


def make_a_directory(file: Path) -> None:
    file.unlink()
    (file / "within").mkdir(parents=True)


@pytest.mark.parametrize(
    ("spoil", "mended"),
    [
        (lambda file: file.write_bytes(b""), True),
        (lambda file: file.write_bytes(b"nonsense" * 10), True),
        (cut, True),
        (turn_a_bit, True),
        (make_whole_nonsense, True),
        (lambda file: file.unlink(), True),
        (lambda file: shutil.rmtree(file.parent), True),
        (make_a_directory, False),
    ],
    ids=["empty", "garbage", "cut", "a bit", "nonsense", "missing", "no folder", "a directory"],
)
def test_a_bad_cache_is_no_cache(spoil: Callable[[Path], object], mended: bool, directory: Path) -> None:
    assert [loads(), loads()] == [False, True]
    spoil(the_file(directory))
    assert [loads(), loads()] == [False, mended]
    if mended:
        closed = 0o022 if os.geteuid() == 0 else 0o077  # what root compiles all may read
        assert the_file(directory).stat().st_mode & closed == 0
        assert directory.stat().st_mode & closed == 0


def put_a_file(path: Path) -> None:
    path.write_bytes(b"")


def open_to_others(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def anothers(path: Path) -> None:
    path.mkdir()
    os.chown(path, 4321, 4321)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (put_a_file, "Not a directory"),
        (open_to_others, "others may write to .*chmod go-w"),
        pytest.param(
            anothers,
            "belongs to another user; set FUNCTIONAL_RB_CACHE",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away"),
        ),
    ],
    ids=["a file", "open to others", "another's"],
)
def test_without_a_folder_every_process_compiles(
    spoil: Callable[[Path], None], reason: str, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(directory)
    assert [loads(), loads()] == [False, False]
    (said,) = caplog.messages
    assert "compiles kernels" in said
    assert re.search("cannot be kept.*" + reason, said)
    assert directory.is_file() or not list(directory.iterdir())


class Told:
    """What a forged kernel holds: whoever unpickles it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def forge(file: Path, marker: Path) -> None:
    """Put what runs code of somebody else in a kernel's place, whole."""
    content = pickle.dumps(Told(marker))
    file.unlink()
    file.write_bytes(hashlib.sha256(content).digest() + content)


def link_to_a_forged_one(file: Path) -> None:
    os.rename(file, file.parent.parent / "forged")
    file.symlink_to(file.parent.parent / "forged")


def another_folder_in_its_place(file: Path) -> None:
    """As whoever may write to the directory above can do, also after the folder was looked at."""
    folder, above = file.parent, file.parent.parent
    folder.rename(above / "forged")
    folder.symlink_to(above / "forged")
    above.chmod(0o777)


NOT_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
FORGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "anybody may write to it": (lambda file: file.chmod(0o666), "others may write to .*kernel; chmod go-w"),
    "a group may write to it": (lambda file: file.chmod(0o660), "others may write to .*kernel; chmod go-w"),
    "another's": (lambda file: os.chown(file, 4321, 4321), "kernel belongs to another user"),
    "a link": (link_to_a_forged_one, ""),
    "another folder": (another_folder_in_its_place, "others may write to .*above"),
}


@pytest.mark.parametrize("how", [pytest.param(how, marks=NOT_ROOT if how == "another's" else ()) for how in FORGED])
def test_what_others_may_have_written_is_not_run(
    how: str, tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    above, marker = tmp_path / "above", tmp_path / "marker"
    monkeypatch.setenv("FUNCTIONAL_RB_CACHE", str(above / "kernels"))
    assert [loads(), loads()] == [False, True]
    file = the_file(above / "kernels")
    forge(file, marker)
    spoil, reason = FORGED[how]
    spoil(file)
    assert not loads()
    assert not marker.exists()
    assert not reason or re.search(f"are not run: .*{reason}", " ".join(caplog.messages))


def test_the_forged_kernel_of_these_tests_would_be_run(tmp_path: Path, directory: Path) -> None:
    assert not loads()
    forge(the_file(directory), tmp_path / "marker")
    assert not loads()  # as it is no kernel
    assert (tmp_path / "marker").is_dir()


def chain(top: Path, mode: int) -> Path:
    top.mkdir()
    top.chmod(mode)
    return top / "kernels"


def linked(top: Path, mode: int) -> Path:
    """A link in a directory to a folder in another one."""
    (top.parent / "sound").mkdir()
    top.mkdir()
    (top / "kernels").symlink_to("../sound")
    top.chmod(mode)
    return top / "kernels"


def anothers_link(top: Path, mode: int) -> Path:
    path = linked(top, mode)
    os.chown(path, 4321, 4321, follow_symlinks=False)
    return path


def loop(top: Path, _: int) -> Path:
    top.symlink_to(top)
    return top / "kernels"


@pytest.mark.parametrize(
    ("make", "mode", "reason"),
    [
        (chain, 0o755, ""),
        (chain, 0o777, "others may write to .*top; chmod go-w"),
        (chain, 0o775, "others may write to .*top; chmod go-w"),
        (chain, 0o1777, ""),
        (linked, 0o700, ""),
        (linked, 0o1777, ""),
        (linked, 0o777, "others may write to .*top; chmod go-w"),
        pytest.param(anothers_link, 0o1777, "kernels belongs to another user", marks=NOT_ROOT),
        (loop, 0, "Too many levels of symbolic links"),
    ],
)
def test_every_directory_on_the_way_is_looked_at(
    make: Callable[[Path, int], Path], mode: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUNCTIONAL_RB_CACHE", str(make(tmp_path / "top", mode)))
    before = len(os.listdir("/proc/self/fd"))
    found = folder.folder.__wrapped__()
    assert len(os.listdir("/proc/self/fd")) == before
    assert (found.path is None) == bool(reason)
    assert re.search(reason, found.why_not)


@NOT_ROOT
def test_what_root_compiles_all_may_run(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an image that is made by root, and run by somebody else."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        monkeypatch.setenv("FUNCTIONAL_RB_CACHE", f"{place}/kernels")
        umask = os.umask(0o077)
        try:
            assert not loads()
        finally:
            os.umask(umask)
        folder.folder.cache_clear()
        os.seteuid(4321)
        try:
            assert loads()
            assert not loads(2.5)  # of another type, which cannot be kept
        finally:
            os.seteuid(0)


def test_a_full_disk(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # a write fails as on a full disk
    try:
        found = [loads(), loads()]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert found == [False, False]
    assert not list(directory.iterdir())
    assert ["cannot be kept" in said for said in caplog.messages] == [False, True]
    assert "File too large" in caplog.messages[1]
    assert [loads(), loads()] == [False, True]


def test_what_is_said_can_be_turned_off(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("functional_rb")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        assert not loads()
    finally:
        log.setLevel(before)
    assert not capfd.readouterr().err


def test_old_versions_are_forgotten(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "VERSIONS", 2)
    directory.mkdir(mode=0o700)
    name = f"{double.__module__.rpartition('.')[2]}.double"
    ages = {f"{name}-old.kernel": 30, f"{name}-older.kernel": 40, "other-old.kernel": 50}
    ages |= {f"{name}-left.part": 7200, f"{name}-new.part": 10}
    for file, age in ages.items():
        (directory / file).write_bytes(b"")
        os.utime(directory / file, (time.time() - age,) * 2)
    assert not loads()
    left = {file.name for file in directory.iterdir()}
    assert left & ages.keys() == {f"{name}-old.kernel", "other-old.kernel", f"{name}-new.part"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"FUNCTIONAL_RB_CACHE": "/a/b", "NUMBA_CACHE_DIR": "/n", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"NUMBA_CACHE_DIR": "/n", "XDG_CACHE_HOME": "/x"}, "/n/functional_rb"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/functional_rb"),
        ({"XDG_CACHE_HOME": "x"}, "/h/.cache/functional_rb"),
        ({}, "/h/.cache/functional_rb"),
    ],
)
def test_where_kernels_are_kept(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FUNCTIONAL_RB_CACHE", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/h", **variables}.items():
        monkeypatch.setenv(name, value)
    assert folder._wanted() == Path(expected)


def test_kernels_are_compiled_beforehand() -> None:
    """Of the types that calls have: see `tests.support.beside_allocations`."""
    command = [sys.executable, "-m", "functional_rb", "compile"]
    ran = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d+ kernels compiled in \d+ s, \d+ were there; for the processor .*\n", ran.stdout)


def test_a_kernel_is_compiled_once_for_all_that_call_it() -> None:
    """For Python and for XLA's handlers, whatever constants they call it with: half of all compiling is saved."""
    handed = (numba.types.UniTuple(numba.types.int64, 2), numba.types.int64)
    xla_frame.vector.compile(handed)
    assert xla_frame.vector.overloads[handed].signature.return_type == beforehand.ENCODED
    inner = cache.compiled(lambda x: x + 1)
    outer = numba.njit(lambda: inner(1) + inner(2))
    assert outer() == 5
    assert inner.signatures == [(numba.types.int64,)]
