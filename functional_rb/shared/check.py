"""Which buffers can be shared among processes."""

from __future__ import annotations

import dataclasses
import importlib.util

from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.storage.directory import need_posix


def is_shared(spec: BufferSpec) -> bool:
    """Whether a spec asks for a shared buffer."""
    return isinstance(spec.storage, Memmap) and spec.storage.shared


def check_agreed(old: BufferSpec, new: BufferSpec) -> None:
    """Refuse another spec of a buffer by which other processes go.

    Raises:
        ValueError: with the remedy, for more than another batch size.
    """
    if dataclasses.replace(old, batch_size=new.batch_size) != new:
        raise ValueError(
            "with_spec: other processes go by the spec of this shared buffer, so only its batch_size can be another "
            "here; storage=frb.Device() takes a copy of this moment, and frb.Memmap(another_path, shared=True) another "
            "buffer of it"
        )


def check_spec(spec: BufferSpec) -> None:
    """Refuse a spec of which no shared buffer can be made.

    Raises:
        ValueError: naming the field, and what to write instead.
        ImportError: where numba is missing.
    """
    instead = "write frb.Memmap(shared=False), or"
    if spec.lanes is not None:
        raise ValueError(
            f"Memmap(shared=True): expected lanes=None, got {spec.lanes}, as writers do not step together; {instead} "
            f"add the items of all environments as one batch"
        )
    if not spec.sampler.fused:
        raise ValueError(
            f"Memmap(shared=True): expected the sampler frb.Uniform() or frb.Prioritized(), without limits and with "
            f"replacement, got {spec.sampler}; {instead} one of these"
        )
    if not spec.writer.fused:
        raise ValueError(f"Memmap(shared=True): expected the writer frb.RoundRobin(), got {spec.writer}; {instead} it")
    if spec.transforms:
        raise ValueError(
            f"Memmap(shared=True): expected no transforms, got {spec.transforms}; {instead} transform before adding"
        )
    if spec.compact is not None:
        raise ValueError(f"Memmap(shared=True): expected compact=None, got {spec.compact}; {instead} leave it out")
    need_posix()
    if importlib.util.find_spec("numba") is None:
        raise ImportError(
            "Memmap(shared=True): its protocol is compiled by numba, which is missing; "
            "pip install 'functional-rb[torch]' or 'functional-rb[jax]'"
        )
