"""TensorDicts and tensorclasses come back as they went in: fields without tensors, names of axes, the device."""

from __future__ import annotations

import pickle
import tempfile
from typing import Any

import pytest
import torch
from tensordict import TensorClass, TensorDict, tensorclass

import functional_rb as frb
import torch_backend as rb
from tests.support import backends


@tensorclass
class Step:
    obs: torch.Tensor
    text: str | None
    extra: torch.Tensor | None = None
    tags: Any = None


class Cast(TensorClass["autocast"]):  # type: ignore[misc]  # tensordict makes the class as it is read
    obs: torch.Tensor
    text: str
    extra: Any = None
    tags: Any = None


class Plain(TensorClass["nocast"]):  # type: ignore[misc]  # likewise
    obs: torch.Tensor
    text: str
    extra: Any = None
    tags: Any = None


KINDS = [Step, Cast, Plain]


def steps(kind: Any, first: int, n: int, **more: Any) -> Any:
    return kind(obs=torch.arange(first, first + n).float()[:, None].expand(n, 3), batch_size=[n], **more)


@pytest.fixture(params=["torch", "torch-core"])
def twin(request: pytest.FixtureRequest) -> Any:
    with backends.make(request.param):
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_fields_without_tensors(twin: None, kind: Any) -> None:
    spec = frb.BufferSpec(frb.specs.spec_of(steps(kind, 0, 1, text="a")[0]), 12)
    assert sorted(spec.plan.names) == ["obs", "text"]  # what is None is no leaf
    state = rb.add(rb.init(spec), steps(kind, 0, 3, text="same"))
    state = rb.add(state, torch.stack([steps(kind, 3 + k, 1, text=text)[0] for k, text in enumerate(["x", "y"])]))
    state = rb.add(state, kind(obs=torch.full((3,), 5.0), text="one", batch_size=[]))
    state = rb.add(state, steps(kind, 6, 2, text=None))  # unset in this batch
    texts = ["same"] * 3 + ["x", "y", "one", None, None]

    def check(got: Any, numbers: list[int]) -> None:
        assert type(got) is kind
        assert tuple(got.batch_size) == (len(numbers),)
        assert got.obs[:, 0].tolist() == numbers
        assert list(got.text) == [texts[k] if k < 8 else None for k in numbers]
        assert got.extra is None
        assert got.tags is None
        assert got[0].text == texts[numbers[0]]

    check(rb.items(state)[:8], list(range(8)))
    check(rb.get(state, torch.tensor([6, 3, 0])), [6, 3, 0])
    state, sample = rb.sample(state, rb.key(0), 6)
    check(sample.items, sample.indices.tolist())
    with tempfile.TemporaryDirectory() as path:
        frb.save(state, path)
        check(rb.items(frb.load(path, rb, frb.checkpoint.LoadOptions(known=[kind])))[:8], list(range(8)))
    check(rb.items(pickle.loads(pickle.dumps(state)))[:8], list(range(8)))
    state = rb.update(state, torch.tensor([2]), items=steps(kind, 9, 1, text="new"))
    assert rb.get(state, torch.tensor([2, 1])).text == ["new", "same"]


def test_fields_that_are_not_in_the_spec(twin: None) -> None:
    spec = frb.BufferSpec(frb.specs.spec_of(steps(Step, 0, 1, text=None)[0]), 4)
    state = rb.add(rb.init(spec), steps(Step, 0, 2, text=None))
    assert rb.state_dict(state)  # there is nothing but tensors
    with pytest.raises(ValueError, match=r"expected the keys \['obs'\], got \['obs', 'text'\].* None in an example"):
        rb.add(state, steps(Step, 0, 2, text="a"))
    whole = steps(Step, 0, 1, text=None, extra=torch.zeros(1, 2))[0]
    state = rb.init(frb.BufferSpec(frb.specs.spec_of(whole), 4))
    with pytest.raises(TypeError, match=r"leaf 'extra': .*object"):
        rb.add(state, steps(Step, 0, 2, text=None))
    assert int(rb.size(state)) == 0


def test_any_object_in_a_field(twin: None) -> None:
    one = Plain(obs=torch.zeros(3), text="t", tags=frozenset({3}), batch_size=[])
    spec = frb.BufferSpec(frb.specs.spec_of(one), 4)
    assert sorted(spec.plan.names) == ["obs", "tags", "text"]
    state = rb.add(rb.init(spec), one)
    state, sample = rb.sample(state, rb.key(0), 2)
    assert list(sample.items.tags) == [frozenset({3})] * 2
    nested = TensorDict({"step": steps(Step, 0, 2, text="in", tags=None)}, [2])
    state = rb.add(rb.init(frb.BufferSpec(frb.specs.spec_of(nested[0]), 4)), nested)
    got = rb.get(state, torch.tensor([0, 1]))
    assert type(got) is TensorDict
    assert type(got.get("step")) is Step
    assert list(got.get("step").text) == ["in", "in"]


def agents(n: int, device: Any, names: Any = None) -> TensorDict:
    """A TensorDict with axes of its own below, which have names."""
    inner = TensorDict({"x": torch.zeros(n, 2, 3), "note": "a"}, [n, 2, 3], names=[None, "agent", "leg"])
    middle = TensorDict({"inner": inner, "y": torch.ones(n, 2)}, [n, 2], names=[None, "agent"])
    made = TensorDict({"middle": middle, "z": torch.ones(n)}, [n], names=names)
    made.get("middle").names = [None, "agent"]  # torch forgets them in a container without names
    made.get("middle").get("inner").names = [None, "agent", "leg"]
    return made if device is None else made.to(device)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_names_and_device(twin: None, device: Any) -> None:
    given = agents(5, device)
    spec = frb.BufferSpec(frb.specs.spec_of(given[0]), 8, frb.Prioritized())
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert frb.convert.from_json(frb.convert.to_json(spec), known=[TensorDict]) == spec
    state = rb.add(rb.init(spec), given)
    state, sample = rb.sample(state, rb.key(0), 4)
    with tempfile.TemporaryDirectory() as path:
        frb.save(state, path)
        loaded = frb.load(path, rb, frb.checkpoint.LoadOptions(known=[TensorDict]))
    wanted = None if device is None else torch.device(device)
    for got in (
        sample.items,
        rb.get(state, sample.indices),
        rb.items(state),
        rb.items(loaded),
        rb.zeros(spec.item, (3,)),
    ):
        middle = got.get("middle")
        assert got.names == [None]
        assert middle.names == [None, "agent"]
        assert middle.get("inner").names == [None, "agent", "leg"]
        assert {got.device, middle.device, middle.get("inner").device} == {wanted}
        assert got[0].get("middle").get("inner").names == ["agent", "leg"]


def test_names_of_slices_and_lanes(twin: None) -> None:
    item = TensorDict({"x": torch.zeros(2, 3), "done": torch.zeros(2, dtype=torch.bool)}, [2], names=["leg"])
    slices = frb.Slices(2, end_keys=())
    spec = frb.BufferSpec(frb.specs.spec_of(item), 8, slices, lanes=2)
    state = rb.add(rb.init(spec), torch.stack([torch.stack([item, item])] * 3))
    state, sample = rb.sample(state, rb.key(0), 4)
    assert sample.items.names[-1] == "leg"
    assert set(sample.items.names[:-1]) == {None}
    assert sample.items.batch_size == (4, 2, 2)


@pytest.mark.parametrize(
    "sampler", [frb.WithoutReplacement(), frb.SlicesWithoutReplacement(2, strict_length=False)], ids=str
)
def test_epochs_give_them_with_the_axes_of_the_batch(twin: None, sampler: Any) -> None:
    given = TensorDict({"x": torch.arange(5.0), "done": torch.tensor([0, 0, 1, 0, 1], dtype=torch.bool)}, [5])
    state = rb.add(rb.init(frb.BufferSpec(frb.specs.spec_of(given[0]), 8, sampler)), given)
    for sample in frb.iterate(rb, state, rb.key(0), 2, epochs=1):
        assert type(sample.items) is TensorDict
        assert sample.items.batch_size == sample.mask.shape
        assert sample.items["x"].shape == sample.mask.shape


def test_specs_that_name_axes() -> None:
    parts = {"x": frb.Unbounded((2, 3))}
    spec = frb.Composite.like(TensorDict, parts, (2,), names=("leg",), device=True)
    assert repr(spec).endswith("batch_shape=(2,), names=('leg',), device=True)")
    assert spec == frb.Composite.like(TensorDict, parts, (2,), names=["leg"], device=True)
    assert spec != frb.Composite.like(TensorDict, parts, (2,), device=True)
    assert frb.Composite.like(TensorDict, parts, (2,), names=(None,)) == frb.Composite.like(TensorDict, parts, (2,))
    assert rb.zeros(spec).names == ["leg"]
    assert rb.zeros(spec.expand(4, 2)).names == [None, None]  # which axis is which is not known any more
    with pytest.raises(ValueError, match="names for the axes"):
        frb.Composite.like(TensorDict, parts, (2,), names=("a", "b"))
    with pytest.raises(ValueError, match="TensorDict"):
        frb.Composite.like(None, parts, (2,), names=("a",))


def can_be_traced(given: Any) -> bool:
    """Whether the installed tensordict can make a tensorclass while torch traces: 0.8 with torch 2.13 cannot."""
    made = torch.compile(
        lambda obs: type(given).from_tensordict(TensorDict({"obs": obs}, [4])), fullgraph=True, backend="eager"
    )
    try:
        return torch.equal(made(given.obs).obs, given.obs)
    except torch._dynamo.exc.Unsupported:
        return False


@pytest.mark.parametrize("kind", [TensorDict, Step])
def test_compiled(kind: Any) -> None:
    given = steps(Step, 0, 4, text=None).to("cpu")
    if kind is Step and not can_be_traced(given):
        pytest.skip("torch.compile cannot make a tensorclass of this tensordict, with no buffer about")
    given = given if kind is Step else TensorDict({"obs": given.obs}, [4], device="cpu", names=["time"])
    spec = frb.BufferSpec(frb.specs.spec_of(given[0]), 8)
    state = rb.add(rb.init(spec), given)

    def drawn(state: Any, key: Any) -> Any:
        return rb.sample_(state, key, 4)[1].items.get("obs") * 1

    compiled = torch.compile(drawn, backend="eager", fullgraph=True)
    wanted = rb.sample(state, rb.key(3), 4)[1].items.get("obs")
    assert torch.equal(compiled(rb.add(rb.init(spec), given), rb.key(3)), wanted)


def test_a_tuple_in_a_tensordict_is_refused(twin: None) -> None:
    """TensorDict would make one tensor of equal parts, and an object of others."""
    inner = (frb.Unbounded((2,)), frb.Unbounded((3,)))
    for part in (inner, frb.specs.Stacked(inner), inner[:1] * 2):
        spec = frb.Composite.like(TensorDict, {"a": part})
        with pytest.raises(TypeError, match=r"part 'a' is a tuple, which no TensorDict .*; name its parts in a dict"):
            rb.rand(spec, rb.key(0), 4)
        state = rb.add(rb.init(frb.BufferSpec(spec, 4)), rb.zeros(frb.Composite(spec), batch=2))
        with pytest.raises(TypeError, match="part 'a' is a tuple"):
            rb.sample(state, rb.key(0), 2)
