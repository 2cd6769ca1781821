"""functional_rb under measurement: jitted on JAX; as values and in place on torch eager."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import functional_rb as frb
from benchmarks.contender import Contender, Sampler
from benchmarks.workload import Workload

NAME = "ours"
IN_PLACE = "ours in place"
AT_ADD = "ours at add"
ONE_STEP = "ours 1-step"
PLAIN = "ours plain"
VALIDATED = "ours validated"
EAGER = "ours eager"
EAGER_VALIDATED = "ours eager, validated"
IN_MEMORY = "ours in memory"
INCREMENTAL = "ours incremental"
AHEAD = "ours ahead"


def buffer_spec(work: Workload, sampler: Sampler) -> frb.BufferSpec:
    """The spec of the workload's items, of the same shapes and dtypes as `workload.ITEM`."""
    return frb.BufferSpec(
        item={
            "obs": frb.Unbounded((17,)),
            "action": frb.Bounded(-1.0, 1.0, (6,)),
            "reward": frb.Unbounded(()),
            "next_obs": frb.Unbounded((17,)),
            "done": frb.Binary(()),
        },
        capacity=work.capacity,
        sampler=frb.Uniform() if sampler == "uniform" else frb.Prioritized(alpha=work.alpha, beta=work.beta),
    )


class OursJax(Contender):
    """jax_backend inside the user's jit, donating the state wherever a state is returned.

    Sample too: what a jitted function hands through without donation, XLA copies.
    """

    def __init__(self, work: Workload, sampler: Sampler) -> None:
        super().__init__(NAME, "jax", sampler)
        import jax
        import jax.numpy as jnp

        import jax_backend as rb
        from benchmarks.jax_loop import prepare, scanned_step, to_device

        def sample(state: Any, key: Any) -> tuple[Any, Any]:
            return rb.sample(state, key, batch_size=work.sample_size)

        def update(state: Any, drawn: Any, priorities: Any) -> Any:
            return rb.update(state, drawn.indices, priorities)

        self.step_length = work.scan_length
        self._wait = jax.block_until_ready
        self._data = prepare(work)
        self._add = jax.jit(rb.add, donate_argnums=0)
        self._sample = jax.jit(sample, donate_argnums=0)
        self._update = jax.jit(rb.update, donate_argnums=0)
        self._step = scanned_step(rb.add, sample, update if sampler == "prioritized" else None)

        chunk = to_device(work.chunk())
        given = {"priorities": jnp.asarray(work.chunk_priorities())} if sampler == "prioritized" else {}
        fill = jax.jit(lambda state, items, given: rb.add(state, items, **given), donate_argnums=0)
        self.state = rb.init(buffer_spec(work, sampler))
        for _ in range(work.chunks):
            self.state = fill(self.state, chunk, given)
        self.state, self._last = self._sample(self.state, next(self._data.keys))

    def add(self) -> None:
        self.state = self._wait(self._add(self.state, next(self._data.batches)))

    def sample(self) -> None:
        self.state, drawn = self._wait(self._sample(self.state, next(self._data.keys)))
        self.drawn.append(drawn.indices)

    def update(self) -> None:
        self.state = self._wait(self._update(self.state, self.next_drawn(), next(self._data.priorities)))

    def step(self) -> None:
        self.state, self._last = self._wait(self._step(self.state, self._last, next(self._data.scans)))


class OursTorch(Contender):
    """torch_backend, eager: the pure functions, or the ones with a trailing underscore; where asked, not waited for."""

    def __init__(
        self, work: Workload, sampler: Sampler, *, in_place: bool = False, device: str = "cpu", waits: bool = True
    ) -> None:
        super().__init__(IN_PLACE if in_place else NAME, "torch", sampler)
        import torch

        import torch_backend as rb
        from benchmarks.torch_loop import synchronizer, to_tensors

        self._add = rb.add_ if in_place else rb.add
        self._sample = rb.sample_ if in_place else rb.sample
        self._update = rb.update_ if in_place else rb.update
        self._sample_size = work.sample_size
        self._synchronize = synchronizer(device if waits else "cpu")
        self._batches = cycle([to_tensors(batch, device) for batch in work.batches()])
        self._priorities = cycle([torch.as_tensor(values, device=device) for values in work.priorities()])
        self._keys = cycle(list(rb.split(rb.key(work.seed).to(device), work.draws)))

        chunk = to_tensors(work.chunk(), device)
        given: dict[str, Any] = {}
        if sampler == "prioritized":
            given["priorities"] = torch.as_tensor(work.chunk_priorities(), device=device)
        self.state = rb.init(buffer_spec(work, sampler), device=device)
        for _ in range(work.chunks):
            self.state = self._add(self.state, chunk, **given)

    def add(self) -> None:
        self.state = self._add(self.state, next(self._batches))
        self._synchronize()

    def sample(self) -> None:
        self.state, drawn = self._sample(self.state, next(self._keys), batch_size=self._sample_size)
        self.drawn.append(drawn.indices)
        self._synchronize()

    def update(self) -> None:
        self.state = self._update(self.state, self.next_drawn(), next(self._priorities))
        self._synchronize()
