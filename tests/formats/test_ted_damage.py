"""TED's files that lie, or are none: errors name the file, nothing is read from elsewhere, and memory stays small."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import resource
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb import ted
from tests.support import backends
from tests.support.damage import KINDS, refused
from tests.support.ted_model import EDGES, GOES_ON, TERMINATED, fixed, same_form

h5py = pytest.importorskip("h5py", reason="needs h5py")


@pytest.fixture(scope="module")
def flat() -> Any:
    with backends.make("torch") as backend:
        return ted.to_form(EDGES["wrapped, cut at both ends"].filled(backend))


@pytest.fixture(scope="module")
def lanes() -> Any:
    with backends.make("torch") as backend:
        return ted.to_form(fixed([GOES_ON, TERMINATED, GOES_ON], 4, lanes=2).filled(backend))


def changed(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def refuse(place: Path, message: str | None = None, most: int = 2**23) -> None:
    """It is a ValueError that names the place, and took little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message) as caught:
            ted.to_form(place)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(place) in str(caught.value)
    assert peak < most, peak


# ------------------------------------------------------------ directories


@pytest.mark.parametrize("name", ["meta.json", "more/meta.json", "shift/meta.json", "functional_rb.json"])
@pytest.mark.parametrize(
    "content",
    [
        b'{"data": NaN}',
        b'{"data": 1, "data": 1}',
        b"[" * 100_000,
        b'{"a": ' * 50_000 + b"1" + b"}" * 50_000,
        b'{"data": ' + b"9" * 5000 + b"}",
        b'{"data": "\xff\xfe"}',
        b"\xef\xbb\xbf{",
        b"",
        b"null",
    ],
)
def test_texts_that_are_none_are_named(name: str, content: bytes, flat: Any, tmp_path: Path) -> None:
    flat.save(tmp_path / "x")
    (tmp_path / "x" / name).write_bytes(content)
    with pytest.raises(ValueError, match="damaged") as caught:
        ted.to_form(tmp_path / "x")
    assert str(tmp_path / "x" / name) in str(caught.value) or name == "functional_rb.json"


@pytest.mark.parametrize("name", ["meta.json", "more/image.memmap", "reward.shape.memmap", "functional_rb.json"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_named(name: str, kind: str, flat: Any, tmp_path: Path) -> None:
    ted.to_form(flat, "nested").save(tmp_path / "x")
    file = tmp_path / "x" / name
    file.unlink()
    with KINDS[kind](file), pytest.raises(ValueError, match=str(file)):
        ted.to_form(tmp_path / "x")


def test_what_the_process_is_short_of_is_no_damage(flat: Any, tmp_path: Path) -> None:
    flat.save(tmp_path / "x")
    with refused(tmp_path / "x" / "action.memmap", errno.EMFILE), pytest.raises(OSError, match=r"action\.memmap"):
        ted.to_form(tmp_path / "x")


@pytest.mark.parametrize("lane", [1, 10**8])
@pytest.mark.parametrize("told", [False, True])
def test_rows_that_are_holes_are_not_read(lane: int, told: bool, lanes: Any, tmp_path: Path) -> None:
    """A file of 6 GB that takes no room, as one that was saved with few steps in it has."""
    lanes.save(tmp_path / "x")
    rows, shape = 6 * 10**9, [6 * 10**9 // lane, lane]
    changed(tmp_path / "x" / "_storage_shape" / "meta.json", data=shape)
    meta = json.loads((tmp_path / "x" / "meta.json").read_text())
    meta["done"]["shape"][0] = rows
    (tmp_path / "x" / "meta.json").write_text(json.dumps(meta))
    os.truncate(tmp_path / "x" / "done.memmap", rows)
    if told:
        changed(tmp_path / "x" / "functional_rb.json", sizes=[60] * min(lane, 2), cursors=[0] * min(lane, 2))
    else:
        (tmp_path / "x" / "functional_rb.json").unlink()
        changed(tmp_path / "x" / "is_full" / "meta.json", data=True)
    refuse(tmp_path / "x")


def test_large_buffers_with_few_steps_are_read_at_the_cost_of_the_steps(tmp_path: Path) -> None:
    with backends.make("torch") as backend:
        case = fixed([GOES_ON, TERMINATED, GOES_ON], 4)
        spec = dataclasses.replace(case.spec, capacity=10**6)
        items, _ = case.batch()
        made = ted.to_form(backend.add(backend.init(spec), backend.tree(items)))
    made.save(tmp_path / "x")
    tracemalloc.start()
    try:
        same_form(ted.to_form(tmp_path / "x"), made)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(file.stat().st_size for file in (tmp_path / "x").rglob("*.memmap")) > 2 * 10**7
    assert peak < 10**6


def tells(**values: Any) -> Callable[[Path], None]:
    return lambda file: changed(file, **values)


DAMAGES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "a file cut": ("observation.memmap", lambda file: file.write_bytes(file.read_bytes()[:-1]), "expected .* bytes"),
    "no JSON": ("more/meta.json", lambda file: file.write_text("{"), "expected JSON"),
    "no object": ("more/meta.json", lambda file: file.write_text("[]"), "expected a JSON object"),
    "a shift that is a text": ("shift/meta.json", tells(data="x"), "expected a number"),
    "a shift beyond the storage": ("shift/meta.json", tells(data=9), "expected a shift of -4 to 4, got 9"),
    "a shift that is True": ("shift/meta.json", tells(data=True), "expected a number under 'data'"),
    "full by half": ("is_full/meta.json", tells(data=0.5), "expected a number under 'data'"),
    "full twice": ("is_full/meta.json", tells(data=2), "expected a number under 'data'"),
    "no lanes": ("_storage_shape/meta.json", tells(data=[]), "expected the shape of a storage"),
    "lanes without end": ("_storage_shape/meta.json", tells(data=[4, 2**63]), "expected the shape of a storage"),
    "lanes that are True": ("_storage_shape/meta.json", tells(data=[4, True]), "expected the shape of a storage"),
    "another number of steps": ("_storage_shape/meta.json", tells(data=[9]), "leaf 'done'"),
    "another version": ("functional_rb.json", tells(format=2), "expected format 1"),
    "sizes": ("functional_rb.json", tells(sizes=[9]), "do not fit"),
    "a cursor by half": ("functional_rb.json", tells(cursors=[0.5]), "damaged"),
    "nothing told": ("functional_rb.json", lambda file: file.write_text("{}"), "KeyError: 'format'; the file is damag"),
    "a dtype": ("meta.json", tells(action={"dtype": "torch.qint8", "shape": [4, 1]}), "dtypes"),
    "rows": ("meta.json", tells(action={"dtype": "torch.int8", "shape": [3, 0]}), "expected 4 rows"),
    "a kind": ("meta.json", tells(action={"type": "NonTensorData"}), "leaf 'action'"),
    "a shape of shapes": ("meta.json", tells(reward={"dtype": "torch.float32", "shape": [[]]}), "damaged"),
    "a huge shape": ("meta.json", tells(reward={"dtype": "torch.float32", "shape": [1, 10**30]}), "damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damages_are_named(damage: str, flat: Any, tmp_path: Path) -> None:
    name, change, message = DAMAGES[damage]
    flat.save(tmp_path / "x")
    change(tmp_path / "x" / name)
    refuse(tmp_path / "x", message)


def test_missing_files_are_named(flat: Any, tmp_path: Path) -> None:
    flat.save(tmp_path / "flat")
    (tmp_path / "flat" / "reward.memmap").unlink()
    for name in ("flat/reward.memmap", "nowhere/meta.json"):
        with pytest.raises(FileNotFoundError, match=re.escape(name)):
            ted.to_form((tmp_path / name).parent)


def test_a_directory_without_a_form_is_refused_with_the_remedy(flat: Any, tmp_path: Path) -> None:
    flat.save(tmp_path / "storage")
    for call in (ted.to_form, ted.from_form):
        with pytest.raises(FileNotFoundError, match=rf"^ted\.{call.__name__}: .*meta\.json is missing.*'storage'"):
            call(tmp_path)


def test_shapes_that_cannot_be_are_damage(flat: Any, tmp_path: Path) -> None:
    ted.to_form(flat, "nested").save(tmp_path / "x")
    file = tmp_path / "x" / "done.shape.memmap"
    good = np.frombuffer(file.read_bytes(), "<i8").reshape(-1, 2)
    for axis, sizes in ((0, (2**62 + 3, 2**62 - 3)), (0, (-1, -2)), (1, (1, 2))):  # a negative sum; unlike steps
        shapes = good.copy()
        shapes[:2, axis] = sizes
        file.write_bytes(shapes.tobytes())
        refuse(tmp_path / "x", r"done\.shape\.memmap: expected trajectories")
    file.write_bytes(good.tobytes()[:-8])
    refuse(tmp_path / "x", r"done\.shape\.memmap: expected \d+ bytes")


def test_nests_that_contain_themselves_are_damage(flat: Any, tmp_path: Path) -> None:
    flat.save(tmp_path / "x")
    changed(tmp_path / "x" / "meta.json", a={"type": "TensorDict"}, b={"type": "TensorDict"})
    for name in "ab":
        (tmp_path / "x" / name).symlink_to(".")
    refuse(tmp_path / "x", "by a link")


def test_bools_that_are_neither_are_damage(flat: Any, tmp_path: Path) -> None:
    for name in ("done.memmap", "mask.memmap"):
        flat.save(tmp_path / name)
        content = (tmp_path / name / name).read_bytes()
        (tmp_path / name / name).write_bytes(b"\2" + content[1:])
        refuse(tmp_path / name, f"{name}: leaf .*expected 0 or 1 for each bool")


def test_more_leaves_than_files_may_be_open(tmp_path: Path) -> None:
    with backends.make("torch") as backend:
        item = dict(fixed([], 2).spec.item) | {f"x{k}": frb.Unbounded(()) for k in range(200)}
        made = ted.to_form(backend.init(frb.BufferSpec(item, capacity=2)))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 30, limits[1]))
    try:
        made.save(tmp_path / "x")
        made.save(tmp_path / "x.h5")
        same_form(ted.to_form(tmp_path / "x"), made)
        same_form(ted.to_form(tmp_path / "x.h5", "nested"), ted.to_form(made, "nested"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


# ------------------------------------------------------------ HDF5


def written(flat: Any, file: Path) -> Path:
    flat.save(file)
    return file


def again(group: Any, name: str, **options: Any) -> Any:
    """A leaf made anew in another way, empty."""
    old = group[name]
    shape, dtype = options.pop("shape", old.shape), options.pop("dtype", old.dtype)
    del group[name]
    return group.create_dataset(name, shape, dtype, **options)


def virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((2, 1), "int32")
    layout[:] = h5py.VirtualSource("/etc/hostname", "x", (2, 1))
    del file["traj_0/action"]
    file["traj_0"].create_virtual_dataset("action", layout)


def linked(name: str, link: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file[name]
        file[name] = link(file) if callable(link) else link

    return change


def tangled(file: Any) -> None:
    """A few bytes of groups in groups, which are 2^40 leaves."""
    below = file["traj_0"]
    for k in range(40):
        group = file.create_group(f"traj_0/g{k}") if not k else below.create_group(f"g{k}")
        if k:
            below["other"] = group
        below = group


def full(file: Any) -> None:
    """Rows that nobody wrote are ends all the same."""
    for name in [name for name in file if name.startswith("traj_")]:
        again(file[name], "done", fillvalue=True)


def complex_actions(file: Any) -> None:
    for name in [name for name in file if name.startswith("traj_")]:
        again(file[name], "action", dtype="complex128")


def huge(rows: int, shape: list[int], **options: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        for name in [name for name in file if name.startswith("traj_")][1:]:
            del file[name]
        leaf = again(file["traj_0"], "done", shape=(rows, 1), **options)
        if options:  # a chunk is there, whatever lies in it
            leaf.id.write_direct_chunk((0, 0), b"nothing")
        del file["_storage_shape"], file["is_full"], file.attrs["functional_rb"]
        file["_storage_shape"], file["is_full"] = np.array(shape), True

    return change


DAMAGED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a leaf less": (lambda file: file.__delitem__("traj_1/action"), "expected the leaves .* in traj_1"),
    "complex numbers": (complex_actions, "leaf 'action': expected trajectories of one of the dtypes"),
    "no shift": (lambda file: file.__delitem__("shift"), "expected a value 'shift'"),
    "a soft link": (linked("traj_0/action", h5py.SoftLink("/traj_1/action")), "traj_0/action is a link"),
    "a link to nothing": (linked("traj_0", h5py.SoftLink("/nothing")), "traj_0 is a link"),
    "a link to another file": (linked("traj_0", h5py.ExternalLink("/etc/hostname", "/")), "traj_0 is a link"),
    "the same leaf twice": (linked("traj_0/action", lambda file: file["traj_1/action"]), "by another name too"),
    "a group in itself": (lambda file: file["traj_0"].__setitem__("x", file["traj_0"]), "by another name too"),
    "groups in groups, again and again": (tangled, "by another name too"),
    "rows in another file, virtually": (virtual, "leaf 'action': expected numbers in this file"),
    "rows in another file": (
        lambda file: again(file["traj_0"], "action", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)]),
        "leaf 'action': expected numbers in this file",
    ),
    "rows that are ends though nobody wrote them": (full, "leaf 'done': expected numbers in this file"),
    "references": (lambda file: again(file["traj_0"], "action", dtype=h5py.ref_dtype), "leaf 'action': expected traj"),
    "texts": (lambda file: again(file["traj_0"], "action", dtype=h5py.string_dtype()), "leaf 'action': expected traj"),
    "structures": (lambda file: again(file["traj_0"], "action", dtype="i4,i4"), "leaf 'action': expected traj"),
    "a scalar": (lambda file: again(file["traj_0"], "action", shape=()), "leaf 'action': expected traj"),
    "nothing at all": (linked("traj_0/action", h5py.Empty("i4")), r"x\.h5: "),
    "another dtype than it says": (
        lambda file: file["traj_0/action"].attrs.__setitem__("dtype", "bfloat16"),
        "leaf 'action': expected traj",
    ),
    "no JSON": (lambda file: file.attrs.__setitem__("functional_rb", "{"), "functional_rb: expected JSON"),
    "no text": (lambda file: file.attrs.__setitem__("functional_rb", np.arange(3)), "functional_rb: expected JSON"),
    "too deep": (lambda file: file.attrs.__setitem__("functional_rb", "[" * 50_000), "functional_rb: expected JSON"),
    "no spec": (lambda file: told(file, spec=[1]), "functional_rb: from_json"),
    "a spec of nonsense": (lambda file: told(file, capacity=-1), r"functional_rb: from_json: .*BufferSpec\.capacity"),
    "is_full by text": (linked("is_full", "yes"), "expected numbers as is_full"),
    "is_full, seven times": (linked("is_full", 7), "expected is_full as 0 or 1"),
    "many shifts": (linked("shift", np.zeros(3, int)), "expected numbers as shift"),
    "a shape without end": (
        lambda file: again(file, "_storage_shape", shape=(2**50,), chunks=(8,)),
        "expected numbers as _storage_shape",
    ),
    "a group for a number": (
        lambda file: (file.__delitem__("shift"), file.create_group("shift")),
        "expected numbers as shift",
    ),
    "groups of one number": (lambda file: file.copy("traj_0", "traj_00"), "have the same number"),
    "rows without end": (huge(2**50, [2**50]), r"x\.h5: "),
    "lanes without end": (huge(6 * 10**9, [60, 10**8]), r"x\.h5: "),
    "one chunk of many": (huge(2**50, [2**50], chunks=(64, 1)), "next to nothing"),
    "a chunk without end": (huge(2**31, [2**31], chunks=(2**31, 1), compression="gzip"), "chunks that memory has"),
}


def told(file: Any, **values: Any) -> None:
    found = json.loads(file.attrs["functional_rb"])
    found.update(values) if "spec" in values else found["spec"]["spec"].update(values)
    file.attrs["functional_rb"] = json.dumps(found)


@pytest.mark.parametrize("lie", DAMAGED)
def test_files_of_hdf5_that_lie_are_damage(lie: str, flat: Any, tmp_path: Path) -> None:
    change, message = DAMAGED[lie]
    file = written(flat, tmp_path / "x.h5")
    with h5py.File(file, "r+") as opened:
        change(opened)
    refuse(file, message)


def test_what_is_no_hdf5_is_named(flat: Any, tmp_path: Path) -> None:
    file = written(flat, tmp_path / "x.h5")
    content = file.read_bytes()
    for part in (b"", b"no such file", content[:100], content[: len(content) // 2], content[::-1]):
        file.write_bytes(part)
        refuse(file, "cannot be read|damaged")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ted.to_form(tmp_path / "nowhere.h5")
    for kind, make in KINDS.items():
        other = tmp_path / f"{kind}.h5"
        with make(other), pytest.raises(ValueError, match=str(other)):
            ted.to_form(other)


def test_a_filter_that_is_missing_is_named(flat: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.h5"
    flat.save(file, compression="gzip")
    content = file.read_bytes()
    assert content.count(b"deflate") > 0
    changed = content.replace(b"\x01\x00\x08\x00\x01\x00\x01\x00deflate", b"\x77\x7f\x08\x00\x00\x00\x01\x00deflate")
    assert changed != content
    file.write_bytes(changed)
    refuse(file, "cannot be read|damaged")


def test_what_there_is_to_tell_may_be_long(tmp_path: Path) -> None:
    """HDF5 has room for 64 KiB in an attribute."""
    with backends.make("torch") as backend:
        bounds = frb.Bounded(np.arange(9000) / 7, 10_000.0, (9000,))
        made = ted.to_form(backend.init(frb.BufferSpec({**fixed([], 1).spec.item, "bounds": bounds}, capacity=1)))
    made.save(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5") as file:
        assert {"functional_rb.0", "functional_rb.1"} <= set(file.attrs)
    assert ted.to_form(tmp_path / "x.h5").spec == made.spec


def test_classes_that_are_not_known_are_told_with_the_file(flat: Any, tmp_path: Path) -> None:
    flat.save(tmp_path / "x")
    file = tmp_path / "x" / "functional_rb.json"
    found = json.loads(file.read_text())
    found["spec"]["spec"]["item"] = {"type": "dataclass", "name": "there:Known", "parts": {}}
    file.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=rf"{tmp_path}/x: functional_rb: from_json: .*not among those known"):
        ted.to_form(tmp_path / "x")
