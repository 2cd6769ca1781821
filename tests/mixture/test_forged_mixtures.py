"""Checkpoints of mixtures whose small record says what no mixture is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend

SPEC = frb.BufferSpec({"x": frb.Unbounded(())}, capacity=4)
FORGED: dict[str, dict[str, Any]] = {
    "no checkpoints": {"checkpoints": []},
    "checkpoints that are no numbers": {"checkpoints": ["1", "1"]},
    "a number in place of checkpoints": {"checkpoints": 2},
    "another way": {"spec": {"how": "by chance"}},
    "too few shares": {"spec": {"p": [1.0]}},
    "shares that are none": {"spec": {"p": [float("nan"), 1.0]}},
    "shares of another sum": {"spec": {"p": [3.0, 5.0]}},
    "shares below nothing": {"spec": {"p": [-1.0, 2.0]}},
    "texts for shares": {"spec": {"p": ["a", "b"]}},
    "more parts than buffers": {"spec": {"parts": 10**12}},
    "no parts": {"spec": {"how": "buffers", "parts": 0}},
    "stacks of what has no parts": {"spec": {"stacked": True}},
    "leaves that are none": {"spec": {"leaves": [3]}},
    "another field": {"spec": {"other": 1}},
    "no spec": {"spec": None},
}


def saved(library: Backend, path: Path, p: Any) -> Any:
    rb = library.rb
    states = [rb.init(SPEC, items={"x": np.full(4, k, np.float32)}) for k in range(2)]
    mixture = frb.Mixture(states, p)
    frb.save(mixture, path)
    return mixture


def forge(path: Path, change: dict[str, Any], p: Any = None) -> None:
    """Write a newer record of the mixture there."""
    static = {"p": None, "how": "exact", "leaves": None, "parts": 2, "stacked": False}
    told: dict[str, Any] = {"checkpoints": [1, 1], "spec": static}
    for name, value in change.items():
        told[name] = told[name] | value if isinstance(value, dict) else value
    record: dict[str, Any] = {"told": np.frombuffer(json.dumps(told).encode(), np.uint8)}
    frb.save({"functional_rb.Mixture": record if p is None else record | {"p": p}}, path)


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_record_does_not_load(library: Backend, tmp_path: Path, kind: str) -> None:
    saved(library, tmp_path, [0.5, 0.5])
    forge(tmp_path, {})
    assert len(frb.load(tmp_path, library.rb)) == 2
    forge(tmp_path, FORGED[kind])
    with pytest.raises(frb.errors.CorruptCheckpointError, match="what it says of a mixture"):
        frb.load(tmp_path, library.rb)


SHARES = {
    "too few": np.array([1.0], np.float32),
    "no number": np.array([0.5, np.nan], np.float32),
    "negative": np.array([-0.5, 1.5], np.float32),
    "whole numbers": np.array([1, 1], np.int32),
}


@pytest.mark.parametrize("p", [*SHARES.values(), {"x": np.ones(2, np.float32)}], ids=[*SHARES, "a dict"])
def test_forged_shares_do_not_load(library: Backend, tmp_path: Path, p: Any) -> None:
    saved(library, tmp_path, library.array(np.array([0.5, 0.5], np.float32)))
    forge(tmp_path, {}, p)
    with pytest.raises(frb.errors.CorruptCheckpointError, match="what it says of a mixture is of none: Mixture: "):
        frb.load(tmp_path, library.rb)


def test_forged_dicts_of_mixtures_do_not_load(library: Backend) -> None:
    rb = library.rb
    states = [rb.init(SPEC, items={"x": np.full(4, k, np.float32)}) for k in range(2)]
    mixture = frb.Mixture(states, library.array(np.array([0.5, 0.5], np.float32)))
    whole = rb.state_dict(mixture)
    assert len(rb.load_state_dict(mixture, whole)) == 2
    for shares in SHARES.values():
        with pytest.raises(
            ValueError, match=r"load_state_dict: 'p': expected the shares of 2 buffers.*as rb\.state_dict"
        ):
            rb.load_state_dict(mixture, whole | {"p": library.array(shares)})
    for told in ("{", b"\xff", "[" * 10**5, np.array([200, 1], np.uint8)):
        with pytest.raises(ValueError, match="load_state_dict: 'mixture': expected how buffers are mixed as JSON"):
            rb.load_state_dict(mixture, whole | {"mixture": told})


def test_shares_come_back_as_they_were(library: Backend, tmp_path: Path) -> None:
    """Bit for bit, though they are looked at."""
    for k, p in enumerate(([0.1, 0.7], [1, 2], None, library.array(np.array([3, 5], np.float32)))):
        mixture = saved(library, tmp_path / str(k), p)
        found = frb.load(tmp_path / str(k), library.rb)
        assert found.spec == mixture.spec
        assert (found.p is None) == (mixture.p is None)
