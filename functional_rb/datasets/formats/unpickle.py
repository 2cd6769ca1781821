"""Pickles that hold arrays, numbers, texts and containers, and nothing else.

A pickle is a program for a small machine with a stack, and the machine of the standard library calls whatever function
a pickle names. This one has no calls: it knows how NumPy's arrays, their dtypes and their numbers are written, puts
them together itself, and refuses every other name. What a pickle may take of memory is bounded. The standard library
only takes it apart into instructions and their arguments, by `pickletools`, which calls nothing either.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np

from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats.pickled_arrays import KNOWN, Name, PendingArray, PickledType, RefusedError, built
from functional_rb.datasets.formats.streams import read_exactly

# Bytes that a pickle may take in memory.
MOST = 2**31
# Bytes that a small object takes, about.
OBJECT = 100
# Bytes that a line may have: names of functions and of classes come in lines.
LINE = 1000


def unpickle(stream: IO[bytes] | bytes, where: str, most: int = MOST) -> Any:
    """What a pickle holds: dicts, lists, tuples, numbers, texts, bytes, and arrays, which are read-only.

    Arrays of objects become lists; those without axes, in which `numpy.save` puts what is no array, their content. A
    stream is read up to the end of the pickle, which is of protocol 2 or above, as Python 3 writes it, and may take so
    many bytes in memory at `most`. Anything else is refused, naming the function or class that the pickle wants.

    Example:
        >>> import pickle
        >>> unpickle(pickle.dumps({"done": [True, None]}), "a file")
        {'done': [True, None]}
    """
    # `pickle.Unpickler` with a `find_class` of one's own would still call what lies on its stack, and its memo takes as
    # much memory as an index in the pickle claims.
    machine = _Machine(io.BytesIO(stream) if isinstance(stream, bytes) else stream, where, most)
    readable: Any = machine  # `genops` needs `read` and `readline` alone
    try:
        for instruction, argument, _ in pickletools.genops(readable):
            if instruction.name not in _INSTRUCTIONS:
                raise RefusedError(f"an instruction {instruction.name} that arrays are not written with")
            # An instruction of one byte makes a dict: a limit on bytes alone would not bound the memory.
            machine.take(OBJECT)
            _INSTRUCTIONS[instruction.name](machine, argument)
        (value,) = machine.several(1)
        return _filled(value)
    except RefusedError as error:
        raise DatasetError(
            f"{where}: the pickle holds {error}; only arrays, numbers, texts and containers are read, no code is run"
        ) from None
    except DatasetError:
        raise
    except (ValueError, TypeError, IndexError, KeyError) as error:
        raise DatasetError(f"{where}: expected a pickle, got something else: {error!r:.200}") from None


class _Machine:
    # What a pickle is read through, and what its instructions act on; `left` bytes of memory may still be taken.

    def __init__(self, stream: IO[bytes], where: str, most: int) -> None:
        self.stream, self.where, self.left = stream, where, most
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def take(self, nbytes: int) -> None:
        self.left -= nbytes
        if self.left < 0:
            raise RefusedError("more than may be taken of memory")

    def read(self, n: int) -> bytes:
        self.take(n)
        return read_exactly(self.stream, n, self.where)

    def readline(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            line += self.read(1)
            # What follows a backslash would be taken for an escape, with a warning where it is none.
            if len(line) > LINE or line.endswith(b"\\"):
                raise RefusedError("a line that is no name of NumPy's")
        return line

    def push(self, value: object) -> None:
        self.stack.append(value)

    def several(self, n: int) -> list[object]:
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

    def name(self, module: object, name: object) -> None:
        # Of containers no text is made: a list that has the one before twice, fifty times over, would fill the memory.
        if not isinstance(module, str) or not isinstance(name, str):
            raise RefusedError("a name that is no text")
        if f"{module}.{name}" not in KNOWN:
            raise RefusedError(f"{module[:100]}.{name[:100]}")
        self.push(KNOWN[f"{module}.{name}"])

    def call(self) -> None:
        value = built(*self.several(2))
        # Copies, of which a pickle may ask for any number, of what it holds once.
        if isinstance(value, bytes | np.generic):
            self.take(len(value) if isinstance(value, bytes) else value.nbytes)
        self.push(value)

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
        # Keys that are arrays or tuples have no use here, and a hash of a value that is still to be put together would
        # change.
        keys = values[::2]
        if type(self.stack[-1]) is not dict or not all(isinstance(key, str | bytes | int | float) for key in keys):
            raise RefusedError("keys of dicts that are neither texts nor numbers")
        self.stack[-1].update(zip(keys, values[1::2], strict=True))

    def memorize(self, at: int) -> None:
        self.memo[at] = self.stack[-1]


def _filled(root: object) -> object:
    # A value with the arrays in the places where they were named. Each container is gone through once.
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
            done[id(value)] = value  # a container may hold itself
            if isinstance(value, dict):
                value.update({key: filled(element, depth + 1) for key, element in value.items()})
            elif isinstance(value, list):
                value[:] = [filled(element, depth + 1) for element in value]
            else:
                done[id(value)] = tuple(filled(element, depth + 1) for element in value)
        return done[id(value)]

    return filled(root, 0)


# By their names in `pickletools`, each a function of the machine and of the argument.
_VALUES = "BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT SHORT_BINUNICODE BINUNICODE BINUNICODE8"
_BYTES = "SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8"
_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], object]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda machine, _: None),
    **dict.fromkeys(_VALUES.split(), lambda machine, value: machine.push(value)),
    **dict.fromkeys(_BYTES.split(), lambda machine, content: machine.push(bytes(content))),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "POP": lambda machine, _: machine.several(1),
    "POP_MARK": lambda machine, _: machine.marked(),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE1": lambda machine, _: machine.push((*machine.several(1),)),
    "TUPLE2": lambda machine, _: machine.push((*machine.several(2),)),
    "TUPLE3": lambda machine, _: machine.push((*machine.several(3),)),
    "TUPLE": lambda machine, _: machine.push((*machine.marked(),)),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "APPEND": lambda machine, _: machine.extend(machine.several(1)),
    "APPENDS": lambda machine, _: machine.extend(machine.marked()),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "SETITEM": lambda machine, _: machine.update(machine.several(2)),
    "SETITEMS": lambda machine, _: machine.update(machine.marked()),
    "MEMOIZE": lambda machine, _: machine.memorize(len(machine.memo)),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda machine, at: machine.memorize(at)),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda machine, at: machine.push(machine.memo[at])),
    "GLOBAL": lambda machine, names: machine.name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(*machine.several(2)),
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
}
