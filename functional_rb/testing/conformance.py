"""The conformance suite for a sampler, a writer or a transform of one's own.

Each of the three functions takes histories of a buffer that has the strategy, beside plain lists of items. Every step
is carried out by the core over NumPy's arrays, once in place and once on arrays that cannot be written, and by the core
over torch and JAX (under `jit`), where these are installed; all must agree bit for bit. Then the public functions of
each backend are taken through a history: called eagerly, under `jax.jit`, and in place.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import hypothesis
import numpy as np

from functional_rb.base import nest
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.strategy import Transform
from functional_rb.ops import numpy_ops
from functional_rb.samplers.base import SamplerBase
from functional_rb.samplers.uniform import Uniform
from functional_rb.specs import Binary, Unbounded
from functional_rb.testing import carriers, strategies
from functional_rb.testing.list_model import STORES, TINY, ListModel, Step, shares
from functional_rb.testing.strategies import Action, Add, Clear, Sample, Update
from functional_rb.writers.base import WriterBase

Array = np.ndarray[Any, Any]
ITEM = {
    "id": Unbounded((), "int32"),
    "obs": Unbounded((2,)),
    "reward": Unbounded(()),
    "done": Binary(()),
}
"""The item that strategies are tried with, if no other is given."""
CARRIERS = ("numpy", "torch-core", "jax-core", "torch", "torch-inplace", "jax", "jax-jit")
"""What can be tried: the core on NumPy, on torch and on JAX; the public functions of both backends."""
PHASES = (hypothesis.Phase.generate, hypothesis.Phase.shrink)
"""Histories are drawn, and one that shows a fault is shortened, which takes some seconds."""
RARE = 1e-9
"""A draw of this probability is not put down to chance."""

SamplerLaw = Callable[[Sequence[Step]], Sequence[float]]
WriterLaw = Callable[[Sequence[Step]], Iterable[Step]]
TransformLaw = Callable[[Sequence[Step], int, Array], Mapping[str, Any]]


class ConformanceError(AssertionError):
    """A strategy breaks the contract; the message says what was expected, what came, and the remedy."""


def check_sampler(
    sampler: Any,
    *,
    item: Any = None,
    capacity: int = 12,
    lanes: int | None = None,
    writer: Any = None,
    batch_size: int = 6,
    law: SamplerLaw | None = None,
    examples: int = 20,
    run_on: Sequence[str] | None = None,
) -> None:
    """See that a sampler keeps the contract of samplers.

    Whatever is added, drawn, updated and cleared: draws name items that are stored, and tell of each what is stored;
    weights and probabilities lie in (0, 1]; a draw changes the state only if the sampler says so (`remembers`); what it
    keeps stays in the shapes and dtypes that it declares; `probabilities` adds up to 1 and is what draws obey; an empty
    buffer gives nothing. All carriers give the same bits.

    Args:
        sampler: an instance.
        item: a dict of specs; by default `ITEM`. A leaf "id" that numbers the items is added to it.
        capacity: of the buffer.
        lanes: of the buffer.
        writer: of the buffer; one of the library's.
        batch_size: how many are drawn at a time.
        law: what the sampler should do, in plain Python: of the stored items, how likely the next draw is to begin with
            each, up to a factor. No sampler is told of leaves that `update` exchanges, so with a law only the leaf "id"
            is.
        examples: how many histories.
        run_on: which of `CARRIERS` are tried; by default all whose backend is installed.

    Raises:
        ConformanceError: for the first thing that is wrong, with the shortest history that shows it.

    Example:
        >>> from functional_rb import Prioritized, Recency
        >>> check_sampler(Recency(2), run_on=["numpy"], examples=5)
        >>> check_sampler(Prioritized(alpha=1.0), law=lambda steps: [step.value for step in steps],
        ...               run_on=["numpy"], examples=5)
    """
    who = _check_strategy(sampler, SamplerBase, "sampler", "SamplerBase")
    chosen = {} if writer is None else {"writer": writer}
    spec = BufferSpec(_with_id(item), capacity, sampler, lanes=lanes, batch_size=batch_size, **chosen)
    _check_run(Trial(who, spec, sampler_law=law), examples, _carriers(run_on))


def check_writer(
    writer: Any,
    *,
    item: Any = None,
    capacity: int = 6,
    lanes: int | None = None,
    law: WriterLaw | None = None,
    examples: int = 20,
    run_on: Sequence[str] | None = None,
) -> None:
    """See that a writer keeps the contract of writers.

    Whatever is added and cleared: what is stored was added, whole, in marked rows, and once; what stays keeps its
    handle, and a handle that has named an item never names another; the size is that of what is stored; a writer that
    says it does not overwrite does not; clearing takes everything out. All carriers give the same bits.

    Args:
        writer: an instance.
        item: a dict of specs; by default `ITEM`. A leaf "id" that numbers the items is added to it.
        capacity: of the buffer.
        lanes: of the buffer.
        law: what the writer should do, in plain Python: of all items that were added since the buffer was empty, in
            their order, those that are stored now, in any order.
        examples: how many histories.
        run_on: which of `CARRIERS` are tried; by default all whose backend is installed.

    Raises:
        ConformanceError: for the first thing that is wrong, with the shortest history that shows it.

    Example:
        >>> from functional_rb import RoundRobin
        >>> check_writer(RoundRobin(), law=lambda added: added[-6:], run_on=["numpy"], examples=5)
    """
    who = _check_strategy(writer, WriterBase, "writer", "WriterBase")
    spec = BufferSpec(_with_id(item), capacity, Uniform(), writer, lanes=lanes, batch_size=6)
    _check_run(Trial(who, spec, writer_law=law), examples, _carriers(run_on))


def check_transform(
    transform: Any,
    *,
    item: Any = None,
    capacity: int = 12,
    lanes: int | None = None,
    sampler: Any = None,
    law: TransformLaw | None = None,
    examples: int = 20,
    run_on: Sequence[str] | None = None,
) -> None:
    """See that a transform keeps the contract of transforms.

    Whatever is added and drawn: leaves keep the shapes and dtypes of their specs, extras have a row for each item;
    drawing changes nothing that is stored. All carriers give the same bits.

    Args:
        transform: an instance.
        item: a dict of specs; by default `ITEM`. A leaf "id" that numbers the items is added to it.
        capacity: of the buffer.
        lanes: of the buffer.
        sampler: of the buffer; by default `Uniform`.
        law: what the transform should do, in plain Python: called with the items that a lane holds, from the oldest on,
            the place of one of them, and its random bits int32 [words], it gives the leaves of that item, by path, that
            are read as others than were stored.
        examples: how many histories.
        run_on: which of `CARRIERS` are tried; by default all whose backend is installed.

    Raises:
        ConformanceError: for the first thing that is wrong, with the shortest history that shows it.

    Example:
        >>> from functional_rb import n_step
        >>> check_transform(n_step(2, gamma=0.5, next_keys=[]), run_on=["numpy"], examples=5)
    """
    who = _check_strategy(transform, Transform, "transform", "Transform")
    spec = BufferSpec(
        _with_id(item), capacity, Uniform() if sampler is None else sampler, lanes=lanes, transforms=transform
    )
    _check_run(Trial(who, spec, transform_law=law), examples, _carriers(run_on))


# --- before anything is run ------------------------------------------------------------------------------------------


def _expect(good: Any, who: str, what: str, expected: str, got: Any, remedy: str) -> None:
    if not good:
        raise ConformanceError(f"{who}: {what}: expected {expected}, got {got}; {remedy}")


def _check_strategy(strategy: Any, base: type, kind: str, name: str) -> str:
    """Refuse what cannot be part of a spec; returns the name to tell."""
    who = type(strategy).__name__
    _expect(
        isinstance(strategy, base), who, "its class", f"an instance of a {name}", repr(strategy), f"inherit from {name}"
    )
    frozen = getattr(getattr(strategy, "__dataclass_params__", None), "frozen", False)
    _expect(
        frozen,
        who,
        "its class",
        "a frozen dataclass",
        type(strategy),
        "write @dataclasses.dataclass(frozen=True) over it",
    )
    try:
        hashed = hash(strategy)
    except TypeError as error:
        raise ConformanceError(
            f"{who}: its fields: expected values that have a hash, as a spec is static, got {strategy!r} ({error}); "
            f"write tuples for lists and arrays"
        ) from error
    try:
        again = pickle.loads(pickle.dumps(strategy))
    except Exception as error:
        raise ConformanceError(
            f"{who}: pickling: expected what other processes can read, got {error}; define the {kind} and the "
            f"functions in its fields at the top level of a module"
        ) from error
    same = again == strategy and hash(again) == hashed
    _expect(same, who, "pickling", "an equal copy", repr(again), "let fields compare by what they mean")
    return who


def _with_id(item: Any) -> dict[str, Any]:
    item = ITEM if item is None else item
    if not isinstance(item, Mapping):
        raise TypeError(f"expected item as a dict of specs, got {item!r:.80}")
    return {"id": Unbounded((), "int32"), **item}


def _carriers(run_on: Sequence[str] | None) -> tuple[str, ...]:
    if run_on is None:
        return tuple(name for name in CARRIERS if name == "numpy" or carriers.installed(name.split("-")[0]))
    for name in run_on:
        if name not in CARRIERS:
            raise ValueError(f"expected run_on as some of {CARRIERS}, got {name!r}")
    return tuple(run_on)


# --- histories -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Trial:
    """What is tried, and what it should do."""

    who: str
    spec: BufferSpec
    sampler_law: SamplerLaw | None = None
    writer_law: WriterLaw | None = None
    transform_law: TransformLaw | None = None


def _check_run(trial: Trial, examples: int, names: Sequence[str]) -> None:
    numpys = [carriers.NumpyCarrier(carriers.IN_PLACE), carriers.NumpyCarrier(carriers.VALUES)]
    others: list[Any] = [carriers.TorchCarrier()] if "torch-core" in names else []
    others += [carriers.JaxCarrier()] if "jax-core" in names else []
    _each_history(trial, examples, False, lambda history: Walk(trial, numpys).run(history))
    if trial.sampler_law or not (trial.writer_law or trial.transform_law):
        _check_distribution(trial, numpys)
    if others:
        _each_history(trial, 3, True, lambda history: Walk(trial, [numpys[0], *others]).run(history))
    for name in names:
        if not name.endswith("-core") and name != "numpy":
            _each_history(trial, 2, True, functools.partial(_run_publicly, trial, name))


def _each_history(trial: Trial, examples: int, alike: bool, run: Callable[[list[Action]], None]) -> None:
    """Carry histories out; what fails is shortened by hypothesis."""
    spec = trial.spec
    size = spec.batch_size or 6
    # Of what is compiled, few shapes.
    options: dict[str, Any] = {"sizes": (3,), "batch_sizes": (size,), "steps": 12, "alike": True}
    options = options if alike else {"sizes": (0, 1, 2, 3, 7), "batch_sizes": (size,), "steps": 14}

    @hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=False,
        phases=PHASES,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategies.histories(spec, **options))
    def on(history: list[Action]) -> None:
        run(history)

    on()


class Walk:
    """A history of the core beside plain lists, on several carriers."""

    def __init__(self, trial: Trial, each: Sequence[Any]) -> None:
        """At the beginning, with what is carried out by the first carrier and must be the same on the others."""
        self.trial, self.spec, self.carriers = trial, trial.spec, each
        self.who = trial.who
        spec = trial.spec
        known = type(spec.writer) in STORES and not any(_changes_rows(transform) for transform in spec.transforms)
        self.model = ListModel(spec) if known else None
        self.added: list[Step] = []
        self.rows: dict[int, dict[str, Array]] = {}
        self.gone: set[int] = set()
        self.arrays: Any = None
        self.stored: dict[int, dict[str, Array]] = {}

    def run(self, history: Sequence[Action]) -> None:
        """Carry it out."""
        self.go_on("init", self.call("init", self.spec))
        self.draw(Sample(self.spec.batch_size or 6, 0, None))
        for action in history:
            if isinstance(action, Add):
                self.add(action)
            elif isinstance(action, Sample):
                self.draw(action)
            elif isinstance(action, Update):
                self.update(action)
            elif isinstance(action, Clear):
                self.clear()

    def call(self, name: str, *arguments: Any) -> Any:
        """What a function gives on the first carrier; on the others it gives the same."""
        result = None
        for k, carrier in enumerate(self.carriers):
            try:
                found = carrier.run(name, *arguments)
            except ConformanceError:
                raise
            except Exception as error:
                raise ConformanceError(
                    f"{self.who}: `{name}` by {carrier.name}: expected a result, got {type(error).__name__}: {error}; "
                    f"{_remedy(error)}"
                ) from error
            if not k:
                result = found
                continue
            both = carriers.named(result, name), carriers.named(found, name)
            for part in both[0] | both[1]:
                one, other = (side.get(part) for side in both)
                same = one is not None and other is not None and _same(one, other)
                _expect(
                    same,
                    self.who,
                    f"`{part}` by {carrier.name}",
                    f"the bits that {self.carriers[0].name} gives, {_shown(one)}",
                    _shown(other),
                    "read what is needed of an array before it is written, compute in int32 and float32 by `ops` "
                    "alone, and let no sum depend on an order that `ops` does not fix",
                )
        return result

    # What is done.

    def perform(self, name: str, *arguments: Any) -> Any:
        """The arrays after an update, or a clear."""
        return self.call(name, self.arrays, self.spec, *arguments)

    def add(self, action: Add) -> None:
        """Add a batch, and see where its rows are."""
        spec, before = self.spec, dict(self.stored)
        leaves = nest.flatten_as(spec.plan.structure, action.items)
        count = len(leaves[0])
        bits = _bits(action.seed, (count, spec.writer.words)) if spec.writer.words else None
        arguments = (self.arrays, spec, leaves, count, action.mask, action.priorities, bits)
        after = self.call("add", *arguments)
        mask = np.ones(count, np.bool_) if action.mask is None else action.mask
        rows = [{path: leaf[row] for path, leaf in zip(spec.plan.names, leaves, strict=True)} for row in range(count)]
        self.noted(rows, mask, action.priorities, bits)
        self.go_on("add", after)
        if not count:
            return
        self.check_added(before, [rows[row] for row in np.flatnonzero(mask)])

    def noted(self, rows: list[dict[str, Array]], mask: Array, priorities: Any, bits: Any) -> None:
        """Let the lists take note of a batch."""
        if self.model is not None:
            given = None if priorities is None else priorities.tolist()
            self.model.add(rows, mask.tolist(), given, bits)
        lanes = self.spec.lanes or 1
        for row in np.flatnonzero(mask):
            self.added.append(Step(len(self.added), int(row) % lanes, -1, -1, rows[row]))

    def check_added(self, before: dict[int, dict[str, Array]], new: list[dict[str, Array]]) -> None:
        """What is stored after a batch, by what was stored before."""
        spec, who = self.spec, self.who
        for handle, leaves in before.items():
            if handle in self.stored:
                _expect(
                    _alike(self.stored[handle], leaves),
                    who,
                    f"the item of handle {handle} after an add",
                    f"{_item(leaves)}, as the handle still names it",
                    _item(self.stored[handle]),
                    "give a slot that is written a new handle (`ChoosingWriter.renew`), or write at the ring's cursors",
                )
            elif not spec.writer.overwrites:
                raise ConformanceError(
                    f"{who}: an add: expected all that was stored to stay, as `overwrites` is False, got handle "
                    f"{handle} overwritten; let `overwrites` be True, or leave rows out that do not fit"
                )
        if any(_changes_rows(transform) for transform in spec.transforms):
            return
        came = [self.stored[handle] for handle in self.stored if handle not in before]
        unused = list(new)
        for leaves in came:
            match = next((k for k, row in enumerate(unused) if _alike(row, leaves)), None)
            _expect(
                match is not None,
                who,
                "an item that is stored after an add",
                "one of the marked rows of the batch, and each at most once",
                _item(leaves),
                "let `Write.live` be False where no row goes, and `Write.source` name the row of each slot",
            )
            del unused[match or 0]
        if self.trial.writer_law is not None:
            wanted = sorted(int(step.leaves["id"]) for step in self.trial.writer_law(self.added))
            got = sorted(int(leaves["id"]) for leaves in self.stored.values())
            _expect(got == wanted, who, "what is stored, by id", f"{wanted}, as the law has it", got, "see `plan`")

    def draw(self, action: Sample) -> None:
        """Draw a batch, and compare it with the lists."""
        spec, sampler = self.spec, self.spec.sampler
        try:
            sampler.check_batch(spec.plan, action.batch_size)
        except ValueError:
            return
        size = action.batch_size
        bits = _bits(action.seed, sampler.draw_shape(spec.plan, size), odd=True)
        more = _bits(action.seed + 1, spec.extra_shape(size)) if spec.plan.extra_words else None
        beta = np.float32(getattr(sampler, "beta", 0.0) if action.beta is None else action.beta)
        some = bool(self.call("drawable", self.arrays, spec, 1))
        enough = bool(self.call("drawable", self.arrays, spec, size))
        if self.model is None or not self.model.law.passes:
            self.check_probabilities(some)
        after, leaves, selection = self.call("draw", self.arrays, spec, bits, np.asarray(beta), size, more)
        before = self.stored
        self.check_selection(selection, leaves, size, some, enough, more)
        changed = [
            name
            for name, array in carriers.named(self.arrays, "state").items()
            if not _same(array, carriers.named(after, "state")[name])
        ]
        _expect(
            sampler.remembers or not changed,
            self.who,
            "a draw",
            "the state unchanged, as `remembers` is False",
            f"a change of {', '.join(changed)}",
            "let `remembers` be True, or change nothing",
        )
        self.go_on("draw", after, drawn=True)
        for handle, stored in self.stored.items():
            _expect(
                handle in before and _alike(before[handle], stored),
                self.who,
                "a draw",
                "what is stored to stay as it is",
                f"another item under handle {handle}",
                "a sampler changes the draft's tree, auxiliary arrays and counters alone",
            )

    def check_selection(
        self, selection: Any, leaves: Sequence[Array], size: int, some: bool, enough: bool, more: Array | None
    ) -> None:
        """A `Selection`, and the leaves that were read for it."""
        who, spec = self.who, self.spec
        lead = tuple(spec.sampler.leading_shape(size))
        one = lead if selection.weights.shape == lead else lead[:1]
        wanted: dict[str, tuple[str, tuple[int, ...]]] = {"handles": ("int32", lead)}
        wanted |= dict.fromkeys(("weights", "probabilities"), ("float32", one))
        wanted |= dict.fromkeys(("mask", "is_first", "is_last", "truncated"), ("bool", lead))
        for name, (dtype, shape) in wanted.items():
            array = getattr(selection, name)
            if array is None:
                continue
            fits = array.shape == shape or (name != "handles" and array.size == math.prod(lead))
            _expect(
                array.dtype.name == dtype and fits,
                who,
                f"`Selection.{name}`",
                f"{dtype} {list(shape)}",
                _kind(array),
                "see `Selection` for its shapes",
            )
        handles = selection.handles.reshape(-1)
        mask = handles != -1 if selection.mask is None else selection.mask.reshape(-1)
        _expect(
            ((handles == -1) == ~mask).all(),
            who,
            "the handles of masked draws",
            "-1 where the mask is False, and nowhere else",
            selection.handles.tolist(),
            "write `ops.where(mask, handles, -1)`",
        )
        _expect(
            some or not mask.any(),
            who,
            "a draw from a buffer of which `drawable(1)` is False",
            "handles of -1, weights and probabilities of 0",
            selection.handles.tolist(),
            "mask what cannot be drawn, as `uniform.alike` does, or let `drawable` be True",
        )
        _expect(
            not enough or mask.any(),
            who,
            f"a draw from a buffer of which `drawable({size})` is True",
            "some real draws",
            selection.handles.tolist(),
            "let `drawable` say what `draw` does",
        )
        real = mask if len(selection.weights) == len(mask) else mask.reshape(len(selection.weights), -1)[:, 0]
        for name in ("weights", "probabilities"):
            numbers = getattr(selection, name).reshape(-1)
            good = ((numbers > 0) & (numbers <= 1 + 1e-6))[real].all() and (numbers[~real] == 0).all()
            _expect(
                good,
                who,
                f"`Selection.{name}`",
                "numbers in (0, 1] for what was drawn, and 0 for what was not",
                numbers.tolist(),
                "scale weights by the largest, and mask what is not real",
            )
        gone = [int(handle) for handle in handles[mask] if int(handle) not in self.stored]
        _expect(
            not gone,
            who,
            "a draw",
            f"handles of what is stored, some of {sorted(self.stored)}",
            gone,
            "draw from `draft.size(ops)` items or by a tree that forgets in `removed` and `cleared`; take handles from "
            "`draft.handles_of(ops, slots)`",
        )
        self.check_leaves(handles, mask, leaves, lead, more)
        for name, extra in selection.extras.items():
            _expect(
                extra.shape[: len(lead)] == lead,
                who,
                f"the extra {name!r}",
                f"a row for each item, {list(lead)} in front",
                list(extra.shape),
                "give one row for each of `own`",
            )

    def check_leaves(
        self, handles: Array, mask: Array, leaves: Sequence[Array], lead: tuple[int, ...], more: Array | None
    ) -> None:
        """What was read of each item."""
        spec, law = self.spec, self.trial.transform_law
        reads = any(type(transform).reading is not Transform.reading for transform in spec.transforms)
        for path, leaf, kind in zip(spec.plan.names, leaves, spec.plan.leaves, strict=True):
            _expect(
                leaf.shape == (*lead, *kind.shape) and leaf.dtype.name == kind.dtype,
                self.who,
                f"leaf {path!r} of a sample",
                f"{kind.dtype} {[*lead, *kind.shape]}",
                _kind(leaf),
                "let readers keep the shapes and dtypes of the leaves",
            )
        flat = [leaf.reshape(-1, *kind.shape) for leaf, kind in zip(leaves, spec.plan.leaves, strict=True)]
        for row in np.flatnonzero(mask):
            handle = int(handles[row])
            got = {path: leaf[row] for path, leaf in zip(spec.plan.names, flat, strict=True)}
            expected = dict(self.stored[handle])
            if reads and law is None:
                continue
            if law is not None:
                lane, place = self.lane_of(handle)
                bits = np.zeros(0, np.int32) if more is None else more[row]
                expected |= {path: np.asarray(leaf) for path, leaf in law(lane, place, bits).items()}
            wrong = [path for path in got if not _near(got[path], expected[path], law is None)]
            _expect(
                not wrong,
                self.who,
                f"the item of handle {handle} as it is sampled",
                _item({path: expected[path] for path in wrong}),
                _item({path: got[path] for path in wrong}),
                "the slots that `draw` returns are those of its handles" if law is None else "see `reading`",
            )

    def lane_of(self, handle: int) -> tuple[list[Step], int]:
        """The items of a handle's lane, from the oldest on, and its place among them."""
        ring = self.spec.plan.ring
        lane = handle % ring.capacity // ring.length
        same = sorted(h for h in self.stored if h % ring.capacity // ring.length == lane)
        steps = [Step(k, lane, h % ring.capacity, h, self.stored[h]) for k, h in enumerate(same)]
        return steps, same.index(handle)

    def check_probabilities(self, some: bool) -> None:
        """What the sampler says of the next draw."""
        handles = np.array(sorted(self.stored), np.int32)
        if not handles.size:
            return
        told = self.call("probabilities", self.arrays, self.spec, handles)
        good = told.dtype == np.float32 and told.shape == handles.shape and ((told >= 0) & (told <= 1 + 1e-6)).all()
        _expect(good, self.who, "`probabilities`", "float32 [n], each from 0 to 1", told, "divide by the total")
        total = float(told.sum(dtype=np.float64))
        _expect(
            # A batch may begin with one of each lane.
            not some or abs(total - 1) < 1e-4 or 1 < total <= (self.spec.lanes or 1) + 1e-4,
            self.who,
            "`probabilities` of all that is stored",
            "a sum of 1, as something can be drawn",
            f"{total:.6g} of {told.tolist()}",
            "tell with which probability the next draw begins with each item",
        )
        if self.trial.sampler_law is None or not some:
            return
        steps = self.steps_by_handle()
        wanted = shares(dict(enumerate(map(float, self.trial.sampler_law(steps)))))
        expected = [wanted.get(k, 0.0) for k in range(len(steps))]
        _expect(
            np.allclose(told, expected, rtol=1e-4, atol=TINY),
            self.who,
            "`probabilities`",
            f"what the law says, {np.round(expected, 6).tolist()}",
            np.round(told, 6).tolist(),
            "see `added`, `updated` and `probabilities`",
        )

    def steps_by_handle(self) -> list[Step]:
        """What is stored, as a law is given it."""
        if self.model is not None:
            return sorted(self.model.steps(), key=lambda step: step.handle)
        capacity = self.spec.capacity
        return [Step(k, 0, h % capacity, h, self.stored[h]) for k, h in enumerate(sorted(self.stored))]

    def update(self, action: Update) -> None:
        """Set priorities and exchange leaves of what is there, and of what is not."""
        spec = self.spec
        slots = np.arange(spec.capacity, dtype=np.int32)
        current = Draft.of(self.arrays, spec.plan).handles_of(numpy_ops, slots)
        wanted = np.where(action.which < spec.capacity, 0, -spec.capacity) + current[action.which % spec.capacity]
        handles = np.maximum(wanted, -1).astype(np.int32)
        new: dict[int, Array] = {}
        if action.items is not None:  # what tells where episodes end cannot be exchanged
            flat = zip(
                spec.plan.names, spec.plan.leaves, nest.flatten_as(spec.plan.structure, action.items), strict=True
            )
            new = {
                k: leaf
                for k, (path, kind, leaf) in enumerate(flat)
                if path == "id" or (kind.dtype.startswith("float") and not self.trial.sampler_law)
            }
        after = self.perform("update", handles, action.priorities, new)
        named = {spec.plan.names[k]: leaf for k, leaf in new.items()}
        if self.model is not None:
            given = None if action.priorities is None else action.priorities.tolist()
            self.model.update(handles.tolist(), given, named or None)
        for row, handle in enumerate(handles.tolist()):
            if handle in self.stored:
                self.stored[handle] = self.stored[handle] | {path: leaf[row] for path, leaf in named.items()}
        wanted_items = dict(self.stored)
        self.added = []  # items are others now: laws of writers speak of what was added
        self.go_on("update", after)
        for handle, leaves in wanted_items.items():
            _expect(
                handle in self.stored and _alike(self.stored[handle], leaves),
                self.who,
                f"the item of handle {handle} after an update",
                _item(leaves),
                _item(self.stored.get(handle, {})),
                "let hooks of an update change the draft's tree, auxiliary arrays and counters alone",
            )
        if self.trial.writer_law is not None:
            self.clear()

    def clear(self) -> None:
        """Take everything out."""
        after = self.perform("clear")
        if self.model is not None:
            self.model.clear()
        self.added = []
        self.go_on("clear", after)
        _expect(not self.stored, self.who, "a clear", "nothing stored", sorted(self.stored), "see `cleared`")
        some = bool(self.call("drawable", self.arrays, self.spec, 1))
        _expect(not some, self.who, "`drawable` after a clear", "False", some, "forget all items in `cleared`")

    # What must hold at any time.

    def go_on(self, what: str, after: Any, drawn: bool = False) -> None:
        """Go on from new arrays, which must be as they are declared, and hold what the lists hold."""
        spec, who = self.spec, self.who
        declared = dict(self.declared())
        found = {name: _kind(array) for name, array in carriers.named(after, "state").items()}
        for name in declared | found:
            _expect(
                declared.get(name) == found.get(name),
                who,
                f"`{name}` after `{what}`",
                declared.get(name, "no such array"),
                found.get(name, "none"),
                "let `auxiliary`, `counters` and `tree_rows` declare what is kept, and hooks keep its shape and dtype",
            )
        slots = np.arange(spec.capacity, dtype=np.int32)
        self.arrays = after
        handles = np.asarray(Draft.of(after, spec.plan).handles_of(numpy_ops, slots), np.int32)
        live = self.call("is_live", after, spec, handles)
        leaves = self.call("get", after, spec, handles)
        before = set(self.stored)
        self.stored = {
            int(handle): {path: leaf[slot] for path, leaf in zip(spec.plan.names, leaves, strict=True)}
            for slot, handle in enumerate(handles)
            if live[slot]
        }
        back = self.gone & set(self.stored)
        _expect(
            not back,
            who,
            f"handles after `{what}`",
            "handles of items that are gone to name nothing for ever",
            sorted(back),
            "let handles go on: `ChoosingWriter.renew` and its `cleared` do so",
        )
        self.gone |= before - set(self.stored)
        size = int(Draft.of(after, spec.plan).size(numpy_ops))
        _expect(
            size == len(self.stored),
            who,
            f"the size after `{what}`",
            f"{len(self.stored)}, the number of items that handles name",
            size,
            "let `Write.after` have the sizes and the cursors that follow from what is written",
        )
        if self.model is not None:
            if drawn and spec.sampler.remembers and spec.writer.in_order:  # some samplers consume what they draw
                store = self.model.store
                store.lanes = [[step for step in lane if step.handle in self.stored] for lane in store.lanes]
            wanted = {step.handle: step.leaves for step in self.model.steps()}
            _expect(
                wanted.keys() == self.stored.keys() and all(_alike(wanted[h], self.stored[h]) for h in wanted),
                who,
                f"what is stored after `{what}`, by handle and id",
                str({h: _item(leaves) for h, leaves in sorted(wanted.items())}),
                {h: _item(leaves) for h, leaves in sorted(self.stored.items())},
                "leave the storage to the buffer",
            )

    def declared(self) -> Iterable[tuple[str, str]]:
        """The arrays of a state, and what they should be."""
        spec = self.spec
        for name, array in carriers.named(self.arrays or self.call("init", spec), "state").items():
            if not name.startswith("state.auxiliary") and name != "state.tree":
                yield name, _kind(array)
        for name, auxiliary in spec.plan.auxiliary.items():
            yield f"state.auxiliary[{name!r}]", f"{auxiliary.dtype} {list(auxiliary.shape)}"
        if spec.plan.tree_shape is not None:
            yield "state.tree", f"float32 {list(spec.plan.tree_shape)}"


# --- the public functions --------------------------------------------------------------------------------------------


def _run_publicly(trial: Trial, name: str, history: list[Action]) -> None:
    PublicWalk(trial, name).run(history)


class PublicWalk(Walk):
    """A history of the public functions of a backend; what they do to arrays is what the core does."""

    def __init__(self, trial: Trial, name: str) -> None:
        """On one of `CARRIERS`."""
        super().__init__(trial, [carriers.NumpyCarrier(carriers.IN_PLACE)])
        library = name.partition("-")[0]
        self.name, self.rb = name, importlib.import_module(f"{library}_backend")
        self.jit = importlib.import_module("jax").jit if name == "jax-jit" else None
        self.state: Any = None
        self.older: list[tuple[Any, Any]] = []

    def public(self, name: str, *arguments: Any, static: tuple[int, ...] = ()) -> Any:
        """What a public function gives."""
        function = getattr(self.rb, name + "_" if self.name.endswith("-inplace") else name)
        if self.jit is not None:
            function = self.jit(function, static_argnums=static)
        try:
            return function(self.state, *arguments)
        except Exception as error:
            raise ConformanceError(
                f"{self.who}: `{name}` on {self.name}: expected a result, got {type(error).__name__}: {error}; "
                f"{_remedy(error)}"
            ) from error

    def arrays_of(self, state: Any) -> Any:
        """The arrays of a state, of a copy, as reading a state's own would pin its memory."""
        state = copy.deepcopy(state)
        found = [getattr(state, field) for field in Arrays._fields]
        return Arrays(*carriers.mapped(carriers.as_numpy, found))

    def run(self, history: Sequence[Action]) -> None:
        """Carry it out; in the end every state reads as it did when it was new."""
        self.state = self.rb.init(self.spec)
        self.go_on("init", self.arrays_of(self.state))
        for action in history:
            if isinstance(action, Add):
                self.add_publicly(action)
            elif isinstance(action, Sample):
                self.draw_publicly(action)
            elif isinstance(action, Update):
                self.update(action)
            elif isinstance(action, Clear):
                self.clear()
        if not self.name.endswith("-inplace"):
            for state, arrays in self.older:
                now = carriers.named(self.arrays_of(state), "state")
                for part, array in carriers.named(arrays, "state").items():
                    _expect(
                        _same(array, now[part]),
                        self.who,
                        f"`{part}` of an older state on {self.name}",
                        "what it was",
                        _shown(now[part]),
                        "write to the draft's arrays by `ops` alone",
                    )

    def perform(self, name: str, *arguments: Any) -> Any:
        """The same by the public functions."""
        given = list(arguments)
        if name == "update":
            given[2] = _nested({self.spec.plan.structure.paths[k]: leaf for k, leaf in arguments[2].items()}) or None
        self.follow(name, self.public(name, *given), self.spec, *arguments)
        return self.arrays

    def follow(self, name: str, state: Any, *arguments: Any) -> None:
        """Go on from a new state, whose arrays must be those that the core gives."""
        expected = self.call(name, self.arrays, *arguments)
        found = self.arrays_of(state)
        both = carriers.named(expected, "state"), carriers.named(found, "state")
        for part in both[0]:
            _expect(
                part in both[1] and _same(both[0][part], both[1][part]),
                self.who,
                f"`{part}` after `{name}` on {self.name}",
                f"the bits of the core on NumPy, {_shown(both[0][part])}",
                _shown(both[1].get(part)),
                "compute by `ops` alone, in int32 and float32",
            )
        self.older.append((self.state, self.arrays))
        self.state, self.arrays = state, found

    def add_publicly(self, action: Add) -> None:
        """Add a batch; where a writer draws random bits, nothing is compared with the core."""
        spec = self.spec
        leaves = nest.flatten_as(spec.plan.structure, action.items)
        count = len(leaves[0])
        mask = np.ones(count, np.bool_) if action.mask is None else action.mask
        if self.model is not None and not self.model.store.fits(mask.tolist()):
            return
        lead = (count,) if spec.lanes is None else (count // spec.lanes, spec.lanes)
        shaped = [leaf.reshape(*lead, *leaf.shape[1:]) for leaf in leaves]
        items = nest.unflatten(spec.plan.structure, shaped, lambda _, parts, __: parts)
        priorities = None if action.priorities is None else action.priorities.reshape(lead)
        key = self.rb.key(action.seed) if spec.writer.words else None
        state = self.public("add", items, mask.reshape(lead), priorities, key)
        rows = [{path: leaf[row] for path, leaf in zip(spec.plan.names, leaves, strict=True)} for row in range(count)]
        before = dict(self.stored)
        if spec.writer.words:
            self.model = None
            self.older.append((self.state, self.arrays))
            self.state, self.arrays = state, self.arrays_of(state)
        else:
            self.follow("add", state, spec, leaves, count, mask, action.priorities, None)
        self.noted(rows, mask, action.priorities, None)
        self.go_on("add", self.arrays)
        self.check_added(before, [rows[row] for row in np.flatnonzero(mask)])

    def draw_publicly(self, action: Sample) -> None:
        """Draw a batch by a key, and compare it with the lists."""
        spec, size = self.spec, action.batch_size
        some, enough = (bool(self.call("drawable", self.arrays, spec, n)) for n in (1, size))
        if not some or not enough:
            return
        state, sample = self.public("sample", self.rb.key(action.seed), size, static=(2,))
        leaves = [carriers.as_numpy(leaf) for leaf in nest.flatten_as(spec.plan.structure, sample.items)]
        handles = carriers.as_numpy(sample.indices).reshape(-1)
        mask = handles != -1 if sample.mask is None else carriers.as_numpy(sample.mask).reshape(-1)
        gone = [int(handle) for handle in handles[mask] if int(handle) not in self.stored]
        _expect(not gone, self.who, f"a sample on {self.name}", "handles of what is stored", gone, "see `draw`")
        if not spec.plan.extra_words:
            self.check_leaves(handles, mask, leaves, tuple(spec.sampler.leading_shape(size)), None)
        self.older.append((self.state, self.arrays))
        self.state, self.arrays = state, self.arrays_of(state)
        self.go_on("draw", self.arrays, drawn=True)


# --- the distribution ------------------------------------------------------------------------------------------------


def _check_distribution(trial: Trial, numpys: Sequence[Any], draws: int = 1500) -> None:
    """The first of each of many batches is drawn as `probabilities` says."""
    spec = trial.spec
    size = spec.batch_size or 6
    if spec.lanes is not None or not spec.writer.overwrites:
        return
    walk = Walk(trial, numpys[:1])
    walk.go_on("init", walk.call("init", spec))
    new = strategies.numbered(spec.item, strategies.some_items(spec.item, spec.capacity, 7), 0)
    given = np.arange(1, spec.capacity + 1, dtype=np.float32) if spec.sampler.has_priorities else None
    walk.add(Add(new, None, given, 3))
    if not walk.stored or not bool(walk.call("drawable", walk.arrays, spec, size)):
        return
    handles = np.array(sorted(walk.stored), np.int32)
    told = walk.call("probabilities", walk.arrays, spec, handles).astype(np.float64)
    rng = np.random.default_rng(0)
    shape = spec.sampler.draw_shape(spec.plan, size)
    more = np.zeros(spec.extra_shape(size), np.int32) if spec.plan.extra_words else None
    beta = np.asarray(getattr(spec.sampler, "beta", 0.0), np.float32)
    first = np.zeros(draws, np.int64)
    carrier = numpys[0]
    for k in range(draws):
        bits = rng.integers(0, strategies.BITS, shape, np.int32)
        selection = carrier.run("draw", walk.arrays, spec, bits, beta, size, more)[2]
        first[k] = selection.handles.reshape(-1)[0]
    counts = np.array([(first == handle).sum() for handle in handles])
    for handle, count, probability in zip(handles.tolist(), counts.tolist(), told.tolist(), strict=True):
        # Chernoff's bound of a count that far from its mean.
        share = count / draws
        rare = 2 * math.exp(-draws * _divergence(share, probability))
        _expect(
            rare > RARE,
            trial.who,
            f"how often handle {handle} comes first in {draws} draws",
            f"about {draws * probability:.0f} times, as `probabilities` says",
            f"{count} times",
            "let `probabilities` say what `draw` does, and use random bits that are independent of each other",
        )


def _divergence(share: float, probability: float) -> float:
    """The relative entropy of two coins (Kullback and Leibler, 1951)."""
    probability = min(max(probability, 1e-12), 1 - 1e-12)
    parts = [(share, probability), (1 - share, 1 - probability)]
    return sum(p * math.log(p / q) for p, q in parts if p > 0)


# --- small things ----------------------------------------------------------------------------------------------------


def _bits(seed: int, shape: Sequence[int], odd: bool = False) -> Array:
    """Random bits int32 in [0, 2^31); of some seeds the ends of the range."""
    if odd and seed % 7 < 2:
        return np.full(tuple(shape), (0, strategies.BITS - 1)[seed % 7], np.int32)
    return np.random.default_rng(seed).integers(0, strategies.BITS, tuple(shape), np.int32)


def _changes_rows(transform: Transform) -> bool:
    return type(transform).incoming is not Transform.incoming


def _nested(leaves: Mapping[Any, Array]) -> dict[str, Any]:
    """Leaves by path as nested dicts."""
    made: dict[str, Any] = {}
    for path, leaf in leaves.items():
        part = made
        for key in path[:-1]:
            part = part.setdefault(key, {})
        part[path[-1]] = leaf
    return made


def _same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _near(a: Array, b: Array, exact: bool) -> bool:
    if exact or a.dtype.kind not in "fc":
        return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    return np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


def _alike(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    return all(np.asarray(leaf).tobytes() == np.asarray(b[path]).tobytes() for path, leaf in a.items())


def _kind(array: Array) -> str:
    return f"{array.dtype.name} {list(array.shape)}"


def _shown(array: Array | None) -> str:
    return "nothing" if array is None else f"{_kind(array)} {np.array2string(array, threshold=12, edgeitems=4)}"


def _item(leaves: Mapping[str, Any]) -> str:
    if "id" in leaves:
        return f"item {int(leaves['id'])}"
    return str({path: np.asarray(leaf).tolist() for path, leaf in leaves.items()})


def _remedy(error: Exception) -> str:
    """What to do about an error that a hook raises."""
    name, text = type(error).__name__, str(error)
    if "Tracer" in name or "ConcretizationTypeError" in name:
        return "branch on no array, and turn none into a Python number: use `ops.where`"
    if "read-only" in text or "immutable" in text:
        return "write to no array: `ops.set_at` gives a new one, which the draft takes in place of the old"
    return "see the error that this one comes from"
