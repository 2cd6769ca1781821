"""Files that HDF5 writes to: no interrupt leaves them while a thread is still at it."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from functional_rb.storage import unfailing


class Interrupted(ThreadPoolExecutor):
    """Ctrl-C comes once the thread is at work, and before anybody waits for it."""

    def submit(self, *args: Any, **named: Any) -> Any:
        future = super().submit(*args, **named)
        signal.raise_signal(signal.SIGINT)
        return future


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize("interrupts", [1, 2, 4])
def test_the_writer_is_done_whatever_number_of_interrupts_come(
    interrupts: int, at_start: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, done, main = threading.Event(), [], threading.get_ident()
    if at_start:
        monkeypatch.setattr(unfailing, "ThreadPoolExecutor", Interrupted)

    def write(stream: unfailing.Stream) -> None:
        stream.write(b"begun")
        for k in range(interrupts):
            if k or not at_start:
                signal.pthread_kill(main, signal.SIGINT)
            for _ in range(1000):
                if len(stream._failures) > k or left.wait(0.01):
                    break
        stream.write(b"dropped")
        done.append(not left.is_set())

    def written() -> None:
        try:
            unfailing.written(tmp_path / "there", write)
        finally:
            left.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # workers of pytest ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            written()
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [True]
    assert (tmp_path / "there").read_bytes() in ([b"", b"begun"] if at_start else [b"begun"])


def test_an_error_of_the_disk_is_told_rather_than_what_follows_from_it(tmp_path: Path) -> None:
    def write(stream: unfailing.Stream) -> None:
        stream._failures.append(OSError(28, "No space left on device"))
        raise RuntimeError("cannot find what was written")

    with pytest.raises(OSError, match="No space left") as caught:
        unfailing.written(tmp_path / "there", write)
    assert isinstance(caught.value.__cause__, RuntimeError)
