"""What is loaded by the first import, and that threads which ask for all names at once get them."""

import random
import sys
import threading
from typing import Any

import functional_rb as frb

ours = {name for name in sys.modules if name.startswith("functional_rb.")}
assert ours == {f"functional_rb.base{x}" for x in ("", ".forks", ".lazy")}, ours
assert "numpy" not in sys.modules

frb.BufferSpec({"x": frb.Unbounded((3,))}, 8, sampler=frb.Prioritized())
loaded = {name.split(".")[1] for name in sys.modules if name.startswith("functional_rb.")}
late = {"checkpoint", "convert", "datasets", "iteration", "mixture", "storage", "ted", "text", "trees"}
assert not loaded & late, loaded & late

sys.setswitchinterval(1e-5)
together = threading.Barrier(8)
found: list[dict[str, Any]] = [{} for _ in range(8)]


def touch(k: int) -> None:
    names = random.Random(k).sample(frb.__all__, len(frb.__all__))
    together.wait()
    for name in names:
        found[k][name] = getattr(frb, name)


threads = [threading.Thread(target=touch, args=(k,)) for k in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert set(found[0]) == set(frb.__all__)
assert all(one[name] is found[0][name] for one in found for name in frb.__all__)
frb.Unifrom  # noqa: B018  # which is told as no attribute
