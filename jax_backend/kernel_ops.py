"""The array primitives of `jax_backend.ops`, with kernels for what is worth one."""

from __future__ import annotations

from functional_rb.ops.protocol import Native
from jax_backend import parts
from jax_backend.ops import all_rows as all_rows
from jax_backend.ops import arange as arange
from jax_backend.ops import argsort as argsort
from jax_backend.ops import bitcast as bitcast
from jax_backend.ops import call as call
from jax_backend.ops import cast as cast
from jax_backend.ops import concat as concat
from jax_backend.ops import constant as constant
from jax_backend.ops import count as count
from jax_backend.ops import cummax as cummax
from jax_backend.ops import cumsum as cumsum
from jax_backend.ops import floats as floats
from jax_backend.ops import full_like as full_like
from jax_backend.ops import maximum as maximum
from jax_backend.ops import minimum as minimum
from jax_backend.ops import moveaxis as moveaxis
from jax_backend.ops import mul_wide as mul_wide
from jax_backend.ops import searchsorted as searchsorted
from jax_backend.ops import set_at as set_at
from jax_backend.ops import set_flat as set_flat
from jax_backend.ops import stack as stack
from jax_backend.ops import take as take
from jax_backend.ops import where as where
from jax_backend.ops import zeros as zeros

native: Native | None = parts
