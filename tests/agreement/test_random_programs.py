"""Random programs on buffers of every kind that native code knows: on torch, on hosts and by kernels for GPUs.

All give the bits of the plain engine on torch's operations, and older states stay as they were. Kernels for GPUs are
carried out by emulated blocks, few of them, and in several orders; where there is a GPU, on it.
"""

from __future__ import annotations

import dataclasses

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from tests.agreement.random_programs import Program
from tests.agreement.random_specs import KINDS
from tests.support import backends, emulated_gpu
from tests.support.backends import needs_native
from tests.support.effort import effort
from tests.support.versions import enable_x64

pytestmark = [needs_native, pytest.mark.usefixtures("tensors_of_the_cpu")]
CALLS = 10
# The order of turns, how many blocks there are at most, and how much one does.
ways = st.tuples(
    st.sampled_from([*emulated_gpu.ORDERS]), st.sampled_from([1, 2, 3, 1024]), st.sampled_from([2, 500, 4096])
)


overflowing = pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
seeds = st.integers(0, 2**32 - 1)


@overflowing
@pytest.mark.parametrize("kind", KINDS)
@hypothesis.settings(max_examples=effort(15, 3000))
@hypothesis.given(
    data=st.data(),
    native=st.sampled_from(["torch", "torch", "torch", "jax-host"]),
    seed=seeds,
    way=ways,
    behind=st.sampled_from([None, None, 0, 1, 4]),
)
def test_all_give_the_same_bits(
    kind: str, data: st.DataObject, native: str, seed: int, way: tuple[str, int, int], behind: int | None
) -> None:
    spec = data.draw(KINDS[kind], "spec")
    with backends.make("torch-core") as core:
        expected = Program(core, spec, seed, behind).carry_out(CALLS)
    is_whole = kind != "looking_ahead" or "next_each" not in spec.item  # steps of agents the core adds
    with backends.make(native) as backend, enable_x64(native != "torch"):  # for leaves of 64 bits
        found = Program(backend, spec, seed, behind, native=is_whole).carry_out(CALLS)
    assert found.told == expected.told
    assert found.refused == expected.refused
    with backends.make("torch") as backend, emulated_gpu.using(*way) as emulated:
        found = Program(backend, spec, seed, behind).carry_out(CALLS)
    assert found.told == expected.told
    assert emulated.launched or len(found.states) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@overflowing
@pytest.mark.parametrize("kind", KINDS)
@hypothesis.settings(max_examples=effort(2, 200))
@hypothesis.given(data=st.data(), seed=seeds)
def test_on_a_gpu(kind: str, data: st.DataObject, seed: int) -> None:
    spec = data.draw(KINDS[kind], "spec")
    with backends.make("torch-core") as core:
        expected = Program(core, spec, seed).carry_out(CALLS).told
    with backends.make("torch") as made, torch.device("cuda"):
        backend = dataclasses.replace(
            made, array=lambda x: made.array(x).cuda(), numpy=lambda x: made.numpy(x.detach().cpu())
        )
        assert Program(backend, spec, seed).carry_out(CALLS).told == expected
