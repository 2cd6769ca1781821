"""Where tensors lie, for compiled code; see `functional_rb.cpu_kernels.addresses`."""

from __future__ import annotations

import torch

address = torch.Tensor.data_ptr
