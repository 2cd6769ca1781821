"""Buffers that several processes write and sample at once: `Memmap(shared=True)`.

Everything lies in mapped files of one directory: rows, sum tree, counters, and a journal of the write under way. One
lock, which the kernel releases when its holder dies, serves all writers; readers take none. docs/shared.md has the
protocol, step by step.
"""
