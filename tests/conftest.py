"""One `backend` fixture runs a test on every variant of both backends."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from tests.support import backends, device, effort, gpu, lowering, selection, tracing, xla_options
from tests.support.backends import Backend

# Two workers share two cores: torch's own threads would wait for each other. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The collector comes seldom: imports make a million objects that stay, and tracing very many that live for a while.
gc.set_threshold(20_000, 50, 100)

# Programs are compiled for XLA quickly rather than well: that takes a quarter of the time. Processes that tests start
# do so too. Tests that read compiled programs ask for what is left out here, see `support.xla_options`.
os.environ["XLA_FLAGS"] = f"{xla_options.FLAGS} {os.environ.get('XLA_FLAGS', '')}"

# Tests start a hundred processes that import the same: what Python compiles is kept for them, whatever the environment
# says. (What XLA compiles is not: to look for it in a cache takes longer than what is found there is worth.)
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# No test reads from which lines of Python an operation of a program came, and to note them all takes time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

if gpu.ELSEWHERE:  # compiled before there are workers
    device.built()

if gpu.ASKED and not gpu.ELSEWHERE:  # many processes share the GPU
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    # Programs that XLA has recorded as CUDA graphs fail where the memory comes from another allocation than before, as
    # without preallocation, or when it is torch's: "Failed to set memcpy D2D node params". See docs/guide.md.
    os.environ["XLA_FLAGS"] += " --xla_gpu_enable_command_buffer="

# The same examples at every run: a suite that fails now and then is broken.
hypothesis.settings.register_profile(
    "ci",
    max_examples=effort.effort(50, 100),
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.register_profile("explore", parent=hypothesis.settings.get_profile("ci"), derandomize=False)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """Let Python's collector look at a module's own objects alone: JAX and torch have made a million that stay."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def less_for_jax_to_do() -> None:
    """Let JAX make the programs of a module in one context, and none for arrays that it is given."""
    lowering.share_contexts()
    lowering.take_arrays_without_programs()


@pytest.fixture(scope="module", autouse=True)
def less_for_torch_to_do() -> None:
    """Let torch.compile trace without what nobody reads here, once a test has imported it."""
    tracing.trace_quickly()


@pytest.fixture(scope="session", autouse=gpu.ASKED)
def on_the_gpu() -> None:
    """Let both backends compute on the GPU, if the whole suite is to."""
    without = gpu.missing()
    if without:
        pytest.skip(f"no GPU for {without} here")
    gpu.use()


@pytest.fixture
def tensors_of_the_cpu() -> Iterator[None]:
    """Let torch's tensors be on the CPU, of which the test is, also where the suite is run on a GPU."""
    if not gpu.ASKED:
        yield
        return
    import torch

    with torch.device("cpu"):
        yield


FIRST = (
    # Those that fork come first: it takes a worker three times as long when all that JAX compiled lies in its memory.
    *("test_in_place", "test_faults", "test_processes", "test_one_process", "test_files_of_buffers"),
    *("test_whole_states", "test_cell", "test_mapped_processes", "test_file_names"),
    # The others from half a minute of processor time down to four seconds.
    *("test_sanitizers", "test_meshes", "test_members", "test_part_kernels", "test_custom_ops"),
    *("test_part_kernels_of_steps", "test_search_games"),
    *("test_compiled", "test_jax", "test_generation", "test_sampler_distributions", "test_addresses", "test_sharded"),
    *("test_gpu_rings", "test_every_variant", "test_docs", "test_torch_values", "test_frame_dedup", "test_histories"),
    *(
        "test_search_mctx",
        "test_jax_loops",
        "test_additions",
        "test_random_programs",
        "test_version_chain_storms",
        "test_sparse_set",
    ),
    *("test_n_step", "test_specs", "test_groups", "test_torch_interop", "test_compiled_by_torch", "test_search_model"),
    *("test_agreement", "test_gpu_steps_on_jax", "test_gpu_kernels_on_jax", "test_search_chance", "test_forged_trees"),
    *("test_objects", "test_torch_example", "test_respec", "test_respec_storage", "test_exponential_race"),
    *("test_forests", "test_flat_slices"),
    *("test_lifecycle", "test_values", "test_jax_as_on_a_gpu", "test_mixtures", "test_common_items", "test_hindsight"),
    *("test_search_state",),
    *(
        "test_sum_tree",
        "test_prioritized_trees",
        "test_soak",
        "test_interrupts",
        "test_older_states",
        "test_several_rewards",
        "test_storages",
    ),
    *("test_gpu_kernels_in_rings_on_jax", "test_gpu_mixtures", "test_gpu_mixtures_of_any_kind", "test_gpu_kernels"),
    *("test_kills", "test_examples", "test_interrupt_storms", "test_bridge", "test_fixed_point", "test_slice_start"),
    *(
        "test_paths",
        "test_consuming_states",
        "test_jit_of_states",
        "test_conformance_suite",
        "test_packaging",
        "test_distribution",
    ),
    *(
        "test_iterate",
        "test_iterate_ends",
        "test_maps",
        "test_whole_calls",
        "test_on_gpu",
        "test_rollouts",
        "test_settings",
    ),
    *("test_errors", "test_updates_kernel", "test_gpu_operations", "test_map_items", "test_map_items_refused"),
    "test_forged_states",
    # These would come at the very end, where the other worker waits for them.
    *("test_search_example", "test_search_jax_loops", "test_log_probs_in_parts"),
    *("test_episode_windows", "test_division"),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Modules that fork and the longest ones first, without the long searches unless they are asked for."""
    if gpu.ELSEWHERE:
        others = [item for item in items if not selection.of_torch(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if selection.of_torch(item)]
    skipped = pytest.mark.skip(reason="a long search: make test-all")
    of_the_cpu = pytest.mark.skip(reason="about the native code of the CPU, or about memory that processes share")
    for item in [] if effort.EVERYTHING else [*selection.long(items)]:
        item.add_marker(skipped)
    for item in items:
        if gpu.ASKED and item.path.stem in gpu.OF_THE_CPU:
            item.add_marker(of_the_cpu)
        why = gpu.NOT_ON_ONE.get(f"{item.path.stem}::{getattr(item, 'originalname', item.name)}")
        if why and gpu.ASKED and not gpu.ELSEWHERE:
            item.add_marker(pytest.mark.skip(reason=f"not on a GPU: {why}"))
        if gpu.ASKED:
            gpu.search_briefly(getattr(item, "function", None))
    items.sort(key=lambda item: FIRST.index(item.path.stem) if item.path.stem in FIRST else len(FIRST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Skip what an older JAX or torch cannot do, where the library refuses it so: the tests are for newer ones."""
    try:
        return (yield)
    except (Exception, pytest.fail.Exception) as error:
        for name in ("jax_backend.compat", "torch_backend.compat"):
            for refused in getattr(sys.modules.get(name), "REFUSED", ()):
                if refused in str(error):
                    pytest.skip(refused)
        raise


@pytest.fixture(params=backends.VARIANTS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Each way of carrying the public functions out."""
    with backends.make(request.param) as made:
        yield made


@pytest.fixture(params=["jax", "torch"])
def library(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Each backend once, for what does not depend on how it is carried out."""
    with backends.make(request.param) as made:
        yield made
