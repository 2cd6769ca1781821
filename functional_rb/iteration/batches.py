"""Sampling ahead of the training loop, by threads that never decide what is drawn."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from types import ModuleType, TracebackType
from typing import Any, Concatenate, NoReturn, ParamSpec, Self, TypeVar

from functional_rb.base.arrays import DeviceLike, Nest, PRNGKey
from functional_rb.buffer import checks
from functional_rb.buffer.state import SameState, State
from functional_rb.core.sample import Drawn
from functional_rb.iteration.cell import Cell, parted
from functional_rb.iteration.drawing import Batch, Beta, Drawing, release
from functional_rb.iteration.epochs import Epochs
from functional_rb.iteration.turns import Turns
from functional_rb.mixture.layout import form_of, remembers, specs_of
from functional_rb.mixture.sampling import checked_size
from functional_rb.mixture.value import Mixture

WHO = "iterate"

P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True)
class Prefetch:
    """How batches are drawn ahead, for `iterate`.

    Attributes:
        batches: how many are drawn and sent ahead of the one in use. 0: none, and no threads.
        threads: how many work at it. More than one pays where a batch takes longer than a training step. Samplers that
            remember what they drew draw one batch after the other; then only the transfer is shared out.
        lag: how many batches a state that the iterator is given comes late. With 0 the next batch is drawn from it, as
            in the loop above, and what was drawn ahead is thrown away. With as many as `batches` nothing is, and what
            comes is so many steps old. 0 with a cell.

    Example:
        >>> Prefetch(4, lag=4).threads
        1
    """

    batches: int = 2
    threads: int = 1
    lag: int = 0


def iterate(
    rb: ModuleType,
    state: State[Drawn] | Mixture[Drawn] | Cell[Drawn],
    key: PRNGKey,
    batch_size: int | None = None,
    *,
    n: int | None = None,
    epochs: int | None = None,
    prefetch: int | Prefetch = 2,
    device: DeviceLike = None,
    beta: Beta = None,
) -> Batches[Drawn]:
    """Draw batch after batch while the caller trains on those before.

    What comes is what this loop draws, whatever `prefetch` and `threads` are:

        for k in range(n):
            key, now = rb.split(key)
            state, sample = rb.sample(state, now, batch_size)

    Args:
        rb: the backend, `jax_backend` or `torch_backend`.
        state: what is drawn from, a buffer or a `Mixture`. It is a value: what is added to its successors is not seen,
            unless the iterator is given them, see `Batches.state` and `Batches.apply`. Or a cell, whose newest state
            each batch is drawn from when it is drawn; so what comes depends on the threads. What samplers remember goes
            back into the cell, also of batches that were drawn ahead and never asked for.
        key: randomness, from `key(seed)` or `split`.
        batch_size: by default the spec's.
        n: how many batches; None for no end.
        epochs: how many times to go through a buffer whose sampler is `WithoutReplacement` or
            `SlicesWithoutReplacement`, the last batch of an epoch without its padding. An epoch that is under way
            counts as the first. Threads wait for each draw, to see whether an epoch is done.
        prefetch: how many batches are drawn and sent ahead of the one in use. 0 is the loop above: no threads.
            `frb.Prefetch(...)` also says by how many threads, and how late states come that it is given.
        device: where the batches go, of torch or JAX (there also a sharding); None leaves them where they are drawn.
            Torch copies from pinned memory on a stream of its own.
        beta: overrides the sampler's; a number, or a function from a batch's number (from 0) to one.

    Returns:
        The iterator; also a context manager that ends its threads. They end as well at the last batch, after an error,
        with `close()`, when the iterator is forgotten, and when the program ends.

    Raises:
        ValueError: for a number that is too small, a missing batch size, a `lag` with a sampler that remembers or with
            a cell, and for `epochs` with a cell or a sampler that has none.
        TypeError: for what is no backend, state or number, for `epochs` of a mixture, and for `prefetch`, or `epochs`,
            within a compiled function.

    Example:
        >>> spec = frb.BufferSpec(item=frb.Unbounded(()), capacity=8, batch_size=4)
        >>> state = rb.add(rb.init(spec), np.arange(8, dtype=np.float32))
        >>> [sample.items.shape[0] for sample in frb.iterate(rb, state, rb.key(0), n=3)]
        [4, 4, 4]
        >>> passes = frb.BufferSpec(frb.Unbounded(()), capacity=8, sampler=frb.WithoutReplacement(shuffle=False))
        >>> state = rb.add(rb.init(passes), np.arange(5, dtype=np.float32))
        >>> [sample.items.tolist() for sample in frb.iterate(rb, state, rb.key(0), 2, epochs=1)]
        [[0.0, 1.0], [2.0, 3.0], [4.0]]
    """
    if not (hasattr(rb, "sample") and hasattr(rb, "split")):
        raise TypeError(f"{WHO}: rb: expected a backend, the module jax_backend or torch_backend, got {rb!r}")
    cell = None
    if isinstance(state, Cell):
        cell, state = state, state.state
    if not isinstance(state, Mixture):
        checks.check_state(state, WHO)
    form = form_of(state)
    wanted = None if n is None else checks.count(WHO, "n", n)
    how = prefetch if isinstance(prefetch, Prefetch) else Prefetch(prefetch)
    ahead, late = checks.count(WHO, "prefetch", how.batches), checks.count(WHO, "lag", how.lag)
    workers = checks.count(WHO, "threads", how.threads)
    if not workers:
        raise ValueError(f"{WHO}: expected threads >= 1, got 0; give prefetch=0 for none")
    if late and cell is not None:
        raise ValueError(
            f"{WHO}: expected lag=0 with a Cell, got {late}: each batch is drawn from the state that is the newest then"
        )
    if late and remembers(form):
        who = next(type(spec.sampler).__name__ for spec in specs_of(form) if spec.sampler.remembers)
        raise ValueError(
            f"{WHO}: expected lag=0 with {who}, which remembers what it drew, got {late}: "
            f"the states of a later draw and of an add cannot be joined"
        )
    # Asked before the batch size, so that a number in place of the key is told to be none.
    if _is_traced(rb, key) and ahead:
        raise TypeError(
            f"{WHO}: within a compiled function no other threads can draw ahead, and prefetch is {ahead}; "
            f"give prefetch=0, or iterate outside of it"
        )
    transfer = None
    if device is not None:
        transfer = importlib.import_module(f"{rb.__name__}.interop.transfer").Transfer(device)
    size = checked_size(batch_size) if isinstance(state, Mixture) else checks.batch_size(state.spec, batch_size)
    passes = None if epochs is None else _epochs(rb, state, size, epochs, cell)
    drawing = Drawing(rb, form, size, beta, transfer, cell, passes)
    return Batches(drawing, state, key, wanted, (ahead, late, workers))


def _epochs(rb: ModuleType, state: State | Mixture, size: int, n: int, cell: Cell[Any] | None) -> Epochs:
    if isinstance(state, Mixture):
        raise TypeError(
            f"{WHO}: expected a State with epochs, got Mixture: each of its buffers has its own; go through mixture[k]"
        )
    if cell is not None:
        raise ValueError(
            f"{WHO}: expected a state with epochs, not a Cell, whose state others exchange meanwhile; give cell.state, "
            f"or n batches"
        )
    checks.check_epochs(state.spec, size)
    return Epochs(rb, state, checks.count(WHO, "epochs", n))


# Whether this is done within a function that is compiled: there all that is computed is traced, of a known key as well.
def _is_traced(rb: ModuleType, key: PRNGKey) -> bool:
    lib = getattr(rb, "lib", None)  # what stands in for a backend need not have one
    return lib is not None and bool(lib.LIB.is_traced(rb.split(key)))


class Batches(Iterator[Drawn]):
    """Samples in their order, drawn ahead; made by `iterate`.

    Threads may use one together: each batch goes to one of those that ask for the next; `apply`, `state` and `close`
    may be used by others meanwhile.
    """

    def __init__(
        self, drawing: Drawing, state: Nest, key: PRNGKey, n: int | None, numbers: tuple[int, int, int]
    ) -> None:
        self._drawing, self._key, self._n = drawing, key, n
        self._prefetch, self._lag, threads = numbers
        self._remembers = remembers(drawing.spec) and drawing.cell is None
        # The state as of the last batch yielded.
        self._newest = Cell(state) if drawing.cell is None else drawing.cell
        # Taken by what exchanges the state, and by waiting for a batch to be drawn: never by those who draw.
        self._turns = Turns("iterate")
        # Keeps closing apart from asking and taking back. Nobody waits for anything while it is held.
        self._lock = threading.Lock()
        # States, and the number of the first batch that is drawn from each.
        self._from: deque[tuple[int, State]] = deque([(0, state)] if drawing.cell is None else [])
        # The keys of batches that were taken back.
        self._keys: deque[PRNGKey] = deque()
        # What was asked for and not yielded yet, in order.
        self._ahead: deque[Batch] = deque()
        self._yielded = 0
        # Whether the next draw begins with the newest state, of samplers that remember.
        self._restart = True
        # How often the newest state was exchanged.
        self._exchanges = 0
        # Its `exchanges` are how many there were when a thread last read or assigned the state; 0 before.
        self._seen = threading.local()
        # Whether a state was given since the last batch: then another one will follow the next, as like as not.
        self._state_given = False
        self._closed = False
        self._threads: ThreadPoolExecutor | None = None
        if self._prefetch:
            self._threads = ThreadPoolExecutor(threads, thread_name_prefix="frb-iterate")
            # The executor ends idle threads when the program does; nothing of ours waits inside them for us.
            self._finalizer = weakref.finalize(self, release, drawing, self._threads)
            self._finalizer.atexit = False

    @property
    def state(self) -> State[Drawn]:
        """The state as of the last batch yielded; assign another one to draw from that.

        Reading it waits for the draws that are under way, and holds back those that nobody needs yet until the next
        batch is asked for. So what was read may be handed to functions that take its memory over (`add` on torch, a
        jitted one with the state donated on JAX), and no draw meets them:

            batches.state = rb.add(batches.state, items)

        That is two steps, between which another thread may do the same. Then the later assignment would throw away what
        the other has written, and is refused; where there are several threads, use `apply`.

        The batch that comes `lag` after the next is the first that is drawn from a state that was given. Of samplers
        that remember, the state is that after the last batch yielded; what was drawn ahead is drawn anew from the one
        that is given.

        Of an iterator over a cell it is the cell's, and is not assigned.

        Raises:
            TypeError: on assigning what is no state, or to an iterator over a cell.
            ValueError: on assigning a state of another spec.
            RuntimeError: on assigning a state that cannot have been made from the newest one, as that was exchanged
                after this thread last read or assigned `state`: by another thread, by `apply`, or by a sampler that
                remembers what the last batch drew. The iterator goes on with the newest. Also inside of a function
                that `apply` has called.
        """
        if self._drawing.cell is not None:
            return self._drawing.cell.state
        return self._in_turn(self._look)

    @state.setter
    def state(self, state: State) -> None:
        if self._drawing.cell is not None:
            raise TypeError(
                f"{WHO}: the state of an iterator over a Cell cannot be assigned, as other threads exchange it; "
                f"write batches.apply(rb.add, items), or cell.put(state)"
            )
        self._check(state)
        self._in_turn(self._exchange, state)

    def apply(self, function: Callable[Concatenate[Any, P], object], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Exchange the newest state, as one step: `Cell.apply`, from any thread, beside one that iterates.

        The new state is drawn from as one that is assigned to `state`. What was drawn ahead is so thrown away, unless
        `lag` is given; where other threads apply functions at any time, iterate over a cell.

        Args:
            function: called with `state` and the arguments. It returns the new state, or that and a result.
            args: passed on.
            kwargs: passed on.

        Returns:
            The result; None if the function returned a state alone.

        Raises:
            TypeError: if the function returned something else; the iterator goes on with the state that it had.
            ValueError: if it returned a state of another spec, which only an iterator over a cell takes; the iterator
                goes on with the state that it had.
            RuntimeError: inside of such a function, and where one has consumed the state and failed.
            Exception: what the function raised; the iterator goes on with the state that it had, unless that was
                consumed.

        Example:
            >>> spec = frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8, batch_size=4, sampler=frb.Prioritized())
            >>> state = rb.add(rb.init(spec), {"x": np.arange(8, dtype=np.float32)})
            >>> batches = frb.iterate(rb, state, rb.key(0), n=3)
            >>> for sample in batches:
            ...     batches.apply(rb.update, sample.indices, np.ones(4, np.float32))
        """
        if self._drawing.cell is not None:
            return self._drawing.cell.apply(function, *args, **kwargs)
        return self._in_turn(self._apply, function, args, kwargs)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Drawn:
        """The next sample.

        Raises:
            StopIteration: after `n`, after an error, and once closed.
            RuntimeError: inside of a function that `apply` (of this or of its cell) has called; and where such a
                function has consumed the state and failed.
            Exception: what went wrong as this batch was drawn or sent; the batches before it have come.
        """
        self._refuse_nested()
        self._newest._refuse_lost()
        batch = None
        try:
            batch = self._turns.take(self._take_next)
            sample: Drawn | None = None if batch is None else self._drawing.receive(batch.sent.result())
        except CancelledError:
            raise StopIteration from None  # another thread has closed it
        except BaseException:
            # After an interrupt too: a user who goes on begins anew.
            self._close(wait=False)
            raise
        finally:
            del batch  # an error's traceback has this frame, and the batch has the error
        if sample is None:
            self.close()
            raise StopIteration
        return sample

    def close(self) -> None:
        """Forget what was drawn ahead and wait until the threads have ended; `state` can still be read."""
        self._refuse_nested()
        self._close(wait=True)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be pickled or copied: threads of this process draw for it.

        Raises:
            TypeError: with the remedy.
        """
        raise TypeError(
            f"{WHO}: an iterator belongs to the threads of one process and cannot be pickled or copied; pass its state "
            f"(batches.state) and a key, and call frb.iterate there"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # Refuse to wait, in a function that the cell has called, for threads that wait for the cell.
    def _refuse_nested(self) -> None:
        self._turns.refuse_nested()
        self._newest._refuse_nested()

    def _in_turn(self, function: Callable[..., R], *args: object) -> R:
        try:
            return self._turns.take(function, *args)
        except Exception:
            raise
        except BaseException:
            # An interrupt may have come while the batches ahead were noted, and left one that nobody draws.
            self._close(wait=False)
            raise

    # --- what follows is called in turn

    def _take_next(self) -> Batch | None:
        # Where a state is given after every batch, what is drawn ahead of it would be thrown away.
        self._ask(self._lag if self._state_given else max(self._prefetch, self._lag))
        self._state_given = False
        with self._lock:
            batch = self._ahead.popleft() if self._ahead else None
        if batch is None:
            return None
        try:
            after = batch.drawn.result()
            if batch.over:
                return None
            if after is not None:
                self._newest.put(after)
                self._exchanges += 1
            self._yielded += 1
            return batch
        finally:
            del batch

    def _ask(self, depth: int) -> None:
        last = self._yielded + depth
        if self._n is not None:
            last = min(last, self._n - 1)
        begun = 0
        with self._lock:
            if self._closed:
                return
            first = self._ahead[-1].number + 1 if self._ahead else self._yielded
            for number in range(first, last + 1):
                if self._keys:
                    key = self._keys.popleft()
                else:
                    self._key, key = self._drawing.split(self._key)
                self._begin(Batch(number, key, self._source(number)))
                begun += 1
        if self._threads is None:
            for _ in range(begun):
                self._drawing.work()

    def _begin(self, batch: Batch) -> None:
        # A function of its own: among the variables of `_ask`, from which errors of draws are raised, the batch would
        # keep its own error alive by the traceback.
        self._drawing.waiting.append(batch)
        self._ahead.append(batch)
        if self._threads is not None:
            self._threads.submit(self._drawing.work)

    def _source(self, number: int) -> State | None:
        if self._drawing.cell is not None:
            return None
        if self._remembers:
            source = self._newest.state if self._restart else None
            self._restart = False
            return source
        while len(self._from) > 1 and self._from[1][0] <= number:
            self._from.popleft()
        return self._from[0][1]

    def _state_once_drawn(self) -> SameState:
        self._wait_for_draws()
        return self._newest.state

    # Take back what nobody has begun and needs yet, and wait for the draws of the rest.
    def _wait_for_draws(self) -> None:
        self._ask(self._lag - 1)  # batches that are due from the state as it is now
        needed, waiting = self._yielded + self._lag, self._drawing.waiting
        with self._lock, contextlib.suppress(IndexError):  # a thread may take the last one as we look
            while waiting[-1].number >= needed:
                self._keys.appendleft(waiting.pop().key)
                self._ahead.pop()
        for batch in list(self._ahead):
            with contextlib.suppress(CancelledError):  # closed meanwhile
                batch.drawn.exception()

    def _check(self, state: State | Mixture) -> None:
        if not isinstance(state, Mixture):
            checks.check_state(state, WHO)
        if form_of(state) != self._drawing.spec:
            raise ValueError(f"{WHO}: expected a state of the same spec, got one of {form_of(state)!r}")

    def _look(self) -> SameState:
        state = self._state_once_drawn()
        self._seen.exchanges = self._exchanges
        return state

    def _exchange(self, state: State) -> None:
        # Where a function has consumed the newest and failed, there is nothing to lose.
        if getattr(self._seen, "exchanges", 0) != self._exchanges and self._newest._failure is None:
            raise RuntimeError(
                f"{WHO}: expected a state made from the newest one, got one that cannot be: since this thread last "
                f"read or assigned batches.state, that was exchanged by another thread, by batches.apply, or by a "
                f"sampler that remembers its draws, and what was written would be lost; write "
                f"batches.apply(rb.add, items), or batches.apply(lambda newest: state) to lose it"
            )
        self._wait_for_draws()
        self._newest.put(state)
        self._give(state)
        self._seen.exchanges = self._exchanges

    def _apply(self, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        def checked(state: State) -> tuple[State, tuple[State, object]]:
            following, result = parted(function(state, *args, **kwargs), "iterate, apply")
            self._check(following)
            return following, (following, result)

        before = self._state_once_drawn()
        following, result = self._newest.apply(checked)
        if following is not before:
            self._give(following)
        return result

    # Have the state drawn from, from the first batch on that it is for.
    def _give(self, state: State) -> None:
        first = self._yielded + self._lag
        with self._lock:
            while self._ahead and self._ahead[-1].number >= first:
                self._keys.appendleft(self._ahead.pop().key)
        while self._from and self._from[-1][0] >= first:
            self._from.pop()
        self._from.append((first, state))
        self._restart = self._state_given = True
        self._exchanges += 1

    # --- and this is not, as it must not wait

    def _close(self, wait: bool) -> None:
        with self._lock:
            self._closed = True
            self._ahead.clear()
        if self._threads is not None:
            self._finalizer.detach()
            release(self._drawing, self._threads, wait)
