"""Host, Memmap and Objects on torch: the same results as in a device's memory, bit for bit, for every member."""

from __future__ import annotations

import copy
import dataclasses
import errno
import gc
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import functional_rb as frb
import torch_backend as rb
from functional_rb.base.errors import StorageFullError, StorageInUseError
from functional_rb.storage import mapped
from functional_rb.versions import memory as versioned
from tests.support import backends, lives, members
from tests.support.backends import Backend

STORAGES = {"host": frb.Host(), "memmap": frb.Memmap(), "objects": frb.Objects()}
BULKY = members.ITEM | {"row": frb.Unbounded((1024,)), "image": frb.Unbounded((64, 64), "uint8")}
"""Of each item a page of the rows, and one of a wide array."""
PAGE = 4096


def stored_in(spec: frb.BufferSpec, storage: Any) -> frb.BufferSpec:
    return dataclasses.replace(spec, storage=storage)


def bulky(items: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    number = items["id"]
    row = np.broadcast_to(number[..., None].astype(np.float32), (*number.shape, 1024))
    image = np.broadcast_to(number[..., None, None].astype(np.uint8), (*number.shape, 64, 64))
    return items | {"row": row, "image": image}


def told(backend: Backend, spec: frb.BufferSpec, look: Callable[[Any], None] = lambda state: None) -> list[Any]:
    """A life as bits: what each step gave, and the state at last."""
    seen: list[Any] = []
    if isinstance(spec.writer, frb.Immutable):
        state = rb.init(spec, items=backend.tree(bulky(lives.items_from(1))))
    else:
        state = rb.init(spec)
    for k, given in enumerate(lives.inputs(spec)):
        given = given._replace(items=bulky(given.items))
        state, saw = lives.step(backend, state, given, lives.keys(backend, k))
        look(state)
        seen += lives.bits(backend, saw)
    return [*seen, *lives.state_bits(backend, state)]


def written_pages(files: mapped.MappedFiles) -> Iterator[tuple[mapped.MappedArray, int]]:
    """What of the files was written, as (array, number of the page)."""
    for array in files._arrays.values():
        for start, end in array._written():
            yield from ((array, page) for page in range(start // PAGE, -(-end // PAGE)))


def check_reserved(state: Any) -> None:
    """Nothing has been written where no room was reserved: on a full disk that would kill the process."""
    files = state._version.own().files
    assert all(array.reserved[page] for array, page in written_pages(files))


@pytest.mark.parametrize("name", members.MEMBERS)
def test_every_member_as_in_the_memory_of_a_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "CHUNK", PAGE)
    member = members.MEMBERS[name].spec
    spec = dataclasses.replace(member, item=BULKY, capacity=4 * member.capacity)
    with backends.make("torch") as kernels:
        expected = told(kernels, spec)
        for storage in (frb.Host(), frb.Objects()):
            assert told(kernels, stored_in(spec, storage)) == expected
    for variant in ("torch", "torch-core", "torch-inplace"):
        with backends.make(variant) as backend:
            assert told(backend, stored_in(spec, frb.Memmap()), check_reserved) == expected


OBS = {"obs": frb.Unbounded((64, 64), "uint8"), "next_obs": frb.Unbounded((64, 64), "uint8")}
MORE: dict[str, frb.BufferSpec] = {
    "compact": frb.BufferSpec(members.ITEM | OBS, 24, compact=frb.Compact(), lanes=3),
    "n steps": frb.BufferSpec(
        members.ITEM | OBS | {"reward": frb.Unbounded(())}, 24, transforms=frb.n_step(3, 0.9, at="add"), lanes=3
    ),
}


@pytest.mark.parametrize("name", MORE)
def test_compact_storage_and_steps_that_wait(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "CHUNK", PAGE)

    def life(variant: str, storage: Any, look: Callable[[Any], None] = lambda state: None) -> list[Any]:
        spec, seen = stored_in(MORE[name], storage), []
        with backends.make(variant) as backend:
            state = rb.init(spec)
            for k, given in enumerate(lives.inputs(spec)):
                number = np.arange(6 * k, 6 * k + 8, dtype=np.uint8) % 250
                images = np.broadcast_to(number[:, None, None], (8, 64, 64))
                pairs = {"obs": images[:6].reshape(2, 3, 64, 64), "next_obs": images[2:].reshape(2, 3, 64, 64)}
                items = given.items | pairs | {"reward": given.notes.reshape(2, 3)}
                items = {key: items[key] for key in spec.item}
                state = rb.add(state, items, given.mask)
                look(state)
                state, sample = rb.sample(state, rb.key(k), 6)
                seen += lives.bits(backend, [sample, rb.items(state)])
            return [*seen, *lives.state_bits(backend, state)]

    expected = life("torch", frb.Device())
    for variant in ("torch", "torch-core"):
        assert life(variant, frb.Memmap(), check_reserved) == expected


# ---------------------------------------------------------------- memory over files


def batch(first: int, n: int) -> dict[str, torch.Tensor]:
    return {"x": torch.arange(first, first + n, dtype=torch.float32)[:, None].expand(n, 512).contiguous()}


def spec_of(path: Any = None, capacity: int = 16, storage: Any = None, **flags: Any) -> frb.BufferSpec:
    storage = frb.Memmap(path, **flags) if storage is None else storage
    return frb.BufferSpec({"x": frb.Unbounded((512,))}, capacity, frb.Prioritized(), storage=storage)


def first_column(tree: Any) -> list[float]:
    return tree["x"][:, 0].tolist()


def test_the_files_are_the_live_memory(tmp_path: Path) -> None:
    state = rb.add(rb.init(spec_of(tmp_path)), batch(1, 3))
    on_disk = np.memmap(tmp_path / "rows.bin", np.float32, "r", shape=(16, 512))
    assert on_disk[:, 0].tolist() == [1, 2, 3] + [0] * 13
    state = rb.update(state, torch.tensor([1], dtype=torch.int32), None, batch(9, 1))
    assert on_disk[:4, 0].tolist() == [1, 9, 3, 0]
    assert state._version.own().files.directory == str(tmp_path)


GIVEN: dict[str, Callable[[Any], Any]] = {
    "items": lambda s: rb.items(s)["x"].view(torch.int32),
    "rows": lambda s: s.rows,
    "leaves": lambda s: pytree.tree_leaves(s)[0],
    "dlpack": lambda s: torch.from_dlpack(s.rows),
    "mapped": lambda s: rb.items(pytree.tree_map(lambda x: x, s))["x"].view(torch.int32),
    "pickle": lambda s: pickle.loads(pickle.dumps(s)).rows,
    "sent": lambda s: pickle.loads(ForkingPickler.dumps(s)).rows,
    "deepcopy": lambda s: copy.deepcopy(s).rows,
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_given_out_is_a_copy_and_pins_nothing(name: str) -> None:
    state = rb.add(rb.init(spec_of()), batch(1, 16))
    memory = state._version.own()
    given = GIVEN[name](state)
    before = given.clone()
    tree = state.tree
    after = rb.add(state, batch(100, 5))
    assert after._version.own() is memory
    assert not memory.pinned
    assert torch.equal(given, before)
    assert torch.equal(rb.items(state)["x"].view(torch.int32), before)
    assert torch.equal(state.tree, tree)
    assert first_column(rb.items(after))[:6] == [100, 101, 102, 103, 104, 6]


def test_in_place_forms_stay_in_the_files_whoever_holds_older_states(tmp_path: Path) -> None:
    states = [rb.init(spec_of(tmp_path))]
    for k in range(4):
        states.append(rb.add(states[-1], batch(10 * k, 7)))
    del states[2]
    memory = states[-1]._version.own()
    last = rb.add_(states.pop(), batch(90, 3))
    assert last._version.own() is memory
    assert (memory.retained, len(memory.history), memory.shared) == (0, 0, False)
    assert memory.files.directory == str(tmp_path)
    for count, state in zip((0, 7, 21), states, strict=True):
        assert first_column(rb.items(state)) == after(count)
    assert first_column(rb.items(last))[12:15] == [90, 91, 92]


def after(count: int) -> list[float]:
    """The ring after so many rows."""
    ring = [0.0] * 16
    for row in range(count):
        ring[row % 16] = 10 * (row // 7) + row % 7
    return ring


OTHERS = [
    lambda s: copy.deepcopy(s),
    lambda s: pickle.loads(pickle.dumps(s)),
    lambda s: pytree.tree_map(lambda x: x, s),
]


@pytest.mark.parametrize("other", OTHERS)
def test_copies_of_a_state_go_on_in_files_of_their_own(other: Callable[[Any], Any], tmp_path: Path) -> None:
    state = rb.add(rb.init(spec_of(tmp_path)), batch(1, 16))
    copied = other(state)
    ours, theirs = rb.add(state, batch(50, 1)), rb.add(copied, batch(70, 1))
    assert first_column(rb.items(ours))[:2] == [50, 2]
    assert first_column(rb.items(theirs))[:2] == [70, 2]
    assert first_column(rb.items(copied)) == first_column(rb.items(state)) == list(range(1, 17))
    assert theirs._version.own().files.directory is None
    assert ours._version.own().files.directory == str(tmp_path)


def test_what_is_kept_for_an_older_state_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versioned, "RETAINED_BYTES", 10_000)
    older = state = rb.add(rb.init(spec_of(capacity=1000)), batch(1, 16))
    for k in range(20):
        state = rb.add(state, batch(100 + k, 1))
        assert state._version.own().retained <= 10_000
    assert older._version.memory is not None
    assert older._version.memory.files is not None
    assert first_column(rb.items(older))[:17] == [*range(1, 17), 0]


def test_a_second_buffer_on_a_path_is_refused_while_the_first_is_alive(tmp_path: Path) -> None:
    state = rb.add(rb.init(spec_of(tmp_path)), batch(1, 3))
    for flags in ({}, {"existsok": True}):
        with pytest.raises(StorageInUseError, match="another path"):
            rb.init(spec_of(tmp_path, **flags))
    assert first_column(rb.items(state))[:3] == [1, 2, 3]
    given = rb.items(state)["x"]
    del state  # what was given out does not keep the lock
    state = rb.init(spec_of(tmp_path, existsok=True))
    assert int(rb.size(state)) == 0
    state = rb.add(state, batch(7, 1))
    assert given[:3, 0].tolist() == [1, 2, 3]
    assert first_column(rb.items(state))[:3] == [7, 2, 3]


def test_nothing_stays_open(tmp_path: Path) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this system does not list what is open")
    before = descriptors()
    for k in range(3):
        state = rb.add(rb.init(spec_of(tmp_path / str(k))), batch(1, 3))
        older, state = state, rb.add(state, batch(5, 3))
        rb.items(older)
        rb.items(state)
        copy.deepcopy(older)
    del state, older
    assert descriptors() == before


def test_gigabytes_of_which_little_is_touched() -> None:
    spec = dataclasses.replace(spec_of(capacity=100_000_000), sampler=frb.Uniform())  # 205 GB
    older = state = rb.init(spec)
    for k in range(3):
        state = rb.add(state, batch(10 * k, 5))
    state, sample = rb.sample(state, rb.key(0), 64)
    assert set(first_column(sample.items)) == {k + n for k in (0, 10, 20) for n in range(5)}
    assert first_column(rb.get(state, sample.indices)) == first_column(sample.items)
    assert state.rows.nbytes > 200e9
    assert state.rows[14, 0] == state.rows[14, 511]
    assert int(rb.size(older)) == 0
    assert not older.rows[:15].any()


# ---------------------------------------------------------------- a full disk


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has room for as many chunks as its only entry says, of a page each."""
    room = [10**9]

    def allocate(descriptor: int, start: int, nbytes: int) -> None:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= 1
        os.posix_fallocate(descriptor, start, nbytes)

    monkeypatch.setattr(mapped, "CHUNK", PAGE)
    monkeypatch.setattr(mapped, "allocate", allocate)
    return room


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "add": lambda s: rb.add(s, batch(9, 4)),
    "add_": lambda s: rb.add_(s, batch(9, 4)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("held", [False, True])
def test_adding_to_a_full_disk_changes_nothing(name: str, held: bool, disk: list[int]) -> None:
    state = rb.add(rb.init(spec_of()), batch(1, 5))
    older = state if held else None
    state = rb.add(state, batch(6, 1))
    disk[0] = 1
    for _ in range(2):
        with pytest.raises(StorageFullError, match="nothing was written"):
            FUNCTIONS[name](state)
    assert int(rb.size(state)) == 6
    disk[0] = 100
    assert first_column(rb.items(state)) == [1, 2, 3, 4, 5, 6] + [0] * 10
    after = FUNCTIONS[name](state)
    assert first_column(rb.items(after)) == [1, 2, 3, 4, 5, 6, 9, 10, 11, 12] + [0] * 6
    if older is not None:
        assert first_column(rb.items(older)) == [1, 2, 3, 4, 5] + [0] * 11


@pytest.mark.parametrize("core", [False, True])
def test_no_room_for_the_copy_that_an_older_state_needs(
    core: bool, disk: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versioned, "RETAINED_BYTES", 5000)
    with backends.make("torch-core" if core else "torch"):
        older = rb.add(rb.init(spec_of()), batch(1, 16))
        state = rb.add(older, batch(20, 2))
        memory = state._version.memory
        disk[0] = 3
        for _ in range(2):
            with pytest.raises(StorageFullError):
                rb.add(state, batch(30, 2))
            assert state._version.memory is memory
        disk[0] = 100
        assert first_column(rb.items(state)) == [20, 21, *range(3, 17)]
        after = rb.add(state, batch(30, 2))
        assert first_column(rb.items(after)) == [20, 21, 30, 31, *range(5, 17)]
        assert first_column(rb.items(state)) == [20, 21, *range(3, 17)]
        assert first_column(rb.items(older)) == list(range(1, 17))


def test_reading_an_older_state_without_room(disk: list[int]) -> None:
    older = rb.add(rb.init(spec_of()), batch(1, 16))
    state = rb.add(older, batch(20, 2))
    disk[0] = 3
    with pytest.raises(StorageFullError):
        rb.items(older)
    with pytest.raises(StorageFullError):
        rb.items(state)
    disk[0] = 100
    assert first_column(rb.items(older)) == list(range(1, 17))
    assert first_column(rb.items(rb.add(state, batch(30, 1))))[:3] == [20, 21, 30]


def test_rewriting_what_was_never_written_reserves_room(tmp_path: Path, disk: list[int]) -> None:
    # Rows of zeros that were read from elsewhere are holes in the files.
    state = pickle.loads(pickle.dumps(rb.add(rb.init(spec_of()), batch(0, 1))))
    state = rb.update(state, torch.tensor([-1], dtype=torch.int32), torch.ones(1))  # now it has files
    assert not state._version.own().files._arrays["rows"].reserved.any()
    disk[0] = 0
    handles = torch.tensor([0, -1, 2**31 - 1], dtype=torch.int32)
    with pytest.raises(StorageFullError):
        rb.update(state, handles, None, batch(5, 3))
    disk[0] = 100
    state = rb.update(state, handles, None, batch(5, 3))
    check_reserved(state)
    assert first_column(rb.items(state))[:2] == [5, 0]


# ---------------------------------------------------------------- torch.compile, threads, forks


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="eager")


def in_place(state: Any, items: Any) -> Any:
    state, sample = rb.sample_(rb.add_(state, items), rb.key(1), 4)
    return rb.update_(state, sample.indices, None, items), sample


@pytest.mark.parametrize("name", ["host", "memmap"])
def test_in_place_forms_trace_whole(name: str) -> None:
    plain = dataclasses.replace(spec_of(), sampler=frb.Uniform())  # less to trace
    wanted, expected = in_place(rb.add(rb.init(stored_in(plain, frb.Device())), batch(1, 16)), batch(30, 4))
    state = rb.own_(rb.add(rb.init(stored_in(plain, STORAGES[name])), batch(1, 16)))
    state, sample = compiled(in_place)(state, batch(30, 4))
    assert torch.equal(sample.indices, expected.indices)
    assert torch.equal(sample.items["x"], expected.items["x"])
    assert torch.equal(rb.items(state)["x"], rb.items(wanted)["x"])


def test_adding_to_files_without_reserved_room_is_not_traced() -> None:
    state = rb.own_(rb.add(rb.init(dataclasses.replace(spec_of(), capacity=100_000)), batch(1, 16)))
    with pytest.raises(Exception, match=r"add_: room for a Memmap buffer.*outside of the compiled function"):
        compiled(rb.add_)(state, batch(30, 2))
    assert first_column(rb.get(state, torch.arange(17, dtype=torch.int32))) == [*range(1, 17), 0]


def test_a_forked_process_is_told_to_make_its_own() -> None:
    state = rb.add(rb.init(spec_of()), batch(1, 3))
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # JAX warns of forks, where another test has loaded it
        child = os.fork()
    if not child:
        for call in (
            lambda: rb.add(state, batch(1, 1)),
            lambda: rb.items(state),
            lambda: rb.sample(state, rb.key(0), 1),
        ):
            try:
                call()
            except RuntimeError as error:
                os.write(write, b"1" if "forked" in str(error) else b"0")
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert os.read(read, 9) == b"111"
    os.close(read)


def test_threads_that_read_what_another_writes() -> None:
    state = rb.add(rb.init(spec_of(capacity=64)), batch(0, 64))
    shared, wrong = [state], []

    def read() -> None:
        for k in range(60):
            x = rb.sample(shared[0], rb.key(k), 32)[1].items["x"]
            if not bool((x == x[:, :1]).all()):
                wrong.append(k)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for k in range(200):
        shared[0] = rb.add(shared[0], batch(k, 3))
    for reader in readers:
        reader.join()
    assert not wrong


# ---------------------------------------------------------------- where samples go


@pytest.mark.parametrize("storage", STORAGES.values(), ids=STORAGES)
def test_samples_go_to_the_device_that_init_names(storage: Any) -> None:
    # A device without content, which is everywhere: only where things are can be seen.
    state = rb.add(rb.init(spec_of(storage=storage), device="meta"), batch(1, 5))
    for other in (state, pickle.loads(pickle.dumps(state)), copy.deepcopy(state), pytree.tree_map(lambda x: x, state)):
        after, sample = rb.sample(other, rb.key(0), 4)
        assert {x.device.type for x in pytree.tree_leaves(tuple(sample))} == {"meta"}
        assert rb.get(after, torch.zeros(2, dtype=torch.int32))["x"].device.type == "meta"
        assert rb.is_live(after, torch.zeros(2, dtype=torch.int32)).device.type == "meta"
        assert rb.items(after)["x"].device.type == "cpu"
        assert int(rb.size(rb.add(after, batch(6, 1)))) == 6
    _, sample = rb.sample_(state, rb.key(0), 4)
    assert sample.items["x"].device.type == "meta"


def test_what_comes_from_yet_another_device_is_refused() -> None:
    state = rb.init(spec_of(storage=frb.Host()))
    with pytest.raises(ValueError, match="expected a tensor on cpu, where the state is, got one on meta"):
        rb.add(state, {"x": torch.zeros(1, 512, device="meta")})


def test_a_device_by_name_and_what_comes_before_it() -> None:
    assert rb.init(spec_of(storage=frb.Device("meta"))).rows.device.type == "meta"
    assert rb.init(spec_of(storage=frb.Device("meta")), device="cpu").rows.device.type == "cpu"
    assert rb.init(spec_of(storage=frb.Device())).rows.device.type == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("storage", STORAGES.values(), ids=STORAGES)
def test_on_an_accelerator_results_are_those_of_the_host(storage: Any) -> None:
    state, wanted = rb.init(spec_of(storage=storage), device="cuda"), rb.init(spec_of(storage=frb.Device("cpu")))
    for k in range(20):
        items = batch(7 * k, 5)
        state = rb.add(state, {"x": items["x"].cuda()} if k % 2 else items, priorities=torch.ones(5).cuda())
        wanted = rb.add(wanted, items, priorities=torch.ones(5))
        state, sample = rb.sample(state, rb.key(k), 8)
        wanted, expected = rb.sample(wanted, rb.key(k), 8)
        assert sample.items["x"].is_cuda
        assert torch.equal(sample.items["x"].cpu(), expected.items["x"])
        assert torch.equal(sample.weights.cpu(), expected.weights)
        new = torch.rand(8, generator=torch.Generator().manual_seed(k))
        state = rb.update(state, sample.indices, new.cuda(), {"x": sample.items["x"] + 1})
        wanted = rb.update(wanted, expected.indices, new, {"x": expected.items["x"] + 1})
        assert torch.equal(rb.get(state, sample.indices)["x"].cpu(), rb.get(wanted, expected.indices)["x"])
        assert bool(rb.is_live(state, sample.indices).all())


# ---------------------------------------------------------------- Python objects


def test_objects_alone_one_or_a_list_of_them() -> None:
    spec = frb.BufferSpec(item=frb.NonTensor(), capacity=4, storage=frb.Objects())
    state = rb.add(rb.init(spec), {"any": "object"})
    state = rb.add(state, ["a", [1, 2], None])
    assert rb.items(state).tolist() == [{"any": "object"}, "a", [1, 2], None]
    state = rb.add(state, [["a list"]])
    assert rb.items(state).tolist() == [["a list"], "a", [1, 2], None]
    state, sample = rb.sample(state, rb.key(0), 3)
    assert sample.items.shape == (3,)
    assert all(x in [["a list"], "a", [1, 2], None] for x in sample.items.tolist())
    state = rb.add(state, [])
    assert int(rb.size(state)) == 4


def test_lists_of_objects_in_lanes_and_in_nests() -> None:
    spec = frb.BufferSpec({"a": frb.NonTensor(), "b": frb.NonTensor()}, 4, lanes=2, storage=frb.Objects())
    state = rb.add(rb.init(spec), {"a": ["p", "q"], "b": [1, 2]})
    state = rb.add(state, {"a": [["r", "s"]], "b": [[3, 4]]})
    assert rb.items(state)["a"].tolist() == ["p", "r", "q", "s"]
    assert rb.items(state)["b"].tolist() == [1, 3, 2, 4]
    with pytest.raises(ValueError, match="leaf 'b': expected objects of shape"):
        rb.add(state, {"a": ["p", "q"], "b": [1]})


def test_a_list_is_one_object_elsewhere() -> None:
    state = rb.add(rb.init(frb.BufferSpec(item=frb.NonTensor(), capacity=4)), ["a", "b"])
    assert rb.items(state).tolist() == [["a", "b"], None, None, None]


@pytest.mark.parametrize("name", members.MEMBERS)
def test_objects_with_every_member(name: str) -> None:
    member = members.MEMBERS[name].spec
    spec = dataclasses.replace(member, item=members.ITEM | {"extra": frb.NonTensor()}, storage=frb.Objects())
    with backends.make("torch") as backend:
        if isinstance(spec.writer, frb.Immutable):
            items = lives.items_from(1)
            state = rb.init(spec, items=items | {"extra": items["id"].astype(object)})
        else:
            state = rb.init(spec)
        for k, given in enumerate(lives.inputs(spec)):
            key, draw = lives.keys(backend, k)
            if not isinstance(spec.writer, frb.Immutable):
                items = given.items | {"extra": given.items["id"].astype(object)}
                state = rb.add(state, items, given.mask, key=key)
            state, sample = rb.sample(state, draw, members.BATCH)
            live = rb.is_live(state, sample.indices.reshape(-1)).numpy()
            got = rb.get(state, sample.indices.reshape(-1))
            assert got["extra"][live].tolist() == got["id"].numpy()[live].tolist()


def test_objects_cannot_lie_in_files() -> None:
    with pytest.raises(ValueError, match=r"Memmap: leaf 'a' holds Python objects.*frb\.Objects\(\)"):
        frb.BufferSpec({"a": frb.NonTensor()}, 4, storage=frb.Memmap())


def test_files_that_are_to_stay_need_a_path() -> None:
    with pytest.raises(ValueError, match="auto_cleanup=False needs a path"):
        frb.Memmap(auto_cleanup=False)
