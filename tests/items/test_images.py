"""Functions of images against plain models, and against jax.image.resize and torch's interpolate."""

import colorsys
import itertools
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import functional_rb as frb
import torch_backend
from tests.items.item_functions import PIXELS, after, close, on_numpy
from tests.support.backends import Backend

items = frb.items
RNG = np.random.default_rng(0)


def images(*shape: int, dtype: str = "uint8") -> np.ndarray:
    """Random images."""
    return RNG.integers(0, 256, shape).astype(np.uint8) if dtype == "uint8" else RNG.random(shape).astype(np.float32)


def test_bytes_become_floats_with_their_channels_in_front_and_come_back() -> None:
    x = np.arange(2 * 6 * 5 * 3, dtype=np.uint8).reshape(2, 6, 5, 3)
    made = on_numpy(items.to_image(), {"x": PIXELS}, {"x": x}, (2,))["x"]
    close(made, (x.transpose(0, 3, 1, 2) / np.float32(255)).astype(np.float32))
    front = frb.Bounded(0, 255, (3, 6, 5), "uint8")
    close(on_numpy(items.to_image("x"), {"x": front}, {"x": x.transpose(0, 3, 1, 2)}, (2,))["x"], made)
    floats = after(items.to_image(), {"x": PIXELS})
    back = items.to_image().inverse({"x": PIXELS})
    assert after(back, floats) == frb.Composite(x=PIXELS)
    np.testing.assert_array_equal(on_numpy(back, floats, {"x": made}, (2,))["x"], x)
    outside = np.float32([-1, 0.5 / 255, 1.5 / 255, 2]).reshape(1, 1, 2, 2).repeat(3, 1)
    small = frb.Unbounded((2, 2, 3), "uint8")
    back = items.to_image(channels="last").inverse({"x": small})
    got = on_numpy(back, {"x": frb.Unbounded((3, 2, 2))}, {"x": outside}, (1,))["x"]
    assert got[0, ..., 0].tolist() == [[0, 0], [2, 255]], "halves go to the even number"


@pytest.mark.parametrize(("before", "size"), [((7, 12), (5, 4)), ((5, 4), (9, 11)), ((8, 6), (8, 3)), ((6, 6), (6, 6))])
@pytest.mark.parametrize(("method", "antialias"), [("linear", True), ("linear", False), ("cubic", True)])
def test_resize_is_what_torch_and_jax_compute(before: Any, size: Any, method: Any, antialias: bool) -> None:
    import jax

    x = images(2, 3, *before, dtype="float32")
    made = on_numpy(
        items.resize(size, "x", method=method, antialias=antialias, channels="first"),
        {"x": frb.Bounded(0, 1, x.shape[1:])},
        {"x": x},
        (2,),
    )["x"]
    of_jax = jax.image.resize(x, (2, 3, *size), method, antialias=antialias)
    close(made, np.asarray(of_jax))
    mode = {"linear": "bilinear", "cubic": "bicubic"}[method]
    of_torch = torch.nn.functional.interpolate(torch.from_numpy(x), size, mode=mode, antialias=antialias)
    close(made, of_torch.numpy())


@pytest.mark.parametrize(("before", "size"), [((9, 3), (13, 4)), ((60, 3), (4, 4))])
def test_lines_are_resampled_by_few_elements_and_by_many(library: Backend, before: Any, size: Any) -> None:
    x = images(2, *before, 1, dtype="float32")
    function, item = items.resize(size, channels="last"), {"x": frb.Unbounded((*before, 1))}
    made = sampled(library.rb, function, item, library.tree({"x": x}), 2)["x"]
    close(library.numpy(made), on_numpy(function, item, {"x": x}, (2,))["x"])


def sampled(rb: Any, function: Any, item: Any, batch: Any, n: int) -> Any:
    """What comes of n items, each drawn once."""
    spec = frb.BufferSpec(item, n, frb.InOrder(), transforms=frb.map_items(function))
    return rb.sample(rb.init(spec, items=batch), rb.key(0), n)[1].items


def test_resize_of_bytes_rounds_and_of_nearest_takes() -> None:
    import jax

    x = images(2, 7, 9, 3)
    item, batch = {"x": frb.Bounded(0, 255, (7, 9, 3), "uint8")}, {"x": x}
    floats = on_numpy(items.resize((3, 4)), {"x": frb.Unbounded((7, 9, 3))}, {"x": x.astype(np.float32)}, (2,))["x"]
    made = on_numpy(items.resize((3, 4)), item, batch, (2,))["x"]
    np.testing.assert_array_equal(made, np.rint(floats - 2**-12).astype(np.uint8))
    half = np.array([1, 2, 5, 6], np.uint8).reshape(1, 2, 2, 1)
    item_of_one = {"x": frb.Unbounded((2, 2, 1), "uint8")}
    down = on_numpy(items.resize(2, channels="last"), item_of_one, {"x": half}, (1,))["x"]
    np.testing.assert_array_equal(down, half)
    down = on_numpy(items.resize((2, 1), "x", channels="last"), item_of_one, {"x": half}, (1,))["x"]
    assert down.ravel().tolist() == [1, 5], "halves go down, on every backend"
    white = on_numpy(items.resize((13, 20), method="cubic"), item, {"x": (x > 127) * np.uint8(255)}, (2,))["x"]
    assert {0, 255} <= set(white.ravel().tolist()), "cubic ones are brought into the range, and do not wrap around"
    near = on_numpy(items.resize((3, 14), method="nearest"), item, batch, (2,))["x"]
    np.testing.assert_array_equal(near, jax.image.resize(x, (2, 3, 14, 3), "nearest"))
    in_front = torch.from_numpy(x.transpose(0, 3, 1, 2).copy())
    of_torch = torch.nn.functional.interpolate(in_front, (3, 14), mode="nearest-exact").numpy().transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(near, of_torch)
    assert after(items.resize(4, method="cubic"), {"x": frb.Bounded(0, 1, (9, 9, 3))}).x == frb.Unbounded((4, 4, 3))


def test_grayscale_weighs_colours_exactly() -> None:
    x = images(2, 6, 5, 3)
    made = on_numpy(items.grayscale(), {"x": PIXELS}, {"x": x}, (2,))["x"]
    wide = x.astype(np.int64)
    expected = (19595 * wide[..., 0] + 38470 * wide[..., 1] + 7471 * wide[..., 2] + 32768) >> 16
    np.testing.assert_array_equal(made[..., 0], expected)
    assert np.abs(made[..., 0] - x @ np.array([0.299, 0.587, 0.114])).max() <= 0.501
    stack = np.concatenate([x, x[:, ::-1]], -1)
    two = on_numpy(items.grayscale("x", "last"), {"x": frb.Unbounded((6, 5, 6), "uint8")}, {"x": stack}, (2,))["x"]
    np.testing.assert_array_equal(two, np.concatenate([made, made[:, ::-1]], -1))
    floats = (x / np.float32(255)).transpose(0, 3, 1, 2).astype(np.float32)
    gray = on_numpy(items.grayscale(), {"x": frb.Bounded(0, 1, (3, 6, 5))}, {"x": floats}, (2,))["x"]
    close(gray[:, 0], (floats * np.float32([0.299, 0.587, 0.114]).reshape(3, 1, 1)).sum(1))
    with pytest.raises(ValueError, match=r"grayscale: leaf 'x': expected red, green and blue.*got 1"):
        after(items.grayscale("x"), {"x": frb.Unbounded((6, 5, 1), "uint8")})


def place_of(words: np.ndarray, n: int) -> list[int]:
    """The number below n that two words of 31 bits make."""
    return [(int(high) * 2**31 + int(low)) * n >> 62 for high, low in words]


def evenly(n: int) -> np.ndarray:
    """Words of which each number below n is made once."""
    both = [((2 * k + 1) << 61) // n for k in range(n)]
    return np.array([[value >> 31, value & (2**31 - 1)] for value in both], np.int32)


@pytest.mark.parametrize("front", [False, True])
def test_every_shift_is_equally_likely_and_repeats_the_edge(front: bool) -> None:
    pad, n = 2, 25
    x = images(n, 4, 5, 3)
    draws = evenly(n)
    assert place_of(draws, n) == list(range(n)), "each shift once: equal parts of all words belong to it"
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), "edge")
    places = itertools.product(range(2 * pad + 1), repeat=2)
    expected = np.stack([padded[k, a : a + 4, b : b + 5] for k, (a, b) in enumerate(places)])
    order = (0, 3, 1, 2) if front else (0, 1, 2, 3)
    given, expected = x.transpose(order), expected.transpose(order)
    item = {"x": frb.Unbounded(given.shape[1:], "uint8"), "y": frb.Unbounded(given.shape[1:], "uint8")}
    made = on_numpy(items.random_shift(pad), item, {"x": given, "y": given[::-1]}, (n,), draws)
    np.testing.assert_array_equal(made["x"], expected)
    other = on_numpy(items.random_shift(pad, "y"), item, {"x": given, "y": given[::-1]}, (n,), draws)
    np.testing.assert_array_equal(made["y"], other["y"], err_msg="both leaves are shifted alike")
    assert other["x"] is given


@pytest.mark.usefixtures("tensors_of_the_cpu")
@hypothesis.settings(max_examples=30)
@hypothesis.given(st.data(), st.sampled_from(["uint8", "float32", "bool"]), st.booleans(), st.integers(1, 3))
def test_the_kernel_takes_the_same_windows(data: Any, dtype: str, front: bool, channels: int) -> None:
    """Also of images with their channels in front, and of one pixel."""
    rows, columns = (data.draw(st.integers(1, 6)) for _ in range(2))
    shape = (channels, rows, columns) if front else (rows, columns, channels)
    size = data.draw(st.tuples(st.integers(1, rows), st.integers(1, columns)))
    pad, where = data.draw(st.integers(0, 8)), "first" if front else "last"
    function = items.compose(
        items.random_shift(pad, channels=where, per="step"), items.crop(size, at="random", channels=where)
    )
    batch = {"x": torch.from_numpy(RNG.integers(0, 256, (3, *shape)).astype(dtype))}
    item = {"x": frb.Unbounded(shape, dtype) if dtype != "bool" else frb.Binary(shape)}
    made = sampled(torch_backend, function, item, batch, 3)["x"]
    with frb.kernels(False):
        assert torch.equal(made, sampled(torch_backend, function, item, batch, 3)["x"])


def test_every_crop_is_equally_likely() -> None:
    x = images(12, 6, 5, 3)
    made = on_numpy(items.crop((4, 2), at="random"), {"x": PIXELS}, {"x": x}, (12,), evenly(12))["x"]
    places = itertools.product(range(3), range(4))
    expected = np.stack([x[k, a : a + 4, b : b + 2] for k, (a, b) in enumerate(places)])
    np.testing.assert_array_equal(made, expected)
    middle = on_numpy(items.crop((3, 2)), {"x": PIXELS}, {"x": x}, (12,))["x"]
    np.testing.assert_array_equal(middle, x[:, 1:4, 1:3])
    with pytest.raises(ValueError, match=r"crop: leaf 'x': expected an image of at least 7 x 7 pixels, got 6"):
        after(items.crop(7), {"x": PIXELS})


def test_slices_move_as_a_whole_unless_steps_are_asked_for() -> None:
    x = np.broadcast_to(images(1, 1, 6, 5, 3), (4, 3, 6, 5, 3))
    together = on_numpy(items.random_shift(2), {"x": PIXELS}, {"x": x}, (4, 3))["x"]
    assert all((together[:, k] == together[:, 0]).all() for k in range(3))
    each = on_numpy(items.random_shift(2, per="step"), {"x": PIXELS}, {"x": x}, (4, 3))["x"]
    assert not all((each[:, k] == each[:, 0]).all() for k in range(3))
    own = frb.items.compose(items.random_shift(2, "x"), items.random_shift(2, "y"))
    assert own.words == 4
    made = on_numpy(own, {"x": PIXELS, "y": PIXELS}, {"x": x, "y": x}, (4, 3))
    assert (made["x"] != made["y"]).any(), "composed functions have words of their own"


def jittered(x: np.ndarray, amounts: np.ndarray, strengths: tuple[float, ...]) -> np.ndarray:
    """The model of `color_jitter`: one image [H, W, 3] of float64."""
    luma = np.array([0.299, 0.587, 0.114])
    low = [max(0.0, 1.0 - s) for s in strengths]
    factors = [low[k] + amounts[k] * (1 + strengths[k] - low[k]) for k in range(3)]
    x = np.clip(x * factors[0], 0, 1)
    x = np.clip(x * factors[1] + (x @ luma).mean() * (1 - factors[1]), 0, 1)
    x = np.clip(x * factors[2] + (x @ luma)[..., None] * (1 - factors[2]), 0, 1)
    turned = np.empty_like(x)
    for place in np.ndindex(x.shape[:2]):
        hue, saturation, value = colorsys.rgb_to_hsv(*x[place])
        turned[place] = colorsys.hsv_to_rgb((hue + (2 * amounts[3] - 1) * strengths[3]) % 1, saturation, value)
    return turned


def test_colours_change_by_the_formulas() -> None:
    x = images(9, 4, 5, 3, dtype="float32")
    x[0] = 0.5
    x[1, ..., 1] = x[1, ..., 0]
    draws = RNG.integers(0, 2**31, (9, 4)).astype(np.int32)
    draws[:5, 3] = 0, 2**31 - 1, 2**30, 2**31 - 1, 2**31 - 1  # the farthest hues twice around
    strengths = (0.4, 0.5, 1.5, 0.5)
    made = on_numpy(items.color_jitter(*strengths), {"x": frb.Bounded(0, 1, (4, 5, 3))}, {"x": x}, (9,), draws)["x"]
    amounts = (draws >> 7) / 2**24
    expected = np.stack([jittered(x[k].astype(np.float64), amounts[k], strengths) for k in range(9)])
    np.testing.assert_allclose(made, expected, atol=2e-5)
    same = on_numpy(items.color_jitter(), {"x": frb.Bounded(0, 1, (4, 5, 3))}, {"x": x}, (9,), draws)["x"]
    np.testing.assert_array_equal(same, x)
    stacked = np.concatenate([x, x], -1)
    item = {"x": frb.Bounded(0, 1, (4, 5, 6))}
    two = on_numpy(items.color_jitter(*strengths, channels="last"), item, {"x": stacked}, (9,), draws)["x"]
    np.testing.assert_allclose(two, np.concatenate([made, made], -1), atol=1e-6)


def test_what_is_an_image_is_found_by_its_shape() -> None:
    item = {"far": PIXELS, "state": frb.Unbounded((3,)), "near": frb.Unbounded((1, 9, 9), "uint8")}
    made = after(items.crop(3), item)
    assert (made.far.shape, made.near.shape, made.state.shape) == ((3, 3, 3), (1, 3, 3), (3,))
    for function, given, message in (
        (items.resize(3), {"state": frb.Unbounded((3,))}, r"resize: no leaf has the shape of an image.*\('state',\)"),
        (items.resize(3, "state"), item, r"resize: leaf 'state': expected an image, \[H, W, C\].*got shape \(3,\)"),
        (items.resize(3, "x"), {"x": frb.Unbounded((3, 3, 3))}, r"leaf 'x': shape \(3, 3, 3\) does not say which axis"),
        (items.to_image("x"), {"x": frb.Unbounded((9, 9, 3))}, r"leaf 'x': expected dtype uint8, got float32; cast it"),
        (items.color_jitter(1, 1, keys="far"), item, r"leaf 'far': expected dtype float32, got uint8"),
        (items.resize(3, "none"), item, r"resize: the item has no leaf 'none'"),
    ):
        with pytest.raises(ValueError, match=message):
            after(function, given)
    for make in (
        lambda: items.resize(0),
        lambda: items.resize((3, 4, 5)),  # type: ignore[arg-type]  # refused
        lambda: items.resize(3, method="area"),  # type: ignore[arg-type]  # refused
        lambda: items.crop(3, at="middle"),  # type: ignore[arg-type]  # refused
        lambda: items.random_shift(-1),
        lambda: items.random_shift(4, per="image"),  # type: ignore[arg-type]  # refused
        lambda: items.to_image(channels="middle"),  # type: ignore[arg-type]  # refused
        lambda: items.color_jitter(hue=0.6),
        lambda: items.color_jitter(-1),
        lambda: items.color_jitter(per="image"),  # type: ignore[arg-type]  # refused
    ):
        with pytest.raises(ValueError, match=r"expected"):
            make()
