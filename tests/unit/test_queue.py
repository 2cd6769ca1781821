"""How full a lane of a queue may still be, as far as the host can tell without asking the device."""

from __future__ import annotations

import pytest

import functional_rb as frb


@pytest.mark.parametrize("length", [None, 1, 2, 3])
def test_the_most_that_is_left_is_what_some_lane_has(length: int | None) -> None:
    window = length or 1
    for most in range(9):
        for draws in range(5):
            left = [size - min(size // window, draws) * window for size in range(most + 1)]
            assert frb.Queue(length).most_left(most, draws) == max(left)
