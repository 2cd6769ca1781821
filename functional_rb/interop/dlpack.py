"""Taking the other backend's arrays over without a copy, leaf by leaf, states included."""

from __future__ import annotations

from collections.abc import Callable

from functional_rb.base import nest
from functional_rb.base.arrays import BackendArray, Nest
from functional_rb.base.dtypes import shown
from functional_rb.base.nest import BuildMapping
from functional_rb.buffer.checks import check_together
from functional_rb.buffer.state import State
from functional_rb.ops.protocol import Array
from functional_rb.shared.state import SharedState

# Takes one array over: (its path as shown, the array) -> array of this backend.
TakeLeaf = Callable[[str, BackendArray], Array]


def take_over(
    tree: object, take_leaf: TakeLeaf, take_state: Callable[[State, TakeLeaf], State], build_mapping: BuildMapping
) -> Nest:
    """Take every array and every state of a nest over.

    `take_leaf` does so with an array, of which it gets the path too, for errors; `build_mapping` makes mappings.
    """
    leaves, structure = nest.flatten(tree, _is_leaf)
    taken: list[object] = []
    for path, leaf in zip(structure.paths, leaves, strict=True):
        name = nest.show(path) if path else "the array"
        if isinstance(leaf, State):
            leaf.check_alive()
            # Of a shared buffer a copy: its memory is written by others.
            state = leaf.detached() if isinstance(leaf, SharedState) else leaf
            taken.append(take_state(state, take_leaf))
        elif hasattr(leaf, "__dlpack__"):
            taken.append(take_leaf(name, leaf))
        else:
            raise TypeError(
                f"from_dlpack: leaf {name!r}: expected an array that has __dlpack__, got {type(leaf).__name__}; "
                f"leave such leaves out"
            )
    return nest.unflatten(structure, taken, build_mapping)


def _is_leaf(x: object) -> bool:
    return isinstance(x, State) or (hasattr(x, "__dlpack__") and not hasattr(x, "keys"))


def state_arrays(state: State, take_leaf: TakeLeaf) -> dict[str, BackendArray]:
    """The arrays of a state, taken over one by one, by field."""
    check_together(state, "from_dlpack")
    for k in state.spec.plan.objects:
        raise TypeError(
            f"from_dlpack: leaf {state.spec.plan.names[k]!r} of the state holds Python objects, which stay in their "
            f"process's memory and backend; leave the leaf out of BufferSpec.item, or bring single leaves over"
        )
    arrays = state.exported()
    return {
        "rows": take_leaf("state.rows", arrays.rows),
        "wide": tuple(take_leaf(f"state.wide[{k}]", array) for k, array in enumerate(arrays.wide)),
        "tree": None if arrays.tree is None else take_leaf("state.tree", arrays.tree),
        "counters": take_leaf("state.counters", arrays.counters),
        "auxiliary": {name: take_leaf(f"state.auxiliary[{name!r}]", array) for name, array in arrays.auxiliary.items()},
    }


def check_shareable(name: str, array: BackendArray) -> None:
    """Refuse what cannot be the same memory on both sides."""
    if getattr(array, "requires_grad", False):
        raise ValueError(
            f"from_dlpack: leaf {name!r} requires grad, and gradients do not cross; give leaf.detach(), or copy=True"
        )
    if (hasattr(array, "is_conj") and array.is_conj()) or (hasattr(array, "is_neg") and array.is_neg()):
        raise ValueError(
            f"from_dlpack: leaf {name!r} is a conjugation or negation that torch has put off; "
            f"give leaf.resolve_conj().resolve_neg(), or copy=True"
        )
    flags = getattr(array, "flags", None)
    compact = array.is_contiguous() if hasattr(array, "is_contiguous") else flags is None or flags.c_contiguous
    if not compact:
        raise ValueError(
            f"from_dlpack: leaf {name!r} of shape {tuple(array.shape)} is a strided view; "
            f"give leaf.contiguous(), or copy=True"
        )


def refusal(name: str, array: BackendArray, reason: object) -> ValueError:
    """The error for what an array library itself refuses, or has deleted."""
    try:
        device = getattr(array, "device", "cpu")
    except Exception:
        device = "unknown"
    why = str(reason).splitlines()[0] if str(reason) else type(reason).__name__
    return ValueError(
        f"from_dlpack: leaf {name!r} (dtype {shown(array.dtype)}, device {device}) cannot be shared: {why}; "
        f"give copy=True, or move it to a device that both sides have"
    )
