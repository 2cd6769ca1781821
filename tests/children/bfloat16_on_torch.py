"""Values of bfloat16 on torch, where NumPy does not know that dtype: python -m tests.children.bfloat16_on_torch."""

from __future__ import annotations

import sys

import functional_rb as frb
import torch_backend as rb

if __name__ == "__main__":
    spec = {
        "x": frb.Bounded(-1, 1, (2,), "bfloat16"),
        "one": frb.specs.OneHot(3, dtype="bfloat16"),
        "some": frb.specs.Sequence(frb.Unbounded((), "bfloat16"), 2),
        "none": frb.specs.Sequence(frb.Unbounded((), "bfloat16"), 2, stack=True),
    }
    value = rb.encode(spec, {"x": [0.3, 1], "one": 2, "some": (1.5,), "none": []})
    assert bool(rb.contains(spec, value))
    assert value["x"].tolist() == [0.30078125, 1.0]
    again = rb.decode(spec, value)
    assert again["x"].tolist() == [0.30078125, 1.0]
    assert again["one"] == 2
    assert again["some"] == (1.5,)
    assert "ml_dtypes" not in sys.modules
