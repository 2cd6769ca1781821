"""Keys as values: an int64 is a key, a vector of them several. Pure, counter-based, the same on every device."""

from __future__ import annotations

import torch

from functional_rb.buffer import checks
from functional_rb.ops import random_bits
from functional_rb.ops.random_bits import DRAW, FACTORS, GAMMA, MAP, SHIFTS, SPLIT, signed
from torch_backend.arrays.convert import is_batched

# Words that Python's own numbers compute sooner than torch's operations, which take some 50 us for any number.
FEW = 16
_compiling = torch.compiler.is_compiling


def key(seed: int) -> torch.Tensor:
    """A key from a seed of up to 64 bits.

    Args:
        seed: a Python number; taken modulo 2^64.

    Returns:
        int64, a scalar.

    Raises:
        TypeError: for a seed that is no whole number.

    Example:
        >>> torch.equal(key(0), key(0)), torch.equal(key(0), key(1))
        (True, False)
    """
    number = checks.whole(seed)
    if number is None:
        raise TypeError(f"key: expected a seed as a Python int, got {type(seed).__name__}")
    return torch.tensor(signed(random_bits.mix((number + GAMMA) % 2**64)))


def split(key: torch.Tensor, n: int = 2) -> torch.Tensor:
    """Independent keys from one, int64 [n]; the given key should not be used again.

    Example:
        >>> first, second = split(key(0))
        >>> torch.equal(first, second)
        False
    """
    return _outputs(check_key(key), SPLIT, checks.count("split", "n", n))


def for_maps(key: torch.Tensor) -> torch.Tensor:
    """The key of `map_items` that follows from one, and is unrelated to what is drawn and split by it."""
    return _outputs(check_key(key), MAP, 1)[0]


def split_at_once(key: torch.Tensor, n: int) -> list[torch.Tensor]:
    """The keys that `split` gives, each a tensor of its own."""
    return [torch.tensor(number, device="cpu") for number in random_bits.outputs(int(key), SPLIT, n)]


def draws(key: torch.Tensor, batch: int, words: int) -> torch.Tensor:
    """Uniform int32 [batch, words] in [0, 2^31)."""
    return ((_outputs(key, DRAW, batch * words) >> 33) & 0x7FFFFFFF).to(torch.int32).reshape(batch, words)


def _outputs(key: torch.Tensor, purpose: int, n: int) -> torch.Tensor:
    if n <= FEW and not _compiling() and type(key) is torch.Tensor and key.device.type == "cpu" and not is_batched(key):
        return torch.tensor(random_bits.outputs(int(key), purpose, n), dtype=torch.int64, device="cpu")
    # A tensor, made of the key and so where it is without a copy: torch.compile takes a product of arange with a number
    # for an index, and finds this one too large.
    gamma = (key & 0) + signed(GAMMA)
    return _mix(_mix(key + signed(purpose)) + torch.arange(1, n + 1, dtype=torch.int64, device=key.device) * gamma)


def _mix(value: torch.Tensor) -> torch.Tensor:
    for shift, factor in zip(SHIFTS, (*FACTORS, 1), strict=True):
        # An int64 shifts its sign in: mask it off.
        value = value ^ ((value >> shift) & ((1 << (64 - shift)) - 1))
        value = value * signed(factor)
    return value


def check_key(key: object) -> torch.Tensor:
    if not isinstance(key, torch.Tensor) or key.dtype != torch.int64 or key.dim() != 0:
        shown = f"{tuple(key.shape)} {key.dtype}" if isinstance(key, torch.Tensor) else type(key).__name__
        raise TypeError(f"key: expected an int64 scalar tensor made by rb.key(seed) or rb.split, got {shown}")
    return key
