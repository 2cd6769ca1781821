"""How states leave the library and come back: DLPack between backends, and state dicts.

Both name arrays by the paths of their leaves, never by their order.
"""
