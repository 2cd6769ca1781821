"""Array dtypes by name, the one form that NumPy, JAX and torch have in common."""

from __future__ import annotations

import math
import operator
from typing import Any, Final, Literal

import numpy as np

from functional_rb.base.arrays import NumpyArray

Kind = Literal["bool", "int", "float", "complex"]

ITEMSIZE: Final[dict[str, int]] = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
}


def name_of(dtype: object) -> str:
    """The name of a dtype given as a string, a NumPy or JAX dtype or scalar type, or a torch dtype.

    Args:
        dtype: for example `"float32"`, `np.float32`, `jnp.bfloat16` or `torch.uint8`.

    Returns:
        A name that is a key of `ITEMSIZE`.

    Raises:
        TypeError: if it is not a dtype that a buffer can store.

    Example:
        >>> name_of(np.float32), name_of("bool")
        ('float32', 'bool')
    """
    name = dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")
    if name not in ITEMSIZE and dtype is not None:  # which NumPy takes for float64
        try:
            name = np.dtype(dtype).name  # type: ignore[call-overload]  # whatever NumPy may know
        except (TypeError, ValueError):
            name = str(dtype)
    if name not in ITEMSIZE:
        raise TypeError(f"dtype {dtype!r} cannot be stored; expected one of {', '.join(ITEMSIZE)}")
    return name


def shown(dtype: object) -> str:
    """A dtype's name for comparisons and messages, also of a dtype that cannot be stored."""
    return str(dtype).removeprefix("torch.")


def kind_of(name: str) -> Kind:
    """Which kind of numbers a dtype holds: truth values, integers, real or complex numbers."""
    if name == "bool":
        return "bool"
    if name.startswith("complex"):
        return "complex"
    return "float" if "float" in name else "int"


def largest_float(name: str) -> float:
    """The largest finite value of a real dtype, or of either part of a complex one."""
    digits, exponent = {"float16": (11, 16), "bfloat16": (8, 128), "float64": (53, 1024)}.get(name, (24, 128))
    return (2.0 - 2.0 ** (1 - digits)) * 2.0 ** (exponent - 1)


def integer_limits(name: str) -> tuple[int, int]:
    """The smallest and the largest value of an integer dtype."""
    info = np.iinfo(name)
    return int(info.min), int(info.max)


def check_scalar(leaf: Any, dtype: str, name: str) -> None:
    """Check a Python number that stands for a scalar leaf of one item: its kind must fit the dtype."""
    kind = kind_of(dtype)
    fits = {
        "bool": isinstance(leaf, bool),
        "int": isinstance(leaf, int) and not isinstance(leaf, bool),
        "float": isinstance(leaf, (int, float)) and not isinstance(leaf, bool),
        "complex": isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool),
    }[kind]
    if not fits:
        raise TypeError(
            f"leaf {name!r}: expected an array of dtype {dtype}, got {leaf!r} of type {type(leaf).__name__}; "
            f"give arrays"
        )
    if kind == "int":
        low, high = integer_limits(dtype)
        if not low <= leaf <= high:
            raise ValueError(f"leaf {name!r}: {leaf} does not fit into {dtype} ({low} to {high}); change its spec")
    if kind in ("float", "complex"):
        largest = largest_float(dtype)
        # A number that torch.compile traces has no parts.
        parts = (leaf.real, leaf.imag) if isinstance(leaf, complex) else (leaf,)
        # Compared before it is converted: a Python int has no upper bound.
        if any(largest < abs(number) != math.inf for number in parts):
            raise ValueError(
                f"leaf {name!r}: {leaf:.6} does not fit into {dtype} (up to {largest:.6}); change its spec"
                if isinstance(leaf, float)
                else f"leaf {name!r}: the number does not fit into {dtype} (up to {largest:.6}); change its spec"
            )


# For each float dtype the bits of the whole numbers that it holds without a gap.
_MANTISSA: Final = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def exact_integers(name: str) -> tuple[int, int]:
    """The ends of the range in which a dtype of integers or floats has every whole number.

    Example:
        >>> exact_integers("int8"), exact_integers("float16")
        ((-128, 127), (-2048, 2048))
    """
    if kind_of(name) == "int":
        return integer_limits(name)
    return -(2 ** _MANTISSA[name]), 2 ** _MANTISSA[name]


def canonical(name: str, value: Any, who: str) -> Any:
    """A number, or nested tuples of them, as the shortest decimal that a dtype rounds to the same value.

    Numbers that the dtype does not tell apart become equal, whatever precision they came in.

    Raises:
        ValueError: for what lies outside of an integer dtype, or between its values, naming who asks.

    Example:
        >>> canonical("float32", float(np.float32(0.1)), "low"), canonical("int8", (1.0, 2), "low")
        (0.1, (1, 2))
    """
    if isinstance(value, tuple):
        return tuple(canonical(name, number, who) for number in value)
    if kind_of(name) == "float":
        return _shortest(name, float(value))
    low, high = integer_limits(name)
    if not low <= value <= high or value != int(value):
        remedy = "round it" if low <= value <= high else "Unbounded has no bounds, and a wider dtype wider ones"
        raise ValueError(
            f"{who}: expected whole numbers from {low} to {high}, as {name} has them, got {value!r}; {remedy}"
        )
    return int(value)


def _shortest(name: str, value: float) -> float:
    exact = rounded(name, value) + 0.0  # makes 0.0 of -0.0, as the two are equal
    if name == "float64" or not math.isfinite(exact):
        return exact
    if name != "bfloat16":
        return float(np.format_float_scientific(np.dtype(name).type(exact)))
    return next(short for digits in range(1, 10) if rounded(name, short := float(f"{exact:.{digits}g}")) == exact)


def rounded(name: str, value: float) -> float:
    """The nearest number of a real dtype, ties to even; bfloat16 is rounded from float32, as in other libraries."""
    with np.errstate(over="ignore"):
        return float(as_numpy(name, value))


def as_numpy(name: str, values: object) -> NumpyArray:
    """Numbers as an array of a dtype; those of bfloat16, which NumPy lacks, are rounded to it and held as float32.

    Example:
        >>> as_numpy("bfloat16", 0.1)
        array(0.10009766, dtype=float32)
    """
    if name != "bfloat16":
        return np.asarray(values, name)
    exact = np.asarray(values, np.float32)
    bits = exact.view(np.uint32)
    with np.errstate(over="ignore"):  # NaN may overflow here, and is left as it is below
        nearest = np.asarray((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000, np.uint32).view(np.float32)
    return np.where(np.isnan(exact), exact, nearest)


def as_dtype(value: object, dtype: str) -> NumpyArray:
    """What an environment gives, an array or nested sequence of numbers, as a NumPy array of a dtype.

    Floats are rounded; whole numbers must fit. Numbers of bfloat16, which NumPy lacks, are held as float32.

    Raises:
        TypeError: for values that are no numbers, and where truth values and numbers would be mixed up.
        ValueError: for whole numbers that do not fit.

    Example:
        >>> as_dtype([1, 2], "uint8"), as_dtype(np.float64(0.1), "float32")
        (array([1, 2], dtype=uint8), array(0.1, dtype=float32))
    """
    array = np.asarray(value)
    if shown(array.dtype) == dtype:
        return array
    kind, got = kind_of(dtype), array.dtype.kind
    order = {"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex", "V": "float"}  # V: bfloat16
    allowed = {"bool": ("bool",), "int": ("int",), "float": ("int", "float"), "complex": ("int", "float", "complex")}
    if order.get(got) not in allowed[kind]:
        raise TypeError(f"expected numbers that dtype {dtype} has, got {array.dtype}; convert them")
    if kind == "int" and array.size:
        low, high = integer_limits(dtype)
        if int(array.min()) < low or int(array.max()) > high:
            raise ValueError(
                f"numbers from {array.min()} to {array.max()} do not fit into {dtype} ({low} to {high}); "
                f"give the spec another dtype"
            )
    with np.errstate(over="ignore"):
        return as_numpy(dtype, array) if dtype == "bfloat16" else array.astype(dtype)


def whole_number(value: Any, who: str, what: str = "a whole number") -> int:
    """A whole number of any library as a Python int."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{who}: expected {what}, got {value!r}")
    return number


def checked_count(name: str, value: object, low: int, high: int) -> int:
    """A Python int between bounds."""
    count = whole_number(value, name, "an int")
    if not low <= count <= high:
        raise ValueError(f"{name}: expected {low} to {high}, got {count}")
    return count
