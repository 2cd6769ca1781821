"""`rb.jit`, and what torch.compile sees as one operation."""
