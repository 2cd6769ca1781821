"""Kernels as operations of torch: a program that torch.compile makes calls the same ones as eager functions do.

Every kernel that is declared (`functional_rb.native.kernels`) is an operation `functional_rb::<its handler>`: of
operands that are changed in place, of the others, and of what records and shapes say. So a program holds
all that its calls need, in whichever process it runs.

torch.compile sees a call as one function of tensors, by a number for all that is static. The declaration is evaluated
behind it, in plain Python, where sizes may be symbols.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from functional_rb import _native
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.description import REMEMBERED, Description
from functional_rb.base.tracing import constant
from functional_rb.buffer import functions
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.frame_store import FramePlan
from functional_rb.core.strategy import Selection
from functional_rb.native import gpu
from functional_rb.native import launches as declared
from functional_rb.native.kernels import DECLARED, WHOLE, Declaration, Kernel, Made, fill_draws
from functional_rb.ops.part_kernels import Table
from functional_rb.structures.episode_windows import Entries, Slices
from functional_rb.structures.hash_map import HashTable
from functional_rb.structures.ring import Removal, RingState
from functional_rb.structures.sparse_set import SparseSet
from functional_rb.transforms.step_queue import Line
from torch_backend.arrays import ops, random
from torch_backend.kernels import launches
from torch_backend.kernels.chain import CHAIN

# Draws that are remembered in arrays, which they change: of items, and of slices.
KEEPING: Final = {"draw_and_keep": 6, "draw_slices_and_keep": 9}
# What launches do, too, and what they alone do.
LAUNCHED: Final = ("add", "add_to_rings", "draw", "update", "update_priorities", "read_drawn", *KEEPING)
# The kernels that change operands in place, and how many arrays each makes: torch asks for both in advance.
CHANGING: Final = {
    **KEEPING,
    "add": 1,
    "add_to_rings": 1,
    "update": 1,
    "update_priorities": 1,
    "set_leaves": 0,
    "store": 0,
    "map_insert": 2,
}
LIBRARY: Final = torch.library.Library("functional_rb", "FRAGMENT")


# --- operations -------------------------------------------------------------------------------------------------------


class Form(NamedTuple):
    """What a call is but for its tensors, and numbers that may be symbols."""

    sources: int  # what the kernels were compiled from, as programs may be kept in files
    operands: list[int | None]  # which tensor each is, those that are changed first; None for one that is not given
    records: list[list[int] | None]  # of each its words, None for a number
    # Of each which tensor is changed, or the dtype and the number of axes of what is made; None for nothing.
    outputs: list[Any]


def by_operation(kernel: Kernel) -> list[torch.Tensor]:
    """What a kernel makes, by an operation; what it changes in place is changed."""
    outputs, numbers = kernel.in_order, list[object]()
    is_changed = [any(x is output for output in outputs) for x in kernel.operands]
    changed = [x for x, is_one in zip(kernel.operands, is_changed, strict=True) if is_one and x is not None]
    unchanged = [x for x, is_one in zip(kernel.operands, is_changed, strict=True) if not is_one and x is not None]
    name = _operation_of(kernel, bool(changed))
    places = {id(x): place for place, x in enumerate([*changed, *unchanged])}
    form = Form(_native.SOURCES, [places.get(id(x)) for x in kernel.operands], [], [])
    for record in kernel.records:
        if isinstance(record, np.ndarray):
            form.records.append(record.tolist())
        else:
            form.records.append(None)
            numbers.append(record)
    for x in outputs:
        form.outputs.append((x.dtype, len(x.shape)) if isinstance(x, Made) else places.get(id(x)))
        numbers += x.shape if isinstance(x, Made) else ()
    assert name in CHANGING or not changed
    tensors = [changed, unchanged] if name in CHANGING else [unchanged]
    operation = getattr(torch.ops.functional_rb, name).default
    results: torch.Tensor | Sequence[torch.Tensor] | None = operation(
        *tensors, numbers, json.dumps(form, separators=(",", ":"))
    )
    return [] if results is None else [results] if isinstance(results, torch.Tensor) else list(results)


def _operation_of(kernel: Kernel, changes: bool) -> str:
    name = kernel.name or ("" if kernel.on_gpu is None else kernel.on_gpu.name)
    if name != "draw" or not changes:
        return name
    new_results = sum(isinstance(x, Made) for x in kernel.in_order)
    return next(keeping for keeping, count in KEEPING.items() if count == new_results)


def _handler(name: str) -> str:
    return "draw" if name in KEEPING else name


@functools.lru_cache(maxsize=1024)
def _form(text: str) -> Form:
    sources, *others = json.loads(text)
    if sources != _native.SOURCES:
        raise RuntimeError(
            "functional_rb: this program was compiled by another version of functional_rb; trace it again"
        )
    return Form(sources, *others)


@functools.lru_cache(maxsize=1024)
def _decoded(text: str, numbers: tuple[int, ...]) -> tuple[list[int | None], list[NumpyArray], list[Any]]:
    """The operands, records and outputs of a call: records as arrays, and outputs as shapes and dtypes of torch's."""
    form, left = _form(text), iter(numbers)
    records = [np.array([next(left)] if record is None else record, np.int32) for record in form.records]
    return form.operands, records, _shaped(form, left)


def _shaped(form: Form, sizes: Iterator[int]) -> list[object]:
    return [
        (tuple([next(sizes) for _ in range(x[1])]), ops.DTYPES[x[0]]) if isinstance(x, list) else x
        for x in form.outputs
    ]


def _define(name: str) -> None:
    changes, count = name in CHANGING, CHANGING.get(name)
    results = "Tensor[]" if count is None else f"({', '.join(['Tensor'] * count)})"
    changed = "Tensor(a!)[] changed, " if changes else ""
    # Kernels read arrays that lie in a row: inductor is not to hand in others that it finds quicker.
    tags = torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order

    def described(*arguments: Any) -> object:
        form = _form(arguments[-1])
        outputs = _shaped(form, iter(arguments[-2][form.records.count(None) :]))
        device = next(iter(arguments[0] or arguments[1])).device
        return _returned(name, [torch.empty(x[0], dtype=x[1], device=device) for x in outputs if isinstance(x, tuple)])

    LIBRARY.define(f"{name}({changed}Tensor[] operands, SymInt[] numbers, str form) -> {results}", tags=tags)
    if _handler(name) in _native.HANDLERS:
        LIBRARY.impl(name, functools.partial(called, name), "CPU")
    if name in LAUNCHED:
        LIBRARY.impl(name, functools.partial(launched, name), "CUDA")
    torch.library.register_fake(f"functional_rb::{name}", described, lib=LIBRARY)


def called(name: str, *arguments: Any) -> object:
    return _carried_out(functools.partial(CHAIN.call, _native.HANDLERS[_handler(name)]), name, *arguments)


def launched(name: str, *arguments: Any) -> object:
    return _carried_out(functools.partial(launches.launch, _handler(name)), name, *arguments)


def _carried_out(call: Callable[..., object], name: str, *arguments: Any) -> object:
    # The call is given records, operands and results.
    tensors = [x for some in arguments[:-2] for x in some]
    places, records, outputs = _decoded(arguments[-1], tuple(arguments[-2]))
    new_results = [torch.empty(x[0], dtype=x[1], device=tensors[0].device) for x in outputs if type(x) is tuple]
    new = iter(new_results)
    results = [next(new) if type(x) is tuple else None if x is None else tensors[x] for x in outputs]
    operands = [None if k is None else tensors[k] for k in places]
    call(records, operands, results)
    return _returned(name, new_results)


def _returned(
    name: str, results: list[torch.Tensor]
) -> list[torch.Tensor] | torch.Tensor | tuple[torch.Tensor, ...] | None:
    """What torch expects of an operation with these results."""
    count = CHANGING.get(name)
    return results if count is None else results[0] if count == 1 else tuple(results) or None


for _name in {*_native.HANDLERS, *LAUNCHED}:
    _define(_name)


# --- functions of the core by operations ------------------------------------------------------------------------------


constant(Description.remember)


class _Call(NamedTuple):
    """A call as torch.compile sees it."""

    function: Callable[..., object]  # which it is of
    on_gpu: bool  # whether it is to be a launch
    template: object  # the nest of its arguments; see `_apart`
    static: Sequence[object]  # what of these is no tensor and no number
    outline: object  # the nest of its results; see `_outline_of`


_CALLS: list[_Call] = []
# Of calls: what is traced may carry a number as a constant, but no object.
_NUMBERS: dict[tuple[object, ...], int] = {}
# Declaration and core of each function, on CPUs and on GPUs.
_OF: dict[tuple[Callable[..., object], bool], tuple[Declaration, Callable[..., Any]]] = {}
# Arguments that are numbers and may be symbols; others are settings.
SYMBOLS: Final = {"batch", "steps"}


def _by_operation(
    function: Callable[..., object], declaration: Declaration, core: Callable[..., object], on_gpu: bool = False
) -> Any:
    _OF[function, on_gpu] = declaration, core

    def work(*args: object, **named: object) -> object:
        operands: list[object] = []
        static: list[object] = []
        template = _apart((args, named), operands, static)
        kinds = tuple([(x.dim(), x.dtype) if isinstance(x, torch.Tensor) else None for x in operands])
        number = _number(function, on_gpu, template, kinds, *static)
        if number < 0:
            return core(*args, **named)
        return _filled(_outline(number), _call(number, *operands), operands)

    return work


def _apart(nested: object, operands: list[object] | None, static: list[object]) -> object:
    """The containers of a nest; tensors and numbers, and what is static, are put behind those that are there.

    What is static comes in parts that torch.compile compares by value when it asks whether to compile anew: the fields
    of a dataclass, whose numbers are settings, and of a description what it is known by.
    """
    if isinstance(nested, torch.Tensor) or (isinstance(nested, (int, torch.SymInt)) and not isinstance(nested, bool)):
        if operands is None:
            static.append(operator.index(nested))  # which torch.compile compares, also where it had others before
            return -len(static)
        operands.append(nested)
        return len(operands) - 1
    if isinstance(nested, dict):
        return ("dict", tuple([(key, _apart(child, operands, static)) for key, child in nested.items()]))
    if isinstance(nested, (tuple, list)):
        return (type(nested), tuple([_apart(child, operands, static) for child in nested]))
    if isinstance(nested, Description):
        nested.remember()
        static.append(nested.token)
        return ("description", -len(static))
    if hasattr(nested, "__dataclass_fields__"):
        names = _fields(type(nested))
        return (type(nested), tuple([(name, _apart(getattr(nested, name), None, static)) for name in names]))
    static.append(nested)
    return -len(static)


@constant
def _fields(kind: type) -> tuple[str, ...]:
    return tuple([field.name for field in dataclasses.fields(kind) if field.init])


def _together(template: Any, operands: Sequence[object], static: Sequence[object]) -> Any:
    """The nest of these containers."""
    if isinstance(template, int):
        return operands[template] if template >= 0 else static[-1 - template]
    kind, children = template
    if kind == "description":
        return REMEMBERED[static[-1 - children]]
    if kind == "dict" or dataclasses.is_dataclass(kind):
        named = {name: _together(child, operands, static) for name, child in children}
        return named if kind == "dict" else kind(**named)
    elements = [_together(child, operands, static) for child in children]
    return kind(*elements) if hasattr(kind, "_fields") else kind(elements)


@dataclasses.dataclass(frozen=True, eq=False)
class _Example:
    """What stands for a tensor where only the containers of results are asked for."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@constant
def _number(*key: Any) -> int:
    """The number of a call of a function, with a template and the axes and dtypes of its tensors; -1 for the core."""
    if key not in _NUMBERS:
        torch.compiler.allow_in_graph(_call)  # only here, where torch is compiling: it imports the compiler
        function, on_gpu, template, kinds, *static = key
        examples = [2 if kind is None else _Example((2,) * kind[0], kind[1]) for kind in kinds]
        kernel = _declared(function, on_gpu, template, examples, static)
        if kernel is None or kernel.cut:  # the one leaves it to the core, the other's shapes are in its data
            _NUMBERS[key] = -1
        else:
            _CALLS.append(_Call(function, on_gpu, template, static, _outline_of(kernel, examples)))
            _NUMBERS[key] = len(_CALLS) - 1
    return _NUMBERS[key]


def _outline_of(kernel: Kernel, operands: Sequence[object]) -> object:
    new_results = [x for x in kernel.in_order if isinstance(x, Made)]
    numbers = {id(x): k for k, x in enumerate(operands)} | {id(x): -1 - k for k, x in enumerate(new_results)}

    def outline(nested: object) -> object:
        if isinstance(nested, dict):
            return "dict", tuple((key, outline(child)) for key, child in nested.items())
        if isinstance(nested, (tuple, list)):
            return type(nested).__name__, tuple(map(outline, nested))
        return numbers.get(id(nested))

    return outline(kernel.results)


@constant
def _outline(number: int) -> object:
    """The containers of what a call gives: a class by its name, as what torch.compile takes for constant has none."""
    return _CALLS[number].outline


def _filled(outline: Any, results: Sequence[torch.Tensor], operands: Sequence[object]) -> Any:
    if outline is None:
        return None
    if isinstance(outline, int):
        return operands[outline] if outline >= 0 else results[-1 - outline]
    kind, children = outline
    if kind == "dict":
        return {key: _filled(child, results, operands) for key, child in children}
    elements = [_filled(child, results, operands) for child in children]
    return elements if kind == "list" else tuple(elements) if kind == "tuple" else _CLASSES[kind](*elements)


def _call(number: int, *operands: object) -> tuple[torch.Tensor, ...]:
    function, on_gpu, template, static, outline = _CALLS[number]
    kernel = _declared(function, on_gpu, template, operands, static)
    if kernel is not None:
        return tuple(by_operation(kernel))
    args, named = _together(template, operands, static)  # there are no rows
    new_results: dict[int, torch.Tensor] = {}
    _take(outline, _OF[function, on_gpu][1](*args, **named), new_results)
    return tuple(new_results[k] for k in sorted(new_results, reverse=True))


def _declared(
    function: Callable[..., object],
    on_gpu: bool,
    template: object,
    operands: Sequence[object],
    static: Sequence[object],
) -> Kernel | None:
    args, named = _together(template, operands, static)
    declaration = _OF[function, on_gpu][0]
    by_name = inspect.signature(declaration).bind(*args, **named).arguments
    fixed = {name: int(x) if isinstance(x, torch.SymInt) and name not in SYMBOLS else x for name, x in by_name.items()}
    kernel = declaration(**fixed)
    return kernel if kernel is not None and (gpu.fits(kernel) if on_gpu else kernel.name) else None


def _take(outline: object, results: torch.Tensor, into: dict[int, torch.Tensor]) -> None:
    if isinstance(outline, int) and outline < 0:
        into[outline] = results
    elif isinstance(outline, tuple):
        is_dict = outline[0] == "dict"
        children = (
            [(results[key], child) for key, child in outline[1]] if is_dict else zip(results, outline[1], strict=True)
        )
        for x, child in children:
            _take(child, x, into)


_CLASSES: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (Arrays, Entries, FramePlan, HashTable, Line, Removal, RingState, Selection, Slices, SparseSet)
}

# What stands in for which function of the core while torch.compile traces.
TABLE: Final[Table] = {
    function: _by_operation(function, declaration, functools.partial(getattr(function, "core", function), ops))
    for function, declaration in (DECLARED | WHOLE).items()
}


def _none(*_: object, **__: object) -> None:
    """What there is in place of a launch where there is none."""


_choose = _by_operation(declared.choose, declared.choose, _none, True)
_read = _by_operation(declared.read, declared.read, _none, True)


def _chosen(draft: Draft, spec: BufferSpec, draws: torch.Tensor, beta: torch.Tensor, batch: int) -> Any:
    """The slots and the selection that `functions.choose` gives, by a launch."""
    chosen = _choose(draft.as_begun, spec, draws, None, beta, batch, draft.wanted)
    if chosen is None:
        return functions.choose.core(ops.OPS, draft, spec, draws, beta, batch)
    after, slots, selection = chosen
    again = Draft.of(after, spec.plan)
    draft.counters, draft.origin = again.counters, again.origin
    return slots, selection


# The same on a GPU that kernels have been loaded for.
ON_GPU: Final[Table] = {
    **{
        function: _by_operation(function, declaration, functools.partial(function, ops), True)
        for function, declaration in (WHOLE | {functions.add: declared.whole_add}).items()
    },
    functions.choose: _chosen,
    functions.read_drawn: launches.reading(_read),
}

draws = _by_operation(fill_draws, fill_draws, random.draws)
"""What `random.draws` does."""
