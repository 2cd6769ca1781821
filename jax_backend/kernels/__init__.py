"""The library's kernels as XLA calls them."""
