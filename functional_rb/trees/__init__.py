"""Trees as values: the search tree of a planner, forests of what was seen, and functions that read trees on the host.

A tree is an immutable pytree of arrays with pure functions, the same on JAX and on torch, as a buffer is.
"""
