"""The comparison with peers where every contender's buffer lies on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from benchmarks import floor, ours
from benchmarks.compare import Section
from benchmarks.contender import Backend
from benchmarks.group_report import ratios_text
from benchmarks.workload import ITEM_BYTES, Workload


def seen() -> dict[Backend, str]:
    """The backends that see a GPU here, each with the GPU's name."""
    found: dict[Backend, str] = {}
    with contextlib.suppress(ImportError, RuntimeError):
        import jax

        found["jax"] = jax.devices("gpu")[0].device_kind
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            found["torch"] = torch.cuda.get_device_name()
    return found


def text(gpus: Mapping[Backend, str], section: Section, work: Workload) -> str:
    """The section in Markdown: what was measured, where, ratios and medians, and who did not run."""
    where = "; ".join(f"{backend}: {name}" for backend, name in gpus.items())
    about = (
        f"Every buffer lies on the GPU ({where}) and holds {work.capacity:,} items of {ITEM_BYTES} bytes; "
        f"{work.add_size} are added, {work.sample_size} drawn and updated at a time. A call has ended when the GPU has "
        f"done its work."
    )
    who = f"""\
- ours: on JAX jitted, the state donated; on torch eager; {ours.IN_PLACE}: `add_`, `sample_` and `update_`
- flashbax, torchrl: with their buffers on the GPU
- {floor.NAME}: of as many rows, without any buffer around it"""
    return ratios_text(about, who, section)
