"""Agreement of processes that save or load a buffer together: what fails in one of them fails in all."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import TypeVar

from functional_rb.base.errors import CheckpointError
from functional_rb.base.strict_json import Json

Answer = TypeVar("Answer")


@dataclasses.dataclass(frozen=True)
class Group:
    """The processes that share a buffer, as one of them sees them."""

    number: int  # which of them this one is
    count: int  # how many they are
    shards: int  # to how many shards the buffer is dealt; a process may have several
    own: tuple[int, ...]  # the shards that this process has
    tell: Callable[[str], list[str]]  # what each process tells, in their order: all of them call it


def agreed(group: Group, who: str, work: Callable[[], Answer]) -> list[Answer]:
    """The result of a piece of work in each process, as JSON has it.

    Raises:
        BaseException: what it raises in this process.
        CheckpointError: if it fails in another one, naming that and why.
    """
    error: BaseException | None = None
    message: Json
    try:
        message = {"result": work()}
    except BaseException as raised:  # others wait for an answer, whatever it is
        error, message = raised, {"failure": f"{type(raised).__name__}: {raised}"}
    answers = [json.loads(text) for text in group.tell(json.dumps(message))]
    if error is not None:
        raise error
    for number, answer in enumerate(answers):
        if "failure" in answer:
            raise CheckpointError(
                f"{who}: process {number} of {group.count} has failed, and so this one (process {group.number}) gives "
                f"up too; there: {answer['failure']}"
            )
    return [answer["result"] for answer in answers]
