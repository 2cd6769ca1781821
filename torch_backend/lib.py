"""What torch brings along: `LIB`, to which the public functions are bound."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from functional_rb.lib import Lib, add_library
from functional_rb.native.switch import HAVE_KERNELS
from torch_backend import dispatch, mixtures
from torch_backend.arrays import ops
from torch_backend.arrays.convert import from_numpy
from torch_backend.engines import carried, execute, restore, values
from torch_backend.memory.library import TORCH
from torch_backend.scale import engine as sharded

if HAVE_KERNELS:
    from torch_backend.kernels import cpu_kernels, custom_ops, launches, mixing
    from torch_backend.kernels.chain import CHAIN

    TORCH.chain, TORCH.kernels, TORCH.operations = CHAIN, cpu_kernels, custom_ops
    TORCH.on_gpu, TORCH.mixing = launches, mixing


def _as_array(x: object, like: torch.Tensor | None) -> torch.Tensor:
    if isinstance(x, torch.Tensor):
        return x
    if isinstance(x, np.ndarray):  # torch itself warns of read-only memory, and knows no bfloat16 of NumPy's
        x = from_numpy(x)
    return torch.as_tensor(x, device=None if like is None else like.device)


def _as_it_is(x: object) -> Any:
    return x


LIB: Final[Lib[torch.Tensor]] = Lib(
    name="torch_backend",
    array=torch.Tensor,
    shown="torch.Tensor",
    ops=ops,
    convert=execute.convert,
    as_array=_as_array,
    build_mapping=execute.build_mapping,
    unsupported=execute.unsupported,
    to_numpy=values.to_numpy,
    is_traced=values.is_traced,
    outline=values.outline,
    draw=values.draw,
    inside=values.inside,
    nearest=values.nearest,
    encoded=values.encoded,
    decoded=values.decoded,
    carry_out=carried.carry_out,
    engine=dispatch.of,
    engine_for=dispatch.for_spec,
    in_place=_as_it_is,
    mapper=execute,
    host=execute,
    mixtures=mixtures,
    sharded=sharded,
    elsewhere=restore.elsewhere,
    chain=TORCH.chain_now,
    around=_as_it_is,
)
add_library(LIB)
