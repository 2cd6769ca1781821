"""Checks whether a nest of arrays is a step, a batch or a trajectory in TED."""

from __future__ import annotations

import sys

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import ArrayLike, Nest, NumpyArray
from functional_rb.base.dtypes import shown
from functional_rb.base.nest import Key, Path
from functional_rb.base.steps import FLAGS, NEXT
from functional_rb.buffer.spec import BufferSpec
from functional_rb.specs import ArraySpec, Stacked, Varying

# The leaves of a step by their path.
Leaves = dict[Path, Nest]


def check(
    steps: object,
    *,
    time_axis: int | None = None,
    mask: ArrayLike = None,
    action_key: Key = "action",
    reward_key: Key = "reward",
) -> None:
    """Check that a nest is in TED; return if it is.

    What shapes and dtypes can tell is always checked: the three flags are at the root and in "next", all bool and of
    one shape; the action is at the root only, the reward in "next" only; every other leaf of "next", the observation,
    is at the root too, with the same shape and dtype. What only values can tell is checked where they are known (not
    under jit, vmap or torch.compile): done is terminated | truncated; and along a time axis what is in "next" of a step
    that is not done is at the root of the following one, bit for bit.

    Leaves that are at the root only (the state of a policy, say) are not checked.

    Args:
        steps: a nest with named parts (dict, `Composite`, TensorDict, ...) of arrays of NumPy, JAX or torch, leaves
            [*shape], [B, *shape], [T, *shape], [T, E, *shape] or [B, T, *shape]. Flags and reward may have a last axis
            of one, as TorchRL's have. Or a nest of specs, or a `BufferSpec`: then there are no values.
        time_axis: which axis of the leaves is time; None if neighbouring rows are unrelated.
        mask: bool, in the shape of the flags (less the last axis of one): values are compared between marked rows only.
        action_key: path of the action, a leaf or a nest.
        reward_key: path of the reward, below "next".

    Raises:
        TypeError: for a leaf that is no array, or a dtype that does not fit, naming the leaf.
        ValueError: for a leaf that is missing or out of place, for shapes and for values that do not fit.

    Example:
        >>> no, yes = dict.fromkeys(FLAGS, np.zeros(4, bool)), dict.fromkeys(FLAGS, np.ones(4, bool))
        >>> step = {"observation": np.zeros((4, 3)), "action": np.zeros(4), **no}
        >>> step["next"] = {"observation": np.ones((4, 3)), "reward": np.ones(4), **yes}
        >>> check(step)
        >>> check(step | {"done": np.zeros(4)})
        Traceback (most recent call last):
        ...
        TypeError: ted.check: leaf 'done': expected dtype bool, got float64; convert it
    """
    action, reward = path_of(action_key), path_of(reward_key)
    leaves = leaves_of(steps, "ted.check")
    check_static(leaves, action, reward, "ted.check")
    if not any(isinstance(leaf, ArraySpec) for leaf in leaves.values()):
        _check_values(leaves, reward, time_axis, mask)


def path_of(key: Key) -> Path:
    nest.show_key(key)  # refuses what is no key
    return (key,) if isinstance(key, str) else tuple(key)


def below(path: Path, prefix: Path) -> bool:
    """Whether a path begins with another, so that it leads into the nest there."""
    return path[: len(prefix)] == prefix


def named_parts(steps: object, who: str, where: str = "the steps") -> dict[str, object]:
    if isinstance(steps, BufferSpec):
        steps = steps.item
    parts = None if is_leaf(steps) else nest.parts_of(steps)
    if parts is None or parts[0].kind == "sequence":
        raise TypeError(
            f"{who}: expected {where} as a nest with names (a dict, a TensorDict, ...), got {type(steps).__name__}; "
            f"ted.from_transitions makes one of rows"
        )
    for name in parts[0].keys:
        if not isinstance(name, str):
            raise TypeError(f"{who}: expected names that are strings, got {name!r}; rename it to '{name}'")
    return dict(zip(map(str, parts[0].keys), parts[1], strict=True))


def is_leaf(x: object) -> bool:
    """Whether a value is an array or the spec of one; nests of specs and TensorDicts have dtypes too."""
    if isinstance(x, (Varying, Stacked)):  # no union: torch.compile of torch 2.8 traces none
        return False
    return hasattr(x, "dtype") and not hasattr(x, "keys") and not hasattr(x, "batch_size")


def leaves_of(steps: object, who: str) -> Leaves:
    parts = named_parts(steps, who)
    if NEXT not in parts:
        raise ValueError(
            f"{who}: expected the part 'next', with what there is after the step, got {list(parts)}; "
            f"ted.from_transitions makes steps of rows"
        )
    named_parts(parts[NEXT], who, "the part 'next'")
    leaves, structure = nest.flatten(parts, is_leaf)
    for path, leaf in zip(structure.paths, leaves, strict=True):
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise TypeError(
                f"{who}: leaf {nest.show(path)!r}: expected an array of NumPy, JAX or torch, or a spec, "
                f"got {type(leaf).__name__}; give np.asarray(leaf), say"
            )
    return dict(zip(structure.paths, leaves, strict=True))


def check_static(leaves: Leaves, action: Path, reward: Path, who: str) -> None:
    """The part of `check` that looks at shapes and dtypes alone."""
    _check_flags(leaves, who)
    _check_place(leaves, action, (NEXT, *action), "at the root only", who)
    _check_place(leaves, (NEXT, *reward), reward, "in 'next' only", who)
    paths = observation_paths(leaves, reward)
    if not paths:
        raise ValueError(f"{who}: 'next' has no observation; give it the same leaves as at the root")
    for path in paths:
        name, after = nest.show(path), leaves[(NEXT, *path)]
        if path not in leaves:
            raise ValueError(
                f"{who}: leaf 'next/{name}': expected a leaf {name!r} at the root as well, the same before the step; "
                f"give both, or move it to the root if it belongs to the step as a whole"
            )
        before = leaves[path]
        if tuple(after.shape) != tuple(before.shape):
            raise ValueError(
                f"{who}: leaf 'next/{name}': expected shape {tuple(before.shape)} as leaf {name!r} has, "
                f"got {tuple(after.shape)}; reshape one of them"
            )
        if shown(after.dtype) != shown(before.dtype):
            raise TypeError(
                f"{who}: leaf 'next/{name}': expected dtype {shown(before.dtype)} as leaf {name!r} has, "
                f"got {shown(after.dtype)}; convert one of them"
            )


def observation_paths(leaves: Leaves, reward: Path) -> list[Path]:
    """The paths in "next" of its leaves that are neither reward nor flags."""
    following = [path[1:] for path in leaves if path[0] == NEXT]
    return [path for path in following if not below(path, reward) and path not in [(flag,) for flag in FLAGS]]


def _check_flags(leaves: Leaves, who: str) -> None:
    first = None
    for path in [*((flag,) for flag in FLAGS), *((NEXT, flag) for flag in FLAGS)]:
        name = nest.show(path)
        if path not in leaves:
            raise ValueError(
                f"{who}: leaf {name!r} is missing: expected {', '.join(FLAGS)} at the root and in 'next'; "
                f"at the root they are False for steps that begin in an episode, and done is terminated | truncated"
            )
        flag = leaves[path]
        if shown(flag.dtype) != "bool":
            raise TypeError(f"{who}: leaf {name!r}: expected dtype bool, got {shown(flag.dtype)}; convert it")
        first = tuple(flag.shape) if first is None else first
        if tuple(flag.shape) != first:
            raise ValueError(
                f"{who}: leaf {name!r}: expected shape {first} as leaf 'done' has, got {tuple(flag.shape)}; reshape it"
            )


def _check_place(leaves: Leaves, right: Path, wrong: Path, where: str, who: str) -> None:
    name = nest.show(right)
    if not any(below(path, right) for path in leaves):
        raise ValueError(f"{who}: leaf {name!r} is missing; give it {where}, or say where it is by a key")
    if any(below(path, wrong) for path in leaves):
        raise ValueError(f"{who}: leaf {nest.show(wrong)!r} is out of place: expected {name!r}, {where}; move it there")


def _check_values(leaves: Leaves, reward: Path, time_axis: int | None, mask: ArrayLike) -> None:
    following = tuple(leaves[(NEXT, "done")].shape)
    if time_axis is not None:
        lead = tuple(leaves["done",].shape)[: time_axis + 1]
        for path, leaf in leaves.items():
            if time_axis < 0 or len(lead) <= time_axis or tuple(leaf.shape)[: time_axis + 1] != lead:
                raise ValueError(
                    f"ted.check: leaf {nest.show(path)!r}: expected shape {(*lead, '...')} with time as axis "
                    f"{time_axis}, got {tuple(leaf.shape)}; give time_axis=0 for [T, ...], 1 for [B, T, ...], None if "
                    f"there is none"
                )
    # Padding may hold anything, so flags are compared only where the mask is set.
    compared = np.ones((), bool)
    if mask is not None:
        marks = values_of(mask)
        if marks is None:  # traced, so that there are no values to compare
            return
        less = following[:-1] if following[-1:] == (1,) else following
        if marks.dtype != bool or marks.shape not in (following, less):
            raise ValueError(
                f"ted.check: mask: expected bool {following} as the flags, got {marks.dtype} {marks.shape}; "
                f"give one mark for each step"
            )
        compared = marks.reshape(marks.shape + (1,) * (len(following) - marks.ndim))
    for prefix in ((), (NEXT,)):
        done, terminated, truncated = (values_of(leaves[(*prefix, flag)]) for flag in FLAGS)
        if done is not None and terminated is not None and truncated is not None:
            wrong = (done != (terminated | truncated)) & compared
            if wrong.any():
                raise ValueError(
                    f"ted.check: leaf {nest.show((*prefix, 'done'))!r}: expected terminated | truncated, got "
                    f"{bool(done[_first(wrong)])} at {_first(wrong)}; compute it so"
                )
    if time_axis is not None:
        _check_succession(leaves, reward, time_axis, np.broadcast_to(compared, following))


def _check_succession(leaves: Leaves, reward: Path, axis: int, compared: NumpyArray) -> None:
    done = values_of(leaves[(NEXT, "done")])
    if done is None:
        return
    # Neighbours along time, all other axes as they are.
    earlier, later = ((slice(None),) * axis + (slice(None, -1),), (slice(None),) * axis + (slice(1, None),))
    goes_on = ~done[earlier] & compared[earlier] & compared[later]
    for path in [*observation_paths(leaves, reward), *((flag,) for flag in FLAGS)]:
        # What one step has led to, and what the following one begins from.
        before, after = values_of(leaves[(NEXT, *path)]), values_of(leaves[path])
        if before is None or after is None:
            continue
        wrong = (bytes_of(before)[earlier] != bytes_of(after)[later]).any(-1)
        lead = goes_on.shape
        # The flags say which steps go on, and their leading axes are those of every leaf.
        if wrong.shape[: len(lead)] != lead and lead[-1:] == (1,):
            lead = lead[:-1]  # TorchRL's flags have a last axis of one
        if wrong.shape[: len(lead)] != lead:
            raise ValueError(
                f"ted.check: leaf {nest.show(path)!r}: expected the leading axes {done.shape} of the flags, "
                f"got shape {tuple(after.shape)}; give every leaf the same leading axes"
            )
        rows = wrong.any(tuple(range(len(lead), wrong.ndim))).reshape(goes_on.shape)
        if (rows & goes_on).any():
            at = list(_first(rows & goes_on))
            at[axis] += 1
            raise ValueError(
                f"ted.check: leaf {nest.show(path)!r}: expected at {tuple(at)} what 'next/{nest.show(path)}' was one "
                f"step before, bit for bit, as that step is not done; give the steps of an episode in order, and mark "
                f"the last one of an episode that was cut off as truncated"
            )


def bytes_of(array: NumpyArray) -> NumpyArray:
    """The bytes of each element, on a last axis of their own: equal NaNs compare equal, and -0 differs from 0."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape, array.dtype.itemsize)


def _first(wrong: NumpyArray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(wrong)[0])


def values_of(leaf: Nest) -> NumpyArray | None:
    """An array's values in NumPy; None where it has none, under jit, vmap or torch.compile."""
    torch = sys.modules.get("torch")  # without importing it
    if torch is not None and torch.compiler.is_compiling():
        return None
    try:
        if hasattr(leaf, "detach"):
            leaf = leaf.detach().cpu().resolve_neg().resolve_conj()
            # NumPy has no bfloat16, and float32 has all of its values.
            values: NumpyArray = (leaf.float() if shown(leaf.dtype) == "bfloat16" else leaf).numpy()
            return values
        return np.asarray(leaf)
    except (TypeError, RuntimeError):  # a tracer, a fake or a batched tensor
        return None
