"""What a sharded buffer may be started with, beside its spec."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from functional_rb.base.dtypes import checked_count
from functional_rb.base.files import as_path


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Where shards write checkpoints, and how often.

    Attributes:
        path: a directory that all machines see, or each its own. A shard writes to a directory of its own in it, is
            restarted from that, and begins with what is there.
        every: after so many items that a shard was given, it writes a checkpoint, in the background: what a shard that
            dies loses is what was added since. None: only `Client.save` writes.

    Raises:
        TypeError: if the path is none.
        ValueError: if the number is not positive.

    Example:
        >>> Checkpoints("/data/replay", every=10_000).every
        10000
    """

    path: str | os.PathLike[str]
    every: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", os.path.abspath(as_path(self.path, "Checkpoints.path")))
        if self.every is not None:
            object.__setattr__(self, "every", checked_count("Checkpoints.every", self.every, 1, 2**62))

    def of_shard(self, k: int) -> str:
        """The directory of one shard's checkpoints."""
        return os.path.join(self.path, f"shard_{k}")


@dataclasses.dataclass(frozen=True)
class Clients:
    """How clients of a buffer wait.

    Attributes:
        in_flight: so many writes a client sends to a shard before it waits for the first to be acknowledged.
        per_call: so many writes to a shard are gathered and sent in one call, which saves calls. Fewer go when the
            client is next asked for anything else: to draw, to flush, for a receipt's result.
        mass_age: seconds after which a client asks a shard how it stands, if it has heard nothing meanwhile.
        timeout: seconds that clients wait for anything, if nothing else is said.

    Raises:
        ValueError: if a number is out of range, or more are to be gathered than may be in flight.

    Example:
        >>> Clients(timeout=5.0)
        Clients(in_flight=4, mass_age=1.0, timeout=5.0, per_call=1)
    """

    in_flight: int = 4
    mass_age: float = 1.0
    timeout: float = 60.0
    per_call: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "in_flight", checked_count("Clients.in_flight", self.in_flight, 1, 2**20))
        object.__setattr__(self, "per_call", checked_count("Clients.per_call", self.per_call, 1, self.in_flight))
        for name in ("mass_age", "timeout"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
                raise ValueError(f"Clients.{name}: expected seconds, 0 or more, got {seconds!r}")


@dataclasses.dataclass(frozen=True)
class Actors:
    """How Ray runs the shards.

    Attributes:
        name: of the buffer: actors are found by it, in the same namespace of Ray.
        detached: whether the shards go on when the program ends that started them; then end them by `ray.kill`.
        options: options of Ray for the actors of shards, such as `num_cpus`, `resources`, `scheduling_strategy`.

    Raises:
        TypeError: if the options are no mapping.
        ValueError: if the name is no str of up to 200 characters.

    Example:
        >>> Actors("dqn", options={"num_cpus": 2}).name
        'dqn'
    """

    name: str = "replay"
    detached: bool = False
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        checked_name(self.name, "Actors.name")
        if not isinstance(self.options, Mapping):
            raise TypeError(f"Actors.options: expected a dict of Ray's options, got {self.options!r}")


def checked_name(name: object, what: str) -> str:
    """A name by which something is found.

    Raises:
        ValueError: if it is none.
    """
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise ValueError(f"{what}: expected a str of up to 200 characters, got {name!r}")
    return name
