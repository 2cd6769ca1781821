"""What threads do that draw batches ahead: each batch that was asked for, drawn and sent."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from functional_rb.base import nest
from functional_rb.base.arrays import BackendArray, Nest, PRNGKey
from functional_rb.base.nest import BuildMapping
from functional_rb.buffer import mapping
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.sample import AnySample
from functional_rb.iteration.cell import Cell
from functional_rb.iteration.epochs import Epochs
from functional_rb.mixture.layout import Form, form_of, remembers
from functional_rb.mixture.value import Mixture

Beta = float | Callable[[int], float] | None


class Transfer(Protocol):
    """How arrays come to a device: `transfer.Transfer` of a backend."""

    build_mapping: BuildMapping

    def drawn(self, sample: Callable[..., tuple[Any, Any]], state: Any, *args: object) -> tuple[Any, Any]:
        """What `sample(state, *args)` gives, the sample perhaps on its way to the device already."""

    def send(self, leaves: Sequence[object]) -> object:
        """Begin to move arrays, in the thread that has drawn them."""

    def receive(self, sent: Nest) -> list[BackendArray]:
        """The moved arrays, in the thread that uses them."""


@dataclasses.dataclass(eq=False, slots=True)
class Batch:
    """A batch that was asked for; both futures hold what went wrong, too."""

    number: int  # from 0
    key: PRNGKey  # what it is drawn with
    source: State | None  # the state that it is drawn from; None for that after the batch before
    over: bool = False  # whether nothing was drawn, as all epochs were done before
    # Done once it is drawn; of samplers that remember, the state afterwards.
    drawn: Future[State | None] = dataclasses.field(default_factory=Future)
    sent: Future[Nest] = dataclasses.field(default_factory=Future)  # what `Drawing._send` made of the sample

    def fail(self, error: BaseException) -> None:
        """Pass the error on to those who wait for the batch."""
        for future in (self.drawn, self.sent):
            if not future.done():
                future.set_exception(error)


class Drawing:
    """What threads do. It knows nothing of the iterator, so that this can be forgotten while they work.

    Attributes:
        spec: of the state that the iterator was made with, or the form of the mixture; those in a cell may come to have
            another.
        cell: what is drawn from, if that is a cell.
        epochs: how long it is drawn, and what becomes of the padding; None for batches as they come, without end.
        waiting: the batches that nobody has begun. The iterator appends to it and takes back from that end, threads
            take from the other; single operations of a deque need no lock, which a finalizer might find taken.
    """

    def __init__(
        self,
        rb: Any,
        spec: Form,
        batch_size: int,
        beta: Beta,
        transfer: Transfer | None,
        cell: Cell[Any] | None,
        epochs: Epochs | None = None,
    ) -> None:
        self._rb, self._batch_size, self._beta, self._transfer = rb, batch_size, beta, transfer
        self.spec, self.cell, self.epochs = spec, cell, epochs
        self.waiting: deque[Batch] = deque()
        in_turn = remembers(spec) or cell is not None
        self._turn = threading.Lock() if in_turn else contextlib.nullcontext()
        self._newest: State | None = None

    def split(self, key: PRNGKey) -> tuple[PRNGKey, PRNGKey]:
        """The key to go on with, and one for a batch."""
        following, now = self._rb.split(key)
        return following, now

    def forget(self) -> None:
        """Drop the batches that nobody has begun; those who wait for one get an error."""
        with contextlib.suppress(IndexError):
            while True:
                batch = self.waiting.pop()
                batch.drawn.cancel()

    def work(self) -> None:
        """Make the first of the batches that wait, if one still does. Errors are raised where it is waited for."""
        batch = None
        try:
            # Samplers that remember draw in turn: each begins with the state after the draw before.
            with self._turn:
                try:
                    batch = self.waiting.popleft()
                except IndexError:  # it was taken back
                    return
                source, batch.source = batch.source, None
                source = self._newest if source is None else source
                if self.epochs is not None and source is not None and self.epochs.over(source):
                    self._newest, batch.over = source, True
                    batch.drawn.set_result(None)
                    return
                sample, after, spec = self._draw(batch.number, batch.key, source)
                self._newest = after
                batch.drawn.set_result(self._newest)
            del source, after  # what nobody reads any more need not be kept for this thread
            batch.sent.set_result(self._send(sample, spec))
        except BaseException as error:
            if batch is None:
                raise
            batch.fail(error)
            if not isinstance(error, Exception):  # an interrupt, where there are no threads
                raise
        finally:
            del batch  # the error's traceback has this frame, and the batch has the error

    # A sample, the state afterwards if a later draw begins with it, and the spec of what was drawn from.
    def _draw(self, number: int, key: PRNGKey, source: State | None) -> tuple[AnySample[Nest], State | None, Form]:
        beta = self._beta(number) if callable(self._beta) else self._beta
        if self.cell is not None:
            sample, spec = self.cell.apply(self._sample, key, beta)
            return sample, None, spec
        assert source is not None  # there is one wherever there is no cell
        after, (sample, spec) = self._sample(source, key, beta)
        return sample, after if remembers(spec) else None, spec

    def _sample(
        self, state: State | Mixture, key: PRNGKey, beta: float | None
    ) -> tuple[Nest, tuple[AnySample[Nest], Form]]:
        arguments = state, key, self._batch_size, beta
        if self._transfer is None:
            after, sample = self._rb.sample(*arguments)
        else:
            after, sample = self._transfer.drawn(self._rb.sample, *arguments)
        if self.epochs is not None:
            sample = self.epochs.unpadded(after, sample)
        return after, (sample, form_of(state))

    def _send(self, sample: AnySample[object], spec: Form) -> Nest:
        if self._transfer is None:
            return sample
        info = sample._asdict()
        items = info.pop("items")
        if isinstance(spec, BufferSpec):
            leaves, structure = mapping.taken_apart(spec, items)
        else:
            leaves, structure = nest.flatten(items, mapping.is_leaf)
        extras = info.pop("extras")
        arrays = [*leaves, *extras.values(), *info.values()]
        return sample, self._transfer.send(arrays), tuple(extras), structure, spec

    def receive(self, sent: Nest) -> Nest:
        """The sample, in the thread that uses it."""
        if self._transfer is None:
            drawn = sent
            return drawn
        sample, moving, extras, structure, spec = sent
        arrays = iter(self._transfer.receive(moving))
        leaves = [next(arrays) for _ in structure.paths]
        is_one = isinstance(spec, BufferSpec)
        lead = tuple(sample.indices.shape if is_one else sample.indices.shape[:-1])
        items = nest.unflatten(structure, leaves, self._transfer.build_mapping, lead)
        more = {name: next(arrays) for name in extras}
        info = {name: next(arrays) for name in sample._fields if name not in ("items", "extras")}
        moved = sample._replace(items=items, extras=more, **info)
        return moved


def release(drawing: Drawing, threads: ThreadPoolExecutor, wait: bool = False) -> None:
    """Let the threads end after what they are doing."""
    drawing.forget()
    threads.shutdown(wait=wait, cancel_futures=True)
