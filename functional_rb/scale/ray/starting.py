"""Starting shards, and connecting to them."""

from __future__ import annotations

import importlib
import os

from functional_rb.base.dtypes import checked_count
from functional_rb.buffer.spec import BufferSpec
from functional_rb.scale.ray.client import About, Client
from functional_rb.scale.ray.limits import Limiter, RateLimit, check_limit
from functional_rb.scale.ray.local import LocalTransport
from functional_rb.scale.ray.options import Actors, Checkpoints, Clients
from functional_rb.scale.ray.shard import Shard
from functional_rb.scale.ray.shard_specs import shard_spec

USUAL_CLIENTS, USUAL_ACTORS = Clients(), Actors()


def start(
    spec: BufferSpec,
    shards: int = 1,
    *,
    backend: object = None,
    checkpoint: str | os.PathLike[str] | Checkpoints | None = None,
    limit: RateLimit | None = None,
    clients: Clients = USUAL_CLIENTS,
    actors: Actors = USUAL_ACTORS,
    local: bool = False,
) -> Client:
    """Start a buffer in shards, each an actor of Ray, and connect to it.

    Ray must have been initialized (`ray.init()`), but for `local=True`. Machines that have shards need torch.

    Args:
        spec: of the whole buffer; each shard has an equal part of its capacity.
        shards: how many.
        backend: `jax_backend` or `torch_backend`: whose arrays this client's samples are; None for NumPy's.
        checkpoint: where shards write checkpoints, a directory or `Checkpoints(path, every=...)`. None: a shard that
            dies loses all of its items.
        limit: how fast may be added and drawn, in proportion.
        clients: how clients wait.
        actors: how Ray runs the shards, and by which name they are found.
        local: whether the shards are in this process, without Ray.

    Returns:
        A client.

    Raises:
        TypeError: for what is no spec, limit, backend or options.
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
    if checkpoint is not None and not isinstance(checkpoint, Checkpoints):
        checkpoint = Checkpoints(checkpoint)
    for name, given, kind in (("clients", clients, Clients), ("actors", actors, Actors)):
        if not isinstance(given, kind):
            raise TypeError(f"start: {name}: expected frb.ray.{kind.__name__}(...), got {given!r}")
    limited = check_limit(limit)
    about = About(spec, clients, limited is not None)
    if local:

        def make(k: int, restarted: bool) -> Shard:
            return Shard(k, shards, part, checkpoint, restarted)

        return Client(LocalTransport(make, shards, None if limited is None else Limiter(limited)), about, backend)
    on_ray = importlib.import_module("functional_rb.scale.ray.actors")
    return Client(on_ray.start(part, shards, checkpoint, limited, actors, about), about, backend)


def connect(name: str = Actors.name, *, backend: object = None, client: str | None = None) -> Client:
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
