"""functional_rb: replay buffers as immutable values, written once for JAX and torch.

This package has the specs and the algorithms, and imports neither JAX nor torch. Use them through a backend:
`import jax_backend as rb` or `import torch_backend as rb`.
"""

from functional_rb.buffer_spec import BufferSpec, spec_of
from functional_rb.samplers import Prioritized, Uniform
from functional_rb.specs import ArraySpec, Binary, Bounded, Composite, Domain, Unbounded
from functional_rb.state import Sample, State
from functional_rb.writers import RoundRobin

__version__ = "0.1.0"

__all__ = [
    "ArraySpec",
    "Binary",
    "Bounded",
    "BufferSpec",
    "Composite",
    "Domain",
    "Prioritized",
    "RoundRobin",
    "Sample",
    "State",
    "Unbounded",
    "Uniform",
    "spec_of",
]
