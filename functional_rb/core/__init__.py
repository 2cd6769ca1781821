"""What samplers, writers and transforms see of a buffer: its plan, counters, handles, and a state in the making.

Here are also the protocols that strategies implement. Who writes a sampler of their own imports from here;
nothing here knows a particular strategy.
"""
