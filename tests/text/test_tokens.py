"""Texts become tokens in files: which tokens, where the reply begins, and how many there may be."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.tokenizers_trained import END, WORDS, bpe, of_merges, of_words
from tests.text.texts import ROWS, borders, ids_of


def test_tokens_are_those_of_the_whole_text_and_the_border_is_where_the_reply_begins(
    tokenizer: Any, tmp_path: Path
) -> None:
    made = frb.text.preference(ROWS, tokenizer, root=tmp_path)
    assert (made.examples, made.dropped, made.merged, made.dtype) == (3, {}, 0, "uint16")
    for row, texts, begin in zip(ROWS, ids_of(made), borders(made), strict=True):
        for name, ids, at in zip(("chosen", "rejected"), texts, begin, strict=True):
            assert ids == [*tokenizer(row["prompt"] + row[name])["input_ids"], tokenizer.eos_token_id]
            # The end of the prompt is exclusive: no token of it is missing, and none of the reply is in it.
            assert tokenizer.decode(ids[:at]) == row["prompt"]
            assert tokenizer.decode(ids[at:]) == row[name] + END
    assert made.tokens < made.text_tokens == sum(len(ids) for texts in ids_of(made) for ids in texts)


def test_apart_the_tokens_are_those_of_each_text(tokenizer: Any, tmp_path: Path) -> None:
    made = frb.text.preference(ROWS, tokenizer, frb.text.Tokenization(jointly=False, eos=False), root=tmp_path)
    for row, texts, begin in zip(ROWS, ids_of(made), borders(made), strict=True):
        prompt = tokenizer(row["prompt"])["input_ids"]
        assert begin == [len(prompt)] * 2
        assert texts == [prompt + tokenizer(row[name])["input_ids"] for name in ("chosen", "rejected")]


def test_a_token_over_the_border_is_the_replys(tmp_path: Path) -> None:
    """Jointly, "a" + "bc" is "ab", "c": no token ends where the prompt does."""
    rows = [{"prompt": "ca", "chosen": "bc", "rejected": "cc"}]
    made = frb.text.preference(rows, of_merges(), frb.text.Tokenization(eos=False), root=tmp_path)
    assert ids_of(made) == [[[2, 3, 2], [2, 0, 2, 2]]]
    assert (borders(made), made.merged) == ([[1, 2]], 1)
    apart = frb.text.preference(rows, of_merges(), frb.text.Tokenization(eos=False, jointly=False), root=tmp_path)
    assert ids_of(apart) == [[[2, 0, 1, 2], [2, 0, 2, 2]]]
    assert (borders(apart), apart.merged) == ([[2, 2]], 0)


def test_a_prompt_without_a_token_of_its_own_is_told_why(tmp_path: Path) -> None:
    """Its only token is the reply's too; or there is none at all."""
    rows = [{"prompt": "a", "completion": "bc"}]
    with pytest.raises(ValueError, match=r"row 0, column 'prompt': .* characters of the reply too.*jointly=False"):
        frb.text.prompts(rows, of_merges(), frb.text.Tokenization(eos=False), root=tmp_path)
    assert ids_of(
        frb.text.prompts(rows, of_merges(), frb.text.Tokenization(eos=False, jointly=False), root=tmp_path)
    ) == [[[0, 1, 2]]]
    with pytest.raises(ValueError, match="column 'prompt': expected a prompt, got one without a token; correct it"):
        frb.text.prompts(
            [{"prompt": "", "completion": "bc"}], of_merges(), frb.text.Tokenization(eos=False), root=tmp_path
        )


class Slow:
    """A tokenizer that is not fast: it cannot tell which token has which characters."""

    def __init__(self) -> None:
        self._inner = of_merges()
        self.eos_token_id, self.pad_token_id = None, None

    def __call__(self, texts: Any, add_special_tokens: bool = True) -> dict[str, Any]:
        one = isinstance(texts, str)
        ids = [encoding.ids for encoding in self._inner.encode_batch([texts] if one else texts)]
        return {"input_ids": ids[0] if one else ids}

    def __len__(self) -> int:
        return 5

    def get_vocab(self) -> dict[str, int]:
        return dict(self._inner.get_vocab())

    def save_pretrained(self, directory: str) -> tuple[str]:
        path = os.path.join(directory, "tokenizer.json")
        self._inner.save(path)
        return (path,)


def test_tokenizers_that_are_not_fast_give_the_same(tmp_path: Path) -> None:
    rows = [{"prompt": "ca", "chosen": "bc", "rejected": "cc"}, {"prompt": "", "chosen": "ab", "rejected": "b"}]
    for jointly in (True, False):
        found = [
            frb.text.preference(rows, one, frb.text.Tokenization(eos=False, jointly=jointly), root=tmp_path)
            for one in (of_merges(), Slow())
        ]
        assert found[0].path != found[1].path
        assert ids_of(found[0]) == ids_of(found[1])
        assert borders(found[0]) == borders(found[1])
        assert found[0].merged == found[1].merged == int(jointly)


def test_special_tokens_of_the_tokenizer_stand_around_texts(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    framed = of_words()
    framed.post_processor = TemplateProcessing(
        single="cat $A mat end", special_tokens=[("cat", 8), ("mat", 11), ("end", 12)]
    )
    rows = [{"prompt": "why so", "chosen": " no", "rejected": " yes end"}]
    # "end" is what the tokenizer puts there itself, so it is not put there again; a reply may end itself.
    made = frb.text.preference(rows, framed, frb.text.Tokenization(eos=12), root=tmp_path)
    assert ids_of(made) == [[[8, 0, 1, 2, 11, 12], [8, 0, 1, 3, 12, 11, 12]]]
    assert borders(made) == [[3, 3]]
    cut = frb.text.preference(
        rows, framed, frb.text.Tokenization(eos=12, max_length=6, too_long="truncate_prompt"), root=tmp_path
    )
    assert ids_of(cut) == [[[8, 1, 2, 11, 12], [8, 1, 3, 12, 11, 12]]]
    alone = frb.text.prompts(rows, framed, columns={"reply": None}, root=tmp_path)
    assert ids_of(alone) == [[[8, 0, 1]]]
    plain = frb.text.preference(rows, of_words(), frb.text.Tokenization(eos=12), root=tmp_path)
    assert ids_of(plain) == [[[0, 1, 2, 12], [0, 1, 3, 12]]]
    beyond = frb.text.preference(
        rows, of_words(), frb.text.Tokenization(eos=70_000), root=tmp_path
    )  # which 16 bits do not hold
    assert ids_of(beyond) == [[[0, 1, 2, 70_000], [0, 1, 3, 12, 70_000]]]


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt"),
    [
        ("why so? yes maybe", "why so? no", "why so?"),
        ("why so? now", "why so? not", "why so?"),  # not within a word
        ("so now", "so now not", "so"),  # a word is left to both
        ("yes", "no", ""),
        ("mat", "map", ""),
        ("a\nyes", "a\nno", "a\n"),
    ],
)
def test_the_prompt_that_two_texts_begin_with(chosen: str, rejected: str, prompt: str, tmp_path: Path) -> None:
    for first, second in ((chosen, rejected), (rejected, chosen)):
        rows = [{"chosen": first, "rejected": second}]
        made = frb.text.preference(rows, bpe(), frb.text.Tokenization(eos=False, jointly=False), root=tmp_path)
        ((one, other),) = ids_of(made)
        ((at, _),) = borders(made)
        assert bpe().decode(one[:at]) == bpe().decode(other[:at]) == prompt
        assert (bpe().decode(one), bpe().decode(other)) == (first, second)


def test_prompts_with_replies_and_without(tokenizer: Any, tmp_path: Path) -> None:
    for reply in ("label", "completion"):
        rows = [{"prompt": "why is", reply: " the light"}]
        made = frb.text.prompts(rows, tokenizer, frb.text.Tokenization(separator="\n"), root=tmp_path)
        ((ids,),) = ids_of(made)
        ((at,),) = borders(made)
        assert tokenizer.decode(ids[:at]) == "why is\n"
        assert tokenizer.decode(ids) == f"why is\n the light{END}"
        assert made.labelled
    alone = frb.text.prompts([{"prompt": "why is"}], tokenizer, root=tmp_path)
    assert ids_of(alone) == [[tokenizer("why is")["input_ids"]]]
    assert borders(alone) == [[len(ids_of(alone)[0][0])]]
    assert not alone.labelled
    talk = [{"role": "user", "content": "why?"}]
    chat = frb.text.prompts([{"prompt": talk}], tokenizer, root=tmp_path)
    assert tokenizer.decode(ids_of(chat)[0][0]) == "<|user|>why?<|end|><|assistant|>"


def test_what_is_too_long_is_dropped_cut_or_refused(tmp_path: Path) -> None:
    rows = [
        {"prompt": "why so no", "chosen": " yes yes", "rejected": " no"},
        {"prompt": "so", "chosen": " yes yes yes yes", "rejected": " no"},
        {"prompt": "now", "chosen": " yes", "rejected": " no"},
    ]
    how = frb.text.Tokenization(eos=False, max_length=4)
    dropped = frb.text.preference(rows, of_words(), how, root=tmp_path)
    assert (ids_of(dropped), dropped.dropped) == ([[[6, 3], [6, 2]]], {"too_long": 2})
    cut = frb.text.preference(rows, of_words(), replace(how, too_long="truncate_prompt"), root=tmp_path)
    # As much for both texts, so that they still go on from one prompt; of the second nothing would be left.
    assert (ids_of(cut), cut.dropped) == ([[[1, 2, 3, 3], [1, 2, 2]], [[6, 3], [6, 2]]], {"too_long": 1})
    assert borders(cut) == [[2, 2], [1, 1]]
    with pytest.raises(ValueError, match=r"row 0, column 'chosen': 5 tokens with the prompt, more than 4; .*'drop'"):
        frb.text.preference(rows, of_words(), replace(how, too_long="error"), root=tmp_path)
    assert (
        frb.text.preference(rows, of_words(), frb.text.Tokenization(eos=False, max_length=5), root=tmp_path).longest
        == 5
    )
    # A prompt that is too long by itself is no other case.
    alone = [{"prompt": "why so no yes maybe not", "chosen": " yes", "rejected": " no"}]
    how = replace(how, max_length=3)
    assert frb.text.preference(alone, of_words(), how, root=tmp_path).dropped == {"too_long": 1}
    cut = frb.text.preference(alone, of_words(), replace(how, too_long="truncate_prompt"), root=tmp_path)
    assert ids_of(cut) == [[[4, 5, 3], [4, 5, 2]]]
    only = [{"prompt": "why so no yes maybe not"}]
    assert ids_of(frb.text.prompts(only, of_words(), replace(how, too_long="truncate_prompt"), root=tmp_path)) == [
        [[3, 4, 5]]
    ]
    with pytest.raises(ValueError, match="row 0, column 'prompt': 6 tokens with the prompt, more than 3"):
        frb.text.prompts(only, of_words(), replace(how, too_long="error"), root=tmp_path)


def test_tokens_take_a_fifth_of_padded_tables(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def text(n: int) -> str:
        return " ".join(rng.choice(WORDS, n))

    rows = [{"prompt": text(50), "chosen": f" yes {text(10)}", "rejected": f" no {text(10)}"} for _ in range(50)]
    made = frb.text.preference(rows, of_words(), frb.text.Tokenization(eos=12, separator=" "), root=tmp_path)
    taken = sum(path.stat().st_size for path in Path(made.path).glob("*.bin"))
    ids_and_mask = 2 * made.examples * made.longest * (8 + 8)
    assert taken <= ids_and_mask / 5


@pytest.mark.long
def test_tokens_are_those_of_trl(tokenizer: Any, tmp_path: Path) -> None:
    dpo = pytest.importorskip("trl.trainer.dpo_trainer")
    talk = [{"role": "user", "content": "why?"}]
    said = [[{"role": "assistant", "content": text}] for text in ("so", "the light")]
    for rows in (ROWS, [{"prompt": talk, "chosen": said[0], "rejected": said[1]}]):
        made = frb.text.preference(rows, tokenizer, root=tmp_path)
        examples = []
        for row, (chosen, rejected), (at, other) in zip(rows, ids_of(made), borders(made), strict=True):
            if isinstance(row["prompt"], str):
                prompt = tokenizer(row["prompt"])["input_ids"]
                whole = [tokenizer(row["prompt"] + row[name] + END)["input_ids"] for name in ("chosen", "rejected")]
            else:
                prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True)["input_ids"]
                whole = [
                    tokenizer.apply_chat_template(row["prompt"] + row[x])["input_ids"] for x in ("chosen", "rejected")
                ]
            assert [chosen, rejected] == whole
            assert at == other == len(prompt)
            examples.append({"prompt_ids": prompt, "chosen_ids": chosen[at:], "rejected_ids": rejected[at:]})
        batch = dpo.DataCollatorForPreference(pad_token_id=tokenizer.pad_token_id)(examples)
        items = made.spec(1, bucket=1).on_sample.function.read(made.rows, np.asarray)
        ids = np.concatenate([items.chosen_data.input_ids, items.rejected_data.input_ids])
        mask = np.concatenate([items.chosen_data.attention_mask, items.rejected_data.attention_mask])
        assert ids.tolist() == batch["input_ids"].tolist()
        assert mask.astype(int).tolist() == batch["attention_mask"].tolist()
        begin = items.prompt_rindex.T.reshape(-1, 1)
        assert (mask & (np.arange(mask.shape[1]) >= begin)).astype(int).tolist() == batch["completion_mask"].tolist()
