"""What native code holds it lets go of: objects, their types, memory and files, also where a call is refused."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb import _native
from functional_rb.native import chain
from functional_rb.native.chain import Chains, SavedBlock
from functional_rb.shared.buffer import SharedBuffer
from functional_rb.shared.lock import FileLock
from tests.agreement.chain_machine import CHAINS
from tests.support import chain_programs, emulated_gpu
from tests.support.backends import needs_native
from torch_backend.arrays.convert import build_mapping
from torch_backend.kernels.chain import look, ready
from torch_backend.memory import gpus
from torch_backend.memory.library import TORCH
from torch_backend.memory.state import State

pytestmark = needs_native

TYPES = [FileLock, SavedBlock, SharedBuffer, *(kind for kind in vars(_native).values() if isinstance(kind, type))]
ITEM = {"x": frb.Unbounded((3,)), "reward": frb.Unbounded(()), "done": frb.Binary()}
WAITING = frb.n_step(3, 0.9, at="add", reward_key="reward", terminated_key="done")
KINDS: dict[str, dict[str, Any]] = {
    "priorities": {"sampler": frb.Prioritized()},
    "a limit": {"sampler": frb.Uniform(max_times_sampled=9)},
    "epochs": {"sampler": frb.WithoutReplacement()},
    "slices": {"sampler": frb.Slices(2, end_keys=("done",))},
    "steps that wait": {"transforms": WAITING},
}
CARRIERS = ["numpy", *CHAINS, "as on a gpu"]


def batch(count: int) -> dict[str, Any]:
    numbers = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
    return {"x": numbers, "reward": numbers[:, 0].copy(), "done": np.arange(count) % 3 == 2}


def life(carrier: str, kind: str) -> None:
    """Of one buffer, of which older states are read, whose spec is exchanged, and of which a call is refused."""
    rb: Any = jax_backend if carrier == "numpy" else torch_backend
    storage = frb.Host() if carrier == "numpy" else frb.Device()
    spec, other = (frb.BufferSpec(ITEM, 200, **KINDS[kind], storage=storage, batch_size=size) for size in (80, 90))
    give = torch_backend.from_dlpack if carrier == "as on a gpu" else lambda items: items
    using: Any = emulated_gpu.using("forward") if carrier == "as on a gpu" else contextlib.nullcontext()
    with using, chain_programs.using(CHAINS[carrier]) if carrier in CHAINS else contextlib.nullcontext():
        first = rb.add(rb.init(spec), give(batch(150)))
        second, sample = rb.sample(rb.add(first, give(batch(100))), rb.key(0))
        if kind == "priorities":
            second = rb.update(second, sample.indices, sample.weights)
        third = rb.with_spec(rb.add(second, give(batch(80))), other)
        last = rb.add_(rb.sample_(third, rb.key(1))[0], give(batch(70)))
        with pytest.raises(ValueError, match="x"):
            rb.add(last, give(batch(4) | {"x": np.ones((4, 2), np.float32)}))
        assert int(rb.size(first)) < int(rb.size(last))


def forgotten(work: Callable[[], object]) -> None:
    """Work, and forget what is kept for calls to come."""
    work()
    chain._known_buffer.cache_clear()
    gc.collect()


def held() -> dict[str, int]:
    """How often each native type is, which each of its objects holds once."""
    return {kind.__name__: sys.getrefcount(kind) for kind in TYPES}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_no_object_of_a_native_type_outlives_its_use(carrier: str, kind: str) -> None:
    forgotten(lambda: life(carrier, kind))
    before = held()
    forgotten(lambda: life(carrier, kind))
    assert held() == before


def test_where_a_gpu_has_no_memory_for_what_is_saved_nothing_of_it_stays() -> None:
    def none_left(array: object) -> object:
        raise MemoryError("none is left")

    arrays = torch.Tensor, np.ndarray, look, from_dlpack, torch.Tensor.is_neg, torch.Tensor.is_conj, ready
    on_gpu = gpus.prototype, none_left, none_left, *gpus.ON_GPU[3:]
    without = Chains(TORCH, build_mapping).make(State, arrays, on_gpu=on_gpu)
    with emulated_gpu.using("forward"):
        state = torch_backend.add(torch_backend.init(frb.BufferSpec(ITEM, 8)), torch_backend.from_dlpack(batch(3)))
        before = held()
        with chain_programs.using(without), pytest.raises(MemoryError, match="none is left"):
            torch_backend.add(state, torch_backend.from_dlpack(batch(3)))
    assert held() == before


class Mallinfo(ctypes.Structure):
    """What glibc's allocator tells of itself."""

    NAMES = "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_no_memory_is_left_taken(carrier: str) -> None:
    """Fewer bytes a life than what any of its results, of what it saves, and of what its kernels take has."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        pytest.skip("the allocator does not tell what is in use")
    mallinfo.restype = Mallinfo
    lives, in_use = 12, []
    for _ in range(3):
        for _ in range(lives):
            life(carrier, "priorities")
        forgotten(lambda: life(carrier, "priorities"))
        told = mallinfo()
        in_use.append(told.uordblks + told.hblkhd)
    assert min(b - a for a, b in itertools.pairwise(in_use)) < 100 * lives


def test_what_is_known_of_a_buffer_holds_its_parts_only_while_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(_native, "KnownBuffer", lambda *parts: made.append(parts))
        chain._known_buffer.cache_clear()
        chain.known_buffer(frb.BufferSpec(ITEM, 16, transforms=WAITING))
    chain._known_buffer.cache_clear()
    spec, beta, records, leaves, added, told, given, names, *rest = made.pop()
    leaves = tuple(("a name of its own"[:k], *leaf[1:]) for k, leaf in enumerate(leaves, 5))
    within = [spec, names, *records, *(part for leaf in leaves for part in leaf[:2])]

    def counts() -> list[int]:
        return [sys.getrefcount(part) for part in within]

    before = counts()
    known = _native.KnownBuffer(spec, beta, records, leaves, added, told, given, names, *rest)
    assert counts()[:2] == [before[0] + 1, before[1] + 1]
    del known
    assert counts() == before


def test_what_makes_arrays_on_a_gpu_is_held_by_where_those_of_a_buffer_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    makers: list[Any] = []
    made = gpus.keywords

    def noted(*given: Any) -> Any:
        makers.append(made(*given))
        return makers[-1]

    monkeypatch.setattr(gpus, "keywords", noted)
    forgotten(lambda: life("as on a gpu", "priorities"))
    assert makers
    assert {sys.getrefcount(each) for each in makers} == {3}  # of the list, of this function, and of what counts


def test_what_is_saved_of_arrays_beside_the_items_holds_their_names_only_while_it_lives() -> None:
    spec = frb.BufferSpec(ITEM, 16, transforms=WAITING)
    known = chain.known_buffer(spec)
    assert known is not None
    names = known.names
    state = torch_backend.add(torch_backend.init(spec), batch(8))
    before = sys.getrefcount(names)
    newer = torch_backend.add(state, batch(8))
    assert sys.getrefcount(names) > before
    del state, newer
    gc.collect()
    assert sys.getrefcount(names) == before


# --- what else has a native type --------------------------------------------------------------------------------------


def test_a_lock_closes_its_file_and_is_let_go_of(tmp_path: Path) -> None:
    open_files, before = len(os.listdir("/proc/self/fd")), held()
    for k in range(3):
        lock = FileLock(str(tmp_path / str(k)))
        lock.hold(lambda: None, lambda: None)
        del lock
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert held() == before


def test_a_shared_buffer_is_let_go_of() -> None:
    def work() -> None:
        spec = frb.BufferSpec(ITEM, 8, frb.Prioritized(), storage=frb.Memmap(None, shared=True))
        state = torch_backend.add(torch_backend.init(spec), batch(3))
        torch_backend.sample(state, torch_backend.key(0), 4)

    forgotten(work)
    before = held()
    forgotten(work)
    assert held() == before


def test_a_setting_holds_what_it_writes_only_while_it_lives() -> None:
    read, write, value, earlier = (lambda: earlier), (lambda _: None), object(), object()
    parts, types = (read, write, value, earlier), held()

    def counts() -> list[int]:
        return [sys.getrefcount(part) for part in parts]

    before = counts()
    setting = _native.Setting(read, write, value)
    for _ in range(3):
        with setting:
            assert counts() == [n + 1 for n in before]
    del setting
    assert counts() == before
    assert held() == types


def test_a_chain_is_let_go_of_though_what_it_is_given_names_it() -> None:
    with pytest.raises(TypeError) as error:
        _native.Chain()
    count, before = int(re.findall(r"expected (\d+) arguments", str(error.value))[0]), held()
    names: list[Any] = []
    names.append(_native.Chain(*[names] * (count - 1), True))
    del names
    gc.collect()
    assert held() == before
