"""What processes do with mapped files, by NumPy alone: the NAME of a function below, and its arguments."""

import os
import resource
import sys
import time
from collections.abc import Callable

import numpy as np

import functional_rb as frb
from functional_rb.storage import mapped, mapped_array


def spec(path: str | None = None, **flags: bool) -> frb.BufferSpec:
    return frb.BufferSpec((frb.Unbounded((256,)),), 10_000, storage=frb.Memmap(path, **flags))


def write_and_wait(path: str | None = None) -> None:
    files = mapped.create(spec(path) if path is None else spec(path, auto_cleanup=True))
    files.reserve(0, 10_000)
    files.rows[:] = 1
    copied = files.copy()
    print("ready", flush=True)
    time.sleep(60)
    del copied


def clean_up(where: str, end: str) -> None:
    kept = mapped.create(spec(where + "/kept"))
    gone = mapped.create(spec(where + "/gone", auto_cleanup=True))
    os.makedirs(where + "/mixed")
    open(where + "/mixed/mine", "w").close()
    mixed = mapped.create(spec(where + "/mixed", auto_cleanup=True))
    early = mapped.create(spec(where + "/early", auto_cleanup=True))
    again = mapped.create(spec(where + "/again", auto_cleanup=True))
    del again
    again = mapped.create(spec(where + "/again", auto_cleanup=False))
    del early
    assert not os.path.exists(where + "/early")
    if os.fork() == 0:
        sys.exit()  # its cleanup must not touch anything
    os.wait()
    assert all(os.path.exists(f"{where}/{name}/rows.bin") for name in ("kept", "gone", "mixed"))
    globals().update(kept=kept, gone=gone, mixed=mixed, again=again)  # they live until the interpreter's end
    if end == "SystemExit":
        raise SystemExit(0)


def fork(path: str) -> None:
    files = mapped.create(spec(path))
    child = os.fork()
    if child == 0:
        calls: list[Callable[[], object]] = [files.check_process, files.copy]
        for call in [*calls, lambda: files.make_room(spec(), np.zeros(6), 1)]:
            try:
                call()
            except RuntimeError as error:
                assert "forked" in str(error)
                assert "shared=True" in str(error)
            else:
                os._exit(1)
        del files
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    try:
        mapped.create(spec(path, existsok=True))
    except OSError as error:
        assert type(error).__name__ == "StorageInUseError"
    else:
        raise AssertionError


def limited(path: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    for one in (path, None):
        try:
            mapped.create(spec(one))
        except frb.errors.StorageFullError as error:
            print(error.strerror)


def fill_up(path: str, how: str) -> None:
    files = mapped.create(spec(path))
    if how == "unprotected":
        mapped_array.allocate = lambda *_: None
    where = np.zeros(6, np.int32)
    for first in range(0, 10_000, 100):
        where[0] = first
        try:
            files.make_room(spec(), where, 100)
        except frb.errors.StorageFullError:
            break
        files.rows[first : first + 100] = first
    else:
        raise AssertionError("there was room for all")
    assert first > 1000, first
    for done in range(0, first, 100):
        assert (files.rows[done : done + 100] == done).all()
    print("full at", first)


globals()[sys.argv[1]](*sys.argv[2:])
assert not {"jax", "torch"} & set(sys.modules)
