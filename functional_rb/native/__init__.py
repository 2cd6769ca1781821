"""Twins of the core's functions for the CPU, compiled by numba.

XLA's CPU backend and torch's dispatcher spend most of their time on a replay buffer's small steps handing work
between threads and building views: one level of the sum tree costs them 20 to 70 us, the whole descent here less than
that. These twins do the same integer arithmetic and the same additions in the same order, so they return the same
bits; tests compare them with the core.

Nothing here is imported by `functional_rb` itself: backends do, and work without it where numba is missing.
"""
