"""Reads a buffer of which most was never written, where the disk has no room for it: PATH, "jax", "torch" or how."""

import importlib
import os
import sys
from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb.storage import holes

directory, how = sys.argv[1:]
FILLER = os.path.join(os.path.dirname(directory), "filler")
os.environ["JAX_PLATFORMS"] = "cpu"  # where what is read of files needs no memory of its own
if how == "unprotected":
    holes.take_room = lambda _: False
rb = importlib.import_module("jax_backend" if how == "jax" else "torch_backend")
os.environ["TMPDIR"] = os.path.dirname(directory)


def fill_the_disk() -> None:
    with open(FILLER, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def read(state: Any) -> None:
    size = int(rb.size(state))
    found = np.asarray(rb.get(state, np.arange(9_000, dtype=np.int32))["x"])
    assert (found[:10] == 3).all()
    assert (found[10:size] == 5).all()
    assert not found[size:].any()
    _, sample = rb.sample(state, rb.key(0), 32)
    assert np.isin(np.asarray(sample.items["x"]), (3, 5)).all()


spec = frb.BufferSpec({"x": frb.Unbounded((256,))}, 9_000, frb.Prioritized(), storage=frb.Memmap(directory))
state = rb.add(rb.init(spec), {"x": np.full((10, 256), 3, np.float32)})
fill_the_disk()
read(state)
try:
    found = rb.items(state)["x"]
except frb.errors.StorageFullError as error:
    assert "without a name" in str(error), error
    os.unlink(FILLER)
    found = rb.items(state)["x"]
    fill_the_disk()
assert np.asarray(found)[:10].mean() == 3
assert not np.asarray(found)[10:].any()
del found
try:
    for _ in range(200):
        state = rb.add(state, {"x": np.full((45, 256), 5, np.float32)})
    raise SystemExit("there was room for all")
except frb.errors.StorageFullError as error:
    assert directory in str(error), error
size = int(rb.size(state))
read(state)
os.unlink(FILLER)
state = rb.add(state, {"x": np.full((45, 256), 6, np.float32)})
found = np.asarray(rb.get(state, np.arange(size + 46, dtype=np.int32))["x"])
assert (found[10:size] == 5).all()
assert (found[size : size + 45] == 6).all()
assert not found[size + 45 :].any()
assert (np.fromfile(os.path.join(directory, "rows.bin"), np.float32).reshape(9_000, 256)[: size + 46] == found).all()
print("read")
