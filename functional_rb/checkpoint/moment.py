"""What a save is of: a moment of a state, a nest, or all the buffers of a mixture, held until it is written."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Protocol

from functional_rb.base.files import as_path
from functional_rb.buffer.reader import Reader
from functional_rb.buffer.state import State
from functional_rb.checkpoint import in_place, mixtures, records, saving
from functional_rb.checkpoint.manifest import Checkpoint
from functional_rb.checkpoint.restoring import nest_at
from functional_rb.checkpoint.saving import Request, SaveOptions, check_keep, request
from functional_rb.checkpoint.shards import OfShards
from functional_rb.mixture.value import Mixture


class Moment(Protocol):
    """What is to be written, as it was when the save was called."""

    @property
    def directory(self) -> str:
        """The directory of checkpoints to which it is written."""

    def write(self, keep: int | None = None) -> Checkpoint:
        """Write it, and let `keep` checkpoints stay there; None for as many as `save` was asked for."""

    def close(self) -> None:
        """Let go of what is held for it, whether it was written or not."""


def hold(value: object, path: object, how: SaveOptions) -> Moment:
    """Check what a save is given, and hold it, before anything is touched."""
    if isinstance(value, Mixture):
        return OfMixture(value, os.path.abspath(as_path(path, how.who)), how)
    dealt = value.dealt() if isinstance(value, State) else None
    if dealt is not None:
        if how.lasting:
            raise ValueError(
                f"{how.who}: expected a buffer on one device, got one that is dealt to shards, whose processes write "
                f"together; leave background out"
            )
        return OfShards(dealt, path, how)
    return OfState(records.as_state(value, how.who), path, how)


class OfState:
    """A moment of a state, or of what stands for a nest."""

    def __init__(self, state: State, path: object, how: SaveOptions) -> None:
        self.asked: Request = request(state, path, how)
        self._state = state
        self._reader = self._read(lasting=True) if how.lasting else None

    @property
    def directory(self) -> str:
        return self.asked.directory

    def write(self, keep: int | None = None, held: bool = False) -> Checkpoint:
        """Write it; `held` says whether the caller holds the directory already."""
        return saving.write(self._reader or self._read(lasting=False), self.asked.keeping(keep), held)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _read(self, lasting: bool) -> Reader:
        return self._state.reader(lasting=lasting, snapshot=in_place.taker(self.directory))


class OfMixture:
    """A moment of a mixture: of all its buffers, and of how they are mixed."""

    def __init__(self, mixture: Mixture, directory: str, how: SaveOptions) -> None:
        check_keep(how.keep, how.who)
        self.directory, self._how, self._spec = directory, how, mixture.spec
        self._p = None if mixture.p is None else records.on_host(mixture.p).copy()
        self._parts: list[Moment] = []
        with contextlib.ExitStack() as stack:  # if one of the buffers is refused, those before it are let go
            stack.callback(self.close)
            for k, state in enumerate(mixture.states):
                self._parts.append(hold(state, mixtures.place_of(directory, k), how))
            stack.pop_all()

    def write(self, keep: int | None = None) -> Checkpoint:
        """Write the buffers, each only as far as it has changed where that was asked for, and then how they are mixed.

        The whole is held meanwhile: of two saves the buffers of one are written, and named, before those of the other.
        """
        how = self._how if keep is None else dataclasses.replace(self._how, keep=keep)
        return saving.while_held(self.directory, lambda: self._write(how))

    def _write(self, how: SaveOptions) -> Checkpoint:
        # Each buffer keeps what the checkpoints of the mixture that stay have named, and its new one.
        needed = mixtures.needed(self.directory, len(self._parts), how.keep, nest_at)
        saved = [moment.write(count + 1) for moment, count in zip(self._parts, needed, strict=True)]
        record = mixtures.record_of([one.generation for one in saved], self._spec, self._p)
        last = OfState(records.as_state(record, how.who), self.directory, how).write(held=True)
        return dataclasses.replace(
            last,
            items=sum(one.items for one in saved),
            nbytes=last.nbytes + sum(one.nbytes for one in saved),
            written=last.written + sum(one.written for one in saved),
            full=all(one.full for one in saved),
        )

    def close(self) -> None:
        for moment in self._parts:
            moment.close()
