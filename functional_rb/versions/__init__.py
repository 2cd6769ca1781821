"""Values over memory that is written in place: an older version can be rebuilt from what a write overwrote.

See H. G. Baker, "Shallow binding makes functional arrays fast" (1991), and docs/internals.md. The engine serves
torch, and NumPy's arrays for the `Host()` and `Memmap()` storages on JAX.
"""
