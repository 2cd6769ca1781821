"""The memory of torch's states, whose versions share it."""
