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
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the modules to run are asked for where there is no pytest yet
    import pytest

# Of the device without a GPU.
NAME = "elsewhere"
ELSEWHERE = os.environ.get("TESTS_DEVICE") == NAME
ASKED = ELSEWHERE or os.environ.get("TESTS_DEVICE") == "gpu"
# Modules about the native code of the CPU, about memory that processes share, or about what is installed.
OF_THE_CPU = {
    *("test_part_kernels", "test_part_kernels_of_steps", "test_chain_of_strategies", "test_forged_memory"),
    *("test_updates_kernel", "test_switch"),
    *("test_additions", "test_pages", "test_whole_calls", "test_processes", "test_packaging"),
    "test_draws_to_given_arrays",
    *("test_native", "test_sanitizers", "test_version_chain", "test_version_chain_storms"),
    *("test_one_process", "test_files_of_buffers", "test_kills", "test_addresses", "test_default_device"),
}


KERNELS, PROGRAM = "it calls kernels of the CPU", "it is about what XLA makes for a CPU"
PLACE, ROUNDING = "its tensors are meant for the CPU", "a GPU rounds otherwise"
SEES = "numbers are not waited for there"
# Single tests, and why they are not run with both backends on a GPU.
NOT_ON_ONE = {
    "test_agreement::test_the_same_history_gives_the_same_bits": KERNELS,
    "test_custom_ops::test_operations_are_as_torch_asks": KERNELS,
    "test_custom_ops::test_whole_functions_by_their_kernels": KERNELS,
    "test_frame_ring::test_kernels_plan_the_same_writes": KERNELS,
    "test_gpu_kernels::test_the_sanitizers_program_launches_every_kernel": KERNELS,
    "test_sparse_set::test_a_kernel_shuffles_as_a_list_is_shuffled": KERNELS,
    "test_sparse_set::test_kernels_leave_the_same_set_as_the_core": KERNELS,
    "test_compiled::test_shares_that_are_plain_numbers_are_drawn_without_the_rest": PROGRAM,
    "test_draws_in_rings::test_on_jax_a_draw_is_one_kernel_after_its_bits": PROGRAM,
    "test_jax_as_on_a_gpu::test_leaves_are_known_before_the_tree_is_written": PROGRAM,
    "test_meshes::test_programs_on_eight_devices": PROGRAM,
    "test_random_bits::test_the_kernel_is_what_runs": PROGRAM,
    "test_settings::test_the_core_promotes_ranks_where_a_kernel_is_lowered_to_it": PROGRAM,
    "test_sparse_set::test_nothing_of_the_capacity_is_copied_in_a_scan": PROGRAM,
    "test_sharded::test_processes_draw_what_one_device_does": PROGRAM,
    "test_cell::test_a_forked_process_does_not_wait_for_threads_that_it_has_not": "CUDA does not survive a fork",
    "test_examples::test_quick_run": PLACE,
    "test_example::test_quick_run": PLACE,
    "test_jax_engines::test_small_arrays_are_copied_and_large_ones_shared": PLACE,
    "test_host::test_states_go_from_device_to_host_between_libraries": PLACE,
    "test_host::test_where_samples_go": PLACE,
    "test_offline::test_quick_run_on_torch": PLACE,
    "test_random_bits::test_keys_stay_where_they_are_whatever_the_default_device": PLACE,
    "test_records::test_a_mapped_record_stays_in_its_file": PLACE,
    "test_shipping::test_what_is_no_tensor_stays_and_tensors_keep_their_places": PLACE,
    "test_specs::test_examples_of_the_core": PLACE,
    "test_specs::test_examples_of_the_functions": PLACE,
    "test_tensorclasses::test_names_and_device": PLACE,
    "test_ted_recorder::test_final_observations_may_come_as_one_batch": "it compiles what this module patches",
    "test_ted_steps::test_rows_of_either_library": "it compiles what this module patches",
    "test_torch_example::test_quick_run": PLACE,
    "test_division::test_quotients_are_the_nearest": ROUNDING,
    "test_host::test_a_key_gives_what_it_gives_on_a_device": ROUNDING,
    "test_groups::test_the_spec_is_a_value_and_the_key_cannot_be_rewritten": SEES,
    "test_rollouts::test_the_reference_is_asked_about_few_replies_at_a_time": "its allocator gives larger pieces",
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

    That a buffer is empty they know without waiting before anything is added to it and after `clear`, and where it lies
    in the host's memory.
    """
    if not ASKED or library != "torch":
        return True
    return state is not None and (state.fullest_after() == 0 or state.own().is_ordinary)


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

    if not ELSEWHERE:  # by default a GPU rounds what JAX multiplies
        import jax

        jax.config.update("jax_default_matmul_precision", "highest")
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
    """Whether code of the tests, or of a page, called the function that calls this, be it through a library's `map`."""
    frame = sys._getframe(2)
    while frame.f_back is not None and _package_of(frame) in ("jax", "torch"):
        frame = frame.f_back
    return _package_of(frame) in ("tests", "__page__")


def _package_of(frame: types.FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]
