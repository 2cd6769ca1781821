"""A state as a flat dict of named arrays, for the checkpoints of others; the same names on both backends.

    rows             int32 [capacity, words], the packed leaves
    wide_0, ...      [capacity, *shape], the leaves that are not packed, bfloat16 as uint16
    tree             float32 [rows, FANOUT], of samplers that have a sum tree
    kept_<name>      what else sampler, writer and compact storage keep
    counters         int32 [n], cursors, sizes and counts
    spec             the `BufferSpec` as JSON text (on JAX its UTF-8 bytes, uint8 [n], as pytrees have no texts)

An array without elements is left out.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import BackendArray, NumpyArray
from functional_rb.buffer import soundness
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.convert.json import VERSION, to_json
from functional_rb.core import counters
from functional_rb.core.draft import Arrays, HasArrays, by_name
from functional_rb.core.plan import Plan
from functional_rb.mixture.value import Mixture
from functional_rb.ops.protocol import Array
from functional_rb.shared.state import SharedState
from functional_rb.storage.directory import filed
from functional_rb.structures import stored_arrays
from functional_rb.structures.stored_arrays import auxiliary_name

SPEC, MIXTURE = "spec", "mixture"
Values = NumpyArray


def planned_shapes(spec: BufferSpec) -> stored_arrays.Shapes:
    """The shape and dtype of every array of a state, by name, those without elements too."""
    planned = stored_arrays.shapes(spec.plan.layout, spec.capacity)
    if spec.plan.tree_shape is not None:
        planned["tree"] = spec.plan.tree_shape, "float32"
    for name, auxiliary in spec.plan.auxiliary.items():
        planned[auxiliary_name(name)] = auxiliary.shape, auxiliary.dtype
    planned["counters"] = (counters.length(spec.plan),), "int32"
    return planned


def named(arrays: HasArrays, plan: Plan) -> dict[str, BackendArray]:
    """The arrays by name, but for those without elements."""
    return {name: array for name, array in by_name(arrays, plan).items() if 0 not in array.shape}


def check_whole(state: object, function: str) -> None:
    """Refuse a handle of a buffer that processes share: it is no value."""
    if isinstance(state, SharedState):
        raise TypeError(
            f"{function}: other processes write to a shared buffer meanwhile; take a copy of it, "
            f"rb.from_dlpack(state, copy=True)"
        )


def text_of(spec: BufferSpec) -> str:
    """The spec as JSON. Python objects are refused, and what has no name of its own."""
    for k in spec.plan.objects:
        raise TypeError(
            f"state_dict: leaf {spec.plan.names[k]!r} holds Python objects, which are no arrays and would need pickle; "
            f"leave the leaf out of BufferSpec.item"
        )
    return to_json(spec)


def as_arrays(
    spec: BufferSpec, arrays: object, take: Callable[[str, object], Array], look: Callable[[str, object], Values]
) -> Arrays:
    """The arrays of a state out of a dict that `state_dict` made, of either backend, once all is known to fit.

    `take` makes an array of the backend from a given one and its name. `look` gives the values of one in NumPy, which
    are only read; or raises where there are none.
    """
    if not isinstance(arrays, Mapping):
        raise TypeError(f"load_state_dict: expected a dict from rb.state_dict, got {type(arrays).__name__}")
    _check_spec(spec, arrays.get(SPEC))
    # Arrays without elements are left out of the dict, as some checkpoints cannot have them.
    planned = planned_shapes(spec)
    needed = [name for name, (shape, _) in planned.items() if 0 not in shape]
    extra = [name for name in arrays if name not in planned and name != SPEC]
    missing = [name for name in needed if name not in arrays]
    if extra or missing:
        raise ValueError(
            f"load_state_dict: expected the names {[*needed, SPEC]}, got {list(arrays)} "
            f"(missing {missing}, not known {extra}); give the dict as rb.state_dict made it"
        )
    for name in needed:
        _check_array(name, arrays[name], *planned[name])
    _check_values(spec, {name: arrays[name] for name in needed}, look)
    blank = {name: np.zeros(shape, dtype) for name, (shape, dtype) in planned.items() if 0 in shape}
    whole = {name: blank[name] if name in blank else arrays[name] for name in planned}
    return Arrays.of_names(spec.plan, {name: take(name, array) for name, array in whole.items()})


def _check_array(name: str, array: object, shape: tuple[int, ...], dtype: str) -> None:
    if not (hasattr(array, "shape") and hasattr(array, "dtype")):
        raise TypeError(
            f"load_state_dict: {name!r}: expected an array {dtype} {list(shape)}, got {type(array).__name__}"
        )
    if tuple(array.shape) != shape:
        raise ValueError(
            f"load_state_dict: {name!r}: expected the shape {list(shape)}, got {list(array.shape)}; "
            f"give the dict as rb.state_dict made it"
        )
    if dtypes.shown(array.dtype) != dtype:
        raise TypeError(
            f"load_state_dict: {name!r}: expected dtype {dtype}, got {dtypes.shown(array.dtype)}; "
            f"restore it without casting"
        )


def _check_values(spec: BufferSpec, arrays: Mapping[str, object], look: Callable[[str, object], Values]) -> None:
    # Refuse what would draw items that are not there, or reach beyond arrays; what items hold is not looked at.
    vector = look("counters", arrays["counters"])
    _expect_sound("counters", soundness.problem_of_counters(spec.plan, vector))
    tree = None if "tree" not in arrays else look("tree", arrays["tree"])
    # Frames are content, as rows are.
    names = [name for name in spec.plan.auxiliary if auxiliary_name(name) in arrays and name not in filed(spec)]
    auxiliary = {name: look(auxiliary_name(name), arrays[auxiliary_name(name)]) for name in names}
    _expect_sound("what is kept", soundness.problem_of_arrays(spec, vector, auxiliary, tree))
    if tree is not None:
        _expect_sound("tree", soundness.problem_of_nodes(tree, spec.capacity))


def of_mixture(
    mixture: Mixture, one: Callable[[State | Mixture], Mapping[str, object]], text: Callable[[str], object]
) -> dict[str, object]:
    """The dicts of a mixture's buffers, named "0", "1" and so on, and how they are mixed, named "mixture" and "p".

    `one` makes the dict of one of them; `text` is how the dicts of a backend hold a text.
    """
    named: dict[str, object] = {str(k): one(state) for k, state in enumerate(mixture.states)}
    named[MIXTURE] = text(json.dumps(dataclasses.asdict(mixture.spec)))
    return named if mixture.p is None else named | {"p": mixture.p}


def mixture_of(
    target: Mixture,
    dicts: object,
    one: Callable[[State | Mixture, object], State | Mixture],
    take: Callable[[str, object], Array],
) -> Mixture:
    """The mixture that such a dict tells; the target is one of the same kind, of buffers of the same specs.

    `one` makes a state of one of the targets and its dict; `take` makes an array from a given one and its name.
    """
    if not isinstance(dicts, Mapping):
        raise TypeError(f"load_state_dict: expected a dict from rb.state_dict, got {type(dicts).__name__}")
    needed = [*(str(k) for k in range(len(target))), MIXTURE, *(() if target.p is None else ("p",))]
    if set(dicts) != set(needed):
        raise ValueError(
            f"load_state_dict: expected the names {needed} of a mixture of {len(target)} buffers, got {list(dicts)}"
        )
    info = dicts[MIXTURE]
    try:
        kind = json.loads(info if isinstance(info, (str, bytes)) else np.asarray(info).tobytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"load_state_dict: {MIXTURE!r}: expected how buffers are mixed as JSON, got {error}") from None
    wanted = json.loads(json.dumps(dataclasses.asdict(target.spec)))
    if kind != wanted:
        raise ValueError(f"load_state_dict: expected a mixture of the kind {wanted}, got {kind}; give one of that kind")
    p = None if target.p is None else take("p", dicts["p"])
    states = [one(state, dicts[str(k)]) for k, state in enumerate(target.states)]
    mixture = Mixture(tuple(states), p, spec=target.spec)
    try:
        mixture.check()
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"load_state_dict: 'p': expected the shares of {len(target)} buffers, but {error}; the dict was damaged or "
            f"made by hand, give it as rb.state_dict made it"
        ) from None
    return mixture


def _expect_sound(name: str, problem: str | None) -> None:
    if problem is not None:
        raise ValueError(
            f"load_state_dict: {name!r}: expected what a buffer of this spec can hold, but {problem}; the dict was "
            f"damaged or made by hand, give it as rb.state_dict made it"
        )


def _check_spec(spec: BufferSpec, info: object) -> None:
    # Refuse what was made of another spec; where the rows lie, and the order of names, make none of it.
    if info is None:
        raise ValueError(
            f"load_state_dict: the entry {SPEC!r} is missing, which tells what the arrays mean; "
            f"give the dict as rb.state_dict made it"
        )
    if not isinstance(info, (str, bytes)):
        info = np.asarray(info).tobytes()
    try:
        saved = _members(info)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"load_state_dict: {SPEC!r}: expected the JSON of a BufferSpec, got {error}") from None
    wanted = _members(to_json(spec))
    for name in [*wanted, *saved]:
        # As texts, which tell numbers and truth values apart.
        here, there = (json.dumps(members.get(name), sort_keys=True) for members in (wanted, saved))
        if here != there and name != "storage":
            raise ValueError(
                f"load_state_dict: the state was of another spec: expected {name} {here}, got {there}; "
                f"make the state's own by frb.convert.from_json(...[{SPEC!r}])"
            )


def _members(text: str | bytes) -> dict[str, object]:
    # The arguments of a spec as its JSON has them; that of another version is none.
    whole = json.loads(text)
    if whole["version"] != VERSION:
        raise ValueError(f"version {whole['version']!r}; read it with the version of functional_rb that wrote it")
    return dict(whole["spec"])
