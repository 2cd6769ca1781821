"""The public functions around samples: their specs.

A backend binds each of these to itself, as those of `api`.
"""

from __future__ import annotations

from collections.abc import Callable

from functional_rb.base.arrays import Nest
from functional_rb.buffer import checks, mapping
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.item_function import ItemFunction
from functional_rb.specs import freeze
from functional_rb.specs.regrouped import with_lead
from functional_rb.specs.values import Outline
from functional_rb.transforms.map_items import map_items


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
