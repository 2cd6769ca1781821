"""Every field of a manifest, changed by one who makes the checksum of the file fit: refused by name, or the same."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from functional_rb.__main__ import main
from tests.support.backends import Backend
from tests.support.checkpoints import Bits, bits, put, rewritten
from tests.support.effort import effort

ITEM = {"x": frb.Bounded(-1.0, 1.0, (2,)), "action": frb.Categorical(5), "image": frb.Unbounded((9, 9, 33), "uint8")}
SPECS: dict[str, frb.BufferSpec] = {
    "prioritized": frb.BufferSpec(ITEM, 60, frb.Prioritized(alpha=0.7), batch_size=4),
    "slices": frb.BufferSpec(ITEM | {"done": frb.Binary()}, 40, frb.Slices(2, strict_length=False), lanes=2),
    "notes": frb.BufferSpec({"x": frb.Unbounded(()), "note": frb.specs.NonTensor()}, 7, storage=frb.Host()),
    "reservoir": frb.BufferSpec(ITEM, 20, frb.WithoutReplacement(), writer=frb.Reservoir()),
}
IN_PLACE = "in place"


def saved(name: str, path: Path) -> None:
    """Two saves, the second incremental."""
    spec = SPECS.get(name, SPECS["prioritized"])
    if name == IN_PLACE:
        spec = frb.BufferSpec(spec.item, spec.capacity, spec.sampler, storage=frb.Memmap(path))
    state, words = rb.init(spec), rb.key(3) if spec.writer.words else None
    for first, count in ((0, 32), (32, 4)):
        batch = np.arange(first, first + count)
        made: Any = {"note": [f"n{k}" for k in batch], "x": batch.astype(np.float32)}
        if name != "notes":
            made = {name: np.asarray(leaf) for name, leaf in rb.rand(spec.item, rb.key(first), (count,)).items()}
        made = {k: x if spec.lanes is None else x.reshape(-1, spec.lanes, *x.shape[1:]) for k, x in made.items()}
        state = rb.add(state, made, key=words)
        frb.save(state, path, incremental=True)


Change = tuple[tuple[Any, ...], Any]
GONE, TWICE = object(), object()


def others(value: Any) -> list[Any]:
    """What may stand in the place of a value."""
    if isinstance(value, bool):
        return [not value, int(value), None, "true"]
    if isinstance(value, int):
        return [value + 1, value - 1, -value - 1, 0, 2**31, 2**63, float(value), str(value), None, True, [value]]
    if isinstance(value, float):
        return [value + 0.5, -value, 0, str(value), None, [], 1e300]
    if isinstance(value, str):
        return ["", value + "x", value[:-1], value.upper() + "_", "../" + value, "a\0", 0, None, [value]]
    if isinstance(value, list):
        shorter = [value[:-1], value[1:], value[::-1]] if len(value) > 1 else []
        return [[], {}, None, 0, value + value[-1:], [None, *value], *shorter]
    return [{}, [], None, 0, "", {**(value or {}), "more": 0}]


def changes(told: Any, at: tuple[Any, ...] = ()) -> Iterator[Change]:
    """Every change of every part of a nest, as the place and what comes there."""
    if at:
        yield at, GONE
        yield from ((at, other) for other in others(told) if not (type(other) is type(told) and other == told))
    parts = told.items() if isinstance(told, dict) else enumerate(told) if isinstance(told, list) else ()
    for name, part in parts:
        yield from changes(part, (*at, name))


def changed(told: Any, change: Change) -> Any:
    made = copy.deepcopy(told)
    place = made
    *way, last = change[0]
    for name in way:
        place = place[name]
    if change[1] is GONE:
        del place[last]
    else:
        place[last] = change[1]
    return made


def looked_at(path: Path) -> Bits:
    state = frb.load(path, rb, storage=frb.Host() if (path / "rows.bin").exists() else None)
    objects = repr(rb.items(state)["note"]) if state.spec.plan.objects else ""
    return bits(state) | {"objects": (objects, (), b"")}


LOOKS: dict[str, Callable[[Path], object]] = {
    "checkpoints": frb.checkpoint.checkpoints,
    "load_spec": frb.checkpoint.load_spec,
}


@pytest.mark.parametrize("name", [*SPECS, IN_PLACE])
def test_a_field_that_is_changed_is_refused_or_changes_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    saved(name, path)
    file = max(path.glob("[0-9]*.json"))
    told = json.loads(file.read_text())["manifest"]
    expected, before = looked_at(path), {place: place.read_bytes() for place in path.iterdir()}
    every = list(changes(told))
    fields = {change[0][0] for change in every}
    assert fields >= {"spec", "arrays", "counters", "segments", "content", "items", "stamp", "generation", "format"}
    random.Random(5).shuffle(every)
    harmless, refused = set(), 0
    for number, change in enumerate(every[: effort(160, None)]):
        put(file, changed(told, change))
        try:
            found = looked_at(path)
        except (frb.errors.CheckpointError, ValueError) as error:
            assert str(path) in str(error), change  # noqa: PT017 - most are refused, and some change nothing
            refused += 1
        else:
            assert found == expected, change
            harmless.add(change[0][0])
        if number % 8 == 0:
            for look in LOOKS.values():
                try:
                    look(path)
                except (frb.errors.CheckpointError, ValueError) as error:
                    assert str(path) in str(error), change  # noqa: PT017
            main(["inspect", str(path)])
            assert "Traceback" not in "".join(capsys.readouterr())
    assert harmless <= {"time", "here", "in_place", "segments", "spec", "arrays"}
    assert refused > 100
    file.write_bytes(before[file])
    assert {place: place.read_bytes() for place in path.iterdir()} == before


@pytest.mark.parametrize("device", ["bogus", "cuda:99", "meta"])
def test_a_device_that_is_not_here_is_named_with_the_file(device: str, library: Backend, tmp_path: Path) -> None:
    spec = frb.BufferSpec({"x": frb.Unbounded(())}, 4)
    frb.save(library.rb.add(library.rb.init(spec), {"x": np.float32(3)}), tmp_path)
    told = json.loads(frb.convert.to_json(dataclasses.replace(spec, storage=frb.Device(device))))
    file = rewritten(tmp_path, lambda manifest: manifest.update(spec=told))
    with pytest.raises(ValueError, match=f"{file}: .*device {device!r}.*storage=frb.Device"):
        frb.load(tmp_path, library.rb)
    for options in ({"storage": frb.Device()}, {"device": "cpu"}):
        assert float(library.rb.items(frb.load(tmp_path, library.rb, **options))["x"][0]) == 3


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    """Each is whole, and in range, and would load as other items."""
    saved("prioritized", tmp_path)
    file = tmp_path / "0000000002.json"
    whole = file.read_bytes()
    told = json.loads(whole)["manifest"]
    for change in (
        (("segments",), []),
        (("counters", 0), 0),
        (("counters", 0), told["counters"][0] + 1),
        (("counters", 2), 7),
        (("spec", "spec", "sampler", "alpha"), 0.2),
    ):
        put(file, changed(told, change))
        with pytest.raises(frb.errors.CorruptCheckpointError) as caught:
            frb.load(tmp_path, rb)
        assert caught.value.file == str(file)
        assert int(rb.size(frb.load(tmp_path, rb, frb.checkpoint.LoadOptions(fall_back=True)))) == 32
        state = rb.add(
            frb.load(tmp_path, rb, frb.checkpoint.LoadOptions(fall_back=True)), rb.rand(ITEM, rb.key(1), (1,))
        )
        shutil.copytree(tmp_path, tmp_path / "copy")
        frb.save(state, tmp_path / "copy", incremental=True)  # which is not built on it
        assert int(rb.size(frb.load(tmp_path / "copy", rb))) == 33
        shutil.rmtree(tmp_path / "copy")
