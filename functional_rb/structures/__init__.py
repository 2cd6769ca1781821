"""Data structures over `ops` that know no buffer: ring, row layout, sum tree, min tree, sparse set, and others.

Each module has one structure: pure functions from arrays to arrays, with every array's shape in its docstring.
They may be used alone; nothing here reads a spec or a state.
"""
