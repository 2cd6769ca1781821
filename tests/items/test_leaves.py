"""Names, dtypes, shapes, choices and rewards, and the inverses of what has one."""

from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import functional_rb as frb
from tests.items.item_functions import PIXELS, after, close, on_numpy

items = frb.items
RNG = np.random.default_rng(1)
SPACE = frb.Bounded([-1, 0], [1, 10], (2,))
ITEM = {
    "a": frb.Bounded(-1, 1, (2,)),
    "b": frb.Bounded([0, 1], 2, (2,)),
    "s": frb.Unbounded(()),
    "m": frb.Unbounded((2, 3), "int32"),
    "c": frb.Categorical(4),
    "u": SPACE,
    "d": frb.Binary(()),
    "x": PIXELS,
}
VECTORS = frb.items.cat(["a", "s", "b"], "joined")


def batch(count: int = 5) -> dict[str, np.ndarray]:
    """Values of the item."""
    made = {
        "a": RNG.uniform(-1, 1, (count, 2)),
        "b": RNG.uniform(1, 2, (count, 2)),
        "s": RNG.normal(size=count),
        "m": RNG.integers(-9, 9, (count, 2, 3)),
        "c": RNG.integers(0, 4, count),
        "u": RNG.uniform([-1, 0], [1, 10], (count, 2)),
        "d": RNG.random(count) < 0.5,
        "x": RNG.integers(0, 256, (count, 6, 5, 3)),
    }
    return {name: x.astype(ITEM[name].dtype) for name, x in made.items()}


INVERTED = {
    "to_image": items.to_image(),
    "cast": items.cast("float32", ["m", "c", "d"]),
    "rename": items.rename({"a": "obs/a", "b": ("obs", "b")}),
    "normalize": items.normalize([1.0, 2.0], 4, ["a", "b"]),
    "cat": VECTORS,
    "flatten": items.flatten(["m", "s"]),
    "one_hot": items.one_hot(4, "c", "float32"),
    "compose": items.compose(items.normalize(0, 2, "a"), items.flatten("m"), items.cat(["a", "b"], "v")),
    "nothing": items.compose(),
}


@pytest.mark.parametrize("function", INVERTED.values(), ids=INVERTED)
def test_what_has_an_inverse_comes_back(function: Any) -> None:
    given, inverted = batch(), after(function, ITEM)
    made = on_numpy(function, ITEM, given, (5,))
    for name, leaf in made.items():
        spec = inverted[tuple(name.split("/"))]
        domain = np.broadcast_to(spec.domain.low, spec.shape), np.broadcast_to(spec.domain.high, spec.shape)
        assert (leaf >= domain[0]).all(), f"{name} is above the least that its spec allows"
        assert (leaf <= domain[1]).all(), f"{name} is below the most"
    back = function.inverse(ITEM)
    assert after(back, inverted) == frb.Composite(ITEM)
    again = on_numpy(back, inverted, made, (5,))
    for name, leaf in given.items():
        close(again[name], leaf, name)


def test_leaves_of_several_axes_are_joined_along_one_with_their_bounds() -> None:
    parts = {"p": frb.Bounded(0, [[1, 2], [3, 4]], (2, 2)), "q": frb.Bounded(-1, 5, (2, 1))}
    assert after(items.cat(["p", "q"], "v"), parts).v == frb.Bounded([[0, 0, -1]] * 2, [[1, 2, 5], [3, 4, 5]], (2, 3))
    given = {"p": np.float32([[[0, 1], [2, 3]]]), "q": np.float32([[[4], [5]]])}
    assert on_numpy(items.cat(["p", "q"], "v"), parts, given, (1,))["v"].tolist() == [[[0, 1, 4], [2, 3, 5]]]


@pytest.mark.parametrize("within", ["center", "low", "high"])
def test_actions_lie_in_their_bin(within: Any) -> None:
    function, given = items.action_discretize([4, 5], SPACE, "u", within), batch(200)
    assert after(function, ITEM).u == frb.specs.MultiCategorical([4, 5])
    numbers = on_numpy(function, ITEM, given, (200,))["u"]
    edges = [np.linspace(-1, 1, 5), np.linspace(0, 10, 6)]
    expected = np.stack([np.clip(np.digitize(given["u"][:, k], edges[k]) - 1, 0, 3 + k) for k in range(2)], -1)
    np.testing.assert_array_equal(numbers, expected)
    back = function.inverse(ITEM)
    action = on_numpy(back, {"u": frb.specs.MultiCategorical([4, 5])}, {"u": numbers}, (200,))["u"]
    share = {"center": 0.5, "low": 0.0, "high": 1.0}[within]
    for k, edge in enumerate(edges):
        np.testing.assert_allclose(
            action[:, k], edge[numbers[:, k]] + share * (edge[1] - edge[0]), rtol=1e-6, atol=1e-6
        )
    if within == "center":
        np.testing.assert_array_equal(on_numpy(function, {"u": SPACE}, {"u": action}, (200,))["u"], numbers)
    outside = {"u": np.float32([[-9, 99], [1, 10]])}
    assert on_numpy(function, {"u": SPACE}, outside, (2,))["u"].tolist() == [[0, 4], [3, 4]]
    scalar = items.action_discretize(3, frb.Bounded(0, 3), "u")
    assert after(scalar, {"u": frb.Bounded(0, 3)}).u == frb.Categorical(3)
    found = on_numpy(scalar, {"u": frb.Bounded(0, 3)}, {"u": np.float32([0, 1, 2.9, 3])}, (4,))["u"]
    assert found.tolist() == [0, 1, 2, 2]


def test_leaves_are_named_kept_and_joined() -> None:
    given = batch()
    assert set(on_numpy(items.select(["s", "c"]), ITEM, given, (5,))) == {"s", "c"}
    assert set(on_numpy(items.select(exclude=["s", "c"]), ITEM, given, (5,))) == set(ITEM) - {"s", "c"}
    nested = {"obs": {"a": ITEM["a"]}, "obs2": ITEM["s"]}
    assert after(items.rename({"obs": "next/obs"}), nested) == frb.Composite(
        next={"obs": {"a": ITEM["a"]}}, obs2=ITEM["s"]
    )
    swapped = after(items.rename({"a": "b", "b": "a"}), {"a": ITEM["a"], "b": ITEM["b"]})
    assert swapped == frb.Composite(a=ITEM["b"], b=ITEM["a"])
    joined = on_numpy(VECTORS, ITEM, given, (5,))["joined"]
    np.testing.assert_array_equal(joined, np.concatenate([given["a"], given["s"][:, None], given["b"]], -1))
    both = after(items.cat(["a", "b"], "v"), ITEM).v
    assert both == frb.Bounded([-1, -1, 0, 1], [1, 1, 2, 2], (4,))
    wide = frb.Unbounded((3, 2), "int32"), frb.Unbounded((1, 2), "int32")
    item = {"p": wide[0], "q": wide[1]}
    arrays = {"p": np.arange(6, dtype=np.int32).reshape(1, 3, 2), "q": np.zeros((1, 1, 2), np.int32)}
    over = items.cat(["p", "q"], "r", axis=0)
    made = on_numpy(over, item, arrays, (1,))["r"]
    np.testing.assert_array_equal(made, np.concatenate([arrays["p"], arrays["q"]], 1))
    back = on_numpy(over.inverse(item), after(over, item), {"r": made}, (1,))
    assert all((back[name] == arrays[name]).all() for name in item)
    shapes = on_numpy(items.flatten(), ITEM, given, (5,))
    np.testing.assert_array_equal(shapes["m"], given["m"].reshape(5, 6))
    assert after(items.flatten("b"), ITEM).b == ITEM["b"]


def test_one_hot_compares_with_every_number() -> None:
    made = on_numpy(items.one_hot(3, "n"), {"n": frb.Unbounded((2,), "int8")}, {"n": np.int8([[0, 2], [3, -1]])}, (2,))
    assert made["n"].astype(int).tolist() == [[[1, 0, 0], [0, 0, 1]], [[0, 0, 0], [0, 0, 0]]]
    many = on_numpy(items.one_hot(300, "n"), {"n": frb.Unbounded((), "uint8")}, {"n": np.uint8([3, 255])}, (2,))["n"]
    assert np.argwhere(many).tolist() == [[0, 3], [1, 255]], "numbers beyond the dtype do not wrap around"
    mask = frb.Categorical(3, (True, False, True))
    assert after(items.one_hot(3, "c"), {"c": mask}).c == mask.to_one_hot()


def test_rewards_are_clipped() -> None:
    reward = np.float32([-3, -0.5, 0, 0.5, 3])
    item = {"reward": frb.Unbounded(())}
    assert on_numpy(items.clip_reward(), item, {"reward": reward}, (5,))["reward"].tolist() == [-1, -0.5, 0, 0.5, 1]
    two = {"reward": frb.Unbounded(()), "next": {"reward": frb.Bounded(-5, 0.5, ())}}
    assert after(items.clip_reward(), two) == frb.Composite(
        reward=frb.Unbounded(()), next={"reward": frb.Bounded(-1, 0.5)}
    )
    named = after(items.clip_reward(reward_key="reward"), two)
    assert (named.reward, named.next.reward) == (frb.Bounded(-1, 1), frb.Bounded(-5, 0.5))


@hypothesis.given(
    st.floats(-100, 100),
    st.floats(0.01, 100),
    st.floats(-50, 0),
    st.floats(0, 50),
    st.lists(st.floats(0, 1), max_size=5),
)
@hypothesis.example(4.6e-47, 0.0625, 0.0, 0.0, [])  # float32 has no such number, and takes it for 0
def test_bounds_hold_what_normalize_gives(loc: float, scale: float, low: float, high: float, u: list[float]) -> None:
    spec = frb.Bounded(low, high)
    x = np.clip(np.float32(low) + np.float32([*u, 0, 1]) * np.float32(high - low), np.float32(low), np.float32(high))
    function = items.normalize(loc, scale)
    made, bounds = on_numpy(function, {"x": spec}, {"x": x}, (len(x),))["x"], after(function, {"x": spec}).x
    np.testing.assert_allclose(made, (x.astype(np.float64) - loc) / scale, rtol=1e-5, atol=1e-4 / scale)
    assert (made >= np.float32(bounds.low)).all()
    assert (made <= np.float32(bounds.high)).all()


ERRORS: dict[str, tuple[Any, Any, str]] = {
    "missing": (items.rename({"z": "y"}), ITEM, r"rename: the item has no leaf 'z'; name some of"),
    "twice": (items.rename({"a": "b"}), ITEM, r"rename: leaf 'b': there would be two of that name"),
    "nothing left": (items.select(exclude=list(ITEM)), ITEM, r"select: no leaf would be left"),
    "floats": (items.normalize(0, 1, "m"), ITEM, r"normalize: leaf 'm': expected a dtype of float, got int32"),
    "broadcast": (items.normalize([1, 2, 3], 1, "a"), ITEM, r"normalize: leaf 'a': loc of shape \(3,\) does not broad"),
    "dtypes": (items.cat(["a", "m"], "v"), ITEM, r"cat: leaf 'm': expected float32 of shape \(2,\).*got int32"),
    "taken": (items.cat(["a", "b"], "s"), ITEM, r"cat: there is a leaf 's' already"),
    "axis": (items.cat(["a", "b"], "v", axis=1), ITEM, r"cat: leaf 'a': expected an axis 1"),
    "choices": (items.one_hot(3, "c"), ITEM, r"one_hot: leaf 'c': expected numbers from 0 to 2, got Categorical\(4\)"),
    "space": (items.action_discretize(4, SPACE, "s"), ITEM, r"action_discretize: leaf 's': expected actions of"),
    "reward": (items.clip_reward(), ITEM, r"clip_reward: the item has no leaf 'reward' .*name the leaf of rewards"),
    "bool": (items.clip_reward(reward_key="d"), ITEM, r"clip_reward: leaf 'd': expected a dtype of float, got bool"),
}


@pytest.mark.parametrize(("function", "item", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_name_the_leaf(function: Any, item: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        after(function, item)


def test_values_out_of_range_are_refused() -> None:
    refused: list[tuple[Any, type[Exception]]] = [
        (lambda: items.normalize(0, 0), ValueError),
        (lambda: items.normalize(np.inf, 1), ValueError),
        (lambda: items.one_hot(0, "c"), ValueError),
        (lambda: items.one_hot(3, None), ValueError),  # type: ignore[arg-type]  # refused
        (lambda: items.clip_reward(1, -1), ValueError),
        (lambda: items.action_discretize(1, SPACE), ValueError),
        (lambda: items.action_discretize([3, 3, 3], SPACE), ValueError),
        (lambda: items.action_discretize(3, frb.Bounded(0, np.inf)), ValueError),
        (lambda: items.action_discretize(3, frb.Unbounded((2,))), TypeError),  # type: ignore[arg-type]  # refused
        (lambda: items.compose(lambda x: x), TypeError),  # type: ignore[arg-type]  # refused
        (lambda: items.rename({3: "x"}), TypeError),
        (lambda: items.rename([("a", "b")]), TypeError),  # type: ignore[arg-type]  # refused
    ]
    for make, error in refused:
        with pytest.raises(error, match=r"expected"):
            make()
    with pytest.raises(ValueError, match=r"expected bins as whole numbers from 2 on, got 'ab'"):
        items.action_discretize("ab", SPACE)  # type: ignore[arg-type]  # refused
    for function in (items.select("a"), items.resize(3), items.random_shift(), items.clip_reward()):
        with pytest.raises(TypeError, match=r"has no inverse"):
            function.inverse(ITEM)
