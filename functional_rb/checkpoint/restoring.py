"""What users load: states, nests and mixtures of a backend, made of what was read and verified."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import ModuleType

from functional_rb.base import lazy, nest
from functional_rb.base.arrays import DeviceLike, Nest
from functional_rb.base.description import Description
from functional_rb.base.errors import CheckpointError, CorruptCheckpointError
from functional_rb.base.files import as_path
from functional_rb.buffer import respec
from functional_rb.buffer.checks import check_spec
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Device, Storage
from functional_rb.checkpoint import in_place, mixtures, records
from functional_rb.checkpoint import manifest as manifests
from functional_rb.checkpoint.agreement import Group, agreed
from functional_rb.checkpoint.claims import spec_in
from functional_rb.checkpoint.listing import of_newest
from functional_rb.checkpoint.loading import USUAL, Content, LoadOptions, Wanted, read
from functional_rb.checkpoint.opened import read_manifest
from functional_rb.checkpoint.shards import Part
from functional_rb.sharding import regroup
from functional_rb.storage import elsewhere


def load(
    path: str | os.PathLike[str],
    backend: ModuleType | str,
    options: LoadOptions = USUAL,
    *,
    device: DeviceLike = None,
    storage: Storage | None = None,
    spec: Description | Sequence[object] | None = None,
    sharding: object = None,
) -> Nest:
    """The state, mixture or nest of the newest checkpoint in a directory. Nothing is run that the files contain.

    Going on from it is bit for bit as going on from the state that was saved, on either backend, unless it is given
    another spec.

    Args:
        path: a directory that `save` has written to.
        backend: `jax_backend` or `torch_backend`, or "jax" or "torch".
        options: how it is read, as `frb.checkpoint.LoadOptions(mmap=True)`, `LoadOptions(fall_back=True)`.
        device: where the state goes, as for `init`.
        storage: in place of the spec's, and needed where that is `Memmap` with the path of another directory: no path
            in a file is followed. Mapped files in this very directory are gone on with, without a copy, wherever
            the directory was when they were made; if this is None, and another state writes to them or nobody may,
            the checkpoint is read into memory (`Host()`).
        spec: another spec for the items, as `rb.with_spec(state, spec)` has it: sampler, writer, capacity. Into mapped
            files they go piece by piece, by way of others beside these, which nobody else sees. For a mixture one for
            each of its buffers, or None for those that stay as they are, as for `rb.with_spec(mixture, specs)`. For a
            hash map a `HashMapSpec`, for a forest a `ForestSpec`, too.
        sharding: to which shards the lanes, or slots, of a buffer are dealt, as for `init`, whether or not it was dealt
            before. All processes call `load` then, with the same directory, and each reads what it needs. Without it a
            buffer that was dealt is put together.

    Returns:
        A state of that backend; or the mixture or the nest that was saved, with arrays of the backend.

    Raises:
        FileNotFoundError: if there is none; it is a `CheckpointError` as well.
        CorruptCheckpointError: for a file that is cut, changed or gone, naming it.
        CheckpointError: for a checkpoint of a future format, a directory that cannot be read, too little memory.
        ValueError: for a spec that needs `known`, or whose files lay in another directory, or that names a device that
            is not here, naming the manifest; for an
            unknown backend, or a `spec` that would change items.
        OSError: for mapped files that cannot be made or written to, as from `init`.

    Example:
        >>> import tempfile
        >>> state = rb.add(rb.init(frb.BufferSpec((frb.Unbounded(()),), 4)), (1.0,))
        >>> with tempfile.TemporaryDirectory() as path:
        ...     done = frb.save(state, path)
        ...     print(int(rb.size(frb.load(path, rb))))
        1
    """
    directory = os.path.abspath(as_path(path, "load"))
    if not isinstance(options, LoadOptions):
        raise TypeError(f"load: expected options as frb.checkpoint.LoadOptions(...), got {options!r:.80}")
    if sharding is not None:
        if spec is not None and not isinstance(spec, BufferSpec):
            raise TypeError(f"load: spec: expected a BufferSpec, as a buffer is dealt, got {type(spec).__name__}")
        return _load_dealt(directory, backend, options, device, storage, spec, sharding)
    if isinstance(spec, BufferSpec) and mixtures.is_there(directory):
        raise ValueError("load: spec: a mixture has several buffers; give a list with one for each, or None")
    one = partial(_load, backend_name(backend), options, device, storage)
    return mixtures.loaded(directory, one, spec, options.fall_back)


def _load_dealt(
    directory: str,
    backend: ModuleType | str,
    options: LoadOptions,
    device: DeviceLike,
    storage: Storage | None,
    wanted: BufferSpec | None,
    sharding: object,
) -> Nest:
    # All processes have to load the same checkpoint: each reads the newest that it finds, and all go back to the oldest
    # of these until they agree.
    module = lazy.imported(f"{backend_name(backend)}_backend.scale.files")
    group: Group = module.group_of(sharding)
    if wanted is not None:
        check_spec(wanted, "load")
        wanted = wanted if storage is None else dataclasses.replace(wanted, storage=storage)
    shards = (group.shards, group.own)
    contents: list[Content] = []

    def attempt(before: int | None) -> tuple[int, str]:
        content = read(directory, options, Wanted(storage, wanted, own=shards, before=before))
        contents[:] = [_parts_for(content, wanted, storage, shards)]
        return content.generation, content.stamp

    limit = None
    while True:
        answers = agreed(group, "load", partial(attempt, limit))
        limit = min(number for number, _ in answers)
        if all(number == limit for number, _ in answers):
            break
    if len({stamp for _, stamp in answers}) > 1:
        raise CheckpointError(
            f"load: {directory}: checkpoint {limit} is another one in different processes; give a directory that "
            f"all of them share"
        )
    states: list[object] = []

    def restore() -> None:
        states[:] = [module.restore(contents[0], sharding, device)]

    agreed(group, "load", restore)
    return states[0]


def _parts_for(
    content: Content, wanted: BufferSpec | None, storage: Storage | None, shards: tuple[int, tuple[int, ...]]
) -> Content:
    if records.is_record(content.spec):
        raise ValueError("load: sharding: expected a checkpoint of a buffer, got one of a nest, or of a mixture")
    if content.parts is not None:
        return content
    spec, arrays = content.spec, content.arrays
    if content.of_shards and wanted is None and storage is not None:
        wanted = dataclasses.replace(spec, storage=storage)
    if wanted is not None and wanted != spec:
        arrays, _ = elsewhere.with_spec(arrays, spec, wanted, in_place.create)
        spec = wanted
    if spec.storage.on_host:
        raise ValueError(
            f"load: sharding: expected a buffer on devices, got storage={spec.storage}; give storage=frb.Device() too"
        )
    index, arrays_of_shards = regroup.of_whole(spec, arrays, *shards)
    parts = {k: Part(shard_arrays, None) for k, shard_arrays in arrays_of_shards.items()}
    return content._replace(spec=spec, arrays=index, parts=parts, stamp="")


def _load(
    named: str,
    options: LoadOptions,
    device: DeviceLike,
    storage: Storage | None,
    path: str,
    number: int | None,
    wanted: object,
) -> tuple[Nest, int]:
    if wanted is not None and not isinstance(wanted, BufferSpec):
        if not isinstance(wanted, Sequence | Description):
            raise TypeError(
                f"load: expected a BufferSpec as spec (of a hash map a HashMapSpec, of a forest a ForestSpec), or a "
                f"list with one for each buffer of a mixture, got {type(wanted).__name__}"
            )
        # A nest is loaded as it is. Its spec is given to it then; those of a mixture are for its buffers.
        value, generation = _load(named, options, device, storage, path, number, None)
        if isinstance(wanted, Description):
            if type(getattr(value, "spec", None)) is not type(wanted):
                raise ValueError(
                    f"load: spec: got a {type(wanted).__name__}, and what was saved is a {type(value).__name__}; leave "
                    f"it out, and give parts of it another spec by rb.with_spec"
                )
            value = importlib.import_module(f"{named}_backend").with_spec(value, wanted)
        elif not mixtures.is_record(value):
            raise ValueError(
                f"load: spec: expected one BufferSpec, as no mixture was saved, got {type(wanted).__name__}"
            )
        return value, generation
    module, spec = lazy.imported(f"{named}_backend.engines.restore"), wanted
    if spec is not None:
        check_spec(spec, "load")
        spec = spec if storage is None else dataclasses.replace(spec, storage=storage)
    content = read(path, options, Wanted(storage, spec, here=True, number=number))
    if content.of_shards and spec is None and storage is not None:
        spec = dataclasses.replace(content.spec, storage=storage)
    if records.is_record(content.spec):
        place = partial(module.placed, device=device)
        value = records.value_of(content.spec, content.arrays, place, module.build_mapping, options.mmap)
        return value, content.generation
    if spec is not None and not respec.same_place(content.spec, spec):
        arrays, files = elsewhere.with_spec(content.arrays, content.spec, spec, in_place.create)
        return module.restore(spec, arrays, device, objects=content.objects, files=files), content.generation
    try:
        with _explaining_device(content, path, device, storage):
            state = module.restore(
                content.spec,
                content.arrays,
                device,
                objects=content.objects,
                stamp=None if content.of_shards else content.stamp,
                files=content.files,
            )
        state = state if spec is None else importlib.import_module(f"{named}_backend").with_spec(state, spec)
        return state, content.generation
    except BaseException:
        if content.files is not None:
            content.files.release()
        raise


@contextlib.contextmanager
def _explaining_device(content: Content, path: str, device: DeviceLike, storage: Storage | None) -> Iterator[None]:
    # A checkpoint may name a device that this machine lacks; the error then names the manifest and a remedy.
    saved = content.spec.storage
    name = saved.device if isinstance(saved, Device) and device is None and storage is None else None
    try:
        if name is not None and name.partition(":")[0] == "meta":
            raise ValueError("it has no values")
        yield
    except ValueError as error:
        if name is None:
            raise
        manifest = os.path.join(path, manifests.name_of(content.generation))
        raise ValueError(
            f"{manifest}: the buffer is said to lie on the device {name!r}, where it cannot be: {error}; give "
            f"frb.load(..., device=...), or storage=frb.Device()"
        ) from error


def nest_at(directory: str, number: int) -> Nest:
    """The nest of one checkpoint, by its number, with arrays of NumPy; None of a state's, or of one that is damaged."""
    try:
        content = read(directory, wanted=Wanted(number=number))
    except (CorruptCheckpointError, OSError):
        return None
    if not records.is_record(content.spec):
        return None
    return records.value_of(content.spec, content.arrays, lambda array: array, nest.plain_mapping, mapped=False)


def load_spec(path: str | os.PathLike[str], known: Iterable[object] = ()) -> Nest:
    """What the newest checkpoint in a directory holds: shapes and dtypes, without reading any of its arrays.

    Args:
        path: a directory that `save` has written to.
        known: the user's classes and functions that the spec names, see `from_json`.

    Returns:
        Of a state its `BufferSpec`; of a mixture a `Mixture` with the specs of its buffers in their place, and that of
        `p` if it is an array; of a nest the specs of its arrays in the same containers. `rb.zeros` makes arrays of
        these, on torch also with `device="meta"`, on JAX also under `jax.eval_shape`.

    Raises:
        FileNotFoundError: if there is none; it is a `CheckpointError` as well.
        CorruptCheckpointError: for a manifest that is damaged, naming it.
        CheckpointError: for a checkpoint of a future format, or a directory that cannot be read.
        ValueError: for a spec that needs `known`, naming the manifest.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as path:
        ...     done = frb.save({"tokens": np.zeros((4, 8), np.int32)}, path)
        ...     frb.checkpoint.load_spec(path)
        Composite({'tokens': Unbounded((4, 8), 'int32')})
    """
    directory = os.path.abspath(as_path(path, "load_spec"))
    known = tuple(known)

    def attempt(generations: list[int]) -> Nest:
        try:
            return _spec_at(directory, generations[0], known)
        except (FileNotFoundError, CorruptCheckpointError):
            # Of a checkpoint that a save has removed this is a FileNotFoundError too.
            os.stat(os.path.join(directory, manifests.name_of(generations[0])))
            raise

    return of_newest(directory, attempt)


def _spec_at(directory: str, number: int, known: tuple[object, ...]) -> Nest:
    name = os.path.join(directory, manifests.name_of(number))
    manifest = read_manifest(directory, number)
    text = manifest.spec if manifest.shards is None else manifest.shards.spec  # of the whole buffer
    described = records.described(spec_in(text, known, name))
    if not mixtures.is_record(described):
        return described
    return mixtures.specs(described, nest_at(directory, number), directory, partial(_spec_at, known=known))


def backend_name(backend: ModuleType | str, who: str = "load") -> str:
    """The name "jax" or "torch" of a backend, which is given as its module or by this name."""
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", repr(backend))
    name = name.removesuffix("_backend")
    if name not in ("jax", "torch"):
        raise ValueError(f"{who}: backend: expected jax_backend or torch_backend, or 'jax' or 'torch', got {backend!r}")
    return name
