"""Buffers dealt to the devices of a mesh."""
