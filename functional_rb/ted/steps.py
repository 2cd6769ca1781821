"""Making steps in TED, taking them apart, and going on to the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import ArrayLike, Nest
from functional_rb.base.nest import Key, Path
from functional_rb.base.steps import ACTION, FLAGS, NEXT, OBSERVATION, REWARD
from functional_rb.specs import Composite, Varying
from functional_rb.ted.check import below, check_static, is_leaf, leaves_of, named_parts, path_of

RESERVED = frozenset((ACTION, REWARD, NEXT, *FLAGS))


class Transition(NamedTuple):
    """Rows of steps, or one row; arrays with the leading axes of the steps, nests where those have nests.

    Attributes:
        observation: the observation before the step.
        action: the action.
        reward: the reward of the action.
        next_observation: the observation after the step.
        terminated: bool, whether it led to a terminal state.
        truncated: bool, whether the episode was cut off after it.
    """

    observation: Nest
    action: Nest
    reward: Nest
    next_observation: Nest
    terminated: Nest
    truncated: Nest

    @property
    def done(self) -> Nest:
        """Whether the episode was over after the step, for either reason."""
        return self.terminated | self.truncated


def from_transitions(
    observation: object,
    action: object,
    reward: object,
    next_observation: Nest,
    terminated: ArrayLike = None,
    truncated: ArrayLike = None,
    *,
    done: ArrayLike = None,
    observation_key: str | None = None,
) -> dict[str, Nest]:
    """Make steps in TED of rows; nothing is copied, and no dtype changes.

    Flags at the root are False: a step never begins in a state that is done.

    Args:
        observation: an array [*shape], [B, *shape], [T, E, *shape] ..., or a nest of them. The parts of a dict become
            leaves of the step; all else is the leaf, or nest, "observation".
        action: an array or a nest.
        reward: an array. Python numbers are taken as NumPy takes them: a float as float64.
        next_observation: in the form of `observation`.
        terminated: bool, an array in the shape of the leading axes.
        truncated: bool, an array in the shape of the leading axes. Without it, nothing was truncated.
        done: given instead of `terminated`, `truncated` or both. Alone it means terminated, so that no value is
            bootstrapped there; given with one of them, it yields the other.
        observation_key: the name of the observation in the steps, also if it is a dict.

    Returns:
        The steps, a dict; the arrays are those given.

    Raises:
        TypeError: for flags that are not bool, or a next observation of another dtype, naming the leaf.
        ValueError: for a next observation of another structure or shape, for flags that are missing or too many,
            and for an observation with a part whose name has another meaning in TED.

    Example:
        >>> rows = [np.zeros((2, 3)), np.zeros(2), np.ones(2), np.ones((2, 3)), np.array([False, True])]
        >>> steps = from_transitions(*rows)
        >>> list(steps["next"])
        ['observation', 'reward', 'done', 'terminated', 'truncated']
        >>> steps["done"].tolist(), steps["next"]["done"].tolist()
        ([False, False], [False, True])
    """
    who = "ted.from_transitions"
    terminated, truncated, done = _flags(terminated, truncated, done, who)
    rows = Transition(observation, action, reward, next_observation, terminated, truncated)
    steps = assemble(rows, done, observation_key, who)
    check_rows(steps, who)
    return steps


def assemble(rows: Transition, done: Nest, observation_key: str | None, who: str) -> dict[str, Nest]:
    after = {"done": done, "terminated": rows.terminated, "truncated": rows.truncated}
    return {
        **by_name(rows.observation, observation_key, who),
        ACTION: as_array(rows.action),
        **dict.fromkeys(FLAGS, done ^ done),
        NEXT: {**by_name(rows.next_observation, observation_key, who), REWARD: as_array(rows.reward), **after},
    }


def check_rows(steps: object, who: str) -> None:
    check_static(leaves_of(steps, who), (ACTION,), (REWARD,), who)


def to_transitions(steps: object, *, observation_key: str | None = None) -> Transition:
    """The rows of steps in TED; the inverse of `from_transitions`.

    Args:
        steps: a nest in TED, leaves with any leading axes.
        observation_key: the name of the observation. By default it is all there is in "next" but reward and flags: a
            dict, or the leaf (or nest) "observation" if there is no other.

    Returns:
        The rows; the arrays are those of the steps. What else the steps hold at their root is left out.

    Raises:
        TypeError: for a leaf that is no array, or of another dtype in "next".
        ValueError: if the steps are not in TED, see `check`.

    Example:
        >>> rows = [np.zeros((2, 3)), np.zeros(2), np.ones(2), np.ones((2, 3)), np.array([True, False])]
        >>> to_transitions(from_transitions(*rows)).done.tolist()
        [True, False]
    """
    who = "ted.to_transitions"
    check_rows(steps, who)
    root = named_parts(steps, who)
    following = named_parts(root[NEXT], who)
    names = [name for name in following if name != REWARD and name not in FLAGS]
    if observation_key is not None and observation_key not in names:
        raise ValueError(f"{who}: 'next' has no observation {observation_key!r}; name one of {names}")
    alone = observation_key or (OBSERVATION if names == [OBSERVATION] else None)
    before, after = (
        {name: branch[name] for name in names} if alone is None else branch[alone] for branch in (root, following)
    )
    return Transition(before, root[ACTION], following[REWARD], after, following["terminated"], following["truncated"])


def step_mdp(
    step: object,
    *,
    keep_other: bool = True,
    exclude_reward: bool = True,
    exclude_done: bool = False,
    exclude_action: bool = True,
    action_key: Key = ACTION,
    reward_key: Key = REWARD,
) -> Nest:
    """Go on to the next step: its root, which is what "next" holds, and what the root holds besides.

    Only names change, arrays stay what they are: this works under jit, vmap and torch.compile.

    Args:
        step: a nest in TED, leaves with any leading axes.
        keep_other: whether leaves at the root that "next" does not have (the state of a policy, say) are kept.
        exclude_reward: whether the reward is left out.
        exclude_done: whether the flags done, terminated and truncated are left out.
        exclude_action: whether the action is left out.
        action_key: path of the action, a leaf or a nest.
        reward_key: path of the reward, below "next".

    Returns:
        A mapping of the step's kind: a dict, a `Composite` or a TensorDict; a dict for a NamedTuple or a dataclass.

    Raises:
        TypeError: if the step, or its "next", has no names.
        ValueError: if there is no "next".

    Example:
        >>> rows = [np.zeros((2, 3)), np.zeros(2), np.ones(2), np.ones((2, 3)), np.array([False, True])]
        >>> following = step_mdp(from_transitions(*rows))
        >>> list(following), following["done"].tolist()
        (['observation', 'done', 'terminated', 'truncated'], [False, True])
    """
    who = "ted.step_mdp"
    root = named_parts(step, who)
    if NEXT not in root:
        raise ValueError(f"{who}: expected the part 'next', with what there is after the step, got {list(root)}")
    following = root.pop(NEXT)
    named_parts(following, who, "the part 'next'")
    action = path_of(action_key)
    # Paths below the root and below "next" alike: a reward or a flag stands at the same one in both.
    left_out: list[Path] = [path_of(reward_key)] if exclude_reward else []
    left_out += [(flag,) for flag in FLAGS] if exclude_done else []
    left_out += [action] if exclude_action else []
    kept = _filtered(step, (), [*left_out, (NEXT,)])
    if not keep_other:
        kept = {} if exclude_action else _only(kept, action)
    return _like(step, _merged(kept, _filtered(following, (), left_out)))


def as_array(leaf: Nest) -> Nest:
    """A Python number as an array; all else as it is."""
    return np.asarray(leaf) if isinstance(leaf, (bool, int, float)) else leaf  # no union, as in `check.is_leaf`


def _flags(terminated: Nest, truncated: Nest, done: Nest, who: str) -> tuple[Nest, Nest, Nest]:
    flags = {"terminated": terminated, "truncated": truncated, "done": done}
    flags = {name: as_array(flag) for name, flag in flags.items() if flag is not None}
    if len(flags) in (0, 3):
        raise ValueError(
            f"{who}: expected terminated, truncated, done, or two of them, got {list(flags) or 'none'}; "
            f"done is terminated | truncated"
        )
    for name, flag in flags.items():
        if not is_leaf(flag) or str(flag.dtype).removeprefix("torch.") != "bool":
            got = getattr(flag, "dtype", type(flag).__name__)
            raise TypeError(f"{who}: {name}: expected an array of dtype bool, got {got}; convert it")
    shapes = {tuple(flag.shape) for flag in flags.values()}
    if len(shapes) > 1:
        raise ValueError(f"{who}: expected flags of one shape, got {sorted(shapes)}; reshape them")
    terminated, truncated, done = (flags.get(name) for name in ("terminated", "truncated", "done"))
    # done = terminated | truncated. `x ^ x` is False everywhere, in an array of the flag's own library and device.
    if done is None:
        any_flag = terminated if truncated is None else truncated
        terminated = any_flag ^ any_flag if terminated is None else terminated
        truncated = any_flag ^ any_flag if truncated is None else truncated
        return terminated, truncated, terminated | truncated
    if terminated is not None:
        return terminated, done & ~terminated, terminated | done
    return (done, done ^ done, done) if truncated is None else (done & ~truncated, truncated, truncated | done)


def by_name(observation: Nest, key: str | None, who: str) -> dict[str, Nest]:
    """The parts of an observation by the names that they get in a step."""
    whole = is_leaf(observation) or isinstance(observation, Varying)
    parts = None if whole else nest.parts_of(observation)
    if key is None and parts is not None and parts[0].kind == "mapping":
        named = named_parts(observation, who, "the observation")
    else:
        named = {key or OBSERVATION: as_array(observation)}
    clash = sorted(RESERVED & named.keys())
    if clash:
        raise ValueError(
            f"{who}: the observation has a part {clash[0]!r}, which names something else in TED; "
            f"give observation_key='observation', say"
        )
    return named


def _is_mapping(x: object) -> bool:
    parts = None if is_leaf(x) else nest.parts_of(x)
    return parts is not None and parts[0].kind == "mapping"


def _filtered(mapping: object, path: Path, left_out: list[Path]) -> dict[str, object]:
    kept = {}
    for name, value in named_parts(mapping, "ted.step_mdp").items():
        at = (*path, name)
        if at in left_out:
            continue
        inner = any(below(other, at) for other in left_out)
        kept[name] = _like(value, _filtered(value, at, left_out)) if inner and _is_mapping(value) else value
    return kept


def _only(parts: Mapping[str, object], path: Path) -> dict[str, object]:
    if path[0] not in parts:
        return {}
    value = parts[str(path[0])]
    if len(path) > 1 and _is_mapping(value):
        value = _like(value, _only(named_parts(value, "ted.step_mdp"), path[1:]))
    return {str(path[0]): value}


def _merged(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    # Mapping by mapping; where both have a leaf, the new one counts.
    merged = {**old, **new}
    for name in old.keys() & new.keys():
        if _is_mapping(old[name]) and _is_mapping(new[name]):
            both = [named_parts(mapping[name], "ted.step_mdp") for mapping in (old, new)]
            merged[name] = _like(new[name], _merged(*both))
    return merged


def _like(mapping: object, parts: Mapping[str, object]) -> object:
    if isinstance(mapping, Composite):
        return mapping.with_parts(parts, ())
    if hasattr(mapping, "batch_size") and hasattr(mapping, "empty") and not hasattr(type(mapping), "_is_tensorclass"):
        tensordict = mapping.empty()  # a TensorDict: batch size and device as they were
        for name, value in parts.items():
            tensordict.set(name, value)
        return tensordict
    return parts
