"""What processes that share a buffer tell each other while they save and load it: what one cannot do, none has done."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from functional_rb.base.errors import CheckpointError


class Group(Protocol):
    """The processes that share a buffer, as one of them sees them."""

    @property
    def number(self) -> int:
        """Which of them this one is."""

    @property
    def count(self) -> int:
        """How many they are."""

    @property
    def shards(self) -> int:
        """To how many shards the buffer is dealt; a process may have several."""

    @property
    def own(self) -> tuple[int, ...]:
        """The shards that this process has."""

    def tell(self, text: str) -> list[str]:
        """What each process tells, in their order: all of them call it."""


def agreed(group: Group, who: str, work: Callable[[], object]) -> list[Any]:
    """What a piece of work gives in each process, as JSON has it.

    Raises:
        BaseException: what it raises in this process.
        CheckpointError: if it fails in another one, naming that and why.
    """
    error, told = None, {}
    try:
        told = {"done": work()}
    except BaseException as raised:  # others wait for an answer, whatever it is
        error, told = raised, {"failed": f"{type(raised).__name__}: {raised}"}
    everyones = [json.loads(text) for text in group.tell(json.dumps(told))]
    if error is not None:
        raise error
    for number, one in enumerate(everyones):
        if "failed" in one:
            raise CheckpointError(
                f"{who}: process {number} of {group.count} has failed, and so this one (process {group.number}) gives "
                f"up too; there: {one['failed']}"
            )
    return [one["done"] for one in everyones]
