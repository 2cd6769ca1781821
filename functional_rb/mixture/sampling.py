"""A batch of a mixture: what is refused beforehand, what is known of all mixtures of the same specs, and the sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from functional_rb.base import nest
from functional_rb.base.arrays import ArrayLike, BackendArray, Nest, PRNGKey
from functional_rb.buffer import checks
from functional_rb.buffer.backend import Backend as Engine
from functional_rb.buffer.mapping import Mapper
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import AnySample, MaskedSample, Sample, SliceSample
from functional_rb.mixture.drawing import Drawn, steps_of
from functional_rb.mixture.functions import Backend, M, check_buffers
from functional_rb.mixture.layout import Form, Layout, form_of, layout_of, specs_of
from functional_rb.mixture.shares import LARGEST_BATCH
from functional_rb.mixture.value import Mixture, MixtureSpec, as_floats, check_numbers, check_shape
from functional_rb.samplers.base import SamplerBase
from functional_rb.samplers.trajectories import Trajectories
from functional_rb.transforms.returns import NStep

# The entry of a sample's extras that tells which buffer gave each draw.
IDS = "buffer_ids"


def sample(
    backend: Backend,
    mixture: M,
    key: PRNGKey,
    batch_size: int | None,
    beta: ArrayLike,
    p: ArrayLike,
    function: str = "sample",
) -> tuple[M, AnySample[Nest]]:
    """Draw a batch from a mixture; see `api.sample`."""
    checks.check_not_a_size(key, batch_size, function)
    size = given_size(batch_size)
    buffers = check_buffers(backend, mixture, function)
    facts = _checked(backend, mixture, size)
    engine = backend.engine(buffers[0])
    shares = None if p is None else _shares(backend, engine, p, len(mixture))
    exponent = _beta(engine, facts, beta)
    mixture, drawn, weights = backend.draw(mixture, facts.layout, key, size, shares, exponent, function == "sample_")
    return mixture, _as_sample(mixture.spec, facts, size, drawn, weights, engine.build_mapping)


def _as_sample(
    spec: MixtureSpec, facts: Facts, size: int, drawn: Drawn, weights: BackendArray, build_mapping: nest.BuildMapping
) -> AnySample[Nest]:
    lead = (spec.parts, size // spec.parts) if spec.stacked else (size,)
    steps, flat = facts.steps, facts.flat
    shape = lead if steps is None else (*lead[:-1], lead[-1] * steps) if flat else (*lead, steps)
    before = 1 if steps is None else 2

    def each(x: BackendArray, before: int, shape: tuple[int, ...]) -> BackendArray:
        return x.reshape(*shape, *x.shape[before:]) if flat or spec.stacked else x

    # Behind the batch's axis, what a function of items gives has axes of its own.
    leaves = [each(leaf, 2, shape) if flat else each(leaf, 1, lead) for leaf in drawn.leaves]
    axes = lead if facts.mapped and not flat else shape
    items = nest.unflatten(facts.layout.structure, leaves, build_mapping, axes)
    extras = {name: each(x, before, shape) for name, x in drawn.extras.items()}
    extras[IDS] = each(drawn.indices[:, 0] if steps is None else drawn.indices[:, 0, 0], 1, lead)
    numbers = each(drawn.indices, before, shape), each(weights, 1, lead), each(drawn.probabilities, 1, lead)
    if not facts.may_be_short:
        return Sample(items, *numbers, extras)
    flags = {name: None if x is None else each(x, before, shape) for name, x in drawn.flags.items()}
    if flags["mask"] is None:
        flags["mask"] = numbers[0][..., -1] >= 0
    if flags["is_first"] is None:
        return MaskedSample(items, *numbers, flags["mask"], extras)
    return SliceSample(items, *numbers, **flags, extras=extras)


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """What is known of all mixtures whose buffers have the same specs.

    Attributes:
        form: of the mixtures.
        layout: of their samples.
        steps: how many steps a slice has; None for single items.
        flat: whether slices come in one row.
        mapped: whether a function of items is applied.
        may_be_short: whether a sample has a mask: where some buffer may have less to give than was asked for, or gives
            slices.
        betas: the different beta of the samplers that have priorities, ascending.
        without_chance: the first of these samplers for which the chance of a single draw is not known.
        sizes: the batch sizes that were checked.
    """

    form: Form
    layout: Layout
    steps: int | None
    flat: bool
    mapped: bool
    may_be_short: bool
    betas: tuple[float, ...]
    without_chance: SamplerBase | None
    sizes: set[int]


# By the identity of specs, as comparing those takes longer than to draw; they live as long as their entry.
_facts: dict[tuple[object, ...], Facts] = {}
# So many entries are kept.
MANY = 256


def _checked(backend: Backend, mixture: Mixture, size: int) -> Facts:
    if backend.is_compiling():  # torch.compile does not trace what is kept between calls
        check_draw(form_of(mixture), size)
        return _facts_of(form_of(mixture), backend.mapper)
    key = backend.mapper, _identity(mixture)
    facts = _facts.get(key)
    if facts is None or size not in facts.sizes:
        check_draw(form_of(mixture), size)
        if facts is None:
            facts = _facts_of(form_of(mixture), backend.mapper)
            if len(_facts) >= MANY:
                _facts.clear()
            _facts[key] = facts
        facts.sizes.add(size)
    return facts


def _identity(mixture: Mixture) -> tuple[object, ...]:
    return mixture.spec, *[_identity(one) if isinstance(one, Mixture) else id(one.spec) for one in mixture.states]


def _facts_of(form: Form, mapper: Mapper) -> Facts:
    specs = specs_of(form)
    _check_n_step(specs)
    steps, flat, _ = _kind(specs[0])
    mapped = any(spec.on_sample is not None for spec in specs)
    short = any(steps_of(spec) is not None or not spec.sampler.single_law or spec.sampler.remembers for spec in specs)
    weighing = [spec.sampler for spec in specs if spec.sampler.has_priorities]
    betas = tuple(sorted({getattr(sampler, "beta", 0.0) for sampler in weighing}))
    without_chance = next((sampler for sampler in weighing if not sampler.single_law), None)
    return Facts(form, layout_of(form, mapper), steps, flat, mapped, short, betas, without_chance, set())


def _check_n_step(specs: Sequence[BufferSpec]) -> None:
    # Of n-step returns beside single steps a sample could not tell by what each row is to be bootstrapped.
    returns = [next((one for one in spec.transforms if isinstance(one, NStep)), None) for spec in specs]
    several = next((one for one in returns if one is not None), None)
    if several is None or None not in returns:
        return
    raise ValueError(
        f"sample: buffer {returns.index(None)} of the mixture gives single steps, while others give n-step returns, "
        f"whose extras discount and nonterminal all rows need; give it transforms="
        f"frb.n_step(1, gamma={several.gamma}), by rb.with_spec(state, dataclasses.replace(state.spec, transforms=...))"
    )


def given_size(batch_size: int | None) -> int:
    """The batch size, which has to be given; as a number."""
    if batch_size is None:
        raise ValueError(
            "sample: batch_size is missing; give sample(..., batch_size=n), as a mixture has none of its own"
        )
    return checks.count("sample", "batch_size", batch_size)


def _shares(backend: Backend, engine: Engine, p: ArrayLike, count: int) -> BackendArray:
    """Shares that come with a call, as an array; in a list of numbers some may be arrays themselves, and traced."""
    if not hasattr(p, "dtype"):
        numbers = list(p) if isinstance(p, Iterable) else [None]
        texts = any(isinstance(x, str) for x in numbers)  # those of NumPy have a shape
        if texts or not all(isinstance(x, (int, float)) or getattr(x, "shape", None) == () for x in numbers):
            raise TypeError(f"sample: p: expected {count} numbers, or an array of them, got {p!r}")
        p = backend.stacked(numbers)
    array = engine.as_vector(as_floats(p), "p")
    check_shape(array, count, "sample")
    known = backend.numbers_of(array)
    if known is not None:
        check_numbers(known, "sample")
    return array


def check_draw(form: Form, size: int) -> None:
    """Refuse a batch that the mixture cannot give."""
    assert not isinstance(form, BufferSpec)
    if size > LARGEST_BATCH:
        raise ValueError(f"sample: expected batch_size up to {LARGEST_BATCH} of a mixture, got {size}; draw several")
    if form[0].how == "buffers" and size % form[0].parts:
        raise ValueError(
            f"sample: expected batch_size as a multiple of the mixture's {form[0].parts} parts, got {size}; give "
            f"frb.Mixture(..., parts=...), or how='exact'"
        )
    specs = specs_of(form)
    for spec in specs:
        sampler = spec.sampler
        if getattr(sampler, "batch", "slices") == "steps":
            raise ValueError(
                f"sample: a mixture's batch_size counts slices, and {sampler} counts steps; give it batch='slices'"
            )
        if not sampler.takes_out:
            sampler.check_batch(spec.plan, size)
        checks.rows_of_sample(spec, size)
    kinds = {_kind(spec): spec.sampler for spec in specs}
    if len(kinds) > 1:
        raise ValueError(
            f"sample: expected buffers whose samplers all give single items, or slices of one length in the same form, "
            f"got {', '.join(map(str, kinds.values()))}; give them the same length and flat"
        )


def _kind(spec: BufferSpec) -> tuple[int | None, bool, bool]:
    steps = steps_of(spec)
    return steps, steps is not None and len(spec.sampler.leading_shape(1)) == 1, isinstance(spec.sampler, Trajectories)


def _beta(engine: Engine, facts: Facts, beta: ArrayLike) -> float | BackendArray | None:
    """The beta that holds; None where all weights are 1."""
    if beta is None:
        if len(facts.betas) > 1:
            raise ValueError(
                f"sample: the samplers of the mixture have different beta, {[*facts.betas]}; give sample(..., beta=...)"
            )
        beta = facts.betas[0] if facts.betas else 0.0
    else:
        beta = beta if isinstance(beta, (int, float)) else engine.as_vector(beta, "beta")
        checks.check_exponent(beta, engine.value_of)
    if isinstance(beta, (int, float)) and beta == 0:
        return None
    if facts.without_chance is not None:
        raise ValueError(
            f"sample: the weights of a mixture follow from the chance of a single draw, which {facts.without_chance} "
            f"does not have; give replacement=True, or sample(..., beta=0.0)"
        )
    return beta
