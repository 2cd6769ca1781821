"""What a sharded buffer may be started with, beside its spec."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from functional_rb.base.dtypes import checked_count


@dataclasses.dataclass(frozen=True)
class Options:
    """How a buffer in shards is run: its name, its actors, its checkpoints, and how its clients wait.

    Attributes:
        name: of the buffer: actors are found by it, in the same namespace of Ray.
        detached: whether the shards go on when the program ends that started them; then end them by `ray.kill`.
        actors: options of Ray for the actors of shards, such as `num_cpus`, `resources`, `scheduling_strategy`.
        save_every: after so many items that a shard was given, it writes a checkpoint, in the background: what a shard
            that dies loses is what was added since. `start` needs a directory for it. None: only `Client.save` writes.
        in_flight: so many writes a client sends to a shard before it waits for the first to be acknowledged.
        per_call: so many writes to a shard are gathered and sent in one call, which saves calls. Fewer go when the
            client is next asked for anything else: to draw, to flush, for a receipt's result.
        mass_age: seconds after which a client asks a shard how it stands, if it has heard nothing meanwhile.
        timeout: seconds that clients wait for anything, if nothing else is said.

    Raises:
        TypeError: if the options of Ray are no mapping.
        ValueError: if the name is no str of up to 200 characters, a number is out of range, or more writes are to be
            gathered than may be in flight.

    Example:
        >>> Options("dqn", actors={"num_cpus": 2}, timeout=5.0).timeout
        5.0
    """

    name: str = "replay"
    detached: bool = False
    actors: Mapping[str, object] = dataclasses.field(default_factory=dict)
    save_every: int | None = None
    in_flight: int = 4
    per_call: int = 1
    mass_age: float = 1.0
    timeout: float = 60.0

    def __post_init__(self) -> None:
        checked_name(self.name, "Options.name")
        if not isinstance(self.actors, Mapping):
            raise TypeError(f"Options.actors: expected a dict of Ray's options, got {self.actors!r}")
        if self.save_every is not None:
            object.__setattr__(self, "save_every", checked_count("Options.save_every", self.save_every, 1, 2**62))
        object.__setattr__(self, "in_flight", checked_count("Options.in_flight", self.in_flight, 1, 2**20))
        object.__setattr__(self, "per_call", checked_count("Options.per_call", self.per_call, 1, self.in_flight))
        for name in ("mass_age", "timeout"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
                raise ValueError(f"Options.{name}: expected seconds, 0 or more, got {seconds!r}")


def checked_name(name: object, what: str) -> str:
    """A name by which something is found."""
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise ValueError(f"{what}: expected a str of up to 200 characters, got {name!r}")
    return name
