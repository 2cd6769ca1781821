"""Pickles that hold arrays, numbers, texts and containers, and nothing else.

A pickle is a program for a small machine with a stack, and the machine of the standard library calls whatever function
a pickle names. This one has no calls: it knows how NumPy's arrays, their dtypes and their numbers are written, puts
them together itself, and refuses every other name. What a pickle may take of memory is bounded.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Sequence
from typing import IO, Any

from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats.pickled_arrays import KNOWN, Name, PendingArray, PickledType, RefusedError, made
from functional_rb.datasets.formats.streams import read_exactly

# Bytes that a pickle may take in memory.
MOST = 2**31
# Bytes that a small object takes, about.
OBJECT = 100


def unpickle(stream: IO[bytes] | bytes, where: str, most: int = MOST) -> Any:
    """What a pickle holds: dicts, lists, tuples, numbers, texts, bytes, and arrays, which are read-only.

    Arrays of objects become lists; those without axes, in which `numpy.save` puts what is no array, their content.

    Args:
        stream: read up to the end of the pickle; or its bytes. Of protocol 2 or above, which Python 3 writes.
        where: its name, for errors.
        most: bytes that it may take in memory.

    Raises:
        DatasetError: for anything else, naming the function or class that the pickle wants.

    Example:
        >>> unpickle(pickle.dumps({"done": [True, None]}), "a file")
        {'done': [True, None]}
    """
    machine = _Machine(io.BytesIO(stream) if isinstance(stream, bytes) else stream, where, most)
    try:
        return machine.run()
    except RefusedError as error:
        raise DatasetError(
            f"{where}: the pickle holds {error}; only arrays, numbers, texts and containers are read, no code is run"
        ) from None
    except DatasetError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, struct.error) as error:
        raise DatasetError(f"{where}: expected a pickle, got something else: {error!r:.200}") from None


class _Machine:
    """Reads the instructions of a pickle one by one; `left` bytes of memory may still be taken."""

    def __init__(self, stream: IO[bytes], where: str, most: int) -> None:
        self.stream, self.where, self.left = stream, where, most
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        while (code := self.bytes(1)) != pickle.STOP:
            if code not in _INSTRUCTIONS:
                raise RefusedError(f"an instruction {code!r} that arrays are not written with")
            # An instruction of one byte makes a dict: a limit on bytes alone would not bound the memory.
            self.take(OBJECT)
            _INSTRUCTIONS[code](self)
        (value,) = self.several(1)
        return _filled(value)

    def take(self, nbytes: int) -> None:
        self.left -= nbytes
        if self.left < 0:
            raise RefusedError("more than may be taken of memory")

    def bytes(self, n: int) -> bytes:
        self.take(n)
        return read_exactly(self.stream, n, self.where)

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.bytes(struct.calcsize(form)))[0])

    def line(self) -> str:
        line = bytearray()
        while (byte := self.bytes(1)) != b"\n":
            line += byte
        return line.decode("ascii", "backslashreplace")

    def push(self, value: object) -> None:
        self.stack.append(value)

    def several(self, n: int) -> list[object]:
        """The last values of the stack, taken away."""
        at = len(self.stack) - n
        if at < (self.marks[-1] if self.marks else 0):
            raise RefusedError("a container of parts that are not there")
        parts = self.stack[at:]
        del self.stack[at:]
        return parts

    def marked(self) -> list[object]:
        """What lies on the stack above the last mark, taken away with it."""
        at = self.marks.pop()
        parts = self.stack[at:]
        del self.stack[at:]
        return parts

    def text(self, form: str) -> None:
        self.push(self.bytes(self.number(form)).decode("utf-8", "surrogatepass"))

    def long(self, form: str) -> None:
        self.push(int.from_bytes(self.bytes(max(self.number(form), 0)), "little", signed=True))

    def name(self, module: object, name: object) -> None:
        if f"{module}.{name}" not in KNOWN:
            raise RefusedError(f"{module}.{name}"[:200])
        self.push(KNOWN[f"{module}.{name}"])

    def build(self) -> None:
        value, state = self.several(2)
        if not isinstance(value, PendingArray | PickledType):
            raise RefusedError(f"a state of a {type(value).__name__}")
        value.set(state)
        self.push(value)

    def extend(self, values: Sequence[object]) -> None:
        if type(self.stack[-1]) is not list:
            raise RefusedError(f"values that are put into a {type(self.stack[-1]).__name__}")
        self.stack[-1].extend(values)

    def update(self, values: Sequence[object]) -> None:
        keys = values[::2]
        if type(self.stack[-1]) is not dict or not all(isinstance(key, str | bytes | int | float) for key in keys):
            raise RefusedError("keys of dicts that are neither texts nor numbers")
        self.stack[-1].update(zip(keys, values[1::2], strict=True))

    def memorize(self, at: int) -> None:
        self.memo[at] = self.stack[-1]


def _filled(root: object) -> object:
    """A value with the arrays in the places where they were named. Each container is gone through once."""
    done = {}

    def filled(value: object, depth: int) -> object:
        if depth > 100:
            raise RefusedError("containers in more than 100 others")
        if isinstance(value, PendingArray):
            if value.value is value:
                raise RefusedError("an array without a state")
            return filled(value.value, depth + 1)
        if not isinstance(value, dict | list | tuple):
            if isinstance(value, PickledType | Name):
                raise RefusedError("something that is no value")
            return value
        if id(value) not in done:
            done[id(value)] = value  # for what a container holds of itself
            if isinstance(value, dict):
                value.update({key: filled(part, depth + 1) for key, part in value.items()})
            elif isinstance(value, list):
                value[:] = [filled(part, depth + 1) for part in value]
            else:
                done[id(value)] = tuple(filled(part, depth + 1) for part in value)
        return done[id(value)]

    return filled(root, 0)


_INSTRUCTIONS: dict[bytes, Callable[[_Machine], object]] = {
    pickle.PROTO: lambda machine: machine.number("<B"),
    pickle.FRAME: lambda machine: machine.number("<Q"),
    pickle.NONE: lambda machine: machine.push(None),
    pickle.NEWTRUE: lambda machine: machine.push(True),
    pickle.NEWFALSE: lambda machine: machine.push(False),
    pickle.BININT: lambda machine: machine.push(machine.number("<i")),
    pickle.BININT1: lambda machine: machine.push(machine.number("<B")),
    pickle.BININT2: lambda machine: machine.push(machine.number("<H")),
    pickle.LONG1: lambda machine: machine.long("<B"),
    pickle.LONG4: lambda machine: machine.long("<i"),
    pickle.BINFLOAT: lambda machine: machine.push(struct.unpack(">d", machine.bytes(8))[0]),
    pickle.SHORT_BINUNICODE: lambda machine: machine.text("<B"),
    pickle.BINUNICODE: lambda machine: machine.text("<I"),
    pickle.BINUNICODE8: lambda machine: machine.text("<Q"),
    pickle.SHORT_BINBYTES: lambda machine: machine.push(machine.bytes(machine.number("<B"))),
    pickle.BINBYTES: lambda machine: machine.push(machine.bytes(machine.number("<I"))),
    pickle.BINBYTES8: lambda machine: machine.push(machine.bytes(machine.number("<Q"))),
    pickle.BYTEARRAY8: lambda machine: machine.push(machine.bytes(machine.number("<Q"))),
    pickle.MARK: lambda machine: machine.marks.append(len(machine.stack)),
    pickle.POP: lambda machine: machine.several(1),
    pickle.POP_MARK: lambda machine: machine.marked(),
    pickle.EMPTY_TUPLE: lambda machine: machine.push(()),
    pickle.TUPLE1: lambda machine: machine.push((*machine.several(1),)),
    pickle.TUPLE2: lambda machine: machine.push((*machine.several(2),)),
    pickle.TUPLE3: lambda machine: machine.push((*machine.several(3),)),
    pickle.TUPLE: lambda machine: machine.push((*machine.marked(),)),
    pickle.EMPTY_LIST: lambda machine: machine.push([]),
    pickle.APPEND: lambda machine: machine.extend(machine.several(1)),
    pickle.APPENDS: lambda machine: machine.extend(machine.marked()),
    pickle.EMPTY_DICT: lambda machine: machine.push({}),
    pickle.SETITEM: lambda machine: machine.update(machine.several(2)),
    pickle.SETITEMS: lambda machine: machine.update(machine.marked()),
    pickle.MEMOIZE: lambda machine: machine.memorize(len(machine.memo)),
    pickle.BINPUT: lambda machine: machine.memorize(machine.number("<B")),
    pickle.LONG_BINPUT: lambda machine: machine.memorize(machine.number("<I")),
    pickle.BINGET: lambda machine: machine.push(machine.memo[machine.number("<B")]),
    pickle.LONG_BINGET: lambda machine: machine.push(machine.memo[machine.number("<I")]),
    pickle.GLOBAL: lambda machine: machine.name(machine.line(), machine.line()),
    pickle.STACK_GLOBAL: lambda machine: machine.name(*machine.several(2)),
    pickle.REDUCE: lambda machine: machine.push(made(*machine.several(2))),
    pickle.BUILD: lambda machine: machine.build(),
}
