"""What samplers, writers and transforms see of a buffer: its plan, counters, handles, and a state in the making.

Here are also the protocols that strategies implement. Users who write a sampler import from here;
nothing here knows a particular strategy.
"""
