"""Maps on torch: `rb.maps`."""

from __future__ import annotations

from typing import Any

import torch

from functional_rb.buffer.binding import documented_by
from functional_rb.maps import functions
from functional_rb.maps.functions import Inserted, Map
from torch_backend import carried
from torch_backend.binder import Binder

_binds = Binder(lambda _: carried)

init = _binds(functions.init)
insert = _binds(functions.insert)
with_spec = _binds(functions.with_spec)
lookup = _binds.array(functions.lookup)
count = _binds.array(functions.count)
size = _binds.array(functions.size)
refused = _binds.array(functions.refused)
keys = _binds(functions.keys)


@documented_by(functions.insert_)
def insert_(map: Map, keys: Any, mask: Any = None) -> tuple[Map, Inserted]:
    made = functions.insert_(carried, map, keys, mask)
    if not torch.compiler.is_compiling():
        object.__setattr__(map, "counters", None)  # its memory is the new map's
    return made
