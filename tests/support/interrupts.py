"""Interrupts where they may come: at every line of the library's own, as Ctrl-C lets Python raise it between two."""

from __future__ import annotations

import ast
import dis
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import functional_rb

_ROOT = Path(functional_rb.__file__).parents[1]
_FINALIZE = weakref.finalize.__call__.__code__
_OURS = tuple(str(_ROOT / name) + "/" for name in ("functional_rb", "jax_backend", "torch_backend"))

Place = tuple[str, int]


def interrupted(line: int, work: Callable[..., Any], *args: Any, everywhere: bool = False) -> bool:
    """Call a function that is interrupted at the so many-th line, from 0, that it comes to in this thread.

    Args:
        line: see `lines`.
        work: the function.
        args: its arguments.
        everywhere: whether it may also be the first line of a `finally`, which Python interrupts nowhere.

    Returns:
        Whether it came to that line, and so was interrupted.
    """
    return _traced(line, work, args, everywhere)[0]


def lines(work: Callable[..., Any], *args: Any, everywhere: bool = False) -> list[Place]:
    """The lines of the library that a function comes to, one after the other: file and number."""
    return _traced(-1, work, args, everywhere)[1]


def chosen(places: Sequence[Place], most: int | None, seed: int = 0, always: Sequence[str] = ()) -> list[int]:
    """Some of the lines that `lines` tells: all of them, or about so many different ones, spread over the call.

    Args:
        places: what `lines` tells.
        most: how many; None for all.
        seed: another one chooses others.
        always: the ends of the names of files of which all different lines are chosen.
    """
    if most is None or len(places) <= most:
        return [*range(len(places))]
    first = sorted({place: k for k, place in reversed([*enumerate(places)])}.values())
    wanted = [k for k in first if places[k][0].endswith(tuple(always))] if always else []
    step = max(1, len(first) // most)
    return sorted({*wanted, *first[seed % step :: step]})


def interrupted_as_a_call_ends(call: int, work: Callable[..., Any], *args: Any) -> list[Place]:
    """Call a function that is interrupted as the so many-th call of the library's into C, from 0, has ended.

    What the call gives is lost: there Python looks for signals, before anybody has kept it.

    Args:
        call: -1 for none.
        work: the function.
        args: its arguments.

    Returns:
        The lines with the calls that it came to, one after the other.
    """
    seen: list[Place] = []
    raised: list[KeyboardInterrupt] = []

    def at_event(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "c_return" and frame.f_code.co_filename.startswith(_OURS):
            seen.append((frame.f_code.co_filename, frame.f_lineno))
            if len(seen) > call >= 0 and not _is_finalized(frame):
                raised.append(KeyboardInterrupt())
                raise raised[0]

    before = sys.getprofile()
    sys.setprofile(at_event)
    try:
        work(*args)
    except KeyboardInterrupt as error:
        if error not in raised:
            raise
    finally:
        sys.setprofile(before)
    return seen


def _traced(line: int, work: Callable[..., Any], args: tuple[Any, ...], everywhere: bool) -> tuple[bool, list[Place]]:
    seen: list[Place] = []
    raised: list[KeyboardInterrupt] = []

    def at_line(frame: types.FrameType, event: str, _: Any) -> Any:
        if event == "line" and not _is_sheltered(frame, everywhere):
            seen.append((frame.f_code.co_filename, frame.f_lineno))
            if len(seen) > line >= 0 and not _is_finalized(frame):
                raised.append(KeyboardInterrupt(f"{frame.f_code.co_filename}:{frame.f_lineno}"))
                raise raised[0]
        return at_line

    def at_call(frame: types.FrameType, event: str, _: Any) -> Any:
        return at_line if frame.f_code.co_filename.startswith(_OURS) else None

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        work(*args)
    except BaseException as error:
        if not any(cause in raised for cause in _causes(error)):  # XLA wraps what comparing specs raises
            raise
        for cause in _causes(error):
            cause.__traceback__ = None  # which would keep what the frames held, as a cycle
    finally:
        sys.settrace(before)
    return bool(raised), seen


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_finalized(frame: types.FrameType | None) -> bool:
    """Whether something dies in a frame, or around it: what is raised there Python reports, and goes on."""
    while frame is not None and frame.f_code.co_name != "__del__" and frame.f_code is not _FINALIZE:
        frame = frame.f_back
    return frame is not None


def _is_sheltered(frame: types.FrameType, everywhere: bool) -> bool:
    """Whether an event tells of a line before which no interrupt can come.

    Python looks for signals where a call ends, a function begins, and a loop goes round. So none comes between the end
    of a `with` block and the call of `__exit__`, of which an event tells, or at `try:`; nor before the first line of a
    `finally`.
    """
    code = frame.f_code
    if frame.f_lasti in _exits(code) or frame.f_lasti in _comprehensions(code):
        return True
    return not everywhere and frame.f_lineno in _finals(code.co_filename)


@functools.cache
def _finals(path: str) -> frozenset[int]:
    """The first line of each `finally`."""
    nodes = ast.walk(ast.parse(Path(path).read_text()))
    return frozenset(node.finalbody[0].lineno for node in nodes if isinstance(node, ast.Try) and node.finalbody)


@functools.cache
def _comprehensions(code: types.CodeType) -> frozenset[int]:
    """What Python 3.12 and newer do of comprehensions in the function around them.

    What a tracer raises there leaves a `with` block without its `__exit__`. A signal does not: of 600 that came into a
    loop of such comprehensions, 344 of them right there, none left the lock held.
    """
    if sys.version_info < (3, 12):
        return frozenset()
    found = [*dis.get_instructions(code)]
    within = _spans_of_comprehensions(code.co_filename)
    return frozenset(each.offset for each in found if _is_within(each.positions, within))


def _is_within(positions: Any, spans: frozenset[tuple[int, int, int, int]]) -> bool:
    if positions is None or None in positions:
        return False
    begin, end = (positions.lineno, positions.col_offset), (positions.end_lineno, positions.end_col_offset)
    return any(span[:2] <= begin and end <= span[2:] for span in spans)


@functools.cache
def _spans_of_comprehensions(path: str) -> frozenset[tuple[int, int, int, int]]:
    """Line and column of the beginning and of the end of each."""
    nodes = ast.walk(ast.parse(Path(path).read_text()))
    return frozenset(
        (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
        for node in nodes
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp)
    )


@functools.cache
def _exits(code: types.CodeType) -> frozenset[int]:
    """Where the calls `__exit__(None, None, None)` begin, and where nothing is done, as at `try:`."""
    found = [each for each in dis.get_instructions(code) if each.opname not in ("CACHE", "EXTENDED_ARG")]
    offsets = {each.offset for each in found if each.opname == "NOP"}
    for k in range(len(found) - 3):
        nones = all(each.opname == "LOAD_CONST" and each.argval is None for each in found[k : k + 3])
        if nones and found[k + 3].opname in ("PRECALL", "CALL"):
            offsets.add(found[k].offset)
            while k and found[k - 1].opname in ("SWAP", "NOP"):  # the value that is returned stays on the stack
                k -= 1
                offsets.add(found[k].offset)
    return frozenset(offsets)


def finished(work: Callable[..., Any], *args: Any) -> None:
    """Work in another thread, which would wait for ever for what an interrupted one has left locked."""
    failed: list[BaseException] = []

    def called() -> None:
        try:
            work(*args)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=called, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for ever"
    assert not failed, failed
