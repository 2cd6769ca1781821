"""Deriving the item of a buffer that records an environment."""

from __future__ import annotations

from typing import Literal

from functional_rb.base.steps import ACTION, FLAGS, NEXT, REWARD
from functional_rb.convert.common import stored_dtype
from functional_rb.convert.gymnasium import spec_of_space
from functional_rb.specs import Binary, Composite, Unbounded
from functional_rb.ted.steps import by_name

WHO = "item_from_env"
# How a step lies in an item.
Layout = Literal["ted", "flat"]


def item_from_env(
    env: object,
    narrow: bool = True,
    observation_key: str | None = None,
    max_length: int | None = None,
    max_edges: int | None = None,
    layout: Layout = "ted",
) -> Composite:
    """The item of a buffer that records an environment, by its spaces: a step in TED, or a flat transition.

    Args:
        env: a Gymnasium environment, or a vector environment: an item is a step of one of its environments.
        narrow: whether 64-bit numbers (rewards, discrete actions) are stored in 32 bits, as learners compute and as
            JAX needs without x64. `ted.from_gymnasium(item=...)` converts them.
        observation_key: the name of the observation in the steps, also if it is a dict; "obs" in flat ones.
        max_length: the most elements of a `Sequence`, and nodes of a `Graph`, if the spaces have some.
        max_edges: the most edges of a `Graph`.
        layout: "ted" for a step in TED; "flat" for what a loop of one's own adds, `{"obs", "action", "reward",
            "next_obs", "terminated", "truncated"}`.

    Returns:
        The item with specs as leaves, those of `from_gymnasium(space)`. The reward is float32; if not narrow, float64,
        as vector environments have it.

    Raises:
        ImportError: if Gymnasium is not installed.
        TypeError: for what has no spaces, or a space that has no spec, naming it.
        ValueError: for a limit that is missing, an observation with a part whose name has another meaning in TED, or
            another layout.

    Example:
        >>> from types import SimpleNamespace as Env
        >>> from gymnasium import spaces
        >>> env = Env(observation_space=spaces.Box(-1, 1, (3,)), action_space=spaces.Discrete(4))
        >>> item = item_from_env(env)
        >>> item["observation"], item["action"], item["next", "reward"]
        (Bounded(-1.0, 1.0, (3,)), Categorical(4), Unbounded())
        >>> list(item_from_env(env, layout="flat"))
        ['obs', 'action', 'reward', 'next_obs', 'terminated', 'truncated']
    """
    if layout not in ("ted", "flat"):
        raise ValueError(f"{WHO}: expected layout as 'ted' or 'flat', got {layout!r}")
    single = "single_" if hasattr(env, "single_observation_space") else ""
    if not all(hasattr(env, f"{single}{of}_space") for of in ("observation", "action")):
        raise TypeError(f"{WHO}: expected a Gymnasium environment, which has spaces, got {env!r:.80}; use gym.make")
    observation, action = (
        spec_of_space(getattr(env, f"{single}{of}_space"), narrow, max_length, max_edges, WHO, (of,))
        for of in ("observation", "action")
    )
    reward = Unbounded((), stored_dtype("float64", narrow))
    if layout == "ted":
        return item_of_specs(observation, action, reward, observation_key, WHO)
    key = "obs" if observation_key is None else observation_key
    item = {key: observation, ACTION: action, REWARD: reward, f"next_{key}": observation}
    ends = {"terminated": Binary(), "truncated": Binary()}
    if len(item | ends) < 6:
        raise ValueError(f"{WHO}: the name {key!r} has another meaning in the item; give another observation_key")
    return Composite(item | ends)


def item_of_specs(
    observation: object, action: object, reward: object, observation_key: str | None, who: str
) -> Composite:
    """A step in TED with specs as leaves, of the specs of its parts."""
    named = by_name(observation, observation_key, who)
    flags = dict.fromkeys(FLAGS, Binary())
    return Composite({**named, ACTION: action, **flags, NEXT: {**named, REWARD: reward, **flags}})
