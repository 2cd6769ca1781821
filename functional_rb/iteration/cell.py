"""A cell: the newest state of a buffer, for several threads to use and to exchange."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar

from functional_rb.base import forks
from functional_rb.base.arrays import Nest
from functional_rb.base.errors import ConsumedError
from functional_rb.buffer.state import SameState, State, StateHolder
from functional_rb.core.sample import Drawn
from functional_rb.iteration.turns import Turns
from functional_rb.mixture.value import Mixture

P = ParamSpec("P")
R = TypeVar("R")


class Cell(StateHolder, Generic[Drawn]):
    """Holds the newest state of a buffer, for threads that add beside those that sample.

    `state = rb.add(state, batch)` in one thread loses what another has added between the reading of the variable and
    its assignment. A cell does both as one step: `cell.apply(rb.add, batch)`. Threads take turns, in the order in which
    they came, so that none is kept waiting by one that is fast.

    Everything that a backend offers goes through the three functions `apply`, `read` and `wait_for`:

        cell.apply(rb.add, batch)
        sample = cell.apply(rb.sample, key, 256)
        cell.apply(rb.update, sample.indices, priorities)
        size = cell.read(rb.size)

    What they call must not use the cell itself, and should be short, as the others wait for it. On JAX computations
    that have been dispatched go on meanwhile; functions that consume the state (`rb.add_`, `rb.jit`) are the fast ones,
    on both backends.

    A cell belongs to the threads of one process, and is neither pickled nor copied. It may be given to `iterate` in
    place of a state.

    Example:
        >>> cell = frb.Cell(rb.init(frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8)))
        >>> cell.apply(rb.add, {"x": np.arange(4, dtype=np.float32)})
        >>> sample = cell.apply(rb.sample, rb.key(0), 3)
        >>> sample.items["x"].shape[0], int(cell.read(rb.size))
        (3, 4)
    """

    def __init__(self, state: State[Drawn]) -> None:
        """Hold a state.

        Args:
            state: of any backend and storage. Functions that consume it may be applied, so go on with the cell alone.

        Raises:
            TypeError: for what is no state.
        """
        self._turns = Turns("Cell")
        self._state: SameState = _checked(state)
        # What happened to the function that consumed the state and returned none.
        self._failure: str | None = None
        self._changes = 0
        self._renew()
        forks.renewed(self, Cell._renew)

    def hint(self, function: str) -> str:
        """How the error goes on that refuses a cell in place of a state."""
        return f"; write cell.read(rb.{function}, ...), or cell.apply(rb.{function}, ...) where it returns a state"

    @property
    def state(self) -> State[Drawn]:
        """The newest state; waits for a function that is being applied.

        It is a value, and stays as it is, unless functions that consume states are applied: then use `read`. A state
        that was made from it cannot be assigned, as others may have changed the cell in the meantime: use `apply`.

        Raises:
            RuntimeError: inside of a function that the cell has called, and where the state was lost, see `apply`.
        """
        return self._turns.take(self._whole)

    def apply(self, function: Callable[Concatenate[Any, P], object], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Exchange the newest state, as one step that no other thread sees half of.

        Args:
            function: called with the newest state and the arguments. It returns the state that is then the newest, or
                that and a result, as `rb.sample` does.
            args: passed on.
            kwargs: passed on.

        Returns:
            The result; None if the function returned a state alone.

        Raises:
            TypeError: if the function returned something else; the cell keeps the state that it had.
            RuntimeError: inside of a function that the cell has called; if the function returned a state that it had
                consumed; and where one before has consumed the state and failed, so that there is none: `put` another.
            Exception: what the function raised; the cell keeps the state that it had, unless that was consumed.

        Example:
            >>> cell = frb.Cell(rb.init(frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8)))
            >>> def add_and_count(state, items):
            ...     state = rb.add_(state, items)
            ...     return state, int(rb.size(state))
            >>> cell.apply(add_and_count, {"x": np.zeros(3, np.float32)})
            3
        """
        return self._turns.take(self._apply, function, args, kwargs)

    def read(self, function: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function with the newest state, while no other thread exchanges it.

        Args:
            function: called with the newest state and the arguments; what it returns is not stored.
            args: passed on.
            kwargs: passed on.

        Returns:
            What the function returned.

        Raises:
            RuntimeError: as for `apply`.
            Exception: what the function raised.

        Example:
            >>> cell = frb.Cell(rb.init(frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8)))
            >>> int(cell.read(rb.size))
            0
        """
        read: R = self._turns.take(self._read, function, args, kwargs)
        return read

    def wait_for(self, predicate: Callable[[Any], object], timeout: float | None = None) -> None:
        """Wait until something holds of the newest state.

        Args:
            predicate: of a state; called when the wait begins, and whenever the state has been exchanged.
            timeout: seconds; None for no end. A function that is being applied is waited for in any case.

        Raises:
            TimeoutError: if it did not hold in time. A program whose other threads may fail gives a timeout, as nobody
                else ends the wait.
            RuntimeError: as for `apply`.
            Exception: what the predicate raised.

        Example:
            >>> cell = frb.Cell(rb.init(frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8)))
            >>> collector = threading.Thread(target=cell.apply, args=(rb.add, {"x": np.zeros(3, np.float32)}))
            >>> collector.start()
            >>> cell.wait_for(lambda state: rb.can_sample(state, 3), timeout=60)
            >>> collector.join()
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            seen, holds = self._turns.take(lambda: (self._changes, bool(self._read(predicate, (), {}))))
            if holds:
                return
            left = None if until is None else until - time.monotonic()
            with self._changed:
                if not self._changed.wait_for(functools.partial(self._has_changed, seen), left):
                    raise TimeoutError(f"Cell.wait_for: the predicate did not hold within {timeout} seconds")

    def put(self, state: State) -> None:
        """Hold another state, whatever the newest is: one that was loaded, or in place of one that was lost.

        Args:
            state: the newest from now on.

        Raises:
            TypeError: for what is no state.
            RuntimeError: inside of a function that the cell has called.
        """
        self._turns.take(self._exchange, _checked(state))

    def __repr__(self) -> str:
        return f"Cell({self._state!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be pickled or copied: what others add would be missing in the copy.

        Raises:
            TypeError: with the remedy.
        """
        raise TypeError(
            "a Cell belongs to the threads of one process and cannot be pickled or copied; pass its state "
            "(cell.state), or let processes share a buffer: BufferSpec(..., storage=frb.Memmap(path, shared=True))"
        )

    def _whole(self) -> SameState:
        self._note_if_consumed("was not applied by the cell")
        self._refuse_lost()
        return self._state

    def _refuse_lost(self) -> None:
        if self._failure is not None:
            raise RuntimeError(
                f"there is no state any more: the newest was consumed by a function that {self._failure}; go on with "
                f"another one, such as one that was saved: cell.put(frb.load(path, rb))"
            )

    # Refuse what would wait for a function that the cell has called in this thread.
    def _refuse_nested(self) -> None:
        self._turns.refuse_nested()

    def _apply(self, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> Nest:
        following, result = self._call(lambda state: parted(function(state, *args, **kwargs), "Cell.apply"))
        self._exchange(following)
        return result

    def _read(self, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> Nest:
        result = self._call(lambda state: function(state, *args, **kwargs))
        self._note_if_consumed("was only to read it")
        return result

    def _has_changed(self, seen: int) -> bool:
        return self._changes != seen

    def _call(self, function: Callable[[State], R]) -> R:
        state = self._whole()
        try:
            return function(state)
        except BaseException as error:
            self._note_if_consumed(f"then failed: {type(error).__name__}: {error}")
            raise

    def _note_if_consumed(self, how: str) -> None:
        try:
            self._state.check_alive()
        except ConsumedError:
            self._failure = self._failure or how
            self._tell()

    def _exchange(self, state: State) -> None:
        self._state, self._failure = state, None
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def _renew(self) -> None:
        self._changed = threading.Condition()


def parted(returned: object, who: str) -> tuple[Nest, Nest]:
    """What a function returned that was to be applied: the state, and the result if there is one.

    Raises:
        TypeError: for anything else.
        RuntimeError: if that state was consumed.
    """
    pair = returned if type(returned) is tuple and len(returned) == 2 else (returned, None)
    state, result = pair
    if not isinstance(state, State | Mixture):
        names = [type(x).__name__ for x in returned] if type(returned) is tuple else []
        got = f"({', '.join(names)})" if names else type(returned).__name__
        raise TypeError(f"{who}: expected the function to return a State, or a tuple (State, result), got {got}")
    state.check_alive()
    return state, result


def _checked(state: object) -> Nest:
    if not isinstance(state, State | Mixture):
        hint = "; unpack it: state, sample = rb.sample(...)" if isinstance(state, tuple) else ""
        raise TypeError(f"Cell: expected a State, got {type(state).__name__}{hint}")
    state.check_alive()
    return state
