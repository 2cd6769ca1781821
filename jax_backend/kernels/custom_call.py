"""Kernels as custom calls of XLA, beside the core's operations that do the same: which, is decided by the compiler.

A piece of work is an operation of JAX of its own. Where it is compiled for one CPU, or for each device's own part as
`jax.shard_map` does, it becomes a custom call of the kernel, and also for a GPU where a launch does the same; where XLA
is to divide a program among several devices, and on other accelerators, the core's operations, which XLA can divide.
`jax.vmap` makes one custom call of many, that loops over them in place: what all of them share (the storage, where many
keys draw from one buffer) is not copied for each.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from functional_rb.base.arrays import BackendArray
from functional_rb.native import gpu
from functional_rb.native.kernels import ABSENT, Kernel, Made
from functional_rb.ops import part_kernels
from jax_backend import compat
from jax_backend.arrays import rules
from jax_backend.kernels import gpus, tpus

R = TypeVar("R")
# Values of MLIR, whose class JAX does not make public.
Lowered: TypeAlias = Sequence[Any]
Words: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
ARRAYS = (jax.Array, np.ndarray, np.generic)
NOTHING = np.zeros(0, np.int32)
EMPTY = jax.core.ShapedArray(NOTHING.shape, NOTHING.dtype)
# Where the results of a call are all that a loop carries, in its order, the call is the whole body of the loop for XLA,
# which then takes what the call changes for invariant and moves the call out of the loop (JAX 0.10.2). The body must be
# a tuple of its own: an empty result, which no loop carries, sees to that.
APART = (EMPTY,)


def choose(kernel: Kernel | None, core: Callable[..., R], *args: object) -> R:
    """The kernel where kernels are in force and there is one for what is compiled, else the core, with none in force.

    No derivative goes through either. Where an accelerator is the default only its own kernels are taken: few programs
    there run on the CPU. The arguments are pytrees of arrays, among them the kernel's operands, and whatever else the
    core takes; that must not hold on to values that are being traced. None is given to the handler as an empty array.
    """
    leaves, outline = jax.tree.flatten(args, is_leaf=_is_none)
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, ARRAYS)]
    arrays = [leaves[k] for k in places]
    for k in places:  # what is being traced must not outlive this
        leaves[k] = None

    def rebuilt(arrays: Sequence[object]) -> R:
        filled = dict(enumerate(leaves)) | dict(zip(places, arrays, strict=True))
        with part_kernels.using(tpus.core_table()):
            return core(*jax.tree.unflatten(outline, filled.values()))

    if kernel is None or not in_use(kernel):
        return rebuilt(lax.stop_gradient(arrays))
    numbers = {id(x): j for j, x in enumerate(arrays)}
    order = [numbers[id(x)] for x in kernel.operands if x is not None]
    order += [j for j in numbers.values() if j not in order]  # what the core takes besides
    where = [order.index(numbers[id(x)]) for x in arrays]
    # Shapes in place of arrays, as what an operation is bound with outlives the trace.
    described = kernel.described(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype))
    outputs, results = kernel.in_order, jax.tree.flatten(kernel.results, is_leaf=_is_none)[0]
    wanted = [next(k for k, y in enumerate(results) if y is x) for x in outputs if x is not ABSENT]

    def flat(*operands: jax.Array) -> list[jax.Array]:
        with rules.promoting_ranks():
            all_results = jax.tree.leaves(rebuilt([operands[k] for k in where]), is_leaf=_is_none)
        return [all_results[k] for k in wanted]

    operands = _varying_alike(lax.stop_gradient([arrays[j] for j in order]))
    batch = Batch((), tuple(() for _ in operands))
    computed = _work.bind(*operands, kernel=described, core=flat, batch=batch)
    new = dict(zip(wanted, computed, strict=True))
    return jax.tree.unflatten(
        jax.tree.structure(kernel.results, is_leaf=_is_none),
        [new.get(k, None if x is ABSENT else x) for k, x in enumerate(results)],
    )


def barrier(arrays: Sequence[BackendArray], after: Sequence[BackendArray] = ()) -> list[jax.Array]:
    """The same arrays, for later uses: they and `after` are computed before these.

    XLA orders what it does by data alone, and computes small things again where they are used. A read that is used
    late would so come after the next write to what it read, and XLA would copy that for it. This is a custom call,
    which XLA neither repeats nor lets what depends on it precede. On a GPU XLA's own barrier does that.
    """
    if jax.default_backend() == "gpu":
        behind: list[jax.Array] = lax.optimization_barrier(lax.stop_gradient([*arrays, *after]))
        return behind[: len(arrays)]
    if not _on_cpu():
        return list(arrays)
    arrays, after = lax.stop_gradient((list(arrays), list(after)))
    behind = _barrier.bind(*_varying_alike([*arrays, *after]), count=len(arrays))
    return behind


def in_use(kernel: Kernel) -> bool:
    """Whether programs that are traced now take a kernel."""
    if _on_cpu():
        return bool(kernel.name)
    return on_gpu() and gpu.fits(kernel) and gpus.pays(kernel) and gpus.ready()


def on_gpu() -> bool:
    """Whether programs that are traced now may take kernels for GPUs."""
    return bool(part_kernels.in_force()) and jax.default_backend() == "gpu"


def _on_cpu() -> bool:
    """Whether programs that are traced now take the kernels of CPUs."""
    return bool(part_kernels.in_force()) and jax.default_backend() == "cpu"


def _is_none(x: object) -> bool:
    return x is None


def _varying_alike(arrays: list[jax.Array]) -> list[jax.Array]:
    """The same arrays, all of which differ between devices inside of `jax.shard_map`, if one does."""
    axes_of = [compat.varying_axes(x) for x in arrays]
    every = frozenset[str]().union(*axes_of)
    return [
        compat.made_varying(x, sorted(every - axes)) if axes != every else x
        for x, axes in zip(arrays, axes_of, strict=True)
    ]


# --- the operation --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Batch:
    """The axes that `jax.vmap` put in front."""

    sizes: tuple[int, ...]  # of them, the outermost first
    batched: tuple[tuple[bool, ...], ...]  # for each operand, which of them it has


def _carry_out(*operands: jax.Array, **params: object) -> list[jax.Array]:
    """Outside of any program: in one of its own, also where a user debugs without compiling."""
    with jax.disable_jit(False):
        return jax.jit(functools.partial(_work.bind, **params))(*operands)


def _results(*operands: jax.core.ShapedArray, kernel: Kernel, batch: Batch, **others: object) -> list[object]:
    results = [x for x in kernel.in_order if x is not ABSENT]
    return [_like(operands, (*batch.sizes, *x.shape), jnp.dtype(x.dtype)) for x in results]


def _like(operands: Sequence[jax.core.ShapedArray], shape: tuple[int, ...], dtype: object) -> jax.core.ShapedArray:
    """The type of a result: it differs between devices where the operands do, and is divided along no axis."""
    operand = next((x for x in operands if not x.sharding.mesh.empty), operands[0])
    whole = jax.sharding.NamedSharding(operand.sharding.mesh, jax.sharding.PartitionSpec(*(None for _ in shape)))
    return operand.update(shape=shape, dtype=dtype, weak_type=False, sharding=whole)


def _batched(
    axis: Any, operands: Sequence[BackendArray], dims: Sequence[int | None], **params: Any
) -> tuple[object, object]:
    if all(dim is None for dim in dims):
        out = _work.bind(*operands, **params)
        return out, [None] * len(out)
    kernel, batch = params["kernel"], params["batch"]
    there = [x is not None for x in kernel.operands]
    in_place = {sum(there[:k]) for k in kernel.in_place}
    moved, batched = [], []
    for k, (operand, dim, inner) in enumerate(zip(operands, dims, batch.batched, strict=True)):
        if dim is not None:
            operand = jnp.moveaxis(operand, dim, 0)
        elif k in in_place:  # each has a result of its own there
            operand = jnp.broadcast_to(operand, (axis.size, *operand.shape))
        moved.append(operand)
        batched.append((dim is not None or k in in_place, *inner))
    params["batch"] = Batch((axis.size, *batch.sizes), tuple(batched))
    out = _work.bind(*moved, **params)
    return out, [0] * len(out)


def _lower_to_core(
    ctx: mlir.LoweringRuleContext, *operands: object, core: Any, batch: Batch, **others: object
) -> Lowered:
    """Lower a part to the operations of the core, where its kernel cannot run."""
    function = core
    for level in reversed(range(len(batch.sizes))):
        axes = tuple(0 if has_axis[level] else None for has_axis in batch.batched)
        function = jax.vmap(function, in_axes=axes, axis_size=batch.sizes[level])
    return mlir.lower_fun(function, multiple_results=True)(ctx, *operands)


def _lower_on_cpu(
    ctx: mlir.LoweringRuleContext, *operands: object, kernel: Kernel, batch: Batch, core: object
) -> Lowered:
    """As a custom call, where each device does its own work."""
    if not kernel.name or not _undivided(ctx.module_context.axis_context):
        return _lower_to_core(ctx, *operands, core=core, batch=batch)
    return _called(ctx, _target(kernel.name), operands, kernel, batch, kernel.in_place, APART)


def lower_on_gpu(
    ctx: mlir.LoweringRuleContext, *operands: object, kernel: Kernel, batch: Batch, core: object
) -> Lowered:
    """As a custom call of what launches a kernel, which has memory for its own use behind the results."""
    if not gpu.fits(kernel) or not gpus.ready() or not _undivided(ctx.module_context.axis_context):
        return _lower_to_core(ctx, *operands, core=core, batch=batch)
    assert kernel.on_gpu is not None
    # Of the counters blocks read the old ones while one block writes the new.
    expected = kernel.in_order
    aliases = {k: place for k, place in kernel.in_place.items() if not isinstance(expected[place], Made)}
    scratch = jax.core.ShapedArray((gpu.scratch(kernel),), np.dtype(np.int32))
    return _called(ctx, gpus.PREFIX + kernel.on_gpu.name, operands, kernel, batch, aliases, [scratch])


def _called(
    ctx: mlir.LoweringRuleContext,
    target: str,
    operands: Sequence[object],
    kernel: Kernel,
    batch: Batch,
    aliases: Mapping[int, int],
    more: Sequence[jax.core.ShapedArray] = (),
) -> Lowered:
    """The results of a custom call of a handler, with an empty array for each operand and result that is not there.

    The kernel's records are attributes, and the aliases say which operands lend their memory to which results. All
    calls that the batch stands for share `more` results, behind the kernel's own.
    """
    present, types, result_types = iter(operands), iter(ctx.avals_in), iter(ctx.avals_out)
    values = [mlir.ir_constant(NOTHING) if x is None else next(present) for x in kernel.operands]
    arguments: list[Any] = [EMPTY if x is None else next(types) for x in kernel.operands]
    results: list[Any] = [*(EMPTY if x is ABSENT else next(result_types) for x in kernel.in_order), *more]
    none, axes_of = (False,) * len(batch.sizes), iter(batch.batched)
    batched = [none if x is None else next(axes_of) for x in kernel.operands]
    batched += [(x is not ABSENT,) * len(batch.sizes) for x in kernel.in_order]
    batched += [none] * len(more)
    nbytes = [
        math.prod(x.shape[sum(axes) :]) * x.dtype.itemsize
        for x, axes in zip([*arguments, *results], batched, strict=True)
    ]
    encoded = _encode_batch(batch.sizes, batched, nbytes)
    called = _custom_call(ctx, target, values, arguments, results, aliases, encoded, kernel.vectors)
    return [x for x, wanted in zip(called, kernel.in_order, strict=False) if wanted is not ABSENT]


def _custom_call(
    ctx: mlir.LoweringRuleContext,
    target: str,
    values: Sequence[object],
    arguments: Sequence[Any],
    results: Sequence[Any],
    aliases: Mapping[int, int],
    batch: Words,
    records: Sequence[object] = (),
) -> Lowered:
    from functional_rb import _native

    arrays = []
    for each in (arguments, results):
        arrays += [len(each), *(word for x in each for word in (x.dtype.itemsize, len(x.shape), *x.shape))]
    # A handler that means something else by these words refuses them: programs may be kept in files.
    seal = _native.seal(batch, np.asarray(arrays, np.int64), tuple(records))
    attributes: dict[str, object] = {"batch": np.array([seal, *batch], np.int64)}
    attributes |= {f"record_{k:03}": record for k, record in enumerate(records)}  # XLA sorts them by their names
    rule = jax.ffi.ffi_lowering(target, operand_output_aliases=dict(aliases))
    return rule(ctx.replace(avals_in=arguments, avals_out=results), *values, **attributes)


def _target(name: str) -> str:
    """What XLA knows a handler for CPUs by."""
    _register()
    return f"functional_rb_{name}"


@functools.cache
def _register() -> None:
    """Tell XLA of the handlers."""
    from functional_rb import _native

    for name, handler in _native.HANDLERS.items():
        jax.ffi.register_ffi_target(f"functional_rb_{name}", handler, platform="cpu")


def _encode_batch(sizes: Sequence[int], batched: Sequence[Sequence[bool]], nbytes: Sequence[int]) -> Words:
    """What the first attribute tells behind its seal, as `xla::Batch` reads it (`native/src/xla_frame.h`).

    The sizes are of the axes that all these calls make, the outermost first. Of each operand, and then of each result,
    it has which of the axes it has in front of its own, and its bytes for one call.
    """
    vector = [math.prod(sizes), len(sizes), *sizes]
    for axes, size in zip(batched, nbytes, strict=True) if sizes else ():
        steps, step = [], size
        for has_axis, n in zip(reversed(axes), reversed(sizes), strict=True):
            steps.append(step if has_axis else 0)
            step *= n if has_axis else 1
        vector += [sum(axes), *reversed(steps)]
    return np.asarray(vector, np.int64)


def _undivided(context: object) -> bool:
    """Whether a program is for one device, or for one device's part: XLA would copy what it divides to each call."""
    if isinstance(context, mlir.SPMDAxisContext):
        return all(size == 1 for name, size in context.mesh.shape.items() if name not in context.manual_axes)
    return isinstance(context, mlir.ShardingContext) and context.num_devices == 1


_work = Primitive("replay_buffer")
_work.multiple_results = True
_work.def_impl(_carry_out)
_work.def_abstract_eval(_results)
batching.fancy_primitive_batchers[_work] = _batched
mlir.register_lowering(_work, _lower_to_core)
mlir.register_lowering(_work, _lower_on_cpu, platform="cpu")
mlir.register_lowering(_work, lower_on_gpu, platform="cuda")


# --- the barrier ----------------------------------------------------------------------------------------------------


def _behind(*arrays: object, count: int) -> list[object]:
    """The first `count` arrays, or their types, which the barrier lets through."""
    return list(arrays[:count])


def _lower_barrier_on_cpu(ctx: mlir.LoweringRuleContext, *arrays: object, count: int) -> Lowered:
    if not _undivided(ctx.module_context.axis_context):
        return arrays[:count]
    aliases = {k: k for k in range(count)}
    single, results = _encode_batch((), (), ()), (*ctx.avals_out, *APART)
    return _custom_call(ctx, _target("barrier"), arrays, ctx.avals_in, results, aliases, single)[:count]


_barrier = Primitive("replay_buffer_barrier")
_barrier.multiple_results = True
_barrier.def_impl(_behind)
_barrier.def_abstract_eval(_behind)
batching.primitive_batchers[_barrier] = lambda arrays, dims, *, count: (
    _barrier.bind(*arrays, count=count),
    dims[:count],
)
mlir.register_lowering(_barrier, lambda ctx, *arrays, count: arrays[:count])
mlir.register_lowering(_barrier, _lower_barrier_on_cpu, platform="cpu")
