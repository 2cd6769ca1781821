"""Buffers over several machines: shards that know of each other by what they were told last, and queues of others.

Shards in processes of Ray and their clients are in `ray`, samplers for TransferQueue and verl in the other modules.
"""
