"""Buffers that are larger than a device: how a buffer is dealt to shards, whatever carries data between them.

Nothing here knows JAX or torch. What a shard holds and what all of them know is in `deal`, what is asked of them in
`asked`, the draws of a shard among its own items in `local`, and what is read for others in `rows`.
"""
