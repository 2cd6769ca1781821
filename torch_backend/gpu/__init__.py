"""Kernels on GPUs: compiled where they are first needed, and called on torch's own stream and memory."""
