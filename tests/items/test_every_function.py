"""Every function on both backends, eagerly and compiled, gives what it gives on NumPy; and each is a value."""

import functools
import pickle
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.items.item_functions import after, close, on_numpy, words
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.versions import torch_traces

items = frb.items
LEAD = (2, 3)
SPACE = frb.Bounded([-1, 0], [1, 2], (2,))
ITEM = {
    "pixels": frb.Bounded(0, 255, (6, 5, 3), "uint8"),
    "floats": frb.Bounded(0, 1, (3, 6, 5)),
    "v": frb.Bounded(-1, 1, (2,)),
    "n": frb.Categorical(4),
    "half": frb.Unbounded((2,), "float16"),
    "u": SPACE,
    "reward": frb.Unbounded(()),
    "done": frb.Binary(()),
}
FUNCTIONS: dict[str, Any] = {
    "action_discretize": items.action_discretize([3, 4], SPACE, "u"),
    "burn_in": items.burn_in(2),
    "cast": items.cast("float32", ["n", "half", "done"]),
    "cat": items.cat(["v", "reward"], "joined"),
    "crop": items.crop((4, 2)),
    "clip_reward": items.clip_reward(-0.5, 0.5),
    "color_jitter": items.color_jitter(0.4, 0.4, 0.4, 0.3, "floats"),
    "compose": items.compose(
        items.random_shift(2, "pixels"), items.to_image("pixels"), items.crop(3, "floats", at="random")
    ),
    "reward_to_go, in place": items.reward_to_go(0.9, "v", None),
    "flatten": items.flatten(),
    "frame_stack": items.frame_stack(3, ["floats", "pixels", "n"], padding="zeros"),
    "frame_stack, by ids": items.frame_stack(2, "v", trajectory_key="n"),
    "grayscale": items.grayscale(),
    "normalize": items.normalize([1.0, 2.0], 4, ["v", "half"]),
    "one_hot": items.one_hot(4, "n", "float32"),
    "crop, at random": items.crop((4, 2), at="random", per="step"),
    "random_shift": items.random_shift(2),
    "rename": items.rename({"v": "obs/v"}),
    "resize": items.resize((4, 7)),
    "resize, nearest": items.resize((4, 7), "pixels", method="nearest"),
    "reward_to_go": items.reward_to_go(0.9),
    "select": items.select(["v", "n"]),
    "to_image": items.to_image(),
}
INVERTED = ("action_discretize", "cast", "cat", "flatten", "frame_stack", "normalize", "one_hot", "to_image")
# torch.compile takes long to trace them all.
TRACED = effort(("frame_stack", "random_shift", "resize", "reward_to_go"), tuple(FUNCTIONS))
INVERSES = {name: FUNCTIONS[name].inverse(ITEM) for name in INVERTED}
RNG = np.random.default_rng(0)
BATCH = {
    "pixels": RNG.integers(0, 256, (*LEAD, 6, 5, 3)).astype(np.uint8),
    "floats": RNG.random((*LEAD, 3, 6, 5)).astype(np.float32),
    "v": RNG.uniform(-1, 1, (*LEAD, 2)).astype(np.float32),
    "n": RNG.integers(0, 4, LEAD).astype(np.int32),
    "half": RNG.normal(size=(*LEAD, 2)).astype(np.float16),
    "u": RNG.uniform([-1, 0], [1, 2], (*LEAD, 2)).astype(np.float32),
    "reward": RNG.normal(size=LEAD).astype(np.float32),
    "done": np.array([[False, True, False], [False, False, False]]),
}
MASK = np.array([[True, True, True], [True, True, False]])


@functools.cache
def expected() -> dict[str, dict[Any, np.ndarray]]:
    """What they give on NumPy, each checked to be as its spec says."""
    found = {}
    for name, function in FUNCTIONS.items():
        found[name] = on_numpy(function, ITEM, BATCH, LEAD, DRAWS[name], MASK)
        if name in INVERSES:
            given = after(function, ITEM, 2)
            found[f"{name}, inverted"] = on_numpy(INVERSES[name], given, found[name], LEAD, None, MASK)
    return found


def agree(found: Any, expected: Any, what: str) -> None:
    """The same leaves; float16 is rounded by each backend in its own way."""
    assert found.keys() == expected.keys()
    for name in expected:
        if expected[name].dtype == np.float16:
            np.testing.assert_allclose(found[name], expected[name], atol=2e-3, err_msg=what)
        else:
            close(found[name], expected[name], f"{what}, {name}")


def all_functions(ops: Any, leaves: Any, draws: Any, mask: Any, names: Any = FUNCTIONS) -> dict[str, dict[Any, Any]]:
    """What every function gives, and the inverses of some, as one program."""
    found = {name: FUNCTIONS[name].apply(ops, leaves, LEAD, draws[name], mask) for name in names}
    inverses = [(name, back) for name, back in INVERSES.items() if name in found]
    back = {f"{name}, inverted": f.apply(ops, found[name], LEAD, None, mask) for name, f in inverses}
    return found | back


DRAWS = {name: words(function, 6) for name, function in FUNCTIONS.items()}


@pytest.mark.parametrize(
    ("library", "compiled"),
    [("jax", True), pytest.param("jax", False, marks=pytest.mark.long), ("torch", True), ("torch", False)],
    indirect=["library"],
)
def test_all_backends_give_the_same(library: Backend, compiled: bool) -> None:
    ops = library.ops
    leaves = {(name,): library.array(x) for name, x in BATCH.items()}
    draws = {name: None if x is None else library.array(x) for name, x in DRAWS.items()}
    given = leaves, draws, library.array(MASK)

    names = TRACED if compiled and library.library == "torch" else tuple(FUNCTIONS)

    def program(leaves: Any, draws: Any, mask: Any) -> Any:
        return all_functions(ops, leaves, draws, mask, names)

    if compiled and library.library == "jax":
        import jax

        program = jax.jit(program)
    elif compiled:
        import torch

        if not torch_traces():
            pytest.skip("it traces them from torch 2.12 on")
        program = torch.compile(program, fullgraph=True, backend="eager")
    made = program(*given)
    assert {*names} <= made.keys()
    for name, leaves in made.items():
        found = {"/".join(path): library.numpy(x) for path, x in leaves.items()}
        agree(found, expected()[name], f"{name} on {library.name}")


def test_each_function_is_a_value_that_json_and_pickle_keep() -> None:
    assert {name.split(",")[0] for name in FUNCTIONS} == {*items.__all__}
    given = [(function, ITEM, frb.Slices(length=3, end_keys=())) for function in FUNCTIONS.values()]
    given += [(back, after(FUNCTIONS[name], ITEM, 2), frb.Uniform()) for name, back in INVERSES.items()]
    for function, item, sampler in given:
        again = pickle.loads(pickle.dumps(function))
        assert (again, hash(again)) == (function, hash(function))
        spec = frb.BufferSpec(item, 10, sampler=sampler, transforms=frb.map_items(function))
        assert frb.convert.from_json(frb.convert.to_json(spec)) == spec
