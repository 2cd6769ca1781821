"""Records: pytrees on both backends, items of buffers, files; and the functions along their leading axes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import functional_rb as frb
import jax_backend
import torch_backend
from tests.support.backends import Backend

ITEM = frb.text.RewardData(frb.Unbounded((4,), "int32"), frb.Binary((4,)), None, frb.Unbounded(()))
PAIRS = frb.BufferSpec(frb.text.PairwiseDataset(ITEM, ITEM), capacity=6)


@frb.text.record
class Mine:
    """A record of the user's."""

    texts: frb.text.RewardData
    more: Any = None


def texts(array: Any, n: int = 3, seed: int = 0) -> frb.text.RewardData:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 9, (n, 4)).astype(np.int32), rng.random((n, 4)) < 0.7, np.float32(rng.normal(size=n))
    ids, mask, scores = map(array, numbers)
    return frb.text.RewardData(ids, mask, end_scores=scores)


def same(x: Any, y: Any) -> bool:
    """Whether two nests have the same containers and the same bits, whoever's arrays they are."""
    flat = [jax.tree.flatten(jax.tree.map(np.asarray, nest)) for nest in (x, y)]
    alike = (a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(*(f[0] for f in flat), strict=True))
    return flat[0][1] == flat[1][1] and all(alike)


def tree_map(library: Backend, function: Any, *nests: Any) -> Any:
    return jax.tree.map(function, *nests) if library.library == "jax" else pytree.tree_map(function, *nests)


def test_a_record_is_a_pytree_in_which_none_has_no_leaf(library: Backend) -> None:
    given = Mine(texts(library.array), (library.array(np.ones(2)),))
    made = tree_map(library, lambda x: x[:1], given)
    assert (type(made), type(made.texts), made.texts.rewards) == (Mine, frb.text.RewardData, None)
    assert made.texts.input_ids.shape == (1, 4)
    assert str(made.texts) == (
        "RewardData(input_ids=int32 [1, 4], attention_mask=bool [1, 4], rewards=None, end_scores=float32 [1])"
    )
    both = tree_map(library, lambda x, y: x + y, frb.text.PromptData(1, 2, 3), frb.text.PromptData(10, 20, 30))
    assert (both.input_ids, both.prompt_rindex, both.labels, both.loss) == (11, 33, None, None)
    for other in (copy.deepcopy(given), pickle.loads(pickle.dumps(given))):
        assert same(other.texts, given.texts)
    keys = pytree.tree_flatten_with_path(given)[0] if library.library == "torch" else jax.tree.leaves_with_path(given)
    assert [str(path[-1]).strip("'.[]") for path, _ in keys[:3]] == ["input_ids", "attention_mask", "end_scores"]


def test_records_are_traced_and_differentiated(library: Backend) -> None:
    given = texts(library.array)

    def loss(data: frb.text.RewardData) -> Any:
        assert data.rewards is None
        return (data.end_scores * data.end_scores).sum()

    if library.library == "jax":
        found = jax.jit(jax.grad(loss, allow_int=True))(given)
        assert np.allclose(found.end_scores, 2 * given.end_scores)
    else:
        compiled = torch.compile(lambda data: tree_map(library, lambda x: x * 2, data), fullgraph=True, backend="eager")
        assert compiled(given).end_scores.tolist() == (given.end_scores * 2).tolist()
        assert float(torch.func.grad(lambda s: loss(frb.text.RewardData(0, 0, None, s)))(given.end_scores)[0]) == float(
            2 * given.end_scores[0]
        )


def test_checks_in_a_constructor_are_refused() -> None:
    class Checked:
        x: Any

        def __post_init__(self) -> None:
            assert self.x.shape

    with pytest.raises(TypeError, match="Checked has __post_init__, which would be given what stands for arrays"):
        frb.text.record(Checked)


@pytest.mark.parametrize("twice", [{"a/b": 1, "a": {"b": 2}}, {1: 1, "1": 2}, {"a": (1,), "a/0": 2}], ids=str)
def test_leaves_of_one_path_are_refused_where_a_dict_would_lose_one(library: Backend, twice: Any) -> None:
    given = pytree.tree_map(lambda x: library.array(np.full(2, x)), twice)
    with pytest.raises(ValueError, match=r"^state_dict: expected a path of its own for each leaf, got '.*' 2 times"):
        library.rb.state_dict(given)
    with pytest.raises(ValueError, match=r"^load_state_dict: expected a path of its own for each leaf"):
        library.rb.load_state_dict(given, {})


def test_items_of_a_buffer_come_out_as_the_record_that_went_in(backend: Backend) -> None:
    pairs = frb.text.PairwiseDataset(texts(backend.array), texts(backend.array, seed=1))
    state = backend.add(backend.init(PAIRS), pairs)
    state, sample = backend.sample(state, backend.rb.key(0), 5)
    assert type(sample.items) is frb.text.PairwiseDataset
    assert (type(sample.items.chosen_data), sample.items.chosen_data.rewards) == (frb.text.RewardData, None)
    rows = sample.indices.tolist()
    for side in ("chosen_data", "rejected_data"):  # a pair stays one, whatever is drawn
        drawn, stored = getattr(sample.items, side), getattr(pairs, side)
        np.testing.assert_array_equal(backend.numpy(drawn.input_ids), backend.numpy(stored.input_ids)[rows])
        np.testing.assert_array_equal(backend.numpy(drawn.end_scores), backend.numpy(stored.end_scores)[rows])
    assert frb.convert.from_json(frb.convert.to_json(PAIRS)) == PAIRS
    one = backend.rb.get(state, sample.indices[:1])
    assert same(one, tree_map(backend, lambda x: x[:1], sample.items))


def test_a_record_crosses_to_the_other_backend(library: Backend) -> None:
    other: Any = torch_backend if library.library == "jax" else jax_backend
    given = Mine(texts(library.array))
    found = other.from_dlpack(given, copy=True)
    assert type(found) is Mine
    assert isinstance(found.texts.input_ids, torch.Tensor) == (library.library == "jax")
    assert same(found, given)


@pytest.mark.parametrize("other", ["jax", "torch"])
def test_files_take_records_whole_mapped_and_by_shape_alone(library: Backend, tmp_path: Path, other: str) -> None:
    given = Mine(texts(library.array, 300), {"images": library.array(np.zeros((2, 700), np.uint8))})
    frb.save(given, tmp_path)
    for mmap in (False, True):
        assert same(frb.load(tmp_path, other, frb.checkpoint.LoadOptions(mmap=mmap)), given)
    spec = frb.checkpoint.load_spec(tmp_path)
    shapes = library.rb.zeros(spec) if library.library == "jax" else library.rb.zeros(spec, device="meta")
    assert type(shapes) is Mine
    assert shapes.texts.rewards is None
    assert shapes.texts.input_ids.shape == (300, 4)
    assert shapes.more["images"].dtype == given.more["images"].dtype
    for file in tmp_path.glob("*.safetensors"):  # which nothing is read of
        file.unlink()
    assert frb.checkpoint.load_spec(tmp_path) == spec


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_mapped_record_stays_in_its_file(tmp_path: Path, dtype: torch.dtype) -> None:
    given = texts(torch.from_numpy, 5)
    frb.save(dataclasses.replace(given, input_ids=given.input_ids.to(dtype)), tmp_path)
    one, other = (frb.load(tmp_path, "torch", frb.checkpoint.LoadOptions(mmap=True)) for _ in range(2))
    (file,) = tmp_path.glob("*.safetensors")
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(file))]
    spans = [tuple(int(x, 16) for x in line.split()[0].split("-")) for line in maps]
    assert any(a <= one.input_ids.data_ptr() < b for a, b in spans)
    one.input_ids.add_(1)  # of one's own: neither the file nor another reader sees it
    assert torch.equal(one.input_ids, other.input_ids + 1)
    assert torch.equal(frb.load(tmp_path, "torch").input_ids, other.input_ids)


def test_a_record_whose_class_has_changed(tmp_path: Path) -> None:
    """A class that is written again is the one that is meant: it may have more fields, but none renamed."""

    def written_again(**fields: Any) -> type:
        given = dict.fromkeys(fields, Any)
        named = {"__module__": __name__, "__qualname__": "Again", "__annotations__": given}
        return frb.text.record(type("Again", (), named | {k: v for k, v in fields.items() if v is not ...}))

    frb.save(written_again(x=..., y=...)(np.zeros(2), np.ones(1)), tmp_path)
    found = frb.load(tmp_path, "torch")
    assert (found.x.tolist(), found.y.tolist()) == ([0, 0], [1])
    longer = written_again(x=..., y=..., z=None)
    found = frb.load(tmp_path, "torch")
    assert type(found) is longer
    assert found.z is None
    assert len(pytree.tree_leaves(found)) == 2
    for other in ({"x": ..., "z": ...}, {"x": ...}, {"x": ..., "y": ..., "z": ...}):
        written_again(**other)
        with pytest.raises(ValueError, match=r"expected a record of the fields \['x', 'y'\], got .*Again.* of"):
            frb.load(tmp_path, "torch")


def test_what_a_file_without_checkpoint_says(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint is there"):
        frb.checkpoint.load_spec(tmp_path / "none")
    frb.save(torch_backend.init(PAIRS), tmp_path)
    assert frb.checkpoint.load_spec(tmp_path) == PAIRS
    (manifest,) = tmp_path.glob("*.json")
    manifest.write_bytes(manifest.read_bytes()[:-9])
    with pytest.raises(frb.errors.CorruptCheckpointError):
        frb.checkpoint.load_spec(tmp_path)


def test_named_arrays_come_back_as_the_record(library: Backend) -> None:
    rb = library.rb
    given = frb.text.PairwiseDataset(texts(library.array), texts(library.array, seed=1))
    named = rb.state_dict(given)
    assert sorted(named) == [
        f"{a}_data/{b}" for a in ("chosen", "rejected") for b in ("attention_mask", "end_scores", "input_ids")
    ]
    blank = frb.text.PairwiseDataset(texts(library.array, seed=2), texts(library.array, seed=3))
    assert same(rb.load_state_dict(blank, named), given)
    named.pop("chosen_data/end_scores")
    with pytest.raises(ValueError, match="expected the names"):
        rb.load_state_dict(blank, named)
    for bad, kind, text in (
        (np.zeros(2, np.float32), ValueError, r"leaf 'x': expected the shape \(3,\), got \(2,\)"),
        (np.zeros(3, np.float16), TypeError, "leaf 'x': expected dtype float32, got float16"),
    ):
        with pytest.raises(kind, match=text):
            rb.load_state_dict({"x": library.array(np.zeros(3, np.float32))}, {"x": bad})
    with pytest.raises(TypeError, match=r"expected a dict from rb\.state_dict, got list"):
        rb.load_state_dict(blank, [1])


def test_errors_name_the_leaf(library: Backend) -> None:
    with pytest.raises(TypeError, match="expected a record or a nest of arrays, got tuple without any"):
        library.rb.state_dict(())
    with pytest.raises(TypeError, match="leaf 'x': expected an array, got float"):
        library.rb.state_dict({"x": 1.0})


@pytest.mark.parametrize("kind", ["made here", "torchrl's"])
def test_tensorclasses_go_in_and_records_come_out(kind: str) -> None:
    rb, tensordict = torch_backend, pytest.importorskip("tensordict")

    class Theirs:
        input_ids: torch.Tensor
        attention_mask: torch.Tensor
        rewards: torch.Tensor | None = None
        end_scores: torch.Tensor | None = None

    of = tensordict.tensorclass(Theirs) if kind == "made here" else pytest.importorskip("torchrl.data").RewardData
    given = texts(torch.from_numpy)
    theirs = of.from_tensordict(tensordict.TensorDict(rb.state_dict(given), [3]))
    state = rb.add(rb.init(frb.BufferSpec(ITEM, 4)), theirs)  # the names decide
    assert same(rb.get(state, np.arange(3, dtype=np.int32)), given)


def test_each_name_of_torchrls_family_has_its_row() -> None:
    family = pytest.importorskip("torchrl.data.llm")
    page = (Path(__file__).parents[2] / "docs" / "torchrl_names.md").read_text()
    rows = page[page.index("## Text") :].splitlines()
    told = " ".join(line.split("|")[1] for line in rows if line.startswith("| `"))
    assert not [name for name in family.__all__ if name not in told]


def test_keys_of_jax_are_no_arrays_of_a_dict() -> None:
    """`frb.save` refuses them too; here they went out, and never came back."""
    keys = {"k": jax.random.key(0)}
    for call in (lambda: jax_backend.state_dict(keys), lambda: jax_backend.load_state_dict(keys, {"k": np.ones(2)})):
        with pytest.raises(TypeError, match=r"leaf 'k': expected an array of numbers, got a key .*key_data"):
            call()
    given = {"k": jax.random.key_data(keys["k"])}
    np.testing.assert_array_equal(jax_backend.load_state_dict(given, jax_backend.state_dict(given))["k"], given["k"])
