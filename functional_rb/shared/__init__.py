"""Buffers that several processes write and sample at once: `Memmap(shared=True)`, by the protocol of docs/shared.md.

Everything lies in the mapped files of one directory (`files`, `lock`); `buffer` writes and reads them as
arrays of NumPy; `engine` is what backends bind to the public functions, `state` and `library` what they subclass.
"""
