"""Buffers that are spread over several devices or machines; imported when they are used."""
