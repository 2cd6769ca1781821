"""The public functions on buffers, each of which finds out what its state is: see `functional_rb.lib`."""
