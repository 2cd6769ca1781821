"""A buffer for any environment: spaces without arrays of fixed shape are recorded, stored and read back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import functional_rb as frb
from functional_rb import ted
from tests.formats.environments import ACTIONS, ALL, BOX, LIMITS, Made
from tests.support.backends import Backend


def same(a: Any, b: Any) -> bool:
    """Whether a value that was read back is the one that an environment had, 64 bits rounded to 32."""
    if isinstance(a, str):
        return bool(a == b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if hasattr(a, "nodes"):
        edges = [(x.edges, x.edge_links) if x.edges is not None and len(x.edges) else (None, None) for x in (a, b)]
        return same(a.nodes, b.nodes) and same(*edges)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if a is None:
        return b is None
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and np.array_equal(a.astype(b.dtype), b)


def read_back(library: Backend, spec: frb.BufferSpec, state: Any, logs: list[Any], name: str | None = None) -> None:
    """The newest steps of each lane are those that the environments took; name: of the observation, if one part."""
    items = library.rb.items(state)
    length = spec.capacity // len(logs)
    decoded = library.rb.decode(spec.item, items)
    for lane, log in enumerate(logs):
        assert len(log) > length, "the ring should wrap"
        for k, (before, action, reward, after, terminated, truncated) in list(enumerate(log))[-length:]:
            step = picked(decoded, spec.item, lane * length + k % length)
            following = step.pop("next")
            assert same(action, step.pop("action"))
            assert reward == following.pop("reward")
            flags = tuple(bool(following.pop(flag)) for flag in ("done", "terminated", "truncated"))
            assert flags == (terminated or truncated, terminated, truncated)
            assert not any(step.pop(flag) for flag in ("done", "terminated", "truncated"))
            assert same(before, step if name is None else step[name])
            assert same(after, following if name is None else following[name])


def picked(nest: Any, spec: Any, row: int) -> Any:
    """One of a batch of decoded values: where the spec has a unit, that of the batch."""
    if isinstance(spec, frb.Composite):
        return {name: picked(nest[name], part, row) for name, part in spec.items()}
    if isinstance(spec, tuple):
        return tuple(picked(part, inner, row) for part, inner in zip(nest, spec, strict=True))
    return nest[row]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_vector_environment(library: Backend, mode: AutoresetMode) -> None:
    makers = [lambda seed=seed: Made(ALL, ACTIONS, seed) for seed in (0, 1, 2)]
    env = SyncVectorEnv(makers, autoreset_mode=mode, observation_mode="different")
    item = frb.ted.item_from_env(env, narrow=True, **LIMITS)
    spec = frb.BufferSpec(item, 15, lanes=3)
    state = library.init(spec)
    env.action_space.seed(3)
    carry = ted.begin(env.reset()[0])
    for _ in range(12):
        action = env.action_space.sample()
        carry, steps, mask = ted.from_gymnasium(carry, action, env.step(action), mode, item=spec)
        state = library.add(state, steps, mask=mask)
        done = steps["next"]["done"]
        if mode == AutoresetMode.DISABLED and done.any():
            carry = carry.reset(env.reset(options={"reset_mask": done})[0], done)
    assert int(library.rb.size(state)) == 15
    read_back(library, spec, state, [one.log for one in env.envs])


WHOLE = {
    "text": spaces.Text(5),
    "sequence": spaces.Sequence(spaces.Text(2)),
    "stacked": spaces.Sequence(spaces.Dict(elements=BOX, length=spaces.Discrete(3)), stack=True),
    "graph": spaces.Graph(spaces.Discrete(3), BOX),
    "one of": spaces.OneOf((BOX, spaces.Tuple((spaces.Text(2), spaces.Discrete(3))))),
    "tuple": spaces.Tuple((spaces.Text(2), BOX)),
    "named": spaces.Dict(observation=spaces.Text(2)),
    "stacked by that name": spaces.Sequence(spaces.Dict(observation=BOX), stack=True),
    "one part": spaces.Dict(a=spaces.Sequence(BOX)),
}


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("key", [None, "seen"])
def test_plain_environment(kind: str, key: str | None) -> None:
    """Each space alone, as observation and as action; on torch, which compiles nothing."""
    import torch_backend as rb

    env = Made(WHOLE[kind], WHOLE[kind], seed=1)
    item = frb.ted.item_from_env(env, narrow=True, observation_key=key, **LIMITS)
    spec = frb.BufferSpec(item, 5)
    state = rb.init(spec)
    carry = ted.begin(env.reset()[0])
    for _ in range(9):
        action = env.action_space.sample()
        carry, step, mask = ted.from_gymnasium(
            carry, action, env.step(action), "Disabled", item=item, observation_key=key
        )
        state = rb.add(state, step, mask=mask)
        if step["next"]["done"]:
            carry = ted.begin(env.reset()[0])
    name = key or (None if isinstance(WHOLE[kind], spaces.Dict) else "observation")
    read_back(Backend("torch", rb, None, None), spec, state, [env.log], name)  # type: ignore[arg-type]  # not needed


def test_choices_are_stored_as_vectors_if_the_item_says_so() -> None:
    no = np.zeros(2, bool)
    item = {
        "observation": frb.specs.MultiOneHot([2, 3]),
        "action": frb.specs.OneHot(3),
        **dict.fromkeys(("done", "terminated", "truncated"), frb.Binary()),
    }
    item["next"] = {name: spec for name, spec in item.items() if name != "action"} | {"reward": frb.Unbounded()}
    seen = np.array([[0, 1], [1, 2]])
    step = (seen[::-1], np.ones(2), no, no, {})
    _, steps, _ = ted.from_gymnasium(ted.begin(seen), np.array([2, 0]), step, "Disabled", item=item)
    assert steps["action"].tolist() == [[False, False, True], [True, False, False]]
    assert steps["observation"].astype(int).tolist() == [[1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]
    assert steps["next"]["observation"].astype(int).tolist() == [[0, 1, 0, 0, 1], [1, 0, 0, 1, 0]]


def test_what_does_not_fit_is_named() -> None:
    env = Made(spaces.Dict(a=spaces.Sequence(spaces.Discrete(2))), spaces.Text(3), seed=1)
    item = frb.ted.item_from_env(env, narrow=False, max_length=2)
    carry = ted.begin({"a": (0, 1)})

    def record(carry: Any, action: Any, observation: Any) -> Any:
        step = (observation, 1.0, False, False, {})
        return ted.from_gymnasium(carry, action, step, "Disabled", item=item)

    record(carry, "abc", {"a": (1,)})
    with pytest.raises(ValueError, match=r"^ted.from_gymnasium: leaf 'a': .*max_length"):
        record(carry, "abc", {"a": (1, 1, 1)})
    with pytest.raises(ValueError, match=r"^ted.from_gymnasium: leaf 'a': .*max_length"):
        record(ted.begin({"a": (1, 1, 1)}), "abc", {"a": ()})
    with pytest.raises(ValueError, match=r"^ted.from_gymnasium: leaf 'action': "):
        record(carry, "abcd", {"a": ()})
    with pytest.raises(ValueError, match=r"expected the keys \['a'\], got \['b'\]"):
        record(carry, "abc", {"b": ()})
    # What has a name of the caller's comes alone, and not by that name too.
    named = frb.ted.item_from_env(Made(spaces.Text(3), BOX, seed=1), observation_key="seen")
    step = ({"seen": "a"}, 1.0, False, False, {})
    with pytest.raises((TypeError, ValueError), match="leaf 'seen'"):
        ted.from_gymnasium(ted.begin("b"), np.zeros(2), step, "Disabled", item=named, observation_key="seen")


def test_items_of_environments_have_real_specs() -> None:
    env = Made(spaces.Dict(x=BOX, n=spaces.Discrete(4)), spaces.MultiDiscrete([2, 3]), seed=0)
    item = frb.ted.item_from_env(env, narrow=False)
    ted.check(item)
    flags = dict.fromkeys(("done", "terminated", "truncated"), frb.Binary())
    seen = {"x": frb.Bounded(-1, 1, (2,), "float64"), "n": frb.Categorical(4, dtype="int64")}
    action = frb.specs.MultiCategorical([2, 3], dtype="int64")
    after = {**seen, "reward": frb.Unbounded((), "float64"), **flags}
    assert item == frb.Composite({**seen, "action": action, **flags, "next": after})
    narrow = frb.ted.item_from_env(env)
    assert narrow["n"] == frb.Categorical(4)
    assert narrow["next", "reward"] == frb.Unbounded()
    assert frb.ted.item_from_env(SyncVectorEnv([lambda: env]), narrow=False) == item
    assert frb.ted.item_from_env(env, narrow=False, observation_key="seen")["seen"] == frb.Composite(seen)


@pytest.mark.parametrize(
    ("space", "error", "message"),
    [
        (spaces.Dict(a=spaces.Sequence(BOX)), ValueError, "leaf 'observation/a': .*give max_length=..."),
        (spaces.Dict(a=spaces.Discrete(2**40)), ValueError, r"leaf 'observation/a': .*fewer than 2\^31"),
        (spaces.Dict(action=BOX), ValueError, "the observation has a part 'action'.*observation_key"),
    ],
)
def test_environments_without_an_item_are_refused(space: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^item_from_env: {message}"):
        frb.ted.item_from_env(Made(space, BOX, 0))
