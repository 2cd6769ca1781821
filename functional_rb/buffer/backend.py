"""What carries out the functions on buffers, once their arguments are checked; and what it is asked first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from functional_rb.base.arrays import ArrayLike, BackendArray, DeviceLike, NumpyArray, PRNGKey
from functional_rb.buffer import checks, mapping
from functional_rb.buffer.checked_items import Batch
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import SameState, State
from functional_rb.core.strategy import Selection
from functional_rb.specs import ArraySpec
from functional_rb.specs.values import Outline


class Backend(mapping.Mapper, Protocol):
    """What carries out the checked calls."""

    def convert(self, leaf: object, expected: ArraySpec, name: str) -> BackendArray:
        """Make an array of the backend of a leaf, refusing what would change its dtype."""

    def check_state(self, state: object, function: str) -> None:
        """Refuse what is no state of this backend."""

    def as_vector(self, array: object, name: str) -> BackendArray:
        """A mask, priorities, indices or beta as an array of the backend, if they came as NumPy's."""

    def unsupported(self, dtype: str) -> str | None:
        """Why a dtype cannot be stored, with the remedy; None if it can."""

    def init(self, spec: BufferSpec, device: DeviceLike) -> State:
        """Make an empty state of a spec."""

    def add(self, state: SameState, batch: Batch, key: PRNGKey) -> SameState:
        """Write a batch of checked items; returns the new state."""

    def value_of(self, scalar: object) -> float | None:
        """The number in a scalar array; None while tracing, and where reading it would wait for an accelerator."""

    def known(self, state: SameState, mask: BackendArray | None) -> tuple[NumpyArray, BackendArray] | None:
        """The state's counters and a mask as NumPy arrays, None while tracing."""

    def inside(self, outline: Outline, leaves: Sequence[BackendArray]) -> Sequence[BackendArray]:
        """Whether leaves [B, *shape] lie in the domain of each unit, bool [B]."""

    def count_invalid(self, state: SameState, outside: BackendArray) -> SameState:
        """The same state, in which the items that bool [B] marks are counted as invalid."""

    def sample(
        self, state: SameState, key: BackendArray, batch: int, beta: ArrayLike
    ) -> tuple[SameState, list[BackendArray], Selection]:
        """Draw a batch of items; returns the new state, the items' leaves and their selection."""

    def update(
        self,
        state: SameState,
        handles: BackendArray,
        priorities: BackendArray | None,
        replacements: Mapping[int, BackendArray],
    ) -> SameState:
        """Set priorities, and rewrite leaves [B, *shape], which come by their positions."""

    def advance(self, state: SameState, version: ArrayLike) -> SameState:
        """Tell the sampler the version of the policy that learns, an int or an integer scalar."""

    def clear(self, state: SameState) -> SameState:
        """Take all items out."""

    def with_spec(self, state: SameState, spec: BufferSpec) -> SameState:
        """Another spec, with the items in the same place."""

    def get(self, state: SameState, handles: BackendArray) -> list[BackendArray]:
        """Read items by handle."""

    def items(self, state: SameState) -> list[BackendArray]:
        """All of the storage, unpacked."""

    def look(
        self,
        state: SameState,
        function: Callable[..., BackendArray],
        handles: BackendArray | None = None,
        n: int | None = None,
    ) -> BackendArray:
        """What a function of `buffer.functions` reads off a state: of handles int32 [B], of a number, or of nothing."""

    def counter(self, state: SameState, place: int) -> BackendArray:
        """One of a state's counters, int32; of stacked states one for each."""

    def split(self, key: PRNGKey) -> Iterable[PRNGKey]:
        """Two keys from one."""


def check_one(backend: Backend, state: SameState, function: str) -> None:
    """Refuse what is no state of the backend, and a stack of states, which only vmap takes apart."""
    backend.check_state(state, function)
    if len(state.axes) != 1:
        raise checks.not_one(state.axes, function)


def handles_of(backend: Backend, indices: ArrayLike) -> BackendArray:
    """Handles int32 [B] as an array of the backend."""
    indices = backend.as_vector(indices, "indices")
    checks.handles(indices)
    return indices
