"""Formats of files that datasets come in, read so that a file which means harm does none: no code, no bombs."""
