"""The whole suite on a GPU, by `TESTS_DEVICE=gpu` (`make gpu`): states, items and samples of both backends there.

JAX has its arrays on a GPU that it finds. Torch is told so by its default device. The tests themselves compute what
they expect by NumPy: what they turn into tensors goes to the GPU, and what they read as arrays comes from there. The
library gets no such help: where it would read a tensor of the GPU as an array, it fails as it would for its users.

By `TESTS_DEVICE=elsewhere` (`make test-device`) the tests of torch run on a device without a GPU, see `support.device`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the modules to run are asked for where there is no pytest yet
    import pytest

# Of the device without a GPU.
NAME = "elsewhere"
ELSEWHERE = os.environ.get("TESTS_DEVICE") == NAME
ASKED = ELSEWHERE or os.environ.get("TESTS_DEVICE") == "gpu"
# Modules about the native code of the CPU, or about memory that processes share.
OF_THE_CPU = {
    *("test_part_kernels", "test_epochs_kernel", "test_slices_kernel", "test_updates_kernel", "test_switch"),
    "test_additions",
    *("test_native", "test_sanitizers", "test_version_chain", "test_version_chain_storms"),
    *("test_one_process", "test_kills", "test_addresses", "test_default_device"),
}


# Examples of a property: each takes many launches, and a machine with a GPU is had for minutes.
FEW = 4


def search_briefly(test: Any) -> None:
    """Let Hypothesis try few examples of a test."""
    import hypothesis

    known = getattr(test, "_hypothesis_internal_use_settings", None)
    if known is not None:
        few = hypothesis.settings(known, max_examples=min(known.max_examples, FEW))
        test._hypothesis_internal_use_settings = few


def not_on_one(reason: str) -> pytest.MarkDecorator:
    """Skips a test where the suite is run on a GPU."""
    import pytest

    return pytest.mark.skipif(ASKED, reason=f"not on a GPU: {reason}")


def sees_values(library: str, state: Any = None) -> bool:
    """Whether a call is refused for a number in an array: on a GPU torch's functions do not wait for it, and go on.

    That a buffer is empty they know without waiting as long as nothing has ever been added to it.
    """
    return not ASKED or library != "torch" or (state is not None and not state._version.own().written)


def refused(library: str, match: str) -> contextlib.AbstractContextManager[Any]:
    """What such a call comes to."""
    import pytest

    return pytest.raises(ValueError, match=match) if sees_values(library) else contextlib.nullcontext()


def missing() -> str:
    """Which backends see no GPU here, for a message; empty if both see one."""
    if ELSEWHERE:
        return ""
    import jax
    import torch

    there = {"jax": jax.default_backend() == "gpu", "torch": torch.cuda.is_available()}
    return " and ".join(name for name, seen in there.items() if not seen)


def use() -> None:
    """Let tests of torch have their tensors on the GPU, from now on and in this thread."""
    import torch

    to_array, to_numpy, from_numpy = torch.Tensor.__array__, torch.Tensor.numpy, torch.from_numpy
    tensor: Any = torch.Tensor

    def array(x: Any, *args: Any, **kwargs: Any) -> Any:
        return to_array(x.cpu() if _called_by_a_test() else x, *args, **kwargs)

    def numpy(x: Any, **kwargs: Any) -> Any:
        return to_numpy(x.cpu() if _called_by_a_test() else x, **kwargs)

    def from_array(x: Any) -> Any:
        made = from_numpy(x)
        return made.to(torch.get_default_device()) if _called_by_a_test() else made

    tensor.__array__, tensor.numpy, torch.from_numpy = array, numpy, from_array
    if ELSEWHERE:
        from tests.support import device

        device.library()
    torch.set_default_device(NAME if ELSEWHERE else "cuda")


def _called_by_a_test() -> bool:
    """Whether the function that calls this was itself called by code of the tests."""
    name: str = sys._getframe(2).f_globals.get("__name__", "")
    return name.startswith("tests.")
