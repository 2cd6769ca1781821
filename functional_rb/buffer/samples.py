"""The public functions around samples: whole epochs of them, and their specs.

A backend binds each of these to itself, as those of `api`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from functional_rb.base import nest
from functional_rb.base.arrays import BackendArray, Nest, PRNGKey
from functional_rb.buffer import api, checks, mapping, reading
from functional_rb.buffer.backend import Backend, check_one
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.item_function import ItemFunction
from functional_rb.core.sample import AnySample
from functional_rb.specs import freeze
from functional_rb.specs.regrouped import with_lead
from functional_rb.specs.values import Outline
from functional_rb.transforms.map_items import map_items

# Fields of a sample that have one number for each draw, [B].
OF_DRAWS = frozenset({"weights", "probabilities"})
# These, and the fields in the shape of the mask, which of slices is [B, length] or flat, [B * length].
ARRAYS = OF_DRAWS | {"indices", "mask", "is_first", "is_last", "truncated"}


def epochs(
    backend: Backend, state: State, key: PRNGKey, batch_size: int | None = None, n: int = 1
) -> Generator[tuple[State, AnySample[Nest]], State | None, None]:
    """Go through the buffer n times, batch by batch, the last batch of an epoch without its padding.

    Args:
        state: a buffer whose sampler is `WithoutReplacement` or `SlicesWithoutReplacement`. An epoch that is under
            way counts as the first.
        key: randomness, from `key(seed)` or `split`.
        batch_size: by default the spec's.
        n: how many epochs.

    Yields:
        The state after each draw, and the sample. To go on with another state (after `update`, say), send it.

    Raises:
        TypeError: for what is no key, or no batch size, and for what is traced, which cannot tell when an epoch ends.
        ValueError: for another sampler, a batch size of 0, or as `sample` does.

    Example:
        >>> spec = frb.BufferSpec(item=(frb.Unbounded(()),), capacity=8, sampler=frb.WithoutReplacement(shuffle=False))
        >>> state = rb.add(rb.init(spec), (np.arange(5, dtype=np.float32),))
        >>> [sample.items[0].tolist() for state, sample in rb.epochs(state, rb.key(0), 2)]
        [[0.0, 1.0], [2.0, 3.0], [4.0]]
    """
    check_one(backend, state, "epochs")
    key, now = backend.split(key)  # a number in its place is told to be no key, rather than a key to be no batch size
    checks.check_epochs(state.spec, batch_size)
    wanted = _known(reading.epochs_done(backend, state)) + checks.count("epochs", "n", n)
    while _known(reading.epochs_done(backend, state)) < wanted:
        state, selection = api.sample(backend, state, now, batch_size)
        following = yield state, _unpadded(backend, state, selection)
        state = state if following is None else following
        key, now = backend.split(key)


# A number that tells when an epoch ends.
def _known(number: BackendArray) -> int:
    try:
        return int(number)
    except TypeError as error:  # JAX's own, of numbers that are traced
        raise TypeError(
            "epochs: expected a state and a key whose numbers are known, as they tell when an epoch ends, got traced "
            "ones; call it outside of jax.jit and vmap, or draw a fixed number of batches there by rb.sample, whose "
            "mask leaves out the padding"
        ) from error


def _unpadded(backend: Backend, state: State, sample: AnySample[object]) -> AnySample[Nest]:
    spec, mask = state.spec, sample.mask
    assert mask is not None
    rows = _known(mask.reshape(sample.weights.shape[0], -1)[:, 0].sum())
    if rows == 0:  # where drawing has not waited to see that
        checks.check_nonempty(spec, False, int(reading.size(backend, state)))
    steps = mask.shape[0] // max(sample.weights.shape[0], 1) * rows  # of flat slices there are several in a row
    leaves, structure = mapping.taken_apart(spec, sample.items)
    items = nest.unflatten(
        structure, [leaf[:steps] for leaf in leaves], backend.build_mapping, (steps, *mask.shape[1:])
    )
    extras = {name: x[:steps] for name, x in sample.extras.items()}
    arrays = {name: x[: rows if name in OF_DRAWS else steps] for name, x in sample._asdict().items() if name in ARRAYS}
    return sample._replace(items=items, extras=extras, **arrays)


def map_spec(
    backend: mapping.Mapper,
    fn: Callable[..., object] | ItemFunction,
    item: object,
    keyed: bool = False,
    masked: bool = False,
) -> Nest:
    """The spec of the items that a function of items gives, found by an abstract evaluation: no array is made.

    Args:
        fn: a function for `frb.map_items`, of a batch of items; one of `frb.items` says itself what it gives.
        item: the spec of the items that it is given, or a nest of specs.
        keyed: whether it takes a key.
        masked: whether it takes `mask=`, which is None here.

    Returns:
        A nest of specs, for `map_items(fn, at="add", gives=...)`; of arrays of any values, `Unbounded` or `Binary`.

    Raises:
        TypeError: if `fn` is no function, or gives a leaf that is no array.
        ValueError: if it fails on such items, or gives a leaf without an entry for each of them.

    Example:
        >>> rb.map_spec(lambda item: {"twice": item["x"] * 2}, {"x": frb.Unbounded((3,))})
        Composite({'twice': Unbounded((3,))})
    """
    transform = map_items(fn, keyed=keyed, masked=masked)
    if isinstance(fn, ItemFunction):
        return freeze(transform.spec_after(item, 1))
    return mapping.item_spec(backend, transform.bound(item, Outline.of(item, "map_spec"), 1))


def sample_spec(backend: mapping.Mapper, spec: BufferSpec, batch_size: int | None = None) -> Nest:
    """The spec of the items of a whole sample, its leading axes included.

    Args:
        spec: of the buffer.
        batch_size: as for `sample`; by default the spec's.

    Returns:
        A nest of specs; with a function of items (`map_items`) whose result is not told beforehand they are found by
        an abstract evaluation.

    Raises:
        ValueError: as `map_spec` does.

    Example:
        >>> halved = frb.map_items(lambda item: {"x": item["x"][..., ::2]})
        >>> rb.sample_spec(frb.BufferSpec({"x": frb.Unbounded((4,))}, 10, transforms=halved), batch_size=8)
        Composite({'x': Unbounded((8, 2))})
    """
    checks.check_spec(spec, "sample_spec")
    lead = spec.sampler.leading_shape(checks.batch_size(spec, batch_size))
    one = spec.stored
    if spec.on_sample is not None:
        one = spec.on_sample.spec_after(spec.stored, len(lead) + (spec.on_sample.steps is not None))
        if one is None:
            return mapping.batch_spec(backend, spec.on_sample, lead)
    return with_lead(one, lambda shape: (*lead, *shape))
