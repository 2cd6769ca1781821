"""Buffers that differ: in storage, in what their transforms tell, and in Python objects among their items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.mixture.mixtures import ITEM, filled, numbers
from tests.support.backends import Backend


def test_storages_may_differ(library: Backend, tmp_path: Path) -> None:
    """In memory, on the host, in files, and in files that processes share: each gives what it holds, and takes it."""
    rb = library.rb
    storages = [frb.Device(), frb.Host(), frb.Memmap(tmp_path / "own"), frb.Memmap(tmp_path / "shared", shared=True)]
    sampler = frb.Prioritized(alpha=1.0, beta=1.0)
    mixture = frb.Mixture(
        [filled(library.rb, frb.BufferSpec(ITEM, 4, sampler, storage=s), 10 * k, k + 1) for k, s in enumerate(storages)]
    )
    first = library.array(np.array([[0, 0], [3, 2]], np.int32))
    mixture = rb.update(mixture, first, library.array(np.float32([2, 5])), {"x": library.array(np.float32([100, 200]))})
    mixture = rb.add(mixture, {"x": np.full(1, 50, np.float32)}, to=2)
    assert library.numpy(rb.size(mixture, each=True)).tolist() == [1, 2, 4, 4]
    seen: dict[tuple[int, ...], float] = {}
    for how in ("exact", "items"):
        for seed in range(4):
            drawn = frb.Mixture(mixture.states, p=[1, 2, 4, 4], how=how)  # type: ignore[arg-type]  # each of them is one
            found = numbers(library, rb.sample(drawn, rb.key(seed), 22)[1])
            assert how == "items" or np.bincount(found["ids"]).tolist() == [2, 4, 8, 8]
            product = found["weights"].astype(np.float64) * found["probabilities"]
            np.testing.assert_allclose(product, product[0], rtol=1e-6)
            seen |= zip(map(tuple, found["indices"].tolist()), found["x"].tolist(), strict=True)
    assert seen == {
        (0, 0): 100,
        (1, 0): 10,
        (1, 1): 11,
        (2, 0): 20,
        (2, 1): 21,
        (2, 2): 22,
        (2, 3): 50,
        (3, 0): 30,
        (3, 1): 31,
        (3, 2): 200,
        (3, 3): 33,
    }


def test_what_all_transforms_tell_is_told(library: Backend) -> None:
    """Of returns over different numbers of steps both tell the discount; single steps cannot come with them."""
    rb = library.rb
    item = {"x": frb.Unbounded(()), "reward": frb.Unbounded(()), "done": frb.Binary(())}
    storage = frb.Host() if library.name == "jax" else frb.Device()
    states = []
    for n in (1, 3, 0):
        transforms = frb.n_step(n, 0.5) if n else ()
        spec = frb.BufferSpec(item, 8, storage=storage, transforms=transforms)
        steps = {"x": np.zeros(6, np.float32), "reward": np.ones(6, np.float32), "done": np.arange(6) == 5}
        states.append(rb.add(rb.init(spec), steps))
    _, sample = rb.sample(frb.Mixture(states[:2]), rb.key(0), 8)
    steps = library.numpy(sample.extras["steps"])
    assert steps[:4].tolist() == [1] * 4
    assert set(steps[4:]) > {3}
    np.testing.assert_array_equal(library.numpy(sample.extras["discount"]), 0.5**steps)
    np.testing.assert_array_equal(library.numpy(sample.items["reward"]), 2 - 0.5 ** (steps - 1))
    with pytest.raises(ValueError, match=r"buffer 2 of the mixture gives single steps.*frb\.n_step\(1, gamma=0\.5\)"):
        rb.sample(frb.Mixture(states), rb.key(0), 6)


def test_objects_come_as_they_are(library: Backend) -> None:
    rb, item = library.rb, {"note": frb.specs.NonTensor(), "x": frb.Unbounded(())}
    spec = frb.BufferSpec(item, 4, storage=frb.Host())
    states: list[Any] = []
    for name in ("a", "b"):
        notes = np.array([(name, k) for k in range(3)] + [None], object)[:3]
        states.append(rb.add(rb.init(spec), {"note": notes, "x": np.arange(3, dtype=np.float32)}))
    for how in ("exact", "items"):
        mixture = frb.Mixture(states, how=how)  # type: ignore[arg-type]  # each of them is one
        _, sample = rb.sample(mixture, rb.key(0), 8)
        found = numbers(library, sample)
        assert set(found["ids"]) == {0, 1}
        expected = [("ab"[k], int(x)) for k, x in zip(found["ids"], found["x"], strict=True)]
        assert sample.items["note"].tolist() == expected
        assert rb.get(mixture, sample.indices)["note"].tolist() == expected


def test_a_queue_on_a_device_beside_the_host_gives_up_what_comes() -> None:
    import jax_backend as rb

    queue, host = frb.BufferSpec(ITEM, 8, frb.Queue()), frb.BufferSpec(ITEM, 8, storage=frb.Host())
    items = {"x": np.arange(8, dtype=np.float32)}
    mixture, came = frb.Mixture([rb.add(rb.init(spec), items) for spec in (queue, host)], how="items"), []
    for seed in range(3):
        mixture, sample = rb.sample(mixture, rb.key(seed), 5)
        came += np.asarray(sample.items["x"])[np.asarray(sample.extras["buffer_ids"]) == 0].tolist()
    assert came == list(range(len(came)))
    assert int(rb.size(mixture[0])) == 8 - len(came) < 8
