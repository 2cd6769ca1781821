"""Mixtures of buffers of any kind, and in mixtures, by emulated kernels for GPUs, beside the plain engine to the bit.

Each buffer draws by its own launches, one launch shares a batch out, and one for each puts its rows where they belong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import functional_rb as frb
import torch_backend
from tests.agreement.mixed_samples import FLAGS, told
from tests.support import emulated_gpu
from tests.support.backends import needs_native

pytestmark = [needs_native, pytest.mark.usefixtures("tensors_of_the_cpu")]
STEPS: Final = {"x": frb.Unbounded((3,)), "reward": frb.Unbounded(()), "done": frb.Binary(())}


def of_steps(seed: int, sampler: Any = None, transforms: Any = (), count: int = 20) -> Any:
    sampler, rng = sampler or frb.Uniform(), np.random.default_rng(seed)
    batch = {name: rng.random((count, *STEPS[name].shape), np.float32) for name in ("x", "reward")}
    state = torch_backend.init(frb.BufferSpec(STEPS, 32, sampler, transforms=transforms))
    priorities = rng.random(count, np.float32) if sampler.has_priorities else None
    return torch_backend.add(state, batch | {"done": np.arange(count) % 7 == 6}, priorities=priorities)


def centered(items: dict[str, Any]) -> dict[str, Any]:
    return items | {"x": items["x"] - items["x"].mean(0)}


def tripled(items: dict[str, Any]) -> dict[str, Any]:
    return items | {"x": items["x"] * 3}


def nested(*samplers: Any, **how: Any) -> list[Any]:
    inner = frb.Mixture([of_steps(k, sampler) for k, sampler in enumerate(samplers)], [0.3, 0.7], **how)
    return [inner, of_steps(2, samplers[0])]


SLICED: Final = frb.Slices(3, strict_length=False), frb.PrioritizedSlices(3, strict_length=False)
# What is mixed, and the launches for each buffer beside those that share rows out, and place them.
MIXED: Final[dict[str, tuple[Callable[[], list[Any]], list[str]]]] = {
    "n-step returns": (
        lambda: [of_steps(1, frb.Prioritized(), frb.n_step(3, 0.9)), of_steps(2, None, frb.n_step(2, 0.9))],
        ["sample", "read_drawn"] * 2,
    ),
    "limits": (
        lambda: [of_steps(1, frb.Prioritized(max_times_sampled=2)), of_steps(2, frb.Uniform(max_times_sampled=1))],
        ["sample", "spend"] * 2,
    ),
    "limits in order": (
        lambda: [of_steps(1, frb.InOrder(3)), of_steps(2, frb.InOrder(1, newest_first=True))],
        ["spend", "read_drawn"] * 2,
    ),
    "functions": (
        lambda: [of_steps(1, None, frb.map_items(centered)), of_steps(2, None, frb.map_items(tripled))],
        ["sample"] * 2,
    ),
    "in turn": (
        lambda: [of_steps(1, frb.Queue()), of_steps(2, frb.WithoutReplacement())],
        ["draw_in_turn", "draw_epoch", "read_epoch"],
    ),
    "a mixture": (lambda: nested(frb.Uniform(), frb.Prioritized(), how="buffers", parts=3), ["sample"] * 3),
    "a mixture in turn": (lambda: nested(frb.Queue(), frb.Queue(), how="items"), ["draw_in_turn"] * 3),
    "a mixture of slices": (lambda: nested(*SLICED, how="items"), ["draw_slices"] * 3),
}


@pytest.mark.parametrize("how", ["exact", "items", "buffers"])
@pytest.mark.parametrize("kind", MIXED)
def test_buffers_of_any_kind_are_drawn_from_by_their_own_launches(kind: str, how: Any) -> None:
    """Three batches, of which some depend on those before; also beside an empty buffer."""
    make, launches = MIXED[kind]
    is_nested = kind.startswith("a mixture")

    def mixture(more: list[Any], states: list[Any]) -> frb.Mixture:
        parts = {"parts": 5} if how == "buffers" else {}
        return frb.Mixture([*states, *more], [0.4, 0.6, 0.5][: len(states) + len(more)], how, **parts)

    def drawn(mixed: frb.Mixture) -> list[bytes]:
        found = []
        for k in range(3):
            mixed, sample = torch_backend.sample(mixed, torch_backend.key(k), 15, (0.0, 0.5, None)[k])
            real = sample.indices[..., 0] >= 0
            found += [
                *told(sample),
                *(np.asarray(x[real]).tobytes() for x in sample.extras.values() if x.ndim == real.ndim),
            ]
        return [*found, np.asarray(torch_backend.size(mixed, each=True)).tobytes()]

    spec = frb.BufferSpec(STEPS, 8, make()[-1].spec.sampler, transforms=make()[-1].spec.transforms)
    mixtures: list[Callable[[], frb.Mixture]] = [
        lambda: mixture([], make()),
        lambda: mixture([torch_backend.init(spec)], make()),
    ]
    expected = [drawn(mixed()) for mixed in mixtures]
    with emulated_gpu.using("scattered", 3, share=30) as emulated:
        assert [drawn(mixed()) for mixed in mixtures] == expected
        state = mixtures[0]()
        emulated.note()
        before = len(emulated.launched)
        torch_backend.sample(state, torch_backend.key(0), 15, 0.5)
    names = [name for name, _ in emulated.launched[before:]]
    others = ["share_rows"] * (3 if is_nested else 1) + ["place_rows"] * (4 if is_nested else 2)
    assert sorted(names) == sorted(launches + others)


@pytest.mark.parametrize("p", [None, [0.5, 0.5, 3.0]])
def test_a_mixture_in_a_mixture_tells_what_of_it_can_be_drawn(p: Any) -> None:
    """Not what lies in a buffer without a share; and one in which nothing can be drawn has none itself."""
    inner = frb.Mixture([of_steps(0), of_steps(1, count=7)], [0.0, 1.0])
    nothing = frb.Mixture([of_steps(2), of_steps(3, count=0)], [0.0, 1.0])
    draw = functools.partial(torch_backend.sample, frb.Mixture([inner, of_steps(4, count=5), nothing], p))
    expected = told(draw(torch_backend.key(0), 24)[1])
    with emulated_gpu.using("scattered"):
        assert told(draw(torch_backend.key(0), 24)[1]) == expected


@pytest.mark.parametrize("how", ["exact", "items", "buffers"])
@pytest.mark.parametrize("kind", [(frb.Queue(), ()), (SLICED[0], frb.map_items(centered))], ids=["queue", "function"])
def test_nothing_is_taken_from_a_buffer_without_a_share_where_the_others_are_empty(kind: Any, how: Any) -> None:
    with emulated_gpu.using("scattered"):
        mixed = frb.Mixture([of_steps(0, *kind), of_steps(1, *kind[:1], count=0)], [0.0, 1.0], how)
        mixed, sample = torch_backend.sample(mixed, torch_backend.key(0), 6)
    assert (sample.indices == -1).all()
    numbers = (getattr(sample, name, None) for name in ("weights", "probabilities", *FLAGS))
    assert not any(x.any() for x in numbers if x is not None)
    assert torch_backend.size(mixed, each=True).tolist() == [20, 0]


def sliced(columns: int, sizes: list[int], **how: Any) -> frb.Mixture:
    """Of buffers of rows `x[:, 1:]`, whose functions differ."""

    def buffer_of(number: int, size: int) -> Any:
        function = [lambda items: {"x": items["x"][:, 1:]}, lambda items: {"x": 2 * items["x"][:, 1:]}][number % 2]
        spec = frb.BufferSpec({"x": frb.Unbounded((columns,))}, size, transforms=frb.map_items(function))
        values = 1000 * number + np.arange(size * columns, dtype=np.float32).reshape(size, columns)
        return torch_backend.add(torch_backend.init(spec), {"x": values})

    return frb.Mixture([buffer_of(*each) for each in enumerate(sizes)], **how)


def test_rows_that_begin_anywhere() -> None:
    # Of a batch of one row `x[:, 1:]` lies in one piece, 4 bytes behind where x begins.
    mixed = sliced(5, [4, 4], p=[0.5, 0.5])
    draws = [functools.partial(torch_backend.sample, mixed, torch_backend.key(k), 1) for k in range(4)]
    expected = [told(draw()[1]) for draw in draws]
    with emulated_gpu.using("scattered") as emulated:
        assert [told(draw()[1]) for draw in draws] == expected
    assert "place_rows" in [name for name, _ in emulated.launched]


def test_the_last_block_of_a_row_copies_what_is_left_of_it() -> None:
    """And no more: what lies behind is the row of another buffer."""
    mixed = sliced(50, [1, 1, 1, 9], how="items")
    draws = [functools.partial(torch_backend.sample, mixed, torch_backend.key(k), 12) for k in range(4)]
    expected = [told(draw()[1]) for draw in draws]
    with emulated_gpu.using("scattered", share=30) as emulated:
        assert [told(draw()[1]) for draw in draws] == expected
    assert {lines for name, (_, lines) in emulated.launched if name == "place_rows"} != {1}


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_rows_that_a_queue_does_not_have_weigh_nothing(beta: float) -> None:
    def drawn() -> Any:  # from states that nobody has drawn from
        mixed = frb.Mixture([of_steps(0, frb.Queue(), count=3), of_steps(1, frb.Queue())], p=[0.5, 0.5])
        return torch_backend.sample(mixed, torch_backend.key(0), 12, beta)[1]

    expected = drawn()
    with emulated_gpu.using("scattered") as emulated:
        found = drawn()
    assert told(found) == told(expected)
    assert (found.weights > 0).tolist() == [True] * 3 + [False] * 3 + [True] * 6
    assert "place_rows" in [name for name, _ in emulated.launched]


def test_chances_without_replacement_are_those_of_the_rows_that_come() -> None:
    """Of six rows a buffer gives three: an item's chance is that to be among three, not six."""
    spec = frb.BufferSpec({"x": frb.Unbounded(())}, 8, frb.Prioritized(beta=0.0, replacement=False))
    numbers = {"x": np.arange(8, dtype=np.float32)}
    mixed = frb.Mixture([torch_backend.add(torch_backend.init(spec), numbers) for _ in range(2)], p=[0.5, 0.5])
    draw = functools.partial(torch_backend.sample, mixed, torch_backend.key(0), 6)
    expected = told(draw()[1])
    with emulated_gpu.using("scattered"):
        assert told(draw()[1]) == expected
