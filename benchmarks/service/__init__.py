"""Buffers in processes of their own, on Ray: items and bytes a second, and how long single calls take."""
