"""The array primitives of torch, its keys, devices, modes and conversions: what every other folder imports."""
