"""Functions of items."""
