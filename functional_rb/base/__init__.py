"""What anything may import: dtypes, errors, nests, containers, Python objects as leaves, files.

Nothing here knows of specs or buffers. All of it is internal; `functional_rb` exports the few names that users need.
"""
