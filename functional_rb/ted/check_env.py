"""`check_env`: rolls an environment and compares every leaf that it gives with its spaces."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import numpy as np

from functional_rb.base import dtypes, nest
from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.base.dtypes import shown, whole_number
from functional_rb.base.nest import Path
from functional_rb.base.steps import ACTION, FLAGS, NEXT, REWARD
from functional_rb.buffer.spec import BufferSpec
from functional_rb.convert.gymnasium import spec_of_space
from functional_rb.specs import (
    ArraySpec,
    Binary,
    Composite,
    Graph,
    MultiOneHot,
    NonTensor,
    OneHot,
    OneOf,
    Sequence,
    Text,
    Unbounded,
    Varying,
    freeze,
    numpy_ops,
)
from functional_rb.specs.base import SpecNest
from functional_rb.ted.check import named_parts
from functional_rb.ted.host import item_of, observation_parts
from functional_rb.ted.recording import DISABLED

WHO = "check_env"
# In place of the limits on lengths, which spaces do not have.
ANY = 1
OBSERVATION = "observation"


def check_env(env: Any, steps: int = 100, seed: int = 0, item: SpecNest | BufferSpec | None = None) -> None:
    """Roll an environment with random actions, and check all that it gives; return if everything matches.

    Observations (those in `infos["final_obs"]` too) are compared with the observation space: names, shapes, dtypes, and
    whether values lie in the space; NaN lies in none. Rewards have to be real numbers, flags truth values, all with an
    axis of environments if it is a vector environment. An environment that has ended is reset, unless it does so
    itself. It is neither closed nor reset at the end.

    Args:
        env: a Gymnasium environment, or a vector environment in any autoreset mode.
        steps: how often it is stepped.
        seed: the seed of the environment and of its action space.
        item: an item (or a `BufferSpec`) that is to record the environment: then observations and actions are compared
            with that item, after the conversions that `ted.from_gymnasium(item=...)` makes.

    Raises:
        ImportError: if Gymnasium is not installed.
        TypeError: for a value that is no environment, a space that has no spec, or steps that are no whole number.
        ValueError: for steps < 1; if something does not match: each leaf with its path, what was expected and what
            came, the step at which it happened first (0 is the reset), and how often.

    Example:
        >>> import gymnasium
        >>> check_env(gymnasium.make("CartPole-v1"), steps=20)
    """
    if whole_number(steps, f"{WHO}: steps") < 1:
        raise ValueError(f"{WHO}: expected steps >= 1, got {steps}")
    vector = hasattr(env, "single_observation_space")
    needed = ("single_observation_space" if vector else "observation_space", "action_space", "reset", "step")
    if missing := ", ".join(name for name in needed if not hasattr(env, name)):
        raise TypeError(f"{WHO}: expected an environment of Gymnasium, got {type(env).__name__} without {missing}")
    roll = _Roll(env, (env.num_envs,) if vector else (), item)
    env.action_space.seed(seed)
    if roll.reset(seed=seed):
        while roll.findings.step < steps and roll.step():
            pass
    roll.findings.tell()


class _Findings:
    """What did not match, by leaf and kind: a message, the step of the first occurrence, and the number of them."""

    def __init__(self) -> None:
        self.step = 0
        self.found: dict[tuple[Path, str], tuple[str, int]] = {}
        self.times: collections.Counter[tuple[Path, str]] = collections.Counter()

    def add(self, path: Path, kind: str, message: str) -> None:
        self.found.setdefault((path, kind), (message, self.step))
        self.times[path, kind] += 1

    def tell(self) -> None:
        if not self.found:
            return
        lines = [
            f"  {nest.show(path)}: {message}; first at step {step}{'' if step else ' (the reset)'}, "
            f"{self.times[path, kind]} time{'s' if self.times[path, kind] > 1 else ''}"
            for (path, kind), (message, step) in self.found.items()
        ]
        raise ValueError(
            f"{WHO}: what the environment gives is not what its spaces say; change one of both:\n" + "\n".join(lines)
        )


class _Roll:
    """An environment that is being rolled, and the specs that it is compared with: of its spaces, or of an item."""

    def __init__(self, env: Any, lead: tuple[int, ...], item: object) -> None:
        self.env, self.lead, self.findings = env, lead, _Findings()  # `lead` are its axes of environments
        # Only a vector environment has a mode; in its metadata it may share it with others of its class.
        mode = (getattr(env, "autoreset_mode", None) or env.metadata.get("autoreset_mode")) if lead else None
        # Whether it has to be reset.
        self.by_hand = not lead or getattr(mode, "value", mode) == DISABLED
        self.item: SpecNest = None if item is None else freeze(item_of(item))
        # Without an item dtypes have to be the same, and lengths have no limits; else dtypes are converted.
        self.strict = item is None
        self.observation: object = None  # with an item, which has its parts by name
        self.action: object = None  # where actions are not looked at
        self.reward: object = Unbounded((), "float64")
        if item is None:
            space = env.single_observation_space if hasattr(env, "single_observation_space") else env.observation_space
            self.observation = spec_of_space(space, False, ANY, ANY, WHO, (OBSERVATION,))
        else:
            parts = named_parts(self.item, WHO)
            self.reward, self.action = named_parts(parts[NEXT], WHO)[REWARD], parts[ACTION]

    def reset(self, **options: object) -> bool:
        returned = self.env.reset(**options)
        if not isinstance(returned, tuple) or len(returned) != 2:
            self.findings.add(("reset",), "kind", f"expected (observation, infos), got {returned!r:.80}")
            return False
        self._observation(returned[0], OBSERVATION, self.lead)
        return True

    def step(self) -> bool:
        self.findings.step += 1
        action = self.env.action_space.sample()
        if self.action is not None:
            _Comparison(self.findings, self.strict).compare(self.action, action, (ACTION,), self.lead)
        returned = self.env.step(action)
        if not isinstance(returned, tuple) or len(returned) != 5:
            message = f"expected (observation, reward, terminated, truncated, infos), got {returned!r:.80}"
            self.findings.add(("step",), "kind", message)
            return False
        observation, reward, terminated, truncated, infos = returned
        self._observation(observation, OBSERVATION, self.lead)
        # The last observations of environments that were reset within the step: a batch, or objects with some None.
        final = infos.get("final_obs") if isinstance(infos, dict) else None
        if isinstance(final, np.ndarray) and final.dtype == object:
            for last in final[[one is not None for one in final]]:
                self._observation(last, "final_obs", ())
        elif final is not None:
            self._observation(final, "final_obs", self.lead)
        _Comparison(self.findings, False).compare(self.reward, reward, (REWARD,), self.lead)
        before = self.findings.times.total()
        for name, flag in zip(FLAGS[1:], (terminated, truncated), strict=True):
            _Comparison(self.findings, True).compare(Binary(), flag, (name,), self.lead)
        if before != self.findings.times.total():
            return False  # the flags are wrong, so that when to reset is not known
        done = np.logical_or(terminated, truncated)
        if not (self.by_hand and done.any()):
            return True
        return self.reset(options={"reset_mask": done}) if self.lead else self.reset()

    def _observation(self, value: object, name: str, lead: tuple[int, ...]) -> None:
        spec = self.observation
        if self.item is not None:
            specs, alone = observation_parts(self.item, value, None, WHO)
            spec = specs[alone] if alone else Composite(specs)
        _Comparison(self.findings, self.strict).compare(spec, value, (name,), lead)


class _Comparison:
    """Compares values with specs, leaf by leaf."""

    def __init__(self, findings: _Findings, strict: bool) -> None:
        self.findings, self.strict = findings, strict

    def compare(self, spec: object, value: Nest, path: Path, lead: tuple[int, ...]) -> None:
        if isinstance(spec, NonTensor):
            return  # any object will do
        if isinstance(spec, Varying | Text) and lead:  # vector environments give these as sequences
            if not isinstance(value, tuple | list | np.ndarray) or len(value) != lead[0]:
                message = f"expected {lead[0]} values of {spec!r:.80}, one for each environment, got {_shown(value)}"
                self.findings.add(path, "kind", message)
            else:
                for one in value:
                    self.compare(spec, one, path, lead[1:])
        elif isinstance(spec, Sequence):
            self._sequence(spec, value, path)
        elif isinstance(spec, Graph):
            self._graph(spec, value, path)
        elif isinstance(spec, OneOf):
            pair = isinstance(value, tuple | list) and len(value) == 2
            if pair and isinstance(value[0], int | np.integer) and 0 <= value[0] < len(spec.options):
                self.compare(spec.options[value[0]], value[1], (*path, "options", int(value[0])), ())
            else:
                options = f"an option below {len(spec.options)}"
                self.findings.add(path, "kind", f"expected a pair (option, value) with {options}, got {_shown(value)}")
        elif isinstance(spec, Text | OneHot | MultiOneHot):
            try:
                array = spec.from_host(value, lead)
            except (TypeError, ValueError) as error:
                self.findings.add(path, "domain", str(error))
            else:
                self._inside(spec, array, path)
        elif isinstance(spec, ArraySpec):
            self._array(spec, value, path, lead)
        else:
            self._parts(spec, value, path, lead)

    def _parts(self, spec: object, value: object, path: Path, lead: tuple[int, ...]) -> None:
        outline, specs = nest.parts_of(spec) or (nest.LEAF, [])
        parts = None if hasattr(value, "dtype") else nest.parts_of(value)
        if parts is None:
            wanted = "a dict" if outline.kind == "mapping" else "a tuple"
            self.findings.add(path, "kind", f"expected {wanted} of {list(outline.keys)}, got {_shown(value)}")
            return
        values = dict(zip(parts[0].keys, parts[1], strict=True))
        for key, member in zip(outline.keys, specs, strict=True):
            if key in values:
                self.compare(member, values[key], (*path, key), lead)
            else:
                self.findings.add((*path, key), "missing", "expected, but missing")
        for key in values:
            if key not in outline.keys:
                self.findings.add((*path, key), "extra", f"not expected, got {_shown(values[key])}")

    def _array(self, spec: ArraySpec, value: object, path: Path, lead: tuple[int, ...]) -> None:
        number = isinstance(value, bool | int | float) and not isinstance(value, np.generic)
        if not number and not isinstance(value, np.ndarray | np.generic):
            self.findings.add(path, "kind", f"expected an array, got {_shown(value)}")
            return
        array, shape = np.asarray(value), (*lead, *spec.shape)
        fits = array.shape == shape
        if not fits:
            self.findings.add(path, "shape", f"expected shape {shape}, got {array.shape}")
        if self.strict and not number and shown(array.dtype) != spec.dtype:
            self.findings.add(path, "dtype", f"expected dtype {spec.dtype}, got {array.dtype}")
            return
        try:
            array = dtypes.as_dtype(array, spec.dtype)
        except (TypeError, ValueError) as error:
            self.findings.add(path, "dtype", str(error))
            return
        if fits:
            self._inside(spec, array, path)

    def _inside(self, spec: ArraySpec, array: NumpyArray, path: Path) -> None:
        rows = array.reshape(-1, *spec.shape)
        outside = np.flatnonzero(~np.asarray(spec.inside(numpy_ops.OPS, rows)))
        if len(outside):
            where = f" (row {outside[0]})" if len(rows) > 1 else ""
            value = np.array2string(rows[outside[0]], threshold=8, separator=", ")
            self.findings.add(path, "domain", f"expected values of {spec!r:.120}, got {value}{where}")

    def _sequence(self, spec: Sequence, value: object, path: Path) -> None:
        inner = (*path, "elements")
        if spec.stack:
            first = next(_arrays(value), None)
            if first is None or not first.ndim:
                self.findings.add(path, "kind", f"expected arrays of elements, got {_shown(value)}")
                return
            length = len(first)
            self.compare(spec.element, value, inner, (length,))
        elif isinstance(value, tuple | list):
            length = len(value)
            for one in value:
                self.compare(spec.element, one, inner, ())
        else:
            self.findings.add(path, "kind", f"expected a tuple of elements, got {_shown(value)}")
            return
        self._count(length, 0, spec.max_length, "elements", path)

    def _graph(self, spec: Graph, value: Nest, path: Path) -> None:
        if not all(hasattr(value, name) for name in ("nodes", "edges", "edge_links")):
            self.findings.add(path, "kind", f"expected nodes, edges and edge_links, got {_shown(value)}")
            return
        nodes, edges = (0 if x is None else len(next(_arrays(x), ())) for x in (value.nodes, value.edges))
        self._count(nodes, 1, spec.max_nodes, "nodes", (*path, "nodes"))
        self.compare(spec.node, value.nodes, (*path, "nodes"), (nodes,))
        if spec.edge is None:
            if value.edges is not None or value.edge_links is not None:
                self.findings.add((*path, "edges"), "extra", "expected None, as the graph has no edges")
            return
        self._count(edges, 0, spec.max_edges, "edges", (*path, "edges"))
        if edges:
            self.compare(spec.edge, value.edges, (*path, "edges"), (edges,))
        links = np.zeros((0, 2), int) if value.edge_links is None else np.asarray(value.edge_links)
        if links.shape != (edges, 2) or links.dtype.kind not in "iu" or ((links < 0) | (links >= nodes)).any():
            message = f"expected whole numbers [{edges}, 2] below the number of nodes, {nodes}, got {_shown(links)}"
            self.findings.add((*path, "edge_links"), "domain", message)

    def _count(self, count: int, least: int, most: int, what: str, path: Path) -> None:
        if count < least or (count > most and not self.strict):  # the limits of spaces are made up, see `ANY`
            wanted = f"at least {least}" if self.strict else f"{least} to {most}"
            self.findings.add(path, "count", f"expected {wanted} {what}, got {count}")


def _arrays(value: Nest) -> Iterator[NumpyArray]:
    leaves, _ = nest.flatten(value, lambda x: hasattr(x, "dtype"))
    return (leaf for leaf in leaves if isinstance(leaf, np.ndarray))


def _shown(value: object) -> str:
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return f"an array {value.dtype} {value.shape}"
    return f"{type(value).__name__} {value!r:.60}"
