"""The example of actors, shards and a learner, with all of them in one process."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))  # as for a program started from there

import ray_dqn
from cartpole_spec import QUICK


def test_quick_run(tmp_path: Path) -> None:
    config = replace(QUICK, iterations=20)
    score, tally = ray_dqn.main(config, local=True, checkpoint=str(tmp_path))
    assert np.isfinite(score)
    assert score > 0
    acted = (config.warmup + config.iterations) * ray_dqn.ACTORS
    assert tally.size == tally.inserted <= acted
    assert tally.inserted > 0.8 * acted
    assert tally.sampled == config.iterations * config.batch_size
    assert tally.stale == tally.lost == 0
    assert (np.array(tally.sizes) > 0).all()
