"""Functions of items beside what is usual: DrQ's random shift, images in another size, and a function of nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any, get_args

import numpy as np

import functional_rb as frb
from benchmarks import ours
from benchmarks.compare import Effort, Section, measure
from benchmarks.contender import AnySampler, Backend, Calls, Entry, Imaging
from benchmarks.goals import COPY, KORNIA, RESIZES, SHIFTS, item_comparisons
from benchmarks.group_report import markdown, who_did_not_run
from benchmarks.report import ratio_rows

GROUPS: tuple[tuple[Backend, Imaging], ...] = tuple((b, g) for b in get_args(Backend) for g in get_args(Imaging))


@dataclass(frozen=True)
class ImageWorkload:
    """How many images of which size.

    Attributes:
        batch: images.
        size: rows, columns, and channels of those that are shifted.
        pad: by how many pixels, at most.
        before, after: rows and columns of those that are resized, of three channels.
        stored: items of 40 float32 numbers in the buffer that a batch is drawn from by which nothing else is done.
        seed: of all random numbers.
    """

    batch: int = 256
    size: tuple[int, int, int] = (84, 84, 9)
    pad: int = 4
    before: tuple[int, int] = (105, 80)
    after: tuple[int, int] = (84, 84)
    stored: int = 10_000
    seed: int = 0


WORK = ImageWorkload()


def images(work: ImageWorkload, group: Imaging) -> np.ndarray[Any, Any]:
    """Random images: bytes to be shifted, with channels behind or in front; floats [C, H, W] to be resized."""
    rng, (rows, columns, count) = np.random.default_rng(work.seed), work.size
    if group == "resize":
        return rng.random((work.batch, 3, *work.before), np.float32)
    shape = (rows, columns, count) if group == "shift" else (count, rows, columns)
    return rng.integers(0, 256, (work.batch, *shape), np.uint8)


def roster(work: ImageWorkload, backend: Backend, group: Imaging) -> list[Entry]:
    """Everyone who takes part in one group."""
    if group == "nothing":
        both = {ours.NAME: frb.map_items(handed_on), ours.PLAIN: ()}
        return [Entry(name, backend, group, partial(drawn, name, work, backend, made)) for name, made in both.items()]
    peers = RESIZES if group == "resize" else SHIFTS
    of_peer = {
        ("torch", False): torch_shift,
        ("jax", False): jax_shift,
        ("torch", True): torch_resize,
        ("jax", True): jax_resize,
    }[backend, group == "resize"]
    builders: dict[str, Callable[..., Calls]] = {ours.NAME: of_ours, peers[backend]: of_peer}
    if backend == "torch" and group != "resize":
        builders[KORNIA] = kornia_shift
    builders[COPY] = of_copy
    return [Entry(name, backend, group, partial(build, name, work, backend, group)) for name, build in builders.items()]


def items(
    work: ImageWorkload,
    effort: Effort,
    *,
    groups: Iterable[tuple[Backend, Imaging]] = GROUPS,
    entries: Callable[[ImageWorkload, Backend, Imaging], list[Entry]] = roster,
    say: Callable[[str], None] = print,
) -> Section:
    """Measure one group after the other; who cannot run is named with the reason."""
    built: dict[tuple[Backend, AnySampler], Callable[[], list[Entry]]] = {
        (backend, group): partial(entries, work, backend, group) for backend, group in groups
    }
    return measure(built, item_comparisons(), effort, say=say)


def text(section: Section, work: ImageWorkload) -> str:
    """The section in Markdown: what was measured, ratios and medians, and who did not run."""
    rows, columns, count = work.size
    about = (
        f"{work.batch} images uint8 of {rows} x {columns} x {count} (`shift`), and with their channels in front "
        f"(`shift_front`), are shifted by up to {work.pad} pixels, each by its own; as many images float32 of 3 x "
        f"{work.before[0]} x {work.before[1]} become {work.after[0]} x {work.after[1]}, with antialiasing (`resize`). "
        f"{work.batch} items of 40 float32 numbers are drawn from {work.stored:,} (`nothing`)."
    )
    who = [
        f"- {ours.NAME}: `frb.items.random_shift` and `frb.items.resize`, with their random words",
        f"- {SHIFTS['torch']}: images as floats, padded by their edges, and sampled by a grid, as DrQ's code has it",
        f"- {KORNIA}: behind a `ReplicationPad2d`, as floats; `pip install kornia` brings it",
        f"- {SHIFTS['jax']}: images padded by their edges, and a slice of each, compiled",
        f"- {RESIZES['torch']}, {RESIZES['jax']}: with antialiasing, the latter compiled",
        f"- {COPY}: of the images, compiled on JAX",
        f"- of `nothing`, {ours.NAME}: with a function of items that hands them on; {ours.PLAIN}: without",
    ]
    times = "Time of `compared` over time of `against`, median and quartiles of the rounds' ratios:"
    return "\n".join([about, "", *who, "", times, "", *markdown(ratio_rows(section)), "", *who_did_not_run(section)])


def _calls(name: str, backend: Backend, group: Imaging, call: Callable[[], Any]) -> Calls:
    def finished() -> None:
        made = call()
        if backend == "jax":
            made.block_until_ready()

    return Calls(name, backend, group, {"map": finished})


def _on(work: ImageWorkload, backend: Backend, group: Imaging) -> Any:
    given = images(work, group)
    if backend == "jax":
        import jax.numpy as jnp

        return jnp.asarray(given)
    import torch

    return torch.from_numpy(given)


def of_ours(name: str, work: ImageWorkload, backend: Backend, group: Imaging) -> Calls:
    """What a sample goes through: the function with its words, on either backend."""
    resizes = group == "resize"
    function: Any = frb.items.resize(work.after) if resizes else frb.items.random_shift(work.pad)
    x, mapping = _on(work, backend, group), importlib.import_module(f"{backend}_backend.engines.mapping")
    rb = importlib.import_module(f"{backend}_backend")
    spec = frb.BufferSpec(
        {"x": frb.Unbounded(tuple(x.shape[1:]), "float32" if resizes else "uint8")},
        work.batch,
        transforms=frb.map_items(function),
    )
    key = None if resizes else rb.key(work.seed)
    return _calls(name, backend, group, lambda: mapping.map_items(spec, "sample", [x], (work.batch,), key, None)["x"])


def handed_on(items: Any) -> Any:
    """A function that does nothing."""
    return items


def drawn(name: str, work: ImageWorkload, backend: Backend, transforms: Any) -> Calls:
    """Samples as a user draws them, on JAX compiled."""
    rb = importlib.import_module(f"{backend}_backend")
    item = {"obs": frb.Unbounded((39,)), "reward": frb.Unbounded(())}
    rows = np.random.default_rng(work.seed).random((work.stored, 40), np.float32)
    spec = frb.BufferSpec(item, work.stored, transforms=transforms)
    state, sample = rb.init(spec, items={"obs": rows[:, 1:], "reward": rows[:, 0]}), rb.sample
    if backend == "jax":
        import jax

        sample = jax.jit(rb.sample, static_argnums=2)
    keys = cycle([rb.key(seed) for seed in range(64)])
    return _calls(name, backend, "nothing", lambda: sample(state, next(keys), work.batch)[1].items["obs"])


def of_copy(name: str, work: ImageWorkload, backend: Backend, group: Imaging) -> Calls:
    """The least that reads and writes as much."""
    x = _on(work, backend, group)
    if backend == "torch":
        return _calls(name, backend, group, x.clone)
    import jax

    copied = jax.jit(lambda x: x.copy())
    return _calls(name, backend, group, lambda: copied(x))


def torch_shift(name: str, work: ImageWorkload, backend: Backend, group: Imaging) -> Calls:
    """The shift of DrQ."""
    given = _on(work, backend, group)
    x = given.permute(0, 3, 1, 2) if group == "shift" else given
    return _calls(name, backend, group, lambda: grid_sampled(x, work.pad))


def grid_sampled(x: Any, pad: int) -> Any:
    """Images [N, C, H, W] shifted as by DrQ (Kostrikov, Yarats and Fergus, 2021): interpolated between grid places."""
    import torch
    import torch.nn.functional as F

    padded = F.pad(x.float(), (pad,) * 4, mode="replicate")
    n, _, rows, columns = padded.shape
    axes = [torch.linspace(-1 + 1 / m, 1 - 1 / m, m)[: m - 2 * pad] for m in (rows, columns)]
    base = torch.stack(torch.meshgrid(*axes, indexing="ij")[::-1], -1)
    moved = torch.randint(0, 2 * pad + 1, (n, 1, 1, 2)) * 2.0 / torch.tensor([columns, rows])
    return F.grid_sample(padded, base + moved, padding_mode="zeros", align_corners=False)


def kornia_shift(name: str, work: ImageWorkload, backend: Backend, group: Imaging) -> Calls:
    """The shift of DrQ's first code: kornia's crop of padded images, in the faster of its two ways."""
    import torch

    augmentation = importlib.import_module("kornia.augmentation")
    given = _on(work, backend, group)
    x = given.permute(0, 3, 1, 2) if group == "shift" else given
    crop = augmentation.RandomCrop(tuple(x.shape[2:]), cropping_mode="resample")
    return _calls(name, backend, group, lambda: crop(torch.nn.functional.pad(x.float(), (work.pad,) * 4, "replicate")))


def jax_shift(name: str, work: ImageWorkload, backend: Backend, group: Imaging) -> Calls:
    """The shift as JAX's users write it."""
    import jax

    x, key = _on(work, backend, group), jax.random.key(work.seed)
    compiled = jax.jit(partial(sliced, pad=work.pad, axes=(1, 2) if group == "shift" else (2, 3)))
    return _calls(name, backend, group, lambda: compiled(x, key))


def sliced(x: Any, key: Any, pad: int, axes: tuple[int, int]) -> Any:
    """Images padded along two axes, and a slice of each."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    padded = jnp.pad(x, [(pad, pad) if axis in axes else (0, 0) for axis in range(4)], mode="edge")
    corners = jax.random.randint(key, (x.shape[0], 2), 0, 2 * pad + 1)

    def cut(image: Any, corner: Any) -> Any:
        starts = [corner[axes.index(k)] if k in axes else jnp.int32(0) for k in (1, 2, 3)]
        return lax.dynamic_slice(image, starts, x.shape[1:])

    return jax.vmap(cut)(padded, corners)


def torch_resize(name: str, work: ImageWorkload, backend: Backend, group: Imaging) -> Calls:
    """Torch's own."""
    import torch.nn.functional as F

    x = _on(work, backend, group)
    return _calls(name, backend, group, lambda: F.interpolate(x, work.after, mode="bilinear", antialias=True))


def jax_resize(name: str, work: ImageWorkload, backend: Backend, group: Imaging) -> Calls:
    """JAX's own."""
    import jax

    x = _on(work, backend, group)
    resized = jax.jit(lambda x: jax.image.resize(x, (*x.shape[:2], *work.after), "linear"))
    return _calls(name, backend, group, lambda: resized(x))
