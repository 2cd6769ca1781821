"""Checkpoints: whole states, from and to either backend, whatever was saved there before."""

from __future__ import annotations

import importlib
import json
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import safetensors.numpy
import torch

import functional_rb as frb
import jax_backend
import torch_backend
from tests.support import backends, lives
from tests.support.backends import Backend
from tests.support.checkpoints import bits, files, small_blocks, steps, stored_bits
from tests.support.members import BATCH, ITEM, MEMBERS

STEP = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((2,)), "done": frb.Binary()}
IMAGES = {"image": frb.Unbounded((32, 32), "bfloat16"), "flags": frb.Binary((1024,)), "done": frb.Binary()}


# ------------------------------------------------------------ round trips


def went_on(backend: Backend, spec: frb.BufferSpec, path: Path) -> Any:
    """A state that lived on, beside one that was saved and loaded at every step."""
    state = other = lives.begin(backend, spec)
    for k, given in enumerate(lives.inputs(spec)):
        keys = lives.keys(backend, k)
        state, seen = lives.step(backend, state, given, keys, look=False)
        other, seen_there = lives.step(backend, other, given, keys, look=False)
        assert lives.bits(backend, seen) == lives.bits(backend, seen_there)
        frb.save(state, path, incremental=k % 2 == 1)
        other = frb.load(path, backend.rb, frb.checkpoint.LoadOptions(mmap=k % 2 == 1))
        assert lives.state_bits(backend, other) == lives.state_bits(backend, state)
    return state


@pytest.mark.few(12)
@pytest.mark.parametrize("name", MEMBERS)
def test_members_come_back_and_go_on_as_if_never_stopped(name: str, tmp_path: Path) -> None:
    spec = MEMBERS[name].spec
    with backends.make("torch") as torch_, backends.make("jax") as jax_:
        state = went_on(torch_, spec, tmp_path)
        there = frb.load(tmp_path, "jax")
        assert lives.state_bits(jax_, there) == lives.state_bits(torch_, state)
        frb.save(there, tmp_path / "jax")
        assert stored_bits(tmp_path / "jax") == bits(state)
        assert frb.save(there, tmp_path, incremental=True).written < 10_000


def test_going_on_on_jax(tmp_path: Path) -> None:
    with backends.make("jax") as backend:
        went_on(backend, frb.BufferSpec(ITEM, 12, frb.Prioritized(), batch_size=BATCH), tmp_path)


def test_donating_what_was_loaded_leaves_the_checkpoint_alone(tmp_path: Path) -> None:
    state = jax_backend.add(jax_backend.init(frb.BufferSpec(STEP, 8)), steps(0, 8))
    frb.save(state, tmp_path)
    before = stored_bits(tmp_path)
    for mmap in (False, True):
        loaded = frb.load(tmp_path, jax_backend, frb.checkpoint.LoadOptions(mmap=mmap))
        added = jax.jit(jax_backend.add, donate_argnums=0)(loaded, steps(8, 3))
        assert np.asarray(jax_backend.items(added)["id"]).tolist() == [8, 9, 10, 3, 4, 5, 6, 7]
        assert stored_bits(tmp_path) == before


@pytest.mark.parametrize("sampler", [frb.Prioritized(), frb.Slices(2, strict_length=False)], ids=["sums", "counts"])
def test_nodes_of_the_tree_are_computed_to_the_same_bits(sampler: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    state = torch_backend.init(frb.BufferSpec(STEP, 5000, sampler))
    for k in range(3):
        state = torch_backend.add(state, steps(1300 * k, 1300))
        if sampler.has_priorities:
            some = rng.integers(0, 1300 * (k + 1), 900).astype(np.int32)
            new = (10.0 ** rng.uniform(-9, 9, 900) * (rng.random(900) < 0.8)).astype(np.float32)
            state = torch_backend.update(state, some, new)
    frb.save(state, tmp_path)
    loaded = frb.load(tmp_path, "torch")
    assert loaded.tree.numpy().tobytes() == state.tree.numpy().tobytes()


@pytest.mark.parametrize("spec", [frb.BufferSpec((), 3), frb.BufferSpec({"x": frb.Unbounded((0, 2))}, 3)])
def test_items_without_bytes(library: Backend, spec: frb.BufferSpec, tmp_path: Path) -> None:
    batch = {"x": np.zeros((2, 0, 2), np.float32)} if spec.plan.leaves else None
    state = library.rb.init(spec)
    state = state if batch is None else library.rb.add(state, library.tree(batch))
    frb.save(state, tmp_path)
    assert int(library.rb.size(frb.load(tmp_path, library.library))) == (0 if batch is None else 2)


def test_specs_come_back_with_what_is_known(tmp_path: Path) -> None:
    spec = frb.BufferSpec(Pair(frb.Unbounded(()), frb.Binary()), 3)
    frb.save(torch_backend.init(spec), tmp_path)
    with pytest.raises(ValueError, match="known"):
        frb.load(tmp_path, "torch")
    assert frb.load(tmp_path, "torch", frb.checkpoint.LoadOptions(known=[Pair])).spec == spec
    replaced = frb.load(tmp_path, "torch", frb.checkpoint.LoadOptions(known=[Pair]), storage=frb.Device("cpu")).spec
    assert replaced.storage == frb.Device("cpu")
    assert replaced.item == spec.item


@pytest.mark.parametrize("name", ["host", "files", "named files", "objects"])
def test_storages_come_back_and_can_be_exchanged(name: str, library: Backend, tmp_path: Path) -> None:
    rb, item, batch = library.rb, STEP, steps(0, 9)
    if name == "objects":
        item, batch = STEP | {"note": frb.specs.NonTensor()}, batch | {"note": [[k] for k in range(9)]}
    storages = {"files": frb.Memmap(), "named files": frb.Memmap(str(tmp_path / "rows"))}
    spec = frb.BufferSpec(item, 12, frb.Prioritized(), storage=storages.get(name, frb.Host()))
    state = rb.add(rb.init(spec), batch)
    handle = frb.save(state, tmp_path / "saved", background=True)
    newer = rb.add(state, batch)
    expected = stored_bits(tmp_path / "saved") if handle.result(60) else {}
    again = frb.Memmap(str(tmp_path / "again")) if name == "named files" else None
    loaded = frb.load(tmp_path / "saved", library.library, storage=again)
    assert type(loaded) is type(state)
    assert loaded.spec.storage == (again or spec.storage)
    assert np.asarray(rb.items(loaded)["id"]).tolist() == [*range(9), 0, 0, 0]
    if again is not None:
        content = np.fromfile(tmp_path / "again" / "rows.bin", np.int32).reshape(12, -1)
        assert content.tobytes() == expected["rows"][2]
    loaded = rb.add(loaded, batch)
    frb.save(loaded, tmp_path / "saved", incremental=True)
    frb.save(newer, tmp_path / "newer")
    ours, theirs = stored_bits(tmp_path / "saved"), stored_bits(tmp_path / "newer")
    if name == "objects":
        there = [[k] for k in (3, 4, 5, 6, 7, 8, 6, 7, 8, 0, 1, 2)]
        assert rb.items(loaded)["note"].tolist() == rb.items(newer)["note"].tolist() == there
        del ours["rows"], theirs["rows"]  # tokens differ
    assert ours == theirs


class Pair(NamedTuple):
    """A user's."""

    left: Any
    right: Any


def test_states_of_many_at_once_are_refused(tmp_path: Path) -> None:
    spec = frb.BufferSpec(STEP, 4)
    many = jax.tree.map(lambda x: np.stack([x, x]), jax_backend.init(spec))
    with pytest.raises(ValueError, match=r"state\.rows: expected an array of shape \(4, 4\).*save each by itself"):
        frb.save(many, tmp_path)
    with pytest.raises(TypeError, match="outside of jit"):
        jax.jit(lambda state: frb.save(state, tmp_path) and 0)(jax_backend.init(spec))
    assert not files(tmp_path)


def test_arrays_of_another_dtype_are_no_state(library: Backend, tmp_path: Path) -> None:
    """As a cast of all that a program trains makes them: what is there stays there."""
    state = library.add(library.rb.init(frb.BufferSpec(STEP, 4, frb.Prioritized())), steps(0, 3))
    frb.save(state, tmp_path)
    leaves, rebuilt = library.flatten(state)
    cast = rebuilt([library.array(library.numpy(leaf).astype(np.int8)) for leaf in leaves])
    with pytest.raises(TypeError, match=r"state\.\w+: expected an array of dtype \w+32, as the spec says, got int8"):
        frb.save(cast, tmp_path, keep=1)
    assert int(library.rb.size(frb.load(tmp_path, library.rb))) == 3


def test_arguments_are_checked_before_anything_is_touched(tmp_path: Path) -> None:
    state, path = torch_backend.init(frb.BufferSpec(STEP, 4)), tmp_path / "new"
    with pytest.raises(TypeError, match="save: expected a State, or a nest of arrays, got PosixPath"):
        frb.save(path, state)
    with pytest.raises(TypeError, match="save: expected a State"):
        frb.save({}, path, background=True)
    with pytest.raises(ValueError, match="keep: expected 1 or more"):
        frb.save(state, path, keep=0)
    with pytest.raises(TypeError, match="keep: expected an int"):
        frb.save(state, path, keep=True)
    with pytest.raises(ValueError, match="backend: expected jax_backend or torch_backend"):
        frb.load(path, np)
    with pytest.raises(FileNotFoundError, match=r"frb\.save") as found:
        frb.load(path, "torch")
    assert isinstance(found.value, frb.errors.CheckpointError)
    assert frb.checkpoint.checkpoints(path) == []
    assert not path.exists()


# ------------------------------------------------------------ the files


def test_files_are_safetensors_with_the_arrays_as_they_are(tmp_path: Path) -> None:
    state = torch_backend.init(frb.BufferSpec({**STEP, **IMAGES}, 6, frb.Prioritized()))
    for k in range(4):
        batch = steps(2 * k, 2) | {
            "image": torch.full((2, 32, 32), k, dtype=torch.bfloat16),
            "flags": torch.ones((2, 1024), dtype=torch.bool),
        }
        state = torch_backend.add(state, batch)
    info = frb.save(state, tmp_path)
    read = safetensors.numpy.load_file(tmp_path / "0000000001.safetensors")
    assert {name for name in read if "." not in name} == {"rows", "wide_0", "wide_1", "tree", "objects"}
    assert read["rows"].tolist() == state.rows.tolist()
    assert read["tree"].reshape(-1)[:6].tolist() == [1] * 6
    for k in range(2):
        assert read[f"wide_{k}"].tobytes() == bits(state)[f"wide_{k}"][2]
    assert info.nbytes == (tmp_path / "0000000001.safetensors").stat().st_size
    assert json.loads(Path(info.path).read_text())["manifest"]["items"] == info.items == 6


def test_what_was_never_written_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small_blocks(monkeypatch)
    spec = frb.BufferSpec({"x": frb.Unbounded((2,))}, 60_000, frb.Prioritized(), lanes=2)
    state = torch_backend.add(torch_backend.init(spec), {"x": torch.ones(5, 2, 2)})
    info = frb.save(state, tmp_path)
    assert info.items == 10
    assert info.nbytes < 1500
    assert stored_bits(tmp_path) == bits(state)


def test_keep_and_what_is_there(tmp_path: Path) -> None:
    state = torch_backend.init(frb.BufferSpec(STEP, 8))
    for k in range(5):
        state = torch_backend.add(state, steps(k, 1))
        frb.save(state, tmp_path, keep=3)
    found = frb.checkpoint.checkpoints(tmp_path)
    assert [(c.generation, c.items, c.problem) for c in found] == [(5, 5, None), (4, 4, None), (3, 3, None)]
    assert found[0].time >= found[1].time
    (tmp_path / "0000000005.safetensors").unlink()
    (tmp_path / "0000000004.json").write_bytes(b"{}")
    (tmp_path / "notes.txt").write_text("somebody's")
    problems = [c.problem or "" for c in frb.checkpoint.checkpoints(tmp_path)]
    assert "0000000005.safetensors: the file is missing" in problems[0]
    assert "0000000004.json: its checksum does not fit" in problems[1]
    with pytest.raises(frb.errors.CorruptCheckpointError, match=r"0000000005\.safetensors.*fall_back=True"):
        frb.load(tmp_path, "torch")
    assert int(torch_backend.size(frb.load(tmp_path, "torch", frb.checkpoint.LoadOptions(fall_back=True)))) == 3
    info = frb.save(state, tmp_path, keep=1, incremental=True)
    assert info.full  # its base was gone
    assert [file.name for file in files(tmp_path)] == ["0000000006.json", "0000000006.safetensors", "notes.txt"]


def test_what_is_listed_is_what_save_has_given(tmp_path: Path) -> None:
    state, saved = torch_backend.init(frb.BufferSpec(STEP, 4096)), []
    for k, incremental in enumerate([False, True, True]):
        state = torch_backend.add(state, steps(k, 1))
        saved.append(frb.save(state, tmp_path, incremental=incremental, keep=3))
    saved.append(frb.save(state, tmp_path, incremental=True, keep=3))
    assert frb.checkpoint.checkpoints(tmp_path) == saved[:0:-1]
    assert (saved[0].full, saved[3].full) == (True, False)
    assert saved[3].written == Path(saved[3].path).stat().st_size, "nothing is new but the manifest"


def test_mapped_rows_are_the_file_and_writing_copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small_blocks(monkeypatch)
    state = torch_backend.add(
        torch_backend.init(frb.BufferSpec({"x": frb.Unbounded((6,))}, 40)), {"x": torch.ones(40, 6)}
    )
    frb.save(state, tmp_path, keep=1)
    state = torch_backend.add(state, {"x": torch.full((3, 6), 2.0)})
    frb.save(state, tmp_path, keep=1, incremental=True)
    assert len(files(tmp_path)) == 3
    content = [file.read_bytes() for file in files(tmp_path)]
    made = []
    original = np.memmap
    monkeypatch.setattr(np, "memmap", lambda *args, **options: made.append(args) or original(*args, **options))
    loaded = frb.load(tmp_path, "torch", frb.checkpoint.LoadOptions(mmap=True))
    assert len(made) == 1
    assert bits(loaded) == bits(state)
    loaded = torch_backend.add(loaded, {"x": torch.full((40, 6), 3.0)})
    assert torch_backend.items(loaded)["x"].unique().tolist() == [3]
    assert [file.read_bytes() for file in files(tmp_path)] == content
    assert bits(frb.load(tmp_path, "torch", frb.checkpoint.LoadOptions(mmap=True))) == bits(state)


# ------------------------------------------------------------ incremental


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_incremental_saves_cost_what_is_new(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rb, rng = importlib.import_module(f"{name}_backend"), np.random.default_rng(0)
    storage = frb.Device() if name == "torch" else frb.Host()  # of JAX's arrays the past is not known
    spec = frb.BufferSpec({"x": frb.Unbounded((64,))}, 20_000, storage=storage)

    def grown(state: Any, n: int) -> Any:
        return rb.add(state, {"x": rng.random((n, 64), np.float32)})

    state = grown(rb.init(spec), 20_000)
    reads = []
    original = type(state.reader()).read
    spy = lambda self, name, start, stop: reads.append((name, stop - start)) or original(self, name, start, stop)  # noqa: E731  # one line
    monkeypatch.setattr(type(state.reader()), "read", spy)
    full = frb.save(state, tmp_path)
    assert full.full
    assert full.written > 20_000 * 256
    reads.clear()
    state = grown(state, 200)
    part = frb.save(state, tmp_path, incremental=True)
    assert not part.full
    assert part.written < 200 * 256 + 3 * 65536
    assert sum(rows for name, rows in reads if name == "rows") < 200 + 2 * 256, "no more than is written is read"
    assert part.nbytes == full.nbytes + (tmp_path / "0000000002.safetensors").stat().st_size
    # So it is after a load too; where nothing is known of the past, content is compared.
    loaded = grown(frb.load(tmp_path, name), 100)
    reads.clear()
    assert frb.save(loaded, tmp_path, incremental=True).written < 100 * 256 + 3 * 65536
    assert sum(rows for name, rows in reads if name == "rows") < 100 + 4 * 256
    unknown = pickle.loads(pickle.dumps(grown(loaded, 100)))
    reads.clear()
    assert frb.save(unknown, tmp_path, incremental=True).written < 300 * 256 + 4 * 65536
    assert sum(rows for name, rows in reads if name == "rows") >= 20_000
    assert stored_bits(tmp_path) == bits(unknown)


def test_segments_stay_few_and_small_ones_are_joined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small_blocks(monkeypatch)
    rng = np.random.default_rng(0)
    state = torch_backend.init(frb.BufferSpec({"x": frb.Unbounded((4,))}, 600))
    state = torch_backend.add(state, {"x": torch.rand(600, 4)})
    first = frb.save(state, tmp_path)
    written, most, full = 0, 0, 0
    for _ in range(60):
        state = torch_backend.add(state, {"x": torch.from_numpy(rng.random((12, 4), np.float32))})
        info = frb.save(state, tmp_path, incremental=True, keep=1)
        written += info.written
        full += info.full
        most = max(most, len(list(tmp_path.glob("*.safetensors"))))
        assert info.nbytes < 4 * first.nbytes
    assert most <= 16
    assert 0 < full < 10
    assert written < 12 * first.written, "each block is written again a few times at most"
    assert stored_bits(tmp_path) == bits(state)


@pytest.mark.parametrize("in_place", [False, True])
def test_rewritten_items_are_written(in_place: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small_blocks(monkeypatch)
    state = torch_backend.add(torch_backend.init(frb.BufferSpec(STEP, 64)), steps(0, 64))
    frb.save(state, tmp_path)
    update = torch_backend.update_ if in_place else torch_backend.update
    state = update(state, np.array([5, 40], np.int32), None, {"x": torch.full((2, 2), 9.0)})
    state = torch_backend.add(state, steps(64, 2))
    assert not frb.save(state, tmp_path, incremental=True).full
    assert stored_bits(tmp_path) == bits(state)


def test_rows_of_items_that_were_taken_out_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small_blocks(monkeypatch)
    item = {"obs": frb.Unbounded((3,)), "next": {"obs": frb.Unbounded((3,))}, "id": frb.Unbounded((), "int32")}
    item |= {"done": frb.Binary()}
    state = torch_backend.init(frb.BufferSpec(item, 24, compact=frb.Compact()))
    for k in range(20):  # no step goes on where the one before ended, so each has two frames
        x = torch.full((1, 3), float(k + 1))
        batch = {"obs": x, "next": {"obs": -x}, "id": torch.tensor([k + 1], dtype=torch.int32)}
        state = torch_backend.add(state, batch | {"done": torch.ones(1, dtype=torch.bool)})
    size = int(torch_backend.size(state))
    assert size < 20
    assert np.frombuffer(bits(state)["rows"][2], np.int32).reshape(24, -1)[: 20 - size].any()
    frb.save(state, tmp_path)
    assert stored_bits(tmp_path) == bits(state)


def test_siblings_with_the_same_cursors_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small_blocks(monkeypatch)
    # Counters and the newest rows agree: only what each knows of its past, or the content, tells.
    root = torch_backend.init(frb.BufferSpec(STEP, 64))
    frb.save(root, tmp_path)
    left = torch_backend.add(torch_backend.add(root, steps(0, 8)), steps(100, 8))
    right = torch_backend.add(torch_backend.add(root, steps(50, 8)), steps(100, 8))
    frb.save(left, tmp_path, incremental=True)
    frb.save(torch_backend.add(right, steps(7, 1)), tmp_path, incremental=True)
    assert torch_backend.items(frb.load(tmp_path, "torch"))["id"].tolist()[:17] == [*range(50, 58), *range(100, 108), 7]


@pytest.mark.parametrize(("before", "since"), [(8, 40), (36, 6)], ids=["a whole round", "over the end"])
def test_cursors_that_begin_again_say_what_was_written(
    before: int, since: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from functional_rb.structures import ring

    small_blocks(monkeypatch)
    monkeypatch.setattr(ring, "INT32_MAX", 40)  # coordinates wrap after five rounds of the ring
    spec = frb.BufferSpec({"x": frb.Unbounded((8,))}, 8)
    assert spec.plan.ring.limit == 40
    with backends.make("torch-core"):
        state = torch_backend.init(spec)
        for k in range(before + since):
            if k == before:
                frb.save(state, tmp_path)
                cursor = int(state.counters[0])
            state = torch_backend.add(state, {"x": torch.full((1, 8), 1.0 + k)})
        assert int(state.counters[0]) == (cursor + since) % 40
        frb.save(state, tmp_path, incremental=True)
        assert stored_bits(tmp_path) == bits(state)


# ------------------------------------------------------------ objects


def test_objects_come_back_with_their_types(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small_blocks(monkeypatch)
    spec = frb.BufferSpec({"x": frb.Unbounded(()), "note": frb.specs.NonTensor()}, 12)
    values = [None, True, 1, 1.0, -0.0, "tëxt\ud800\n", [], [1, [True, {"a": None}]], {"": 1e-300}, 10**30, 0, False]
    state = torch_backend.add(torch_backend.init(spec), {"x": torch.zeros(12), "note": values})
    frb.save(state, tmp_path)
    state = torch_backend.add(state, {"x": torch.ones(2), "note": ["new", {"b": [2]}]})
    assert not frb.save(state, tmp_path, incremental=True).full
    loaded = frb.load(tmp_path, "torch")
    found = torch_backend.items(loaded)["note"].tolist()
    assert repr(found) == repr(["new", {"b": [2]}, *values[2:]])
    # And they live on.
    for k in range(40):
        loaded = torch_backend.add(loaded, {"x": torch.ones(1), "note": [k]})
    frb.save(loaded, tmp_path, incremental=True)
    assert torch_backend.items(frb.load(tmp_path, "torch"))["note"].tolist() == [*range(34, 40), *range(28, 34)]
    with pytest.raises(TypeError, match="leaf 'note'"):
        frb.load(tmp_path, "jax")


class Text(str):
    """No str."""


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), (1,), {1: 2}, Text("a"), {"a": [object()]}, b"", np.float32(1), 10**5000, set()],
    ids=lambda value: type(value).__name__,
)
def test_objects_that_json_would_change_are_refused(value: Any, tmp_path: Path) -> None:
    spec = frb.BufferSpec({"x": frb.Unbounded(()), "note": frb.specs.NonTensor()}, 4)
    state = torch_backend.add(torch_backend.init(spec), {"x": torch.zeros(1), "note": ["good"]})
    frb.save(state, tmp_path)
    bad = torch_backend.add(state, {"x": torch.zeros(1), "note": [[value]]})
    with pytest.raises(TypeError, match=r"save: leaf 'note': expected objects that JSON can say .*leave the leaf out"):
        frb.save(bad, tmp_path, incremental=True)
    with pytest.raises(TypeError, match="leaf 'note'"):
        frb.save(bad, tmp_path, background=True).result(60)
    assert torch_backend.items(frb.load(tmp_path, "torch"))["note"].tolist() == ["good", None, None, None]


def test_objects_that_contain_themselves_are_refused(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    spec = frb.BufferSpec({"note": frb.specs.NonTensor()}, 4)
    with pytest.raises(TypeError, match="contains itself"):
        frb.save(torch_backend.add(torch_backend.init(spec), {"note": [loop]}), tmp_path)
