"""Where tensors lie, for compiled code; see `functional_rb.native.addresses`."""

from __future__ import annotations

import torch

address = torch.Tensor.data_ptr
