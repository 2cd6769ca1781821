"""Mixtures of buffers: several states that are drawn from as one.

`value` has the mixture, `shares` how much of a batch each of its buffers gives, `drawing` how that is put together,
`functions` what the backends bind.
"""
