"""A strategy that is tried: the trial, and what is known of the buffer that has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.strategy import Transform
from functional_rb.testing.carriers import Carrier
from functional_rb.testing.faults import differing, expect, no_error, shown
from functional_rb.testing.laws import Step
from functional_rb.testing.list_model import ListModel
from functional_rb.testing.stores import STORES

SamplerLaw = Callable[[Sequence[Step]], Sequence[float]]
WriterLaw = Callable[[Sequence[Step]], Iterable[Step]]
TransformLaw = Callable[[Sequence[Step], int, NumpyArray], Mapping[str, Nest]]


@dataclasses.dataclass(frozen=True)
class Trial:
    """What is tried, and what it should do."""

    who: str
    spec: BufferSpec
    sampler_law: SamplerLaw | None = None
    writer_law: WriterLaw | None = None
    transform_law: TransformLaw | None = None


def changes_rows(transform: Transform) -> bool:
    """Whether a transform makes other rows of those that are added."""
    return type(transform).incoming is not Transform.incoming


class Tried:
    """What a history of a buffer has come to, on several carriers and in plain lists.

    Attributes:
        who: the name of the strategy, for messages.
        model: the lists; None where they cannot tell what is stored.
        added: the items that were added since the buffer was empty.
        gone: the handles that have named an item and must name none again.
        arrays: the arrays of the state.
        stored: the items by handle.
    """

    def __init__(self, trial: Trial, carriers: Sequence[Carrier]) -> None:
        self.trial, self.spec, self.carriers, self.who = trial, trial.spec, carriers, trial.who
        spec = trial.spec
        known = type(spec.writer) in STORES and not any(map(changes_rows, spec.transforms))
        self.model = ListModel(spec) if known else None
        self.added: list[Step] = []
        self.gone: set[int] = set()
        self.arrays: Nest = None
        self.stored: dict[int, dict[str, NumpyArray]] = {}

    def expect(self, good: object, message: str) -> None:
        """Refuse what is not as it should be, see `faults.expect`."""
        expect(good, self.who, message)

    def call(self, name: str, *arguments: object) -> Nest:
        """What a function gives on the first carrier; on the others it gives the same."""
        results: list[Nest] = []
        for carrier in self.carriers:
            with no_error(self.who, f"`{name}` by {carrier.name}"):
                results.append(carrier.run(name, *arguments))
            for path, one, other in differing(results[0], results[-1], name):
                self.expect(
                    False,
                    f"`{path}` by {carrier.name}: expected the bits that {self.carriers[0].name} gives, "
                    f"{shown(one)}, got {shown(other)}; read what is needed of an array before it is written, "
                    "compute in int32 and float32 by `ops` alone, and let no sum depend on an order that `ops` "
                    "does not fix",
                )
        return results[0]

    def rows_of(self, leaves: Sequence[NumpyArray]) -> list[dict[str, NumpyArray]]:
        """The items of a batch, by path."""
        names = self.spec.plan.names
        return [dict(zip(names, row, strict=True)) for row in zip(*leaves, strict=True)]
