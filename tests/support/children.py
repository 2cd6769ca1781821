"""Children of a process, which work, end, or are killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None)
ROOT = Path(__file__).parents[2]


def program(name: str, *arguments: object) -> list[str]:
    """The command that runs a module of `tests.children` in a process of its own, whose directory is to be `ROOT`."""
    return [sys.executable, "-m", f"tests.children.{name}", *map(str, arguments)]


def forked(work: Callable[[], None], survives: bool = False) -> int:
    """Work in a child, which dies with its parent unless it survives; the process."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX's, that a process with threads is forked
        process = os.fork()
    if not process:
        if not survives:
            LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return process


def ended(process: int, killed: bool = False) -> None:
    """Wait for a child, which must have been killed, or have ended well."""
    status = os.waitpid(process, 0)[1]
    assert status == (signal.SIGKILL if killed else 0), status


def gives_up_privileges() -> bool:
    """Whether this process, a child, may from now on open and write what modes of files say, also if it is root's."""
    # In a namespace of users in which nobody has a name, root owns its files and has power over none.
    return os.getuid() != 0 or LIBC.unshare(0x10000000) == 0  # CLONE_NEWUSER


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
