"""The comparisons of the report, and the ratio each of them is to reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from benchmarks import floor, ours
from benchmarks.contender import (
    AnySampler,
    Backend,
    Imaging,
    Mixing,
    Offline,
    Operation,
    Sampler,
    Searching,
    Sequencing,
)
from benchmarks.measure import Spread, Timings, ratios

Verdict = Literal["pass", "MISSED", "not run", ""]

CAT_FRAMES = "torchrl CatFrames"
TORCHRL_PLAIN = "torchrl plain"
DICT = "a dict's loop"
COPY = "a copy"
SHIFTS: Mapping[Backend, str] = {"torch": "DrQ's grid_sample", "jax": "vmap of dynamic_slice"}
KORNIA = "kornia's RandomCrop"
RESIZES: Mapping[Backend, str] = {"torch": "torch's interpolate", "jax": "jax.image.resize"}
BYTES, MINARI = "bytes by h5py", "minari"
COLD_BYTES, OURS_COLD = "bytes from the disk", "ours from the disk"
WRITTEN = "bytes read and written"
TENSORS = "plain tensors"
MIXERS: Mapping[Backend, str] = {"torch": "torchrl's ensemble", "jax": "flashbax's mixer"}
# Ours by each way of mixing.
OURS_MIXED: Mapping[str, Literal["exact", "items", "buffers"]] = {
    ours.NAME: "exact",
    "ours, by items": "items",
    "ours, by buffers": "buffers",
}

DATASETS_MAP, LOADER, OURS_UNIFORM = "datasets.map", "torchrl's loader", "ours uniform"
# Of the bytes of torchrl's padded tables, tokens may take so many.
LEAST_SHARE = 0.2


@dataclass(frozen=True)
class Comparison:
    """Time of `top` over time of `bottom`, and its bound; none is a figure for information."""

    backend: Backend
    sampler: AnySampler
    operation: Operation
    top: str
    bottom: str = ours.NAME
    at_least: float | None = None
    at_most: float | None = None

    @property
    def goal(self) -> str:
        """The bound, as the table prints it."""
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    def verdict(self, ratio: Spread | None) -> Verdict:
        """Whether the median ratio keeps within the bound."""
        if ratio is None:
            return "not run"
        if self.at_least is None and self.at_most is None:
            return ""
        low = self.at_least is None or ratio.median >= self.at_least
        high = self.at_most is None or ratio.median <= self.at_most
        return "pass" if low and high else "MISSED"


def comparisons() -> list[Comparison]:
    """Every comparison of the report, in its order."""
    table: list[Comparison] = []

    def peer(backend: Backend, sampler: Sampler, name: str, goals: Mapping[Operation, float | None]) -> None:
        for operation, bound in goals.items():
            table.append(Comparison(backend, sampler, operation, name, at_least=bound))

    peer("jax", "uniform", "flashbax", {"add": 1.5, "sample": 1.5, "step": None})
    peer("jax", "prioritized", "flashbax", {"add": 3.0, "sample": 2.5, "update": 1.5, "step": 3.0})
    peer("torch", "uniform", "torchrl", {"add": 8.0, "sample": 8.0, "step": None})
    peer("torch", "prioritized", "torchrl", {"add": 8.0, "sample": 8.0, "update": 8.0, "step": None})
    peer("torch", "uniform", "cpprb", {"add": 2.0, "sample": 2.0, "step": None})
    peer("torch", "prioritized", "cpprb", {"add": 2.0, "sample": 2.0, "update": 2.0, "step": None})
    in_place: dict[Sampler, tuple[Operation, ...]] = {
        "uniform": ("add", "sample"),
        "prioritized": ("add", "sample", "update"),
    }
    for sampler, operations in in_place.items():
        for operation in operations:
            bound = 1.5 if operation == "add" else None
            table.append(Comparison("torch", sampler, operation, ours.NAME, ours.IN_PLACE, at_most=bound))
    for backend in ("jax", "torch"):
        table.append(Comparison(backend, "uniform", "sample", ours.NAME, floor.NAME))
        table.append(Comparison(backend, "prioritized", "sample", ours.NAME, floor.NAME))
    return table


def gpu_comparisons() -> list[Comparison]:
    """Every comparison of the section on a GPU, in its order: cpprb does not run there."""
    table: list[Comparison] = []
    operations: dict[Sampler, tuple[Operation, ...]] = {
        "uniform": ("add", "sample"),
        "prioritized": ("add", "sample", "update"),
    }
    peers: dict[Backend, tuple[str, float]] = {"jax": ("flashbax", 2.0), "torch": ("torchrl", 3.0)}
    for backend, (name, bound) in peers.items():
        for sampler, timed in operations.items():
            table.extend(Comparison(backend, sampler, operation, name, at_least=bound) for operation in timed)
            table.append(Comparison(backend, sampler, "step", name))
            if backend == "torch":
                table.extend(Comparison("torch", sampler, each, ours.NAME, ours.IN_PLACE) for each in timed)
            table.append(Comparison(backend, sampler, "sample", ours.NAME, floor.NAME, at_most=2.0))
            table.extend(Comparison(backend, sampler, each, ours.NAME, floor.NOTHING) for each in timed)
    return table


def motion_comparisons() -> list[Comparison]:
    """Every comparison of the motions on a GPU, with tensors that a buffer is made of by hand."""
    pairs = [(TENSORS, ours.NAME), (TENSORS, ours.IN_PLACE)]
    operations: tuple[Operation, ...] = "add", "sample"
    return [Comparison("torch", "motions", each, top, bottom) for each in operations for top, bottom in pairs]


def image_comparisons() -> list[Comparison]:
    """Every comparison of the images on a GPU, with a copy of as many bytes there as come in or go out."""
    operations: tuple[Operation, ...] = "add", "sample"
    return [
        Comparison("torch", "images", each, name, COPY) for each in operations for name in (ours.NAME, ours.IN_PLACE)
    ]


def slice_comparisons() -> list[Comparison]:
    """Every comparison of the section `slices`, in its order; the bounds are for the workload's own capacity."""
    table: list[Comparison] = []

    def peer(backend: Backend, sampler: Sequencing, name: str, goals: Mapping[Operation, float | None]) -> None:
        for operation, bound in goals.items():
            table.append(Comparison(backend, sampler, operation, name, at_least=bound))

    peer("torch", "slices", "torchrl", {"add": None, "sample": 5.0})
    peer("torch", "prioritized slices", "torchrl", {"add": None, "sample": 10.0, "update": None})
    peer("torch", "slices without replacement", "torchrl", {"add": None, "sample": None})
    peer("torch", "without replacement", "torchrl", {"add": None, "sample": None})
    peer("jax", "window slices", "flashbax", {"add": None, "sample": None})
    peer("jax", "prioritized slices", "flashbax", {"add": None, "sample": None, "update": None})
    peer("jax", "queue", "flashbax", {"add": None, "sample": None})
    table.extend(
        Comparison(backend, sampler, "sample", ours.NAME, floor.NAME)
        for backend in get_args(Backend)
        for sampler in get_args(Sequencing)
        if sampler != "queue"  # there is no choice in it, so no gather either
    )
    return table


def n_step_comparisons(backend: Backend, *, lanes: int) -> list[Comparison]:
    """Every comparison of a group of the section `n_step`, in its order; they are for information."""

    def both(top: str, bottom: str = ours.NAME) -> list[Comparison]:
        # Work that one of them does in an add, another does in a sample: the step tells.
        return [Comparison(backend, "n-step", operation, top, bottom) for operation in ("add", "sample", "step")]

    table: list[Comparison] = []
    if backend == "torch":
        table += both("torchrl")
        table += both("torchrl", ours.AT_ADD)
        if lanes == 1:
            table += both("cpprb")
            table += both("cpprb", ours.AT_ADD)
    table += both(ours.NAME, ours.ONE_STEP)  # the price of the transform
    table += both(ours.AT_ADD, ours.ONE_STEP)
    table.append(Comparison(backend, "n-step", "sample", ours.NAME, floor.NAME))
    return table


def observation_comparisons(backend: Backend, sampler: AnySampler) -> list[Comparison]:
    """Every comparison of a group of the section `atari`, in its order."""

    def both(top: str) -> list[Comparison]:
        return [Comparison(backend, sampler, operation, top) for operation in ("add", "sample")]

    bound = 2.0 if sampler == "frames" else None
    table = [Comparison(backend, sampler, "sample", ours.NAME, floor.NAME, at_most=bound)]
    if sampler == "frames":
        table.append(Comparison(backend, sampler, "sample", ours.NAME, floor.DISTINCT))
    table += both(ours.PLAIN)
    if backend == "torch":
        peers = (TORCHRL_PLAIN, "cpprb") if sampler == "observations" else (CAT_FRAMES, TORCHRL_PLAIN, "cpprb")
        for peer in peers:
            table += both(peer)
        table.append(Comparison(backend, sampler, "sample", "cpprb", floor.NUMPY))
    return table


def spec_comparisons() -> list[Comparison]:
    """Every comparison of the section `specs`, in its order; a check of our own is to cost no more than a peer's."""
    values: tuple[Operation, ...] = ("rand", "contains", "project")
    table = [Comparison("torch", "specs", operation, "torchrl", at_least=1.0) for operation in values]
    table += [Comparison("torch", "specs", operation, "gymnasium") for operation in values[:2]]
    for backend in get_args(Backend):
        table.append(Comparison(backend, "specs", "rand", ours.NAME, floor.RANDOM))
    table += [Comparison("jax", "specs", operation, ours.NAME, ours.EAGER) for operation in values]
    for backend in get_args(Backend):
        table.append(Comparison(backend, "validate", "add", ours.VALIDATED, ours.NAME))
    table.append(Comparison("jax", "validate", "add", ours.EAGER_VALIDATED, ours.EAGER))
    return table


def tree_comparisons() -> list[Comparison]:
    """Every comparison of the section `trees`, in its order."""
    table = [Comparison(backend, "maps", "insert", DICT, at_least=1.0) for backend in get_args(Backend)]
    table.append(Comparison("torch", "forests", "extend", "torchrl", at_least=20.0))
    reading: tuple[Operation, ...] = ("tree", "paths", "vertices", "edges")
    table += [Comparison("torch", "reading", operation, "torchrl", at_least=50.0) for operation in reading]
    policies: tuple[Operation, ...] = ("muzero", "gumbel")
    table += [
        Comparison("jax", group, policy, "mctx", at_least=1.0) for group in get_args(Searching) for policy in policies
    ]
    return table


def item_comparisons() -> list[Comparison]:
    """Every comparison of the section `items`, in its order.

    A shift is to cost no more than as it is usually done, and a function that does nothing, compiled, nothing.
    """
    table: list[Comparison] = []
    for backend in get_args(Backend):
        for group in get_args(Imaging):
            if group == "nothing":
                table.append(Comparison(backend, group, "map", ours.PLAIN, at_least=0.9 if backend == "jax" else None))
                continue
            peer = (RESIZES if group == "resize" else SHIFTS)[backend]
            bound = None if (backend, group) == ("torch", "resize") else 1.0
            table.append(Comparison(backend, group, "map", peer, at_least=bound))
            if backend == "torch" and group != "resize":
                table.append(Comparison(backend, group, "map", KORNIA, at_least=1.0))
            table.append(Comparison(backend, group, "map", ours.NAME, COPY))
    return table


def mixture_comparisons() -> list[Comparison]:
    """Every comparison of the section `mixture`, in its order."""
    bounds: Mapping[Backend, float] = {"torch": 4.0, "jax": 1.5}
    return [
        Comparison(backend, group, "sample", MIXERS[backend], way, at_least=bounds[backend])
        for backend in get_args(Backend)
        for group in get_args(Mixing)
        for way in (OURS_MIXED if backend == "torch" else [ours.NAME])
    ]


def dataset_comparisons() -> list[Comparison]:
    """Every comparison of the section `datasets`, in its order."""
    table = [Comparison("torch", group, "convert", BYTES, at_least=0.5) for group in get_args(Offline)]
    table.append(Comparison("torch", "d4rl", "convert", COLD_BYTES, OURS_COLD, at_least=0.5))
    table.append(Comparison("torch", "d4rl", "convert", ours.NAME, WRITTEN))
    table += [Comparison("torch", group, "convert", "torchrl", at_least=3.0) for group in get_args(Offline)]
    table += [Comparison(backend, "minari", "sample", MINARI, at_least=3.0) for backend in get_args(Backend)]
    table += [Comparison("torch", group, "sample", "torchrl", at_least=3.0) for group in get_args(Offline)]
    return table


def text_comparisons() -> list[Comparison]:
    """Every comparison of the section `text`, in its order."""
    return [
        Comparison("torch", "tokenizing", "tokenize", DATASETS_MAP, at_least=1.0),
        Comparison("torch", "batches of texts", "sample", LOADER, at_least=5.0),
        Comparison("torch", "batches of texts", "sample", LOADER, OURS_UNIFORM),
    ]


def storage_comparisons(backend: Backend) -> list[Comparison]:
    """Every comparison of the section `storage` on one backend, in its order."""
    at_once = ours.IN_MEMORY
    table = [
        Comparison(backend, "memmap", "add", "torchrl"),
        Comparison(backend, "memmap", "sample", "torchrl", at_least=2.0),
        Comparison(backend, "memmap", "add", ours.NAME, at_once),
        Comparison(backend, "memmap", "sample", ours.NAME, at_once),
        Comparison(backend, "prefetch", "step", ours.NAME, ours.AHEAD),
    ]
    if backend == "torch":  # the files are the same ones
        table += [
            Comparison(backend, "checkpoint", "save", floor.FILE, at_least=0.8),
            Comparison(backend, "checkpoint", "load", floor.FILE, at_least=0.8),
            Comparison(backend, "checkpoint", "save", ours.NAME, ours.INCREMENTAL, at_least=20.0),
            Comparison(backend, "checkpoint", "save", "torchrl"),
            Comparison(backend, "checkpoint", "load", "torchrl"),
        ]
    table += [Comparison(backend, group, "step", "torchrl") for group in ("shared writer", "shared reader")]
    return table


def held_at_most(sampler: AnySampler, contender: str) -> float | None:
    """Bound of the bytes held over those of the items; none is a figure for information."""
    bounds: dict[AnySampler, float] = {"frames": 1 / 7, "observations": 1 / 2}
    return bounds.get(sampler) if contender == ours.NAME else None


def ratio_of(comparison: Comparison, timings: Timings) -> Spread | None:
    """Spread of the per-round ratios of one group's timings; none where one side did not run."""
    top = timings.get((comparison.top, comparison.operation))
    bottom = timings.get((comparison.bottom, comparison.operation))
    return ratios(top, bottom) if top and bottom else None
