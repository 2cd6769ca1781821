"""`sample` of a mixture: what is refused beforehand, and how a sample is put together."""

from __future__ import annotations

from collections.abc import Iterable

from functional_rb.base import nest
from functional_rb.base.arrays import ArrayLike, BackendArray, Nest, PRNGKey
from functional_rb.buffer import checks
from functional_rb.buffer.backend import Backend as Engine
from functional_rb.buffer.mapping import given_out
from functional_rb.core.sample import AnySample, sample_of
from functional_rb.core.strategy import Selection
from functional_rb.lib import A, Lib
from functional_rb.mixture.drawing import M, Request, each
from functional_rb.mixture.functions import check_buffers
from functional_rb.mixture.layout import Layout, form_of, layout_at_once, layout_of
from functional_rb.mixture.value import MixtureSpec, as_floats, checked_shares, is_number

# The entry of a sample's extras that tells which buffer gave each draw.
IDS = "buffer_ids"


def sample(
    lib: Lib[A],
    mixture: M,
    key: PRNGKey,
    batch_size: int | None,
    beta: ArrayLike,
    p: ArrayLike,
    function: str = "sample",
) -> tuple[M, AnySample[Nest]]:
    """Draw a batch from a mixture; see `api.sample`."""
    checks.check_not_a_size(key, batch_size, function)
    size = checked_size(batch_size)
    engine = lib.engine(check_buffers(lib, mixture, function)[0])
    # torch.compile traces no cache.
    layout = (layout_of if lib.is_traced(key) else layout_at_once)(form_of(mixture), lib.mapper, size)
    shares = None if p is None else _shares(lib, engine, p, len(mixture))
    request = Request(layout, key, shares, _beta(engine, layout, beta))
    after, leaves, drawn = lib.mixtures.draw(mixture, request, function == "sample_" and not mixture.repeats)
    return after, _packed(lib, mixture.spec, layout, key, leaves, drawn)


def _packed(
    lib: Lib[A], spec: MixtureSpec, layout: Layout, key: PRNGKey, leaves: list[BackendArray], drawn: Selection
) -> AnySample[Nest]:
    """A sample of leaves and numbers whose leading axes are [B], or of slices [B, steps]."""
    size, steps, flat = layout.size, layout.steps, layout.flat
    if layout.function is not None:  # the same one of all buffers, which sees the batch as it comes out
        rows, mask = (size,) if steps is None else (size * steps,) if flat else (size, steps), drawn.mask
        if flat:
            leaves = [leaf.reshape(*rows, *leaf.shape[2:]) for leaf in leaves]
            mask = None if mask is None else mask.reshape(rows)
        items = given_out(lib.mapper, layout.function.spec, leaves, rows, key, mask)
        mapped = nest.flatten_as(layout.function.structure, items)
        leaves = [mapped[place] for place in layout.function.places]
        if flat:
            leaves = [leaf.reshape(size, steps, *leaf.shape[1:]) for leaf in leaves]
    lead = (spec.parts, size // spec.parts) if spec.stacked else (size,)
    shape = lead if steps is None else (*lead[:-1], lead[-1] * steps) if flat else (*lead, steps)

    def of_draws(x: BackendArray) -> BackendArray:
        return x.reshape(*lead, *x.shape[1:]) if spec.stacked else x

    def of_steps(x: BackendArray) -> BackendArray:
        return x.reshape(*shape, *x.shape[2:]) if flat else of_draws(x)

    # Behind the batch's axis, what a function of items gives has axes of its own.
    axes = lead if layout.mapped and not flat else shape
    items = nest.unflatten(layout.leaves.structure, [*map(of_steps, leaves)], lib.build_mapping, axes)
    mask = drawn.handles[..., -1] >= 0 if layout.may_be_short and drawn.mask is None else drawn.mask
    ids = drawn.handles[:, 0] if steps is None else drawn.handles[:, 0, 0]
    drawn = each(of_steps, drawn._replace(mask=mask))
    weights, probabilities, ids = map(of_draws, (drawn.weights, drawn.probabilities, ids))
    extras = {**drawn.extras, IDS: ids}
    return sample_of(items, drawn._replace(weights=weights, probabilities=probabilities, extras=extras))


def checked_size(batch_size: int | None) -> int:
    """The batch size, which has to be given; as a number."""
    if batch_size is None:
        raise ValueError(
            "sample: batch_size is missing; give sample(..., batch_size=n), as a mixture has none of its own"
        )
    return checks.count("sample", "batch_size", batch_size)


def _shares(lib: Lib[A], engine: Engine, p: ArrayLike, count: int) -> BackendArray:
    """Shares that come with a call, as an array; in a list of numbers some may be arrays themselves, and traced."""
    if not hasattr(p, "dtype"):
        numbers = list(p) if isinstance(p, Iterable) else [None]
        if not all(map(is_number, numbers)):
            raise TypeError(f"sample: p: expected {count} numbers, or an array of them, got {p!r}")
        try:
            p = lib.mixtures.stacked(numbers)
        except OverflowError:  # an int that no float holds
            raise ValueError(f"sample: p: expected numbers within float32, got {p!r:.80}") from None
    array = engine.as_vector(as_floats(p), "p")
    return checked_shares(array, count, "sample", read=not lib.mixtures.waits_for(array))


def _beta(engine: Engine, layout: Layout, beta: ArrayLike) -> float | BackendArray | None:
    """The beta that holds; None where all weights are 1."""
    if beta is None:
        if len(layout.betas) > 1:
            raise ValueError(
                f"sample: the samplers of the mixture have different beta, {[*layout.betas]}; give "
                f"sample(..., beta=...)"
            )
        beta = layout.betas[0] if layout.betas else 0.0
    else:
        beta = beta if isinstance(beta, (int, float)) else engine.as_vector(beta, "beta")
        checks.check_exponent(beta, engine.value_of)
    if isinstance(beta, (int, float)) and beta == 0:
        return None
    if layout.without_chance is not None:
        raise ValueError(
            f"sample: the weights of a mixture follow from the chance of a single draw, which {layout.without_chance} "
            f"does not have; give replacement=True, or sample(..., beta=0.0)"
        )
    return beta
