"""The buffer's contract: `BufferSpec`, `State`, the pure functions, their checks, and their public signatures.

`functions` has the algorithms over `ops`; `checks` refuses bad input before any array is touched; `api` has what
users read. The backends bind these and add nothing to their meaning.
"""
