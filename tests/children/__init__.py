"""Programs that tests run in processes of their own: `python -m tests.children.NAME`, see `support.children`."""
