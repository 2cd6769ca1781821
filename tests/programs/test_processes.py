"""States in other processes: started with one, sent one by a queue or a pipe, forked beside a thread that writes.

Children are forked from a server that has imported all, which takes a tenth of what it takes to start one; what they
are sent is pickled as for a process that is spawned, and one of them is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import functional_rb as frb
import torch_backend
from tests.support import backends, lives
from tests.support.members import BATCH, ITEM
from tests.support.sent_states import members, told

# Seconds that nothing here should ever take.
PATIENCE = 120
STORAGES = [frb.Device(), frb.Host(), frb.Memmap()]


@pytest.fixture(scope="module")
def server() -> Any:
    """A context whose children have everything imported."""
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.warm"])
    return context


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """That neither file descriptors nor shared memory are held afterwards that were not before."""
    before = held()
    yield
    assert held() == before


def held() -> tuple[int, list[str]]:
    gc.collect()
    ours = [name for name in os.listdir("/dev/shm") if name.startswith("torch")]
    if torch.multiprocessing.get_sharing_strategy() == "file_system":
        ours.clear()  # torch removes those that it has sent as this process ends
    files = 0
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists them
            files += os.readlink(f"/proc/self/fd/{each}").startswith(("/dev/shm", "/tmp", "/memfd"))
    return files, ours


def spec_of(storage: Any = None, capacity: int = 16, sampler: Any = None) -> frb.BufferSpec:
    return frb.BufferSpec(ITEM, capacity, sampler or frb.Prioritized(), storage=storage or frb.Device())


def full(library: Any, spec: frb.BufferSpec, n: int = 2) -> Any:
    """A state with some items, in the capacity's last turn."""
    state = library.rb.init(spec)
    for k in range(n):
        state = library.rb.add(state, library.tree(lives.items_from(BATCH * k)))
    return state


def answer(name: str, states: Any, pipe: Any) -> None:
    """What a child says of the states that it was started with."""
    with backends.make(name) as library:
        pipe.send([told(library, state) for state in states])
        pipe.close()


def ask(context: Any, name: str, states: list[Any]) -> list[Any]:
    """Start a child with states; what it says of them."""
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(name, states, theirs))
    process.start()
    theirs.close()
    assert ours.poll(PATIENCE)
    found: list[Any] = ours.recv()
    process.join(PATIENCE)
    assert process.exitcode == 0
    process.close()
    ours.close()
    return found


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_child_is_started_with_states_of_every_sampler_and_storage(server: Any, name: str, tmp_path: Path) -> None:
    with backends.make(name) as library, nothing_left():
        states = list(members(library))
        named = frb.Memmap(str(tmp_path / "rows"))
        states += [full(library, spec_of(storage)) for storage in (*STORAGES, named)]
        older = full(library, spec_of(frb.Host(), 12, frb.Uniform()))
        newer = library.rb.add(older, library.tree(lives.items_from(90)))
        states += [older, newer]
        wanted = [told(library, state) for state in states]
        found = ask(server, name, states)
        assert found == wanted
        assert [told(library, state) for state in states] == wanted  # whatever the child has added
        del states, older, newer


def test_one_that_is_spawned_and_one_that_torch_spawns(tmp_path: Path) -> None:
    with backends.make("torch") as library:
        state = full(library, spec_of())
        process = torch.multiprocessing.spawn(written, (state, str(tmp_path)), join=False)
        del state  # a process that is being started has what it was given
        while not process.join(PATIENCE):
            pass
        wanted = told(library, full(library, spec_of()))
    assert (tmp_path / "0").read_text() == repr(wanted)


def written(rank: int, state: Any, where: str) -> None:
    with backends.make("torch") as library:
        (Path(where) / str(rank)).write_text(repr(told(library, state)))


@pytest.mark.parametrize("strategy", sorted(torch.multiprocessing.get_all_sharing_strategies()))
def test_one_copy_serves_all_children_and_the_state_itself(server: Any, strategy: str) -> None:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        with backends.make("torch") as library, nothing_left():
            older = full(library, spec_of(), 1)
            state = library.rb.add(older, library.tree(lives.items_from(50)))
            wanted = [told(library, each) for each in (older, state)]
            assert ask(server, "torch", [state]) == wanted[1:]
            memory = state._version.own()
            assert all(array.is_shared() for array in memory.arrays)
            assert ask(server, "torch", [state, older]) == [*wanted[1:], wanted[0]]
            assert state._version.own() is memory
            # It may be read elsewhere at any time: a write moves to memory of its own.
            after = library.rb.add(state, library.tree(lives.items_from(70)))
            assert not any(array.is_shared() for array in after._version.own().arrays)
            assert [told(library, each) for each in (older, state)] == wanted
            assert told(library, library.rb.add_(state, library.tree(lives.items_from(70)))) == told(library, after)
            del older, state, after, memory
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


class Made:
    """What makes its state as it is pickled: nobody has it once that is done."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def __reduce__(self) -> tuple[Any, ...]:
        with backends.make("torch") as library:
            return Made, (full(library, spec_of()),)


def answer_made(made: Made, pipe: Any) -> None:
    answer("torch", [made.state], pipe)


def test_states_that_are_made_as_they_are_sent(server: Any) -> None:
    with backends.make("torch") as library, nothing_left():
        ours, theirs = server.Pipe()
        process = server.Process(target=answer_made, args=(Made(), theirs))
        process.start()
        assert ours.poll(PATIENCE)
        assert ours.recv() == [told(library, full(library, spec_of()))]
        process.join()
        process.close()
        theirs.close()
        ours.close()
        del process


def collect(storage: Any, queue: Any) -> None:
    """What a collector does that fills a buffer, hands it over, and ends."""
    with backends.make("torch") as library:
        queue.put(full(library, spec_of(storage, 8)))


@pytest.mark.parametrize("storage", STORAGES, ids=repr)
def test_what_a_child_has_put_in_a_queue_outlives_it(server: Any, storage: Any) -> None:
    with backends.make("torch") as library, nothing_left():
        queue = server.Queue()
        process = server.Process(target=collect, args=(storage, queue))
        process.start()
        process.join(PATIENCE)
        assert process.exitcode == 0
        state = queue.get(timeout=PATIENCE)
        assert state.spec.storage == storage
        assert told(library, state) == told(library, full(library, spec_of(storage, 8)))
        queue.close()
        queue.join_thread()
        process.close()
        del queue, process, state


@pytest.mark.parametrize("inherited", [True, False], ids=["by descriptors", "by bytes"])
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_states_of_every_sampler_and_storage_are_sent(
    name: str, inherited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: None if inherited else "another process")
    with backends.make(name) as library, nothing_left():
        states = list(members(library))
        states += [full(library, spec_of(storage)) for storage in STORAGES]
        for state in states:
            received = pickle.loads(ForkingPickler.dumps(state))
            assert received.spec == state.spec
            assert told(library, received) == told(library, state)
        empty = library.rb.init(frb.BufferSpec({"nothing": frb.Unbounded((0,))}, 4))
        assert int(library.rb.size(pickle.loads(ForkingPickler.dumps(empty)))) == 0
        del states, state, received, empty


@pytest.mark.parametrize("inherited", [True, False], ids=["by descriptors", "by bytes"])
def test_of_mapped_files_what_was_written_is_sent(
    library: backends.Backend, inherited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: None if inherited else "another process")
    rb, item = library.rb, {"obs": frb.Unbounded((60,)), "next_obs": frb.Unbounded((60,))}
    spec = frb.BufferSpec(item, 10**6, compact=frb.Compact(), storage=frb.Memmap())
    frames = np.arange(300, dtype=np.float32).reshape(5, 60)
    batch = library.tree({"obs": frames[:-1], "next_obs": frames[1:]})
    state = rb.add(rb.init(spec), batch)
    sent = ForkingPickler.dumps(state)
    assert len(sent) < 10**7  # of 240 MB of frames; four bytes an item are in memory
    received = rb.add(pickle.loads(sent), batch)
    assert (int(rb.size(state)), int(rb.size(received))) == (4, 8)
    found = rb.get(received, library.array(np.array([1, 5], np.int32)))
    assert library.numpy(found["next_obs"]).tolist() == [frames[2].tolist()] * 2


def grown(state: Any) -> Any:
    return torch_backend.add(state, lives.items_from(30))


def test_pools_take_states_and_give_states(server: Any) -> None:
    with backends.make("torch") as library, nothing_left():
        states = [full(library, spec_of(storage), k) for k, storage in ((1, frb.Host()), (2, frb.Memmap()), (3, None))]
        with server.Pool(1, initializer=grown, initargs=(states[0],)) as pool:
            made = pool.map(grown, states)
            pool.close()
            pool.join()
        assert [told(library, state) for state in made] == [told(library, grown(state)) for state in states]
        del states, made, pool


class Stored(Dataset[Any]):
    """The items of a buffer, in their order."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __len__(self) -> int:
        return int(torch_backend.size(self.state))

    def __getitem__(self, k: int) -> Any:
        return torch_backend.get(self.state, torch.tensor([k], dtype=torch.int32))


@pytest.mark.parametrize("storage", STORAGES, ids=repr)
def test_workers_of_a_data_loader_read_one_state(server: Any, storage: Any) -> None:
    with backends.make("torch") as library, nothing_left():
        state = full(library, spec_of(storage))
        loader = DataLoader(Stored(state), batch_size=4, num_workers=2, multiprocessing_context=server)
        for _ in range(2):
            batches = [batch["id"].flatten().tolist() for batch in loader]
            assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
            state = library.rb.add(state, library.tree(lives.items_from(60)))
        del loader, state
        gc.collect()


class Drawn(IterableDataset[Any]):
    """Samples of a buffer; each worker, in each epoch, draws by a key of its own."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __iter__(self) -> Iterator[Any]:
        worker, state = get_worker_info(), self.state
        key = torch_backend.key(0 if worker is None else worker.seed)
        for _ in range(2):
            key, now = torch_backend.split(key)
            state, sample = torch_backend.sample(state, now, 4)
            yield sample


def collated(items: Any) -> Any:
    return {"doubled": items["id"] * 2}


def test_workers_of_a_data_loader_draw_by_keys_of_their_own(server: Any) -> None:
    spec = dataclasses.replace(spec_of(), transforms=frb.map_items(collated))
    with backends.make("torch") as library, nothing_left():
        dataset = Drawn(full(library, spec))
        epochs = []
        for seed in (0, 0, 1):
            generator = torch.Generator().manual_seed(seed)
            loader = DataLoader(dataset, None, num_workers=2, multiprocessing_context=server, generator=generator)
            samples = list(loader)
            assert all(sample.items["doubled"].tolist() == (2 * sample.indices).tolist() for sample in samples)
            epochs.append([sample.indices.tolist() for sample in samples])
        assert epochs[0] == epochs[1]
        assert len({tuple(indices) for epoch in epochs[1:] for indices in epoch}) == 8  # no two draws are alike
        del samples, loader, dataset
        gc.collect()


def test_a_consumed_state_is_not_sent(server: Any) -> None:
    with backends.make("torch") as library:
        state = full(library, spec_of())
        library.rb.add_(state, library.tree(lives.items_from(0)))
        process = server.Process(target=answer, args=("torch", [state], None))
        with pytest.raises(RuntimeError, match="consumed by an in-place function"):
            process.start()


def test_nothing_is_kept_for_a_process_that_has_been_started(server: Any) -> None:
    with backends.make("torch") as library:
        process = server.Process(target=int)
        process.start()
        with nothing_left():
            state = full(library, spec_of(frb.Memmap()))
            assert told(library, pickle.loads(ForkingPickler.dumps(state))) == told(library, state)
            del state
        process.join()


# ---------------------------------------------------------------- forks


def fork_beside_a_writer(storage: Any, pipe: Any) -> None:
    """Fork again and again while another thread writes, most of the time; how the children ended."""
    ended = threading.Event()
    with backends.make("torch") as library:
        spec = frb.BufferSpec({"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((64,))}, 4096, storage=storage)
        number = np.arange(4096, dtype=np.int32)
        batch = library.tree({"id": number, "x": np.repeat(number[:, None], 64, 1).astype(np.float32)})
        state = library.rb.add(library.rb.init(spec), batch)

        def write() -> None:
            newest = state
            while not ended.is_set():
                newest = library.rb.add(newest, batch)

        writer = threading.Thread(target=write)
        writer.start()
        codes = []
        for _ in range(8):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                child = os.fork()
            if not child:
                signal.alarm(20)
                items = library.rb.sample(state, library.rb.key(0), 64)[1].items
                os._exit(0 if bool((items["x"] == items["id"][:, None]).all()) else 1)
            codes.append(os.waitpid(child, 0)[1])
        ended.set()
        writer.join()
        pipe.send(codes)


@pytest.mark.parametrize("storage", [frb.Device(), frb.Host()], ids=repr)
def test_a_fork_waits_for_writes_under_way(server: Any, storage: Any) -> None:
    ours, theirs = server.Pipe()
    process = server.Process(target=fork_beside_a_writer, args=(storage, theirs))
    process.start()
    assert ours.poll(PATIENCE)
    assert ours.recv() == [0] * 8
    process.join()


def test_a_forked_child_reads_what_its_parent_has_and_changes_nothing() -> None:
    with backends.make("torch") as library, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # JAX warns of forks, where another test has loaded it
        states = list(members(library))
        wanted = [told(library, state) for state in states]
        assert ask(multiprocessing.get_context("fork"), "torch", states) == wanted
        assert [told(library, state) for state in states] == wanted
