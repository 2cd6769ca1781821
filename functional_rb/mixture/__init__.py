"""Mixtures of buffers: several states that are drawn from as one.

`value` has the mixture, `layout` what its samples have in them, `shares` how much of a batch each of its buffers gives,
`drawing` how that is put together. `sampling` has `sample`, and `functions` the other functions of a mixture.
"""
