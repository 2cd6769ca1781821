"""Reading a buffer from a training loop: `frb.iterate`, which prefetches, and `frb.Cell`, a state shared by threads.

`turns` gives waiting threads their turn in the order in which they came.
"""
