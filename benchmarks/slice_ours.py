"""functional_rb fed step by step, each sample after an add: jitted on JAX, as values on torch eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np

import functional_rb as frb
from benchmarks.contender import AnySampler, Sequencing, SliceContender
from benchmarks.memory import held_bytes
from benchmarks.ours import AT_ADD, NAME, buffer_spec
from benchmarks.workload import NStepWorkload, ObservationWorkload, SliceWorkload

AnyWork = SliceWorkload | ObservationWorkload


def slice_spec(work: SliceWorkload, sampler: Sequencing) -> frb.BufferSpec:
    """The spec of the workload's items under the sampler's counterpart in functional_rb."""
    ends: dict[str, Any] = {"length": work.length, "end_keys": ("done",)}
    samplers: dict[Sequencing, Callable[[], Any]] = {
        "slices": lambda: frb.Slices(weighting="trajectory", strict_length=True, **ends),
        "window slices": lambda: frb.Slices(weighting="window", strict_length=True, **ends),
        "prioritized slices": lambda: frb.PrioritizedSlices(alpha=work.alpha, beta=work.beta, **ends),
        "slices without replacement": lambda: frb.SlicesWithoutReplacement(**ends),
        "without replacement": lambda: frb.WithoutReplacement(),
    }
    spec = replace(buffer_spec(work, "uniform"), sampler=samplers[sampler]())
    return spec if work.lanes == 1 else replace(spec, lanes=work.lanes)


def n_step_spec(work: NStepWorkload, name: str) -> frb.BufferSpec:
    """The spec of the workload's items, with returns made when sampling, when adding, or not at all."""
    places = {NAME: "sample", AT_ADD: "add"}
    transforms = (frb.n_step(work.n, work.gamma, at=places[name]),) if name in places else ()
    spec = replace(buffer_spec(work, "uniform"), transforms=transforms)
    return spec if work.lanes == 1 else replace(spec, lanes=work.lanes)


def observation_spec(work: ObservationWorkload, *, compact: bool) -> frb.BufferSpec:
    """The spec of the workload's items, in the compact layout or in the plain one."""
    observation = frb.Unbounded(work.observation_shape, work.dtype)
    action = frb.Bounded(-1.0, 1.0, (work.action_size,)) if work.action_size else frb.Bounded(0, 17, (), "int32")
    spec = frb.BufferSpec(
        item={
            "obs": observation,
            "action": action,
            "reward": frb.Unbounded(()),
            "next_obs": observation,
            "done": frb.Binary(()),
        },
        capacity=work.capacity,
    )
    return replace(spec, compact=frb.Compact(stack=work.stack)) if compact else spec


def fill_priorities(work: SliceWorkload) -> np.ndarray:
    """Priorities of the steps that fill the buffer, with the leading axes of `SliceWorkload.in_time`."""
    values = work.chunk_priorities()
    return values if work.lanes == 1 else values.reshape(-1, work.lanes)


class OursJaxSteps(SliceContender):
    """jax_backend inside the user's jit, donating the state wherever a state is returned."""

    def __init__(self, work: AnyWork, sampler: AnySampler, spec: frb.BufferSpec, name: str = NAME) -> None:
        super().__init__(name, "jax", sampler)
        import jax
        import jax.numpy as jnp

        import jax_backend as rb

        def sample(state: Any, key: Any) -> tuple[Any, Any]:
            return rb.sample(state, key, batch_size=work.sample_size)

        def add(state: Any, items: Any, given: dict[str, Any]) -> Any:
            return rb.add(state, items, **given)

        def update(state: Any, indices: Any, priorities: Any) -> Any:
            return rb.update(state, indices[:, 0], priorities)

        given: dict[str, Any] = {}
        if isinstance(work, SliceWorkload) and sampler == "prioritized slices":
            given["priorities"] = jnp.asarray(fill_priorities(work))
            self._priorities = cycle([jnp.asarray(values) for values in work.priorities()])
        self._wait = jax.block_until_ready
        self._add = jax.jit(rb.add, donate_argnums=0)
        self._sample = jax.jit(sample, donate_argnums=0)
        self._update = jax.jit(update, donate_argnums=0)
        self._batches = cycle([jax.device_put(work.in_time(batch)) for batch in work.adds()])
        self._keys = cycle(list(jax.random.split(jax.random.key(work.seed), work.draws)))
        fill = jax.jit(add, donate_argnums=0)
        self.state = rb.init(spec)
        for chunk in work.fills():
            self.state = fill(self.state, jax.device_put(work.in_time(chunk)), given)

    def add(self) -> None:
        self.state = self._wait(self._add(self.state, next(self._batches)))

    def sample(self) -> None:
        self.state, drawn = self._wait(self._sample(self.state, next(self._keys)))
        self.drawn.append(drawn.indices)
        self.steps = drawn.indices.size

    def update(self) -> None:
        self.state = self._wait(self._update(self.state, self.drawn[0], next(self._priorities)))

    def held_bytes(self) -> int:
        return held_bytes("jax", self.state)


class OursJaxQueue(SliceContender):
    """A queue of windows, half full: it consumes as many steps as are added, one window of every lane at a time."""

    def __init__(self, work: SliceWorkload, sampler: Sequencing) -> None:
        super().__init__(NAME, "jax", sampler)
        import jax

        import jax_backend as rb

        width = work.add_size // work.lanes
        spec = replace(buffer_spec(work, "uniform"), sampler=frb.Queue(length=width), writer=frb.StopWhenFull())
        spec = spec if work.lanes == 1 else replace(spec, lanes=work.lanes)
        self._wait = jax.block_until_ready
        self._add = jax.jit(rb.add, donate_argnums=0)
        self._sample = jax.jit(lambda state, key: rb.sample(state, key, work.lanes), donate_argnums=0)
        self._batches = cycle([jax.device_put(work.in_time(batch)) for batch in work.adds()])
        self._key = jax.random.key(work.seed)
        self.state = rb.init(spec)
        for chunk in work.fills():
            if 2 * int(rb.size(self.state)) >= work.capacity:
                break
            self.state = self._add(self.state, jax.device_put(work.in_time(chunk)))

    def add(self) -> None:
        self.state = self._wait(self._add(self.state, next(self._batches)))

    def sample(self) -> None:
        self.state, drawn = self._wait(self._sample(self.state, self._key))
        self.steps = drawn.indices.size


class OursTorchSteps(SliceContender):
    """torch_backend, eager, the pure functions."""

    def __init__(self, work: AnyWork, sampler: AnySampler, spec: frb.BufferSpec, name: str = NAME) -> None:
        super().__init__(name, "torch", sampler)
        import torch

        import torch_backend as rb
        from benchmarks.torch_loop import to_tensors

        given: dict[str, Any] = {}
        if isinstance(work, SliceWorkload) and sampler == "prioritized slices":
            given["priorities"] = torch.as_tensor(fill_priorities(work))
            self._priorities = cycle([torch.as_tensor(values) for values in work.priorities()])
        self._rb = rb
        self._sample_size = work.sample_size
        self._batches = cycle([to_tensors(work.in_time(batch), "cpu") for batch in work.adds()])
        self._keys = cycle(list(rb.split(rb.key(work.seed), work.draws)))
        self.state = rb.init(spec)
        for chunk in work.fills():
            self.state = rb.add(self.state, to_tensors(work.in_time(chunk), "cpu"), **given)

    def add(self) -> None:
        self.state = self._rb.add(self.state, next(self._batches))

    def sample(self) -> None:
        self.state, drawn = self._rb.sample(self.state, next(self._keys), batch_size=self._sample_size)
        self.drawn.append(drawn.indices)
        self.steps = drawn.indices.numel()

    def update(self) -> None:
        self.state = self._rb.update(self.state, self.drawn[0][:, 0], next(self._priorities))

    def held_bytes(self) -> int:
        return held_bytes("torch", self.state)
