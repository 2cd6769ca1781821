"""Buffers dealt to the processes of a group."""
