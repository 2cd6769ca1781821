"""Kernels for CPUs, compiled by numba: each equals a function of the core bit for bit, on the same random bits.

One module for a structure of `functional_rb.structures`; `fused` has whole functions of the buffer. Nothing else
imports numba, and a change to an algorithm of the core is a change to its kernel too.
"""
