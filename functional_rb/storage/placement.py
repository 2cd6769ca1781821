"""Where the arrays of a memory belong: what `BufferSpec.storage` means for memory on the host."""

from __future__ import annotations

from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.storage import mapped
from functional_rb.storage.mapped import MappedFiles
from functional_rb.versions.memory import Memory


class Placement:
    """Where the memories of a lineage belong.

    Attributes:
        spec: of a buffer whose rows belong in mapped files, else None.
    """

    __slots__ = ("spec",)

    def __init__(self, spec: BufferSpec) -> None:
        self.spec = spec if isinstance(spec.storage, Memmap) else None

    def filed(self, memory: Memory) -> MappedFiles | None:
        """A copy, in files without a name, of what lies in files, or belongs there; None of all else."""
        if memory.files is not None:
            files: MappedFiles = memory.files.copy()
            return files
        if self.spec is None or not memory.is_ordinary:
            return None
        named = memory.by_name | memory.auxiliary
        return mapped.filled(self.spec, {name: memory.as_numpy(named[name]) for name in mapped.shapes(self.spec)})
