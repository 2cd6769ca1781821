"""Side-by-side measurements of functional_rb and its peers; run as `python -m benchmarks`."""
