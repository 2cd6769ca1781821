"""Starting shards, and connecting to them."""

from __future__ import annotations

import importlib
import os
from typing import Any

from functional_rb.base.dtypes import checked_count
from functional_rb.base.files import as_path
from functional_rb.buffer.spec import BufferSpec
from functional_rb.scale.ray.client import Client, Settings
from functional_rb.scale.ray.limits import Limiter, RateLimit, check_limit
from functional_rb.scale.ray.local import LocalTransport
from functional_rb.scale.ray.shard import Shard, shard_spec

DEFAULT_NAME = "replay"


def start(
    spec: BufferSpec,
    shards: int = 1,
    *,
    backend: Any = None,
    name: str = DEFAULT_NAME,
    checkpoint: str | os.PathLike[str] | None = None,
    save_every: int | None = None,
    limit: RateLimit | None = None,
    in_flight: int = 4,
    mass_age: float = 1.0,
    timeout: float = 60.0,
    actor_options: dict[str, Any] | None = None,
    detached: bool = False,
    local: bool = False,
) -> Client:
    """Start a buffer in shards, each an actor of Ray, and connect to it.

    Ray must have been initialized (`ray.init()`), but for `local=True`. Machines that have shards need torch.

    Args:
        spec: of the whole buffer; each shard has an equal part of its capacity. The sampler draws with replacement, the
            writer is `RoundRobin`.
        shards: how many.
        backend: `jax_backend` or `torch_backend`: whose arrays this client's samples are; None for NumPy's.
        name: of the buffer; actors are found by it, in the same namespace of Ray.
        checkpoint: a directory that all machines see, or each its own; a shard writes to one of its own in it, is
            restarted from that, and begins with what is there. None: a shard that dies loses all of its items.
        save_every: after so many items that a shard was given, it writes a checkpoint, in the background. What a shard
            that dies loses is what was added since. None: only `Client.save` writes.
        limit: how fast may be added and drawn, in proportion.
        in_flight: so many writes a client sends to a shard before it waits for the first to be acknowledged.
        mass_age: seconds after which a client asks a shard how it stands, if it has heard nothing meanwhile.
        timeout: seconds that clients wait for anything, if nothing else is said.
        actor_options: options of Ray for the actors of shards, such as `num_cpus`, `resources`, `scheduling_strategy`.
        detached: whether the shards go on when this program ends; then end them by `ray.kill`.
        local: whether the shards are in this process, without Ray.

    Returns:
        A client.

    Raises:
        TypeError: for what is no spec, limit or backend.
        ValueError: for a capacity that the shards do not divide, or a sampler or writer that shards cannot have.
        ImportError: without Ray.

    Example:
        >>> spec = frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8)
        >>> client = frb.ray.start(spec, shards=4, backend=rb, local=True)
        >>> client.add({"x": np.arange(8, dtype=np.float32)}).result()
        >>> client.size()
        2
    """
    shards = checked_count("start: shards", shards, 1, 2**16)
    part = shard_spec(spec, shards)
    every = None if save_every is None else checked_count("start: save_every", save_every, 1, 2**62)
    if every is not None and checkpoint is None:
        raise ValueError("start: save_every: expected None without checkpoint; give a directory, too")
    path = None if checkpoint is None else os.path.abspath(as_path(checkpoint, "start"))
    in_flight = checked_count("start: in_flight", in_flight, 1, 2**20)
    limited = check_limit(limit)
    settings = Settings(limited is not None, in_flight, float(mass_age), float(timeout))

    if local:

        def make(k: int, restarted: bool) -> Shard:
            return Shard(k, shards, part, place_of(path, k), every, restarted)

        transport = LocalTransport(make, shards, None if limited is None else Limiter(limited))
        return Client(transport, spec, settings, backend)
    actors = importlib.import_module("functional_rb.scale.ray.actors")
    made = actors.start(part, shards, name, path, every, limited, actor_options or {}, detached, (spec, settings))
    return Client(made, spec, settings, backend)


def connect(name: str = DEFAULT_NAME, *, backend: Any = None, client: str | None = None) -> Client:
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
    transport, (spec, settings) = actors.find(name)
    return Client(transport, spec, settings, backend, client)


def place_of(path: str | None, k: int) -> str | None:
    """The directory of one shard's checkpoints."""
    return None if path is None else os.path.join(path, f"shard_{k}")
