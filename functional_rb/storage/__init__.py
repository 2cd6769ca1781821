"""Where rows lie on disk: mapped files, their directory, undo logs, and which save a state comes from.

Nothing here knows checkpoints. File formats are versioned, and read for ever.
"""
