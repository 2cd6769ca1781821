"""Maps on torch: `rb.maps`."""

from __future__ import annotations

from typing import Any

import torch

from functional_rb.buffer.api import documented_by
from functional_rb.maps import functions
from functional_rb.maps.functions import Inserted, Map
from functional_rb.maps.spec import MapSpec
from torch_backend import carried


@documented_by(functions.init)
def init(spec: MapSpec, device: Any = None) -> Map:
    return functions.init(carried, spec, device)


@documented_by(functions.insert)
def insert(map: Map, keys: Any, mask: Any = None) -> tuple[Map, Inserted]:
    return functions.insert(carried, map, keys, mask)


@documented_by(functions.insert_)
def insert_(map: Map, keys: Any, mask: Any = None) -> tuple[Map, Inserted]:
    made = functions.insert_(carried, map, keys, mask)
    if not torch.compiler.is_compiling():
        object.__setattr__(map, "counters", None)  # its memory is the new map's
    return made


@documented_by(functions.lookup)
def lookup(map: Map, keys: Any) -> torch.Tensor:
    ids: torch.Tensor = functions.lookup(carried, map, keys)
    return ids


@documented_by(functions.count)
def count(map: Map, keys: Any) -> torch.Tensor:
    counts: torch.Tensor = functions.count(carried, map, keys)
    return counts


@documented_by(functions.size)
def size(map: Map) -> torch.Tensor:
    number: torch.Tensor = functions.size(carried, map)
    return number


@documented_by(functions.refused)
def refused(map: Map) -> torch.Tensor:
    number: torch.Tensor = functions.refused(carried, map)
    return number


@documented_by(functions.keys)
def keys(map: Map) -> Any:
    return functions.keys(carried, map)
