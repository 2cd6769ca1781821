"""The array primitives of `torch_backend.ops`, with kernels for what is worth one."""

from __future__ import annotations

from functional_rb.ops.protocol import Native
from torch_backend import parts
from torch_backend.ops import all_rows as all_rows
from torch_backend.ops import arange as arange
from torch_backend.ops import argsort as argsort
from torch_backend.ops import bitcast as bitcast
from torch_backend.ops import call as call
from torch_backend.ops import cast as cast
from torch_backend.ops import concat as concat
from torch_backend.ops import constant as constant
from torch_backend.ops import count as count
from torch_backend.ops import cummax as cummax
from torch_backend.ops import cumsum as cumsum
from torch_backend.ops import floats as floats
from torch_backend.ops import full_like as full_like
from torch_backend.ops import maximum as maximum
from torch_backend.ops import minimum as minimum
from torch_backend.ops import moveaxis as moveaxis
from torch_backend.ops import mul_wide as mul_wide
from torch_backend.ops import searchsorted as searchsorted
from torch_backend.ops import set_at as set_at
from torch_backend.ops import set_flat as set_flat
from torch_backend.ops import stack as stack
from torch_backend.ops import take as take
from torch_backend.ops import where as where
from torch_backend.ops import zeros as zeros

native: Native | None = parts
