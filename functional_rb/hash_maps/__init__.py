"""Hash maps as values: which keys there are, in which order they came, and how often each did."""
