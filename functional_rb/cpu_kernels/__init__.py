"""Kernels for CPUs, compiled by numba: each equals a function of the core bit for bit, on the same random bits.

One module for a structure of `functional_rb.structures`; `fused` has whole functions of the buffer. Nothing else
imports numba, and whoever changes an algorithm of the core changes its kernel with it.
"""
