"""functional_rb: replay buffers as immutable values, written once for JAX and torch.

This package has the specs and the algorithms, and imports neither JAX nor torch. Use them through a backend:
`import jax_backend as rb` or `import torch_backend as rb`.

What is public is imported when it is first used. Type checkers read the same names in `__init__.pyi`.
"""

from functional_rb.base import lazy as _lazy

__version__ = "0.1.0"

_HOMES = {
    "functional_rb": (
        "checkpoint",
        "convert",
        "datasets",
        "items",
        "specs",
        "ted",
        "text",
        "trees",
    ),
    "functional_rb.base": ("errors",),
    "functional_rb.buffer.frame_dedup": ("Compact",),
    "functional_rb.buffer.spec": ("BufferSpec",),
    "functional_rb.buffer.state": ("State",),
    "functional_rb.buffer.storage_kinds": ("Device", "Host", "Memmap"),
    "functional_rb.checkpoint": ("load", "save"),
    "functional_rb.core.sample": ("Sample",),
    "functional_rb.hash_maps.spec": ("HashMapSpec",),
    "functional_rb.iteration.batches": ("Prefetch", "iterate"),
    "functional_rb.iteration.cell": ("Cell",),
    "functional_rb.mixture.value": ("Mixture",),
    "functional_rb.native.switch": ("kernels",),
    "functional_rb.scale": ("ray",),
    "functional_rb.schedules": ("Schedule",),
    "functional_rb.samplers": (
        "Groups",
        "InOrder",
        "Prioritized",
        "PrioritizedSlices",
        "Queue",
        "Recency",
        "Slices",
        "SlicesWithoutReplacement",
        "Staleness",
        "Uniform",
        "WithoutReplacement",
    ),
    "functional_rb.specs": ("Binary", "Bounded", "Categorical", "Composite", "Unbounded"),
    "functional_rb.transforms": ("her", "map_items", "n_step"),
    "functional_rb.writers": ("Immutable", "MaxValue", "Reservoir", "RoundRobin", "StopWhenFull"),
}
"""The public names, by the module that has them; those of this package are modules of their own."""

__all__ = sorted(name for names in _HOMES.values() for name in names)
__getattr__, __dir__ = _lazy.namespace(
    __name__,
    _HOMES,
    "functions of buffers and other values are those of a backend: import jax_backend as rb, or torch_backend as rb",
)
