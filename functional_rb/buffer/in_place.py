"""The functions that consume the state which they are given, with torch's trailing underscore; bound as those of `api`.

What may be checked is checked before anything is consumed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Protocol

from functional_rb.base.arrays import ArrayLike, BackendArray, Nest, PRNGKey
from functional_rb.buffer import api, checks
from functional_rb.buffer.backend import Backend
from functional_rb.buffer.checked_items import Batch
from functional_rb.buffer.state import S, SameState
from functional_rb.core.sample import AnySample
from functional_rb.core.strategy import Selection

# Makes a sample of the leaves that were read, and the selection; it may call a function of the user's, and fail.
Finish = Callable[[list[BackendArray], Selection], AnySample[Nest]]


class InPlace(Protocol):
    """What carries out the checked calls in the state's own memory, and consumes the state."""

    def add_(self, state: SameState, batch: Batch, key: PRNGKey) -> SameState:
        """Write a batch of items in place, and consume the state."""

    def sample_(
        self, state: SameState, key: BackendArray, batch: int, beta: ArrayLike, finish: Finish
    ) -> tuple[SameState, AnySample[Nest]]:
        """Draw a batch of items, finish the sample, and consume the state: what `finish` raises leaves it as it was."""

    def update_(
        self,
        state: SameState,
        handles: BackendArray,
        priorities: BackendArray | None,
        replacements: Mapping[int, BackendArray],
    ) -> SameState:
        """Set priorities and rewrite leaves."""

    def advance_(self, state: SameState, version: ArrayLike) -> SameState:
        """Tell the sampler the version of the policy that learns."""

    def clear_(self, state: SameState) -> SameState:
        """Take all items out."""


def add_(
    backend: Backend,
    in_place: InPlace,
    state: S,
    items: Nest,
    mask: ArrayLike = None,
    priorities: ArrayLike = None,
    key: PRNGKey = None,
    validate: bool = False,
    time_major: bool = True,
    to: object = None,
) -> S:
    """`add`, in place.

    The functions with an underscore write into the memory of the state that they are given, and consume it: go on with
    what they return. A call that is refused consumes nothing. On torch they trace under
    `torch.compile(fullgraph=True)`. On JAX they donate the state's arrays; where something that they are given is
    traced, and in all of a program that is (`jax.jit`, `scan`, `jax.checkpoint`), they are what the functions without
    an underscore are.

    Args:
        state: consumed: using it again raises `RuntimeError`. (The handle of a shared buffer stays one.)
        items, mask, priorities, key, validate, time_major, to: as for `add`.

    Returns:
        The new state.

    Example:
        >>> state = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2))
        >>> state = rb.add_(state, (1.0,))
        >>> int(rb.size(state))
        1
    """
    checks.check_single("add_", to=to)
    given = api.Given(items, mask, priorities, key, validate, time_major)
    batch, outside = api.check_add(backend, state, given, "add_")
    state = in_place.add_(state, batch, key)
    return state if outside is None else backend.count_invalid(state, outside)


def sample_(
    backend: Backend,
    in_place: InPlace,
    state: S,
    key: PRNGKey,
    batch_size: int | None = None,
    beta: ArrayLike = None,
    p: object = None,
) -> tuple[S, AnySample[Nest]]:
    """`sample`, in place.

    Args:
        state: consumed, as samplers that remember what they drew will write to it.
        key, batch_size, beta, p: as for `sample`.

    Returns:
        The new state and the sample.

    Example:
        >>> state = rb.add_(rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2)), (1.0,))
        >>> state, sample = rb.sample_(state, rb.key(0), 3)
        >>> sample.items[0].tolist()
        [1.0, 1.0, 1.0]
    """
    checks.check_single("sample_", p=p)
    checks.check_not_a_size(key, batch_size, "sample_")
    size, beta = api.check_sample(backend, state, batch_size, beta, "sample_")
    return in_place.sample_(state, key, size, beta, functools.partial(api.as_sample, backend, state.spec, size, key))


def update_(
    backend: Backend,
    in_place: InPlace,
    state: S,
    indices: ArrayLike = None,
    priorities: ArrayLike = None,
    items: Nest = None,
    version: ArrayLike = None,
) -> S:
    """`update`, in place.

    Args:
        state: consumed: using it again raises `RuntimeError`.
        indices, priorities, items, version: as for `update`.

    Returns:
        The new state.

    Example:
        >>> spec = frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2, sampler=frb.Prioritized())
        >>> state = rb.add_(rb.init(spec), (1.0,))
        >>> state = rb.update_(state, np.array([0], np.int32), np.array([0.5], np.float32))
        >>> int(rb.counts(state).stale)
        0
    """
    advanced = api.check_version(backend, state, version, "update_")
    if advanced is None or api.of_items(indices, priorities, items):
        state = in_place.update_(state, *api.check_update(backend, state, indices, priorities, items, "update_"))
    return state if advanced is None else in_place.advance_(state, advanced)


def clear_(backend: Backend, in_place: InPlace, state: S) -> S:
    """`clear`, in place.

    Args:
        state: consumed: using it again raises `RuntimeError`.

    Returns:
        The new state.

    Example:
        >>> state = rb.add_(rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2)), (1.0,))
        >>> state = rb.clear_(state)
        >>> int(rb.size(state))
        0
    """
    api.check_clear(backend, state, "clear_")
    return in_place.clear_(state)
