"""Recording Gymnasium environments as steps in TED, whatever resets them.

Gymnasium itself is not imported: what `env.reset` and `env.step` return is given, and the mode of the resets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import Nest
from functional_rb.base.dtypes import shown
from functional_rb.base.nest import Structure
from functional_rb.base.steps import ACTION
from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.specs import Composite
from functional_rb.specs.base import SpecNest
from functional_rb.ted.check import is_leaf, leaves_of, values_of
from functional_rb.ted.host import cast, encoded, encoded_observation, encoding_item, is_encoding
from functional_rb.ted.steps import Transition, as_array, assemble, check_rows

NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"

NUMPY = (np.ndarray, np.generic)  # no union: torch.compile does not trace those of NumPy's types

# What `env.step` returns: observation, reward, terminated, truncated, infos.
GymnasiumStep = tuple[Nest, Nest, Nest, Nest, Mapping[str, Nest]]


class Carry(NamedTuple):
    """What `from_gymnasium` passes on from one step to the next.

    Attributes:
        observation: a nest, leaves [E, *shape] (plain environments: [*shape]), what the next step starts from.
        ended: bool [E], which environments have ended and were not reset yet. False at first.
        item: the item that the observation is encoded for, if that has texts, one-hot vectors, or values that vary in
            length or kind; None while the observation is as it came.
    """

    observation: Nest
    ended: Nest
    item: Composite | None = None

    def reset(self, observation: Nest, mask: Nest) -> Carry:
        """Go on after some environments were reset by hand, with autoreset disabled.

        Args:
            observation: what `env.reset(options={"reset_mask": mask})` returned.
            mask: bool [E], which environments were reset.

        Returns:
            A new carry with their first observations.

        Raises:
            ValueError: for an environment that had not ended, unless it is traced: stored steps would go on from one
                episode to another. Mark its last step as truncated as you record it:
                `step = (obs, reward, terminated, truncated | cut_off, infos)`.

        Example:
            >>> no, yes = np.zeros(2, bool), np.array([True, False])
            >>> carry = begin(np.zeros((2, 1)))
            >>> carry, *_ = from_gymnasium(carry, np.zeros(2), (np.ones((2, 1)), np.zeros(2), yes, no, {}), "Disabled")
            >>> carry.reset(np.array([[7.0], [8.0]]), yes).observation.tolist()
            [[7.0], [1.0]]
        """
        who = "ted: Carry.reset"
        if not is_leaf(mask) or shown(mask.dtype) != "bool":
            got = getattr(mask, "dtype", type(mask).__name__)
            raise TypeError(f"{who}: mask: expected an array of dtype bool, got {got}")
        # `ended` may be a plain False, before the first step: the mask gives it its shape.
        early = values_of(mask & ~((mask ^ mask) | self.ended))
        if early is not None and early.any():
            raise ValueError(
                f"{who}: environments {np.flatnonzero(early).tolist()} had not ended; record their last step as "
                f"truncated, from_gymnasium(carry, action, (obs, reward, terminated, truncated | mask, infos), ...), "
                f"then reset them"
            )
        observation = _map(_copied, observation)
        if self.item is not None:
            observation = encoded_observation(self.item, observation, None, tuple(mask.shape), who)
        leaves, structure = nest.flatten(self.observation, is_leaf)
        news = _leaves_as(structure, observation, f"{who}: the observation")
        merged = [_where(mask, new, old) for new, old in zip(news, leaves, strict=True)]
        return self._replace(observation=nest.unflatten(structure, merged), ended=self.ended & ~mask)


def begin(observation: Nest) -> Carry:
    """Begin to record, with what `env.reset` returned.

    Args:
        observation: a nest, leaves [E, *shape] (plain environments: [*shape]). NumPy arrays and
            torch's tensors are copied, because an environment may use the memory again.

    Returns:
        The carry that `from_gymnasium` takes. After a plain environment's episode, begin anew.

    Example:
        >>> begin(np.zeros((2, 3))).ended
        False
    """
    return Carry(_map(_copied, observation), False)


def from_gymnasium(
    carry: Carry,
    action: object,
    step: GymnasiumStep,
    autoreset_mode: object,
    *,
    item: object = None,
    observation_key: str | None = None,
) -> tuple[Carry, dict[str, Nest], Nest]:
    """What one call of `env.step` recorded, as steps in TED.

    Args:
        carry: from `begin` or from the call before.
        action: what was given to `env.step`, leaves [E, *shape].
        step: what it returned: (observation, reward, terminated, truncated, infos). NumPy arrays and torch's tensors
            are copied, those of the action too, because an environment may use the memory again.
        autoreset_mode: the one that the environment was made with (a `gymnasium.vector.AutoresetMode` or its value):
            "NextStep", where the step after the last one of an episode resets and ignores its action; "SameStep", where
            the last step resets at once, and the true next observation is in `infos["final_obs"]`; "Disabled", where
            the caller resets, also for plain environments. `env.metadata["autoreset_mode"]` has it, but environments of
            one class may share that dict, which then has the mode of the one made last.
        item: the item's spec, a `BufferSpec` say; NumPy leaves of another dtype are converted to the spec's: floats
            are rounded, integers must fit. What the item has as `Text`, `Sequence`, `Graph`, `OneOf` or one-hot
            vectors is encoded, as by `rb.encode`; a vector environment gives such values as sequences of E. Without an
            item every dtype stays as it came (rewards float64), and there may be arrays only.
        observation_key: the name of the observation in the steps, also if it is a dict.

    Returns:
        The next carry; the steps, leaves [E, *shape]; and a mask bool [E], which environments really took a step, for
        `rb.add(state, steps, mask=mask)` with a buffer of E lanes. Rows whose mask is False are no steps. Those of a
        plain environment have no axis E.

    Raises:
        TypeError: for flags that are not bool, or a dtype that is not converted, naming the leaf.
        ValueError: for leaves without the axis E; for infos that contradict the mode; and, if Disabled, for a step of
            an environment that has ended, unless it is traced.

    Example:
        >>> ids, zero, no = np.array([[0.0], [5.0]]), np.zeros(2), np.zeros(2, bool)
        >>> carry, step = begin(ids), (ids + 1, zero, np.array([True, False]), no, {})
        >>> carry, items, mask = from_gymnasium(carry, zero, step, "NextStep")
        >>> items["next"]["observation"].tolist(), items["next"]["done"].tolist(), mask.tolist()
        ([[1.0], [6.0]], [True, False], [True, True])
        >>> carry, items, mask = from_gymnasium(carry, zero, (ids + 2, zero, no, no, {}), "NextStep")
        >>> mask.tolist()
        [False, True]
    """
    who = "ted.from_gymnasium"
    mode = getattr(autoreset_mode, "value", autoreset_mode)
    if mode not in (NEXT_STEP, SAME_STEP, DISABLED):
        raise ValueError(
            f"{who}: expected autoreset_mode as one of {NEXT_STEP!r}, {SAME_STEP!r}, {DISABLED!r}, "
            f'got {autoreset_mode!r}; give the mode of the environment, and "Disabled" for a plain one'
        )
    returned: object = step  # users give anything
    if not isinstance(returned, (tuple, list)) or len(returned) != 5:  # no union, as in `check.is_leaf`
        raise ValueError(
            f"{who}: expected step as (observation, reward, terminated, truncated, infos), got {returned!r:.80}; "
            f"give env.step(action)"
        )
    observation, reward, terminated, truncated, infos = returned
    terminated, truncated = as_array(terminated), as_array(truncated)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not is_leaf(flag) or shown(flag.dtype) != "bool" or tuple(flag.shape) != tuple(terminated.shape):
            raise TypeError(
                f"{who}: {name}: expected an array bool of one shape for all flags, got {flag!r:.80}; convert it"
            )
    # Gymnasium with copy=False writes to the same observation again, and simulators on torch to all that they return.
    given = observation, action, reward, terminated, truncated
    observation, action, reward, terminated, truncated = _map(_copied, given)
    done = terminated | truncated
    spec = None if item is None else encoding_item(item)
    if spec is not None:
        lead = tuple(done.shape)
        if carry.item is None:
            carry = carry._replace(observation=encoded_observation(spec, carry.observation, observation_key, lead, who))
        if ACTION in spec and is_encoding(spec[ACTION]):
            action = encoded(spec[ACTION], action, lead, ACTION, who)
        observation = encoded_observation(spec, observation, observation_key, lead, who)
        infos, observation_key = _encoded_final(infos, spec, observation_key, lead, who), None
    after = observation
    if mode == SAME_STEP:
        after = _with_final(observation, done, infos, who)
    elif "final_obs" in infos:
        raise ValueError(
            f'{who}: infos has "final_obs", so the environment resets within the step: give autoreset_mode="SameStep"'
        )
    # `x ^ x` is False everywhere, in an array of the flags' own library and on its device, traced or not.
    never = done ^ done
    idle = never | carry.ended
    if mode == DISABLED and np.any(ended := values_of(idle)) and ended is not None:
        raise ValueError(
            f"{who}: environments {np.flatnonzero(ended).tolist()} have ended; after "
            f'env.reset(options={{"reset_mask": mask}}) call carry.reset(observation, mask); plain ones: ted.begin'
        )
    rows = Transition(carry.observation, action, reward, after, terminated, truncated)
    items = assemble(rows, done, observation_key, who)
    if item is not None:
        items = _converted(items, item, who)
    check_rows(items, who)
    shape = tuple(done.shape)
    for path, leaf in leaves_of(items, who).items():
        if tuple(leaf.shape)[: len(shape)] != shape:
            raise ValueError(
                f"{who}: leaf {nest.show(path)!r}: expected shape {(*shape, '...')}, one for each environment, "
                f"got {tuple(leaf.shape)}"
            )
    ended = {NEXT_STEP: done, SAME_STEP: never, DISABLED: done | idle}[mode]
    return Carry(observation, ended, spec), items, ~(never if mode == SAME_STEP else idle)


def _encoded_final(
    infos: Mapping[str, object], item: Composite, key: str | None, lead: tuple[int, ...], who: str
) -> Mapping[str, Nest]:
    # Final observations are an object array with some None, or a batch.
    final = infos.get("final_obs")
    if final is None:
        return infos
    if not (isinstance(final, np.ndarray) and final.dtype == object):
        return {**infos, "final_obs": encoded_observation(item, final, key, lead, who)}
    observations = np.full(final.shape, None, object)
    for i in np.flatnonzero([last is not None for last in final]):
        observations[i] = encoded_observation(item, final[i], key, (), who)
    return {**infos, "final_obs": observations}


def _with_final(observation: Nest, done: Nest, infos: Mapping[str, Nest], who: str) -> Nest:
    leaves, structure = nest.flatten(observation, is_leaf)
    final = infos.get("final_obs")
    which = values_of(done)
    if final is None:  # Gymnasium gives it only in steps that end an episode
        if which is not None and which.any():
            raise ValueError(
                f'{who}: environments {np.flatnonzero(which).tolist()} are done, but infos has no "final_obs"; '
                f'give the autoreset_mode of the environment, env.metadata["autoreset_mode"]'
            )
        return observation
    if not (isinstance(final, np.ndarray) and final.dtype == object):
        finals = _leaves_as(structure, final, f'{who}: infos["final_obs"]')
        pairs = zip(finals, leaves, strict=True)
        merged = [_where(done, _final_leaf(last, leaf, leaf.shape, who), leaf) for last, leaf in pairs]
        return nest.unflatten(structure, merged)
    merged = [np.array(leaf) for leaf in leaves]
    for i in () if which is None else np.flatnonzero(which):
        if final[i] is None:
            raise ValueError(f'{who}: environment {i} is done, but infos["final_obs"][{i}] is None')
        lasts = _leaves_as(structure, final[i], f'{who}: infos["final_obs"][{i}]')
        for leaf, last in zip(merged, lasts, strict=True):
            leaf[i] = _final_leaf(last, leaf, leaf.shape[1:], who)
    return nest.unflatten(structure, merged)


def _final_leaf(last: Nest, leaf: Nest, shape: tuple[int, ...], who: str) -> Nest:
    last = last if hasattr(last, "dtype") else np.asarray(last)
    castable = not isinstance(leaf, np.ndarray) or np.can_cast(last.dtype, leaf.dtype, "same_kind")
    if tuple(last.shape) != tuple(shape) or not castable:
        raise ValueError(
            f'{who}: infos["final_obs"]: expected shape {tuple(shape)} and dtype {shown(leaf.dtype)} as those of the '
            f"observation, got {tuple(last.shape)} and {shown(last.dtype)}; a wrapper must change both alike"
        )
    return last


def _converted(items: dict[str, Nest], item: SpecNest | BufferSpec, who: str) -> dict[str, Nest]:
    specs = leaves_of(item, who)
    leaves, structure = nest.flatten(items, is_leaf)
    converted = []
    for path, leaf in zip(structure.paths, leaves, strict=True):
        spec, name = specs.get(path), nest.show(path)
        if spec is None or shown(leaf.dtype) == shown(spec.dtype):
            converted.append(leaf)  # `add` refuses leaves that the item does not have
        elif isinstance(leaf, NUMPY) and shown(spec.dtype) != "bfloat16":  # which NumPy lacks
            converted.append(cast(np.asarray(leaf), shown(spec.dtype), name, who))
        else:
            checks.check_dtype(name, leaf, spec.dtype)
    recorded: dict[str, Nest] = nest.unflatten(structure, converted)
    return recorded


def _leaves_as(structure: Structure, observation: Nest, what: str) -> list[Nest]:
    try:
        leaves = nest.flatten_as(structure, observation)
        fits = all(is_leaf(leaf) or nest.parts_of(leaf) is None for leaf in leaves)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{what}: expected the structure of the observations before, leaves "
            f"{[nest.show(path) for path in structure.paths]}; a wrapper must change both alike"
        )
    return leaves


def _map(function: Callable[[Nest], object], tree: Nest) -> Nest:
    leaves, structure = nest.flatten(tree, is_leaf)
    return nest.unflatten(structure, [function(leaf) for leaf in leaves])


# In memory that the environment does not write to: NumPy's arrays and torch's tensors are copied; JAX's never change.
def _copied(leaf: Nest) -> Nest:
    if isinstance(leaf, np.ma.MaskedArray):
        raise TypeError(
            "ted: expected arrays without masks of their own, got numpy.ma.MaskedArray, whose masked elements would be "
            "recorded as if they were not; give array.filled(...)"
        )
    if isinstance(leaf, NUMPY):
        return np.array(leaf)
    return leaf.clone() if hasattr(leaf, "detach") else as_array(leaf)  # JAX's arrays have a `clone`, too


def _where(mask: Nest, yes: Nest, no: Nest) -> Nest:
    # The mask is bool [E] or a scalar; the arrays' own library selects the rows.
    along = mask.reshape(tuple(mask.shape) + (1,) * (len(no.shape) - len(mask.shape)))
    if isinstance(no, NUMPY):
        return np.where(along, yes, no)  # of a NumPy before 2.0 too, whose arrays do not tell where their functions are
    if hasattr(no, "__array_namespace__"):
        return no.__array_namespace__().where(along, yes, no)
    return yes.where(along, no)  # torch, of which the compiler of 2.8 finds no `where` by `hasattr`
