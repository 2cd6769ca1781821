"""Buffers in the host's memory, in NumPy's arrays: the engine below backends whose own arrays cannot be written to."""
