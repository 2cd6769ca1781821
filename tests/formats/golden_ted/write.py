"""Writes the files beside it, by torchrl 0.14.1 and tensordict 0.14: `python -m tests.formats.golden_ted.write`."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from tests.support.backends import make
from tests.support.ted_model import BOTH, GOES_ON, TERMINATED, TRUNCATED, Case, fixed

HERE = Path(__file__).parent
CASES = {
    "partial": fixed([GOES_ON, GOES_ON, TRUNCATED, GOES_ON], 6),
    "wrapped": fixed([GOES_ON, TERMINATED, GOES_ON, GOES_ON, BOTH, GOES_ON, GOES_ON], 4),
    "lanes_partial": fixed([GOES_ON, TERMINATED, GOES_ON, GOES_ON], 5, lanes=2),
    "lanes_wrapped": fixed([GOES_ON, GOES_ON, TRUNCATED, GOES_ON], 3, lanes=3),
}


def storage_of(case: Case) -> Any:
    """A storage of torchrl's with the steps of a case."""
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, ReplayBuffer

    storage = LazyMemmapStorage(case.length * (case.lanes or 1), ndim=1 if case.lanes is None else 2)
    buffer = ReplayBuffer(storage=storage, batch_size=1)
    with make("torch") as backend:
        # One time at once: what is longer than a storage it does not take.
        for row in case.added:
            items, _ = dataclasses.replace(case, added=(row,)).batch()
            step = TensorDict(backend.tree(items), batch_size=[1] if case.lanes is None else [1, case.lanes])
            buffer.extend(step if case.lanes is None else step.transpose(0, 1))  # it has time as the second axis
    return storage


def dumped(storage: Any, place: Path) -> None:
    """What its checkpointer writes."""
    place.mkdir(parents=True)
    storage.dumps(place)


def main() -> None:
    """Write all of them anew."""
    from torchrl.data.replay_buffers import checkpointers

    forms = {
        "flat": checkpointers.FlatStorageCheckpointer,
        "nested": checkpointers.NestedStorageCheckpointer,
        "h5": checkpointers.H5StorageCheckpointer,
    }
    for name, case in CASES.items():
        for form, checkpointer in forms.items():
            place = HERE / f"{name}_{form}"
            shutil.rmtree(place, ignore_errors=True)
            storage = storage_of(dataclasses.replace(case, half=form != "h5"))
            storage.checkpointer = checkpointer()
            dumped(storage, place)


if __name__ == "__main__":
    main()
