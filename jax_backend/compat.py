"""What differs between the versions of JAX that this library runs on, and nothing else.

Each piece says from which version of JAX on it can be replaced by what JAX itself has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from functional_rb.base import extras
from functional_rb.base.arrays import BackendArray

# The oldest JAX that the tests run on, see docs/install.md.
OLDEST: Final = "0.6.1"

extras.check_version(extras.imported("jax", "jax_backend"), OLDEST, "jax_backend")

import jax  # noqa: E402  # one that is missing or too old has been refused
import jax.extend.core  # noqa: E402  # likewise after that
from jax import lax  # noqa: E402

# Whether buffers can be on a mesh with explicit axes: from JAX 0.7.2 on.
IS_EXPLICIT: Final = hasattr(jax.sharding, "use_abstract_mesh")
# What is said where this JAX is too old for something.
REFUSED: Final = () if IS_EXPLICIT else ("from JAX 0.7.2 on",)

# Whether JAX can name each way in which XLA divides what a program returns: 0.7 to 0.9 cannot, where that is along a
# part of an axis of a mesh, as six rows over two of four devices; 0.9 ends with an `IndivisibleError`.
IS_TOLD: Final = extras.is_version(jax, "0.10") or not extras.is_version(jax, "0.7")

# Tells what JAX does with what is called now, to be compared: the function is in `jax.extend` from JAX 0.10 on.
way_of_calls: Callable[[], object]
if hasattr(jax.extend.core, "get_opaque_trace_state"):
    way_of_calls = jax.extend.core.get_opaque_trace_state
else:
    way_of_calls = jax.core.get_opaque_trace_state


def on_each_change(of: Callable[[Callable[[bool], object]], None], now: bool) -> None:
    """Let a setting of the process be a part of what JAX finds traced and compiled functions by.

    JAX 0.10 has contexts of users for that, which 0.9 cannot set for the whole process. Before, what was traced is
    forgotten whenever the setting changes. `of` is given a function to call with each new value.
    """
    context: object = jax.make_user_context(now) if hasattr(jax, "make_user_context") else None
    if hasattr(context, "set_global"):
        of(context.set_global)
        return
    last = [now]

    def changed(value: bool) -> None:
        if value != last[0]:
            last[0] = value
            jax.clear_caches()

    of(changed)


def varying_axes(x: object) -> frozenset[str]:
    """The axes of a mesh along which an array of `jax.shard_map` varies: JAX 0.10 moved the field `vma`."""
    kind = jax.typeof(x)
    where = getattr(kind, "manual_axis_type", None)
    return frozenset(getattr(kind, "vma", None) or () if where is None else where.varying)


def in_shard_map() -> bool:
    """Whether something is traced for each device by itself; meshes tell their manual axes from JAX 0.7 on."""
    return bool(getattr(jax.sharding.get_abstract_mesh(), "manual_axes", ()))


def made_varying(x: jax.Array, axes: Sequence[str]) -> jax.Array:
    """An array that varies along further axes of a mesh: `lax.pcast` is there from JAX 0.8 on."""
    names = tuple(axes)
    library: Any = lax  # the type checker knows only the version that it finds installed
    varying: jax.Array = library.pcast(x, names, to="varying") if hasattr(lax, "pcast") else library.pvary(x, names)
    return varying


def explicit_axes(mesh: object) -> tuple[object, ...]:
    """The names of a mesh's explicit axes, of which JAX tells enough from 0.7.2 on: `jax.sharding.use_abstract_mesh`.

    Raises:
        NotImplementedError: for a mesh that has some, on an older JAX.
    """
    axes = tuple(getattr(mesh, "explicit_axes", ()))
    if axes and not IS_EXPLICIT:
        raise NotImplementedError(
            f"a mesh with explicit axes ({', '.join(map(str, axes))}): buffers are on such from JAX 0.7.2 on, and "
            f"{jax.__version__} is installed; make the mesh with axis_types=(AxisType.Auto, ...), or "
            f"{extras.newer('jax', '0.7.2')}"
        )
    return axes


def is_explicit(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> bool:
    """Whether all axes of a mesh are: `are_all_axes_explicit` is there from JAX 0.7.2 on."""
    return len(explicit_axes(mesh)) == len(mesh.axis_names)


def told(results: object, state: object, is_state: bool) -> Any:
    """What is computed of a state, so that JAX can name how XLA divides it; without `IS_TOLD` only.

    A new state stays divided as it was: there only what no axis of the mesh can divide is made whole on each device,
    else all.
    """
    meshes = [jax.typeof(x).sharding.mesh for x in jax.tree.leaves(state)]
    mesh = next((x for x in meshes if not x.empty), None)
    if mesh is None or in_shard_map():
        return results
    sizes = [size for size in mesh.axis_sizes if size > 1]
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def placed(x: object) -> object:
        if not isinstance(x, jax.Array) or (is_state and any(length % n == 0 for length in x.shape for n in sizes)):
            return x
        return lax.with_sharding_constraint(x, whole)

    return jax.tree.map(placed, results)


def enable_x64(on: bool) -> AbstractContextManager[None]:
    """Switch 64-bit dtypes on or off for a block: `jax.enable_x64` is there from JAX 0.8 on."""
    library: Any = jax  # the type checker knows only the version that it finds installed
    if not hasattr(library, "enable_x64"):
        from jax import experimental

        library = experimental
    context: AbstractContextManager[None] = library.enable_x64(on)
    return context


def shared(array: BackendArray) -> jax.Array:
    """An array of another library in the same memory: JAX 0.6 copies what is misaligned, and only logs that.

    Raises:
        ValueError: for memory that JAX cannot use where it is.
    """
    alias: jax.Array = jax.dlpack.from_dlpack(array, copy=False)
    if not alias.size:
        return alias
    address = array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data
    (device,) = alias.devices()
    if alias.unsafe_buffer_pointer() != address or not is_aligned(address, device.platform):
        raise ValueError("the memory is not aligned as JAX needs it")
    return alias


def is_aligned(address: int, platform: str) -> bool:
    """Whether programs of XLA can take memory: on a CPU JAX asks that itself, on a GPU they fail while they run."""
    return platform == "cpu" or address % 16 == 0


def tree_of(registry: object, node: tuple[object, object], children: Sequence[object]) -> Any:
    """The structure of a node and its children: JAX 0.7 renamed the function, and gave it a name before."""
    kind = jax.tree_util.PyTreeDef
    if hasattr(kind, "from_node_data_and_children"):
        return kind.from_node_data_and_children(registry, node, children)
    return kind.make_from_node_data_and_children(registry, node, children)
