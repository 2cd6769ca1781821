"""Processes of torch.distributed for tests: started once for a module, they carry out one function after the other."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist


class ProcessGroup:
    """Processes that are forked from a server which has imported all, each a rank of the backend gloo."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.support.warm"])
        store = tempfile.mkdtemp()
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, size, f"file://{store}/store"), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What a function of a module gives in the first `size` processes, called with their group."""
        for pipe in self.pipes:
            pipe.send((size, function, args))
        answers = [pipe.recv() if pipe.poll(120) else "no answer within two minutes" for pipe in self.pipes]
        failed = [answer for answer in answers if isinstance(answer, str)]
        assert not failed, "\n".join(failed)
        return [found for (found,) in answers[:size]]

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(20)
            process.kill()


def _serve(pipe: Connection, rank: int, size: int, store: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    groups = {n: dist.new_group(list(range(n))) for n in range(1, size + 1)}
    while (call := pipe.recv()) is not None:
        n, function, args = call
        try:
            pipe.send((function(groups[n], *args) if rank < n else None,))
        except BaseException:
            pipe.send(f"rank {rank}: {traceback.format_exc()}")
    dist.destroy_process_group()
