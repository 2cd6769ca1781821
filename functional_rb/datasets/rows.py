"""What a dataset's buffer holds of each step, in TED, and of which parts of an episode that is made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.base.nest import Path
from functional_rb.base.steps import ACTION, NEXT, REWARD
from functional_rb.buffer.frame_dedup import Compact
from functional_rb.buffer.spec import BufferSpec
from functional_rb.datasets.episode import DatasetError, Episode, StepSpec, as_plain, ends_of, steps_of
from functional_rb.specs import Composite
from functional_rb.specs.base import SpecNest
from functional_rb.specs.values import Outline
from functional_rb.structures.row_layout import kept_dtype
from functional_rb.ted.host import cast, encoded, is_encoding
from functional_rb.ted.items import item_of_specs
from functional_rb.ted.steps import by_name
from functional_rb.writers import Immutable

WHO = "datasets"
INFO = "info"
Leaves = dict[Path, NumpyArray]


class Steps(NamedTuple):
    """The steps of a piece of an episode, checked, that are to be stored."""

    length: int  # how many there are
    observations: Leaves  # leaves [length + 1 or more, *shape], by the paths of those that steps begin from
    others: Leaves  # leaves [length or more, *shape] of actions, rewards and infos, by their paths
    observed: bool  # whether the last observation was: if not, the one before it stands in its place
    dropped: int  # how many steps were left out, as the observation after them is not known
    total: float  # the sum of the rewards
    terminated: bool  # whether the last step led to a terminal state
    truncated: bool  # whether the episode was cut off after the last step
    goes_on: bool  # whether the steps go on with those of the piece before


class Part:
    """A part of steps: of which field of an episode it is made, and what it has to be."""

    def __init__(self, spec: object, field: str, prefix: Path, is_encoded: bool) -> None:
        # In an encoded part texts and the like come in the arrays that stand for them.
        self._spec, self._field = spec, field
        self._encodes = not is_encoded and is_encoding(spec)
        outline = Outline.of(spec, WHO)
        self._structure = outline.structure
        named = zip(outline.structure.paths, outline.leaves, strict=True)
        self._leaves = [
            ((*prefix, *path), "/".join(map(str, (field, *path))), leaf.shape, kept_dtype(leaf.dtype), leaf.dtype)
            for path, leaf in named
        ]

    def leaves(self, value: Nest, n: int, where: str) -> Leaves:
        """The leaves [n, *shape] of a value, by path, in the dtypes of the spec."""
        try:
            arrays = encoded(self._spec, value, (n,), self._field, where) if self._encodes else value
            leaves = nest.flatten_as(self._structure, arrays)
        except (TypeError, ValueError) as error:
            text = str(error)
            raise DatasetError(text if text.startswith(where) else f"{where}, {self._field}: {text}") from None
        checked = {}
        for (path, name, shape, dtype, dtype_name), leaf in zip(self._leaves, leaves, strict=True):
            array = as_plain(leaf, name, where)
            if array.shape != (n, *shape):
                raise DatasetError(f"{where}: leaf {name!r}: expected shape {(n, *shape)}, got {array.shape}")
            # Files may have any byte in place of a truth value, and what compiled code makes of a 2 is not defined.
            if array.dtype == bool and array.size and array.view(np.uint8).max() > 1:
                raise DatasetError(f"{where}: leaf {name!r}: expected 0 or 1 for each bool, got another byte")
            checked[path] = array
            if array.dtype == dtype:
                continue
            # The usual case at once; of all else `cast` says what does not fit.
            if array.dtype.kind == dtype.kind and dtype.kind in "fiu":
                with np.errstate(over="ignore"):
                    rounded = checked[path] = array.astype(dtype)
                if (np.isfinite(rounded) if dtype.kind == "f" else rounded == array).all():
                    continue
            try:
                checked[path] = cast(array, dtype_name, name, where)
            except (TypeError, ValueError) as error:
                raise DatasetError(str(error)) from None
        return checked


class Form:
    """How the steps of a dataset are stored: as which items, with which infos, and observations `compact`, once."""

    def __init__(
        self, steps: StepSpec, infos: tuple[str, ...] = (), observation_key: str | None = None, compact: bool = True
    ) -> None:
        """Plan the storage of a reader's steps; without a key `ted.from_transitions` decides the observation's name."""
        for name in infos:
            if name not in steps.infos:
                raise ValueError(f"{WHO}: infos: there is no {name!r}, expected some of {sorted(steps.infos)}")
        item = item_of_specs(steps.observation, steps.action, steps.reward, observation_key, WHO)
        if infos:
            item = Composite({**dict(item.items()), INFO: {name: steps.infos[name] for name in infos}})
        named = by_name(steps.observation, observation_key, WHO)
        alone = tuple(name for name, spec in named.items() if spec is steps.observation)
        of = {"observations": (steps.observation, alone), "actions": (steps.action, (ACTION,))}
        of |= {"rewards": (steps.reward, (NEXT, REWARD))}
        of |= {f"infos/{name}": (steps.infos[name], (INFO, name)) for name in infos}
        self._parts = {field: Part(spec, field, prefix, steps.encoded) for field, (spec, prefix) in of.items()}
        self.infos, self.compact, self.item = infos, compact, item
        self.spec = spec_of_item(item, 2, 0 if compact else None)  # but for the capacity
        self.paths: tuple[Path, ...] = tuple(self.spec.plan.structure.paths)

    def taken(self, episode: Episode, goes_on: bool, where: str) -> Steps | None:
        """What is stored of a piece of an episode, which may go on with the one before; None if nothing is left."""
        n = steps_of(episode, where)
        terminated, truncated = ends_of(episode, n, where)
        dropped = int(not episode.final_observed and not terminated)
        if dropped and n == 1:
            if goes_on:
                raise DatasetError(f"{where}: the last piece has one step, whose observation afterwards is not known")
            return None
        observations = self._parts["observations"].leaves(episode.observations, n + 1, where)
        others = self._parts["actions"].leaves(episode.actions, n, where)
        others |= self._parts["rewards"].leaves(episode.rewards, n, where)
        for name in self.infos:
            if name not in episode.infos:
                raise DatasetError(f"{where}, infos: expected {name!r}, as the dataset has it, got {[*episode.infos]}")
            others |= self._parts[f"infos/{name}"].leaves(episode.infos[name], n, where)
        n -= dropped
        # In float64: the sum of thousands of float32 rewards, added one by one, would lose digits.
        total = float(np.sum(others[NEXT, REWARD][:n], dtype=np.float64))
        observed = episode.final_observed or bool(dropped)  # then it is what the last step that is left led to
        return Steps(n, observations, others, observed, dropped, total, terminated, truncated, goes_on)


def spec_of_item(item: SpecNest, capacity: int, spare: int | None, **more: Any) -> BufferSpec:
    """The spec of a dataset's buffer, with fields of the spec.

    `spare` frames there are beyond the capacity; None if observations are not stored as frames.
    """
    compact = None if spare is None else Compact(spare=spare)
    return BufferSpec(item, capacity, writer=Immutable(), compact=compact, **more)


def infos_named(infos: object, who: str) -> bool | list[str]:
    """The names of infos, sorted; a single name stands for a list of it, True for all of them, False for none."""
    if isinstance(infos, bool):
        return infos
    names = [infos] if isinstance(infos, str) else list(infos) if isinstance(infos, Iterable) else [None]
    if isinstance(infos, tuple) and len(infos) > 1 and all(isinstance(name, str) for name in names):
        raise TypeError(
            f"{who}: infos: a tuple of names is the path of one leaf, and infos are named without a path, got "
            f"{infos!r}; write {names} for several, or [{infos[0]!r}] for all that lies in it"
        )
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"{who}: infos: expected a list of names, or True for all, got {infos!r}")
    return sorted(names)
