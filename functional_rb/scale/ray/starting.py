"""Starting shards, and connecting to them."""

from __future__ import annotations

import importlib
import os

from functional_rb.base.dtypes import checked_count
from functional_rb.base.files import as_path
from functional_rb.buffer.spec import BufferSpec
from functional_rb.scale.ray.client import About, Client
from functional_rb.scale.ray.limits import Limiter, RateLimit
from functional_rb.scale.ray.local import LocalTransport
from functional_rb.scale.ray.options import Options
from functional_rb.scale.ray.shard import Shard
from functional_rb.scale.ray.shard_specs import shard_spec

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
