"""The parts of the benchmark of services that need neither Ray nor a peer: its model, its tables, its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.service import report
from benchmarks.service.contenders import KINDS
from benchmarks.service.model import NETWORK, Costs, turns_a_second


def test_items_have_the_bytes_that_their_names_say_and_are_the_same_at_every_run():
    sizes = {name: kind.item_bytes for name, kind in KINDS.items()}
    assert sizes == {
        "steps": 165, "frames": 28_236, "100B": 100, "1KB": 1000, "10KB": 10_000, "100KB": 100_000, "1MB": 1_000_000
    }  # fmt: skip
    for kind in KINDS.values():
        first, second = kind.batch(3), kind.batch(3)
        assert sum(leaf.nbytes for leaf in first.values()) == 3 * kind.item_bytes
        assert all((first[name] == second[name]).all() for name in first)
        assert kind.capacity(150_000_000) % 64 == 0


def test_the_model_is_the_least_of_clients_shards_and_networks():
    costs = Costs(client=0.001, shard=0.002, latency=0.004, call=0.0005, out=1000)
    assert turns_a_second(costs, 1, 1) == pytest.approx(250)  # a turn after another
    assert turns_a_second(costs, 64, 1) == pytest.approx(500)  # a shard that is busy
    assert turns_a_second(costs, 64, 2) == pytest.approx(1 / 0.00125)
    assert turns_a_second(costs, 10**6, 8) < 1 / 0.0005  # what a further shard costs stays
    assert turns_a_second(costs._replace(out=10**9), 64, 2) == pytest.approx(2 * NETWORK / 10**9)


def found() -> dict[str, Any]:
    ours = {
        "in": 300.0, "in_GB/s": 0.3, "out": 1234567.0, "out_GB/s": 1.2, "add_ms": [1.0, 2.0], "draw_ms": [2.0, 4.0],
        "rounds_in": [300.0, 100.0, 900.0], "rounds_out": [60.0],
    }  # fmt: skip
    peer = ours | {"add_ms": [3.0, 9.0], "rounds_in": [100.0, 150.0, 50.0], "rounds_out": [20.0]}
    kind = {"name": "1 KB", "bytes": 1000, "add": 64, "draw": 256, "blob": True}
    both = {"functional_rb": ours, "torchrl": peer}
    return {
        "command": "python -m benchmarks.service", "machine": "a machine", "versions": "1", "rounds": 3, "seconds": 1.0,
        "missing": ["Reverb: no interpreter."], "crowd": "steps", "state": "It was shared.",
        "kinds": [{**kind, "contenders": both}],
        "clients": [{"clients": 4, "contenders": {"functional_rb": {"in": 1.0, "out": 2.0}}}],
        "shards": [{"shards": 2, "in": 1.0, "out": 2.0, "client_ms": 0.5, "shard_ms": 0.25}],
        "model": [{"clients": 4, "shards": k, "out": 1e6 * k} for k in (1, 2)], "costs": "So much.",
    }  # fmt: skip


def test_ratios_are_of_medians_and_the_model_is_called_one():
    text = report.markdown(found(), "service.png")
    assert "| 1 KB | torchrl | 3.0 | 3.0 | 3.0 | 1.0 |" in text
    assert "| 1 KB | 64, 256 | functional_rb | 300 | 0.300 | 1,230,000 |" in text
    assert "## Many machines: a model, not a measurement" in text
    assert "| 4 | 1,000,000 | 2,000,000 |" in text
    assert "Not measured: Reverb: no interpreter." in text
    assert "![Items and bytes a second](service.png)" in text


def test_the_picture_is_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib", reason="the charts need matplotlib")
    report.draw(found(), tmp_path / "service.png")
    assert (tmp_path / "service.png").stat().st_size > 10_000
