"""Loading datasets by name: found or converted, and opened."""

from __future__ import annotations

import hashlib
import json
import os
import re
from types import ModuleType

from functional_rb.base.arrays import DeviceLike
from functional_rb.base.strict_json import Json
from functional_rb.buffer.state import State
from functional_rb.checkpoint.restoring import backend_name
from functional_rb.datasets.convert import Conversion, carry_out, conversion_of, planned
from functional_rb.datasets.description import is_dataset, read_description
from functional_rb.datasets.opening import opened
from functional_rb.datasets.reader import ROOT, folder_of, open_reader, split_name
from functional_rb.datasets.sources import facts_of
from functional_rb.samplers.base import SamplerBase

WHO = "datasets.load"


def load(
    name: str | os.PathLike[str],
    backend: ModuleType | str,
    *,
    root: str | os.PathLike[str] | None = None,
    sampler: SamplerBase | None = None,
    transforms: object = (),
    batch_size: int | None = None,
    device: DeviceLike = None,
    conversion: Conversion | None = None,
    **options: object,
) -> State:
    """A dataset as an immutable buffer of steps in TED, in mapped files.

    The first time it is converted, in bounded memory, under `root`; afterwards its files are mapped, by as many
    processes as wanted. Items cannot be added. Priorities can be updated, and by another writer (`rb.with_spec`) leaves
    that are not stored as frames be rewritten: that stays in this process, and the files are as they were.

    Args:
        name: the dataset's, with its prefix, "minari:D4RL/door/human-v2"; after the prefix there may be the path of its
            files. Or a converted dataset, as a `Dataset` or its directory.
        backend: `jax_backend` or `torch_backend`, or "jax" or "torch".
        root: the folder where datasets lie; by default what `FUNCTIONAL_RB_DATASETS` names, else
            `~/.cache/functional_rb/datasets`.
        sampler: how items are drawn, `frb.Uniform()` by default.
        transforms: what happens to what is sampled: `n_step`, `her`, `map_items`.
        batch_size: the default for `sample`.
        device: where samples go, as for `init`.
        conversion: which parts of the steps are stored, and in which form; each choice is converted once, and lies in
            a directory of its own.
        options: the options of the reader.

    Returns:
        A state, which samples, slices, sums n steps and mixes like any other.

    Raises:
        FileNotFoundError: if the dataset is not there.
        ImportError: for a library that a reader needs, naming the extra to install.
        StorageFullError: if there is no room to convert it; the next call resumes the conversion.
        ValueError: for files that are not as their format says, naming file, episode and field; for an unknown prefix,
            a sampler or a transform that does not fit.

    Example:
        >>> state = load("minari:D4RL/door/human-v2", rb, sampler=frb.Slices(16))  # doctest: +SKIP
    """
    named = backend_name(backend, WHO)
    how = conversion_of(conversion, WHO)
    anything: object = name  # users give anything
    if not isinstance(anything, str | os.PathLike):
        split_name(anything)  # which tells what a name is
    directory: str = os.fspath(name)
    if not is_dataset(directory):
        directory = prepare(directory, root, options, how)
    return opened(read_description(directory), named, sampler, transforms, batch_size, device)


def prepare(name: str, root: str | os.PathLike[str] | None, options: Json, conversion: Conversion) -> str:
    name, folder = absolute(name), folder_of(root, WHO)
    directory = place(folder, name, {**options, **conversion.choices()})
    if not is_dataset(directory):
        plan = planned(open_reader(name, folder, **options), directory, conversion, facts_of(name), WHO)
        carry_out(plan, f"what is converted is to lie there: give another root=, or set {ROOT}")
    return directory


def absolute(name: str) -> str:
    """A dataset's name; the path of files in it absolute, as it is kept."""
    prefix, rest = split_name(name)
    return f"{prefix}:{os.path.abspath(rest)}" if os.path.exists(rest) else name


def place(folder: str, name: str, options: Json) -> str:
    """The directory of a converted dataset: by its name, with a short checksum of all that makes its files differ.

    The name is as `absolute` gives it; the options are those of the reader, and of the conversion.
    """
    prefix, rest = split_name(name)
    # `repr` takes options of any kind, such as ranges and functions.
    key = json.dumps([rest, options], sort_keys=True, default=repr)
    # What is no letter, digit, dot or dash may mean something to a shell or to a file system.
    components = [re.sub(r"[^\w.-]+", "_", x) for x in rest.replace(os.sep, "/").split("/") if x]
    if any(set(x) <= {"."} for x in components):
        raise ValueError(f"{WHO}: expected a dataset's name, got {name!r}, which leads out of the folder of datasets")
    shown = "-".join(components[-3:])
    return os.path.join(folder, "converted", prefix, f"{shown}-{hashlib.sha256(key.encode()).hexdigest()[:8]}")
