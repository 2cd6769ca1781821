"""The array primitives in which everything else is written: the protocol `Ops`, and NumPy's implementation of it.

Beside them exact fixed-point arithmetic and random bits over these primitives. A backend implements `protocol.Ops`
once; algorithms take it as their first argument and never ask which backend it is.
"""
