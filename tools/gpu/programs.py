"""What XLA makes of this library's programs for an H100: `python -m tools.gpu.programs`.

It writes benchmarks/results/gpu_programs.md. No GPU is needed, but JAX's plugin for CUDA of the same version as JAX is:
`pip install --no-deps --target DIR jax-cuda12-plugin==VERSION jax-cuda12-pjrt==VERSION`, with DIR in PYTHONPATH.
"""

from __future__ import annotations

import collections
import math
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import topologies

import functional_rb as frb
import jax_backend as rb
from jax_backend.kernels import gpus
from tools.gpu.plan import ROOT

RESULT: Final = ROOT / "benchmarks" / "results" / "gpu_programs.md"
DEVICE: Final = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84978434048
  shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 9 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
# Bytes of a copy that is told of by itself.
LARGE: Final = 2**20
ITEM: Final = {
    **{name: frb.Unbounded((17,)) for name in ("obs", "next_obs")},
    "action": frb.Unbounded((6,)),
    "reward": frb.Unbounded(()),
    "done": frb.Binary(()),
}
IMAGES: Final = {
    **{name: frb.Bounded(0, 255, (84, 84, 4), "uint8") for name in ("obs", "next_obs")},
    "action": frb.Unbounded((), "int32"),
    "reward": frb.Unbounded(()),
    "done": frb.Binary(()),
}
CAPACITY, ADDED, DRAWN, TURNS = 1_000_000, 64, 256, 100
# Of buffers of several lanes, and of slices, which have as many steps as other draws have items.
LANES, LENGTH = 16, 8
# Items of a buffer of images.
STACKS: Final = 100_000
# Operations that are no launch.
FREE: Final = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call")


def of(shape: tuple[int, ...], dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def items(*lead: int) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: of((*lead, *leaf.shape), leaf.dtype) for name, leaf in ITEM.items()}


def state(sampler: Any, *lead: int, lanes: int | None = None) -> Any:
    """The shapes of a state, or of several."""

    def made(*_: Any) -> Any:
        return rb.init(frb.BufferSpec(ITEM, CAPACITY, sampler, lanes=lanes))

    return jax.eval_shape(jax.vmap(made) if lead else made, jnp.zeros(lead))


def step(state: Any, given: Any) -> Any:
    """Add, draw, and set the priorities of what was drawn."""
    batch, key = given
    state, sample = rb.sample(rb.add(state, batch), key, DRAWN)
    if state.spec.sampler.has_priorities:
        state = rb.update(state, sample.indices.reshape(-1), jnp.abs(sample.items["reward"].reshape(-1)))
    return state, sample.items["reward"].sum()


def step_that_reads_late(state: Any, given: Any) -> Any:
    """Draw, write, and use what was drawn afterwards."""
    batch, key = given
    state, sample = rb.sample(state, key, DRAWN)
    state = rb.update(rb.add(state, batch), sample.indices, jnp.abs(sample.items["reward"]) + sample.weights)
    return state, (sample.items["obs"].sum(), sample.weights.sum())


def programs() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Names, functions of a state that is donated, and arguments."""
    key, keys = (jax.eval_shape(lambda n=n: rb.split(rb.key(0), n)) for n in (1, TURNS))
    key = jax.eval_shape(lambda keys: keys[0], key)
    mask, handles, numbers = of((ADDED,), "bool"), of((DRAWN,), "int32"), of((DRAWN,))

    def draw(state: Any, key: Any) -> Any:
        return rb.sample(state, key, DRAWN)

    for sampler in (frb.Uniform(), frb.Prioritized()):
        name, own = type(sampler).__name__, state(sampler)
        yield f"{name}: add", rb.add, (own, items(ADDED))
        yield f"{name}: add with a mask", rb.add, (own, items(ADDED), mask)
        yield f"{name}: sample", draw, (own, key)
        yield (
            f"{name}: {TURNS} adds in a scan",
            lambda s, b: lax.scan(lambda s, b: (rb.add(s, b), None), s, b),
            (*(own, items(TURNS, ADDED)),),
        )
        yield (
            f"{name}: {TURNS} steps in a scan",
            lambda s, b, k: lax.scan(step, s, (b, k)),
            (*(own, items(TURNS, ADDED), keys),),
        )
    yield "Prioritized: update", rb.update, (own, handles, numbers)
    yield (
        f"Prioritized: {TURNS} steps that use late what they read",
        lambda s, b, k: lax.scan(step_that_reads_late, s, (b, k)),
        (own, items(TURNS, ADDED), keys),
    )
    several = state(sampler, 4)
    yield from programs_of_rings(key, keys)
    yield from programs_of_frames(key, keys)
    yield from programs_of_returns(key, keys)
    yield from programs_of_maps()
    yield from programs_of_mixtures(key, keys)
    yield (
        "Prioritized: a step of 4 buffers by vmap",
        jax.vmap(lambda s, b, k: step(s, (b, k))),
        (*(several, items(4, ADDED), jax.eval_shape(lambda: rb.split(rb.key(0), 4))),),
    )


def programs_of_rings(key: Any, keys: Any) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Those of buffers of several lanes, of slices, and of epochs."""

    def draw(state: Any, key: Any) -> Any:
        return rb.sample(state, key, DRAWN)

    steps = ADDED // LANES
    for sampler in (
        *(frb.Uniform(), frb.Prioritized(), frb.Slices(LENGTH, batch="steps")),
        *(frb.PrioritizedSlices(LENGTH, batch="steps"), frb.WithoutReplacement()),
        frb.SlicesWithoutReplacement(LENGTH, batch="steps"),
    ):
        name, own = f"{type(sampler).__name__}, {LANES} lanes", state(sampler, lanes=LANES)
        yield f"{name}: add", rb.add, (own, items(steps, LANES))
        yield f"{name}: add with a mask", rb.add, (own, items(steps, LANES), of((steps, LANES), "bool"))
        yield f"{name}: sample", draw, (own, key)
        yield (
            f"{name}: {TURNS} steps in a scan",
            lambda s, b, k: lax.scan(step, s, (b, k)),
            (*(own, items(TURNS, steps, LANES), keys),),
        )


def programs_of_frames(key: Any, keys: Any) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Those of stacks of images, of which frames are stored once."""
    steps, compact = ADDED // LANES, frb.Compact(stack=4, axis=-1)
    batches = {name: of((TURNS, steps, LANES, *leaf.shape), leaf.dtype) for name, leaf in IMAGES.items()}
    one = {name: of(leaf.shape[1:], leaf.dtype) for name, leaf in batches.items()}
    for name, sampler, more in (
        ("Prioritized", frb.Prioritized(), {}),
        ("PrioritizedSlices", frb.PrioritizedSlices(LENGTH, batch="steps"), {}),
        ("SlicesWithoutReplacement", frb.SlicesWithoutReplacement(LENGTH, batch="steps"), {}),
        ("Prioritized, n_step", frb.Prioritized(), {"transforms": frb.n_step(3, 0.99)}),
    ):
        spec = frb.BufferSpec(IMAGES, STACKS, sampler, lanes=LANES, compact=compact, **more)
        own = jax.eval_shape(lambda spec=spec: rb.init(spec))
        title = f"{name}, stacks of images, {LANES} lanes"
        yield f"{title}: add", rb.add, (own, one)
        yield f"{title}: add with a mask", rb.add, (own, one, of((steps, LANES), "bool"))
        yield f"{title}: sample", lambda state, key: rb.sample(state, key, DRAWN), (own, key)
        yield (
            f"{title}: {TURNS} steps in a scan",
            lambda s, b, k: lax.scan(step, s, (b, k)),
            (own, batches, keys),
        )


def programs_of_returns(key: Any, keys: Any) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Those of returns over n steps, and of buffers that stop when they are full."""
    steps, ends = ADDED // LANES, {"end_keys": "done", "terminated_key": "done"}
    for name, more in (
        ("n_step", {"transforms": frb.n_step(3, 0.99, **ends)}),
        ("n_step(at='add')", {"transforms": frb.n_step(3, 0.99, at="add", **ends)}),
        ("StopWhenFull", {"writer": frb.StopWhenFull()}),
    ):
        spec = frb.BufferSpec(ITEM, CAPACITY, frb.Prioritized(), lanes=LANES, **more)
        own, title = jax.eval_shape(lambda spec=spec: rb.init(spec)), f"Prioritized, {name}, {LANES} lanes"
        yield f"{title}: add", rb.add, (own, items(steps, LANES))
        yield f"{title}: add with a mask", rb.add, (own, items(steps, LANES), of((steps, LANES), "bool"))
        yield f"{title}: sample", lambda state, key: rb.sample(state, key, DRAWN), (own, key)
        yield (
            f"{title}: {TURNS} steps in a scan",
            lambda s, b, k: lax.scan(step, s, (b, k)),
            (own, items(TURNS, steps, LANES), keys),
        )


def programs_of_maps() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Those of hash maps, which hold a million keys at most."""
    spec = frb.HashMapSpec(frb.Unbounded((4,), "int32"), CAPACITY)
    own, given = jax.eval_shape(lambda: rb.init(spec)), of((ADDED, 4), "int32")
    yield "Hash map: insert", rb.add, (own, given)
    yield "Hash map: insert with a mask", rb.add, (own, given, of((ADDED,), "bool"))
    yield "Hash map: lookup", lambda map, keys: (map, rb.lookup(map, keys)), (own, of((DRAWN, 4), "int32"))
    yield (
        f"Hash map: {TURNS} inserts in a scan",
        lambda map, keys: lax.scan(rb.add, map, keys),
        (own, of((TURNS, ADDED, 4), "int32")),
    )


def programs_of_mixtures(key: Any, keys: Any) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Those of two buffers that are drawn from as one."""

    def draw(mixture: Any, key: Any) -> Any:
        return rb.sample(mixture, key, DRAWN, 0.4)

    def step(mixture: Any, key: Any) -> Any:
        mixture, sample = draw(mixture, key)
        return rb.update(mixture, sample.indices, jnp.abs(sample.items["reward"])), sample.weights.sum()

    own = state(frb.Uniform()), state(frb.Prioritized())
    for how in ("exact", "items"):
        mixture = frb.Mixture(own, p=[0.5, 0.5], how=how)
        yield f'Mixture, "{how}": sample', draw, (mixture, key)
        yield (
            f'Mixture, "{how}": {TURNS} draws and updates in a scan',
            lambda mixture, keys: lax.scan(step, mixture, keys),
            (mixture, keys),
        )


def compiled(device: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """The program for a device, as XLA has scheduled it."""
    sharding = jax.sharding.SingleDeviceSharding(device)
    placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arguments)
    traced = jax.jit(function, donate_argnums=0).trace(*placed)
    text: str = traced.lower(lowering_platforms=("cuda",)).compile().as_text()
    return text


def launches(text: str) -> Iterator[tuple[str, int]]:
    """What is launched, a loop's body once, and how many bytes the first result has."""
    text = re.sub(r"/\*.*?\*/", "", text)
    within = set(re.findall(r"(?:calls|to_apply)=%?([\w.-]+)", text))  # carried out inside of others
    for computation in re.split(r"\n(?=\S)", text):
        head = re.match(r"(?:ENTRY )?%?([\w.-]+) \(", computation)
        if head is None or head[1] in within:
            continue
        for line in computation.splitlines()[1:]:
            found = re.match(r"\s+(?:ROOT )?%?[\w.-]+ = (\([^()]*\)|\S+) ([\w-]+)\(", line)
            if found is None or found[2] in FREE:
                continue
            target = re.search(r'custom_call_target="([^"]*)"', line)
            yield target[1] if target else found[2], nbytes(found[1])


def nbytes(kind: str) -> int:
    """Of an array's type, as XLA writes it."""
    found = re.match(r"\(?([a-z]+)(\d*)\w*\[([\d,]*)\]", kind)
    assert found is not None, kind
    size = int(found[2] or 8) // 8
    return size * math.prod(int(n) for n in found[3].split(",") if n)


def row(name: str, text: str) -> str:
    """A line of the table."""
    own, others, copies, large = collections.Counter[str](), 0, 0, 0
    for what, size in launches(text):
        if what.startswith(gpus.PREFIX):
            own[what.removeprefix(gpus.PREFIX)] += 1
        elif what == "copy":
            copies, large = copies + 1, large + (size > LARGE)
        else:
            others += 1
    ours = ", ".join(f"{count} {what}" for what, count in own.items())
    return f"| {name} | {ours or '-'} | {others} | {copies} | {large} |"


def main() -> int:
    """Write the table; 0 if no program copies anything large."""
    jax.config.update("jax_platforms", "cpu")
    device = topologies.get_topology_desc(
        platform="cuda", topology_name="h100", target_config=DEVICE, topology="1x1x1"
    ).devices[0]
    jax.default_backend = lambda: "gpu"
    gpus.ready = lambda: True
    gpus.register("CUDA")
    about = (
        f"JAX {jax.__version__}, a buffer of {CAPACITY:,} items of 168 bytes that is donated, {ADDED} added, {DRAWN} "
        "drawn; of a loop the body once, with the slices of its inputs. Copies are told of once more if they are of "
        "more than 1 MB: of the storage, which has 168 MB, or of the tree, which has 4.8. Stacks of images are two of "
        f"84 x 84 x 4 bytes an item, {STACKS:,} of them. Hash maps have room for as many keys of four int32 as buffers "
        "for items; mixtures are of such a uniform and a prioritized buffer."
    )
    lines = ["# What XLA launches on an H100", "", about]
    copying = []
    for title, on in (("By kernels", True), ("By XLA's operations", False)):
        lines += ["", f"## {title}", ""]
        lines += ["| program | kernels | other launches | copies | of more than 1 MB |", "|---|---|---|---|---|"]
        with frb.kernels(on):
            for name, function, arguments in programs():
                lines.append(row(name, compiled(device, function, arguments)))
                copying += [lines[-1]] if on and not lines[-1].endswith(" 0 |") else []
    RESULT.write_text("\n".join(lines) + "\n")
    print(RESULT.read_text())
    return 1 if copying else 0


if __name__ == "__main__":
    sys.exit(main())
