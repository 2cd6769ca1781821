"""Starting shards, each with a part of the buffer, and connecting to them; what shards cannot do is refused."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Sequence

from functional_rb.base.dtypes import checked_count
from functional_rb.base.files import as_path
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.samplers import Queue
from functional_rb.scale.ray.client import About, Client
from functional_rb.scale.ray.limits import Limiter, RateLimit
from functional_rb.scale.ray.options import Options
from functional_rb.scale.ray.shard import Shard
from functional_rb.scale.ray.transport import LIMITER, Transport
from functional_rb.writers import StopWhenFull

USUAL = Options()


def start(
    spec: BufferSpec,
    shards: int = 1,
    *,
    backend: object = None,
    checkpoint: str | os.PathLike[str] | None = None,
    limit: RateLimit | None = None,
    options: Options = USUAL,
    local: bool = False,
) -> Client:
    """Start a buffer in shards, each an actor of Ray, and connect to it.

    Ray must have been initialized (`ray.init()`), but for `local=True`. Machines that have shards need torch.

    Args:
        spec: of the whole buffer; each shard has an equal part of its capacity.
        shards: how many.
        backend: `jax_backend` or `torch_backend`: whose arrays this client's samples are; None for NumPy's.
        checkpoint: where shards write checkpoints: a directory that all machines see, or each its own. A shard writes
            to a directory of its own in it, is restarted from that, and begins with what is there. None: a shard that
            dies loses all of its items.
        limit: how fast may be added and drawn, in proportion.
        options: by which name the buffer is found, how Ray runs the shards, how often they save, how clients wait.
        local: whether the shards are in this process, without Ray.

    Returns:
        A client.

    Raises:
        TypeError: for what is no spec, limit, backend or options.
        ValueError: for a capacity that the shards do not divide, a sampler or writer that shards cannot have, or
            `Options(save_every=)` without a directory for checkpoints.
        ImportError: without Ray.

    Example:
        >>> spec = frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8)
        >>> client = frb.ray.start(spec, shards=4, backend=rb, local=True)
        >>> client.add({"x": np.arange(8, dtype=np.float32)}).result()
        >>> client.size()
        2
    """
    shards = checked_count("start: shards", shards, 1, 2**16)
    spec_of_shard = shard_spec(spec, shards)
    place = None if checkpoint is None else os.path.abspath(as_path(checkpoint, "start: checkpoint"))
    if not isinstance(options, Options):
        raise TypeError(f"start: options: expected frb.ray.Options(...), got {options!r}")
    if options.save_every is not None and place is None:
        raise ValueError(
            f"start: checkpoint: expected a directory, as Options(save_every={options.save_every}) asks for "
            f"checkpoints, got None; give checkpoint=path, or leave save_every out"
        )
    if limit is not None and not isinstance(limit, RateLimit):
        raise TypeError(f"start: limit: expected a frb.ray.RateLimit or None, got {limit!r}")
    about = About(spec, options, limit is not None)
    if local:

        def make(k: int, restarted: bool) -> Shard:
            return Shard(k, shards, spec_of_shard, place, restarted, options.save_every)

        return Client(LocalTransport(make, shards, None if limit is None else Limiter(limit)), about, backend)
    on_ray = importlib.import_module("functional_rb.scale.ray.actors")
    return Client(on_ray.start(spec_of_shard, shards, place, limit, options, about), about, backend)


def connect(name: str = Options.name, *, backend: object = None, client: str | None = None) -> Client:
    """Connect to a buffer that another process has started.

    Args:
        name: of the buffer.
        backend: as for `start`.
        client: a name of this client's own, by which it goes on where it was when its process died: `resumed` tells how
            many of its adds the shards have, and what an earlier process of that name still sends is refused. None for
            one that is new.

    Returns:
        A client.

    Raises:
        ValueError: if there is no such buffer in this namespace of Ray.
        ImportError: without Ray.
    """
    actors = importlib.import_module("functional_rb.scale.ray.actors")
    transport, about = actors.find(name)
    return Client(transport, about, backend, client)


class LocalTransport(Transport):
    """Shards in this very process, without Ray: calls are carried out at once, by the caller's thread.

    Attributes:
        places: the shards by number, and what keeps the rate limit, if there is one.
    """

    def __init__(self, make: Callable[[int, bool], Shard], shards: int, limiter: Limiter | None) -> None:
        """Make the shards; `make` takes the number of one, and whether it takes the place of one that died."""
        self.places: dict[int, object] = {k: make(k, False) for k in range(shards)} | {LIMITER: limiter}
        self._shards = shards

    @property
    def shards(self) -> int:
        return self._shards

    def call(self, shard: int, method: str, *args: object) -> object:
        try:
            return getattr(self.places[shard], method)(*args)
        except Exception as error:
            return error

    def result(self, call: object, timeout: float | None = None) -> object:
        if isinstance(call, Exception):
            raise call
        return call

    def ready(self, calls: Sequence[object]) -> set[int]:
        return set(range(len(calls)))


def shard_spec(spec: BufferSpec, shards: int) -> BufferSpec:
    """The spec of one shard's part."""
    if not isinstance(spec, BufferSpec):
        raise TypeError(f"start: expected a BufferSpec, got {type(spec).__name__}")
    rings = shards * (spec.lanes or 1)
    if spec.capacity % rings:
        factors = f"shards={shards}" + (f" times lanes={spec.lanes}" if spec.lanes else "")
        raise ValueError(
            f"BufferSpec.capacity: expected a multiple of {factors}, got {spec.capacity}; "
            f"{max(spec.capacity - spec.capacity % rings, rings)} would do"
        )
    _check_sampler(spec)
    _check_writer(spec)
    if isinstance(spec.storage, Memmap) and (spec.storage.path is not None or spec.storage.shared):
        raise ValueError(
            f"BufferSpec.storage: {spec.storage} names files that all shards would write to; give frb.Memmap() without "
            f"a path, and start(checkpoint=...) for what is to last"
        )
    odd = [name for name, leaf in zip(spec.added.names, spec.added.leaves, strict=True) if leaf.dtype == "bfloat16"]
    if odd:
        raise ValueError(
            f"leaf {odd[0]!r}: expected a dtype of NumPy in shards, got bfloat16; store its bits as uint16"
        )
    return dataclasses.replace(spec, capacity=spec.capacity // shards)


# Refuse laws over all items that do not follow from the shards' own.
def _check_sampler(spec: BufferSpec) -> None:
    sampler = spec.sampler
    if isinstance(sampler, Queue):
        return
    if sampler.compares_versions:
        raise ValueError(
            f"BufferSpec.sampler: got {sampler}, but shards hear no versions of a policy; use frb.Uniform() with "
            f"client.add(version=...) and client.sample(oldest=...), which masks what is too old"
        )
    if not sampler.single_law or sampler.remembers or sampler.takes_out or sampler.steps_in_a_row is not None:
        raise ValueError(
            f"BufferSpec.sampler: expected one whose draws do not depend on each other nor on the order over all "
            f"shards, got {sampler}: what it has drawn, and in which order items were added, each shard knows of its "
            f"own items alone, and after a crash as of its last checkpoint; use frb.Uniform(), frb.Prioritized(), "
            f"frb.Recency(), slices with an axis of their own, or frb.Queue(), which gives each item once"
        )


def _check_writer(spec: BufferSpec) -> None:
    writer = spec.writer
    if not (writer.in_order and writer.overwrites) and not isinstance(writer, StopWhenFull):
        raise ValueError(
            f"BufferSpec.writer: {writer} decides by all items of the buffer which it keeps, and a shard knows its own "
            f"alone: expected frb.RoundRobin() or frb.StopWhenFull(); leave the writer out"
        )
