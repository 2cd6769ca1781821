"""The array primitives of JAX, its keys, devices and conversions: what every other folder imports."""
