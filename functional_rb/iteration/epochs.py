"""Whole passes through a buffer: when they are over, and samples without the padding of the last batch."""

from __future__ import annotations

from types import ModuleType

from functional_rb.base import nest
from functional_rb.base.arrays import BackendArray, Nest
from functional_rb.buffer import checks, mapping
from functional_rb.buffer.state import State
from functional_rb.core.sample import AnySample
from functional_rb.lib import library_of

# Fields of a sample that have one number for each draw, [B].
OF_DRAWS = frozenset({"weights", "probabilities"})
# These, and the fields in the shape of the mask, which of slices is [B, length] or flat, [B * length].
ARRAYS = OF_DRAWS | {"indices", "mask", "is_first", "is_last", "truncated"}


class Epochs:
    """So many passes from a state on; one that is under way counts as the first."""

    def __init__(self, rb: ModuleType, state: State, n: int) -> None:
        self._rb = rb
        self._wanted = self._done(state) + n

    def over(self, state: State) -> bool:
        """Whether all of them are done once this is the state."""
        return self._done(state) >= self._wanted

    def unpadded(self, state: State, sample: AnySample[object]) -> AnySample[Nest]:
        """A sample without the rows in which nothing was drawn, in leaves that share its memory where views do."""
        lib = library_of(sample.weights)
        assert lib is not None
        unpadded: AnySample[Nest] = lib.around(_unpadded)(self._rb, state, sample, lib.build_mapping)
        return unpadded

    def _done(self, state: State) -> int:
        done = self._rb.counts(state).epochs_done
        lib = library_of(done)
        assert lib is not None
        number: int = lib.around(_known)(done)
        return number


def _unpadded(
    rb: ModuleType, state: State, sample: AnySample[object], build_mapping: nest.BuildMapping
) -> AnySample[Nest]:
    spec, mask = state.spec, sample.mask
    assert mask is not None
    rows = _known(mask.reshape(sample.weights.shape[0], -1)[:, 0].sum())
    if rows == 0:  # where drawing has not waited to see that
        checks.check_nonempty(spec, False, int(rb.size(state)))
    steps = mask.shape[0] // max(sample.weights.shape[0], 1) * rows  # of flat slices there are several in a row
    leaves, structure = mapping.taken_apart(spec, sample.items)
    items = nest.unflatten(structure, [leaf[:steps] for leaf in leaves], build_mapping, (steps, *mask.shape[1:]))
    extras = {name: x[:steps] for name, x in sample.extras.items()}
    arrays = {name: x[: rows if name in OF_DRAWS else steps] for name, x in sample._asdict().items() if name in ARRAYS}
    return sample._replace(items=items, extras=extras, **arrays)


# A number that tells when an epoch ends.
def _known(number: BackendArray) -> int:
    try:
        return int(number)
    except TypeError as error:  # JAX's own, of numbers that are traced
        raise TypeError(
            "iterate: expected a state and a key whose numbers are known, as they tell when an epoch ends, got traced "
            "ones; call it outside of jax.jit and vmap, or draw a fixed number of batches there by rb.sample, whose "
            "mask leaves out the padding"
        ) from error
