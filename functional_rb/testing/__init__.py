"""Tests for buffers, and for a sampler, a writer or a transform of one's own: list models, strategies, conformance.

`check_sampler`, `check_writer` and `check_transform` are the conformance suite, `strategies` what property-based tests
draw from, `ListModel` a buffer in plain Python. Nothing in the library imports this package.
"""
