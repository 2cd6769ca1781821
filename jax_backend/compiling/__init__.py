"""What JAX traces and compiles, and `rb.jit`."""
