"""Maps on JAX: `rb.maps`."""

from __future__ import annotations

from typing import Any

import jax

from functional_rb.buffer.api import documented_by
from functional_rb.maps import functions
from functional_rb.maps.functions import Inserted, Map
from functional_rb.maps.spec import MapSpec
from jax_backend import carried, rules


@rules.transfers
@documented_by(functions.init)
def init(spec: MapSpec, device: Any = None) -> Map:
    return functions.init(carried, spec, device)


@rules.transfers
@documented_by(functions.insert)
def insert(map: Map, keys: Any, mask: Any = None) -> tuple[Map, Inserted]:
    return functions.insert(carried, map, keys, mask)


@rules.transfers
@documented_by(functions.insert_)
def insert_(map: Map, keys: Any, mask: Any = None) -> tuple[Map, Inserted]:
    return functions.insert_(carried, map, keys, mask)


@rules.transfers
@documented_by(functions.lookup)
def lookup(map: Map, keys: Any) -> jax.Array:
    ids: jax.Array = functions.lookup(carried, map, keys)
    return ids


@rules.transfers
@documented_by(functions.count)
def count(map: Map, keys: Any) -> jax.Array:
    counts: jax.Array = functions.count(carried, map, keys)
    return counts


@rules.transfers
@documented_by(functions.size)
def size(map: Map) -> jax.Array:
    number: jax.Array = functions.size(carried, map)
    return number


@rules.transfers
@documented_by(functions.refused)
def refused(map: Map) -> jax.Array:
    number: jax.Array = functions.refused(carried, map)
    return number


@rules.transfers
@documented_by(functions.keys)
def keys(map: Map) -> Any:
    return functions.keys(carried, map)
