"""The example of several processes on torch, in a run of seconds."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch.multiprocessing as multiprocessing


def test_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import cartpole_spec
    import torch_processes

    # Children are forked from a server that has imported all, in place of two that import it anew.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.support.warm"])
    forked = functools.partial(multiprocessing.start_processes, start_method="forkserver")
    monkeypatch.setattr(torch_processes, "spawn", forked)
    config = replace(cartpole_spec.QUICK, num_envs=3, batch_size=15, eval_every=20, capacity=103)
    result = torch_processes.main(config, 2, tmp_path / "curve.png")
    assert [row.iteration for row in result.rows] == [20, 40]
    assert np.isfinite([(row.loss, row.greedy_return) for row in result.rows]).all()
    assert 60 < result.stored <= 100, "25 of each of 4 lanes at most"
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
