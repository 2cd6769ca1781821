"""torchrl's own conversions of Minari's and D4RL's files, of local files in place of those that it downloads."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from pathlib import Path
from typing import Any
from unittest import mock

from torchrl.data.datasets import D4RLExperienceReplay, MinariExperienceReplay, d4rl
from torchrl.data.replay_buffers.samplers import SliceSampler

logging.getLogger("torchrl").setLevel(logging.ERROR)


def made(source: str, root: Path, drawn: int, length: int) -> Any:
    """A buffer of a dataset, whose files lie below a folder; it draws so many slices.

    Args:
        source: the dataset's name, as ours is asked for it: a prefix, and the path of its files.
        root: the folder.
        drawn: slices of a sample.
        length: steps of a slice.
    """
    prefix, _, path = source.partition(":")
    common: dict[str, Any] = {"batch_size": drawn * length, "root": root}
    if prefix == "d4rl":
        name = os.path.basename(path)
        # Instead of fetching it, have it read the file where it lies.
        with (
            mock.patch.dict(d4rl.D4RL_DATASETS, {name: path}),
            mock.patch.object(d4rl, "_download_dataset_from_url", lambda url, folder: url),
            mock.patch.dict(os.environ),  # it sets D4RL_DATASET_DIR
        ):
            sampler = SliceSampler(num_slices=drawn, end_key=("next", "done"), cache_values=True)
            return D4RLExperienceReplay(name, direct_download=True, from_env=False, sampler=sampler, **common)
    folder = Path(path)
    name = "/".join(folder.parts[-2:])
    silent = contextlib.redirect_stderr(io.StringIO())  # of its progress bar
    with mock.patch.dict(os.environ, {"MINARI_DATASETS_PATH": str(folder.parent.parent)}), silent:
        sampler = SliceSampler(num_slices=drawn, traj_key="episode", cache_values=True)
        return MinariExperienceReplay(name, load_from_local_minari=True, sampler=sampler, **common)
