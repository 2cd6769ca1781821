"""GRPO on torch with a model of Hugging Face: a tiny GPT-2 learns to put digits in order, held to a reference.

The algorithm, the task and the settings are those of grpo_jax.py; here a Python loop calls each part, the model is one
of transformers (`rb.text.causal_lm`; the extra `text`), and the reference a copy of its parameters.

    python examples/grpo_torch.py [--quick] [--seed 0] [--target 4] [--out grpo_torch.png]
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from grpo_task import (
    END,
    PROMPT,
    ROW,
    VOCABULARY,
    Config,
    Row,
    arguments,
    buffer_spec,
    draw_lessons,
    draw_prompts,
    finish,
)
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModelForCausalLM, GPT2Config

import functional_rb as frb
import torch_backend as rb


def right(ids: Tensor, reply: Tensor) -> Tensor:
    """Which tokens of the replies are right, bool [N, REPLY]: the prompt's digits in ascending order, then an end.

    Behind a reply there is padding, which is an end too, and earns nothing.
    """
    ascending = ids[:, :PROMPT].sort(-1).values.clamp(max=END)  # the colon, the largest token, stands for the end
    return reply[:, PROMPT:] & (ids[:, PROMPT:] == ascending)


def score(ids: Tensor, mask: Tensor, reply: Tensor) -> Tensor:
    """The programmed reward, float32 [N]: the share of places that are right."""
    return right(ids, reply).float().mean(-1)


class Learner:
    """The model and how it learns."""

    def __init__(self, config: Config) -> None:
        torch.manual_seed(config.seed)  # the model's first weights
        of_model = GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=ROW,
            n_embd=config.width,
            n_layer=config.layers,
            n_head=config.heads,
            initializer_range=0.05,
            bos_token_id=None,
            eos_token_id=END,
        )
        self.config = config
        self.model = AutoModelForCausalLM.from_config(of_model).eval()  # which drops out nothing
        self.lm = rb.text.causal_lm(self.model)

    def descend(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def teach(self, lessons: Tensor) -> dict[str, Tensor]:
        """Learns the replies of lessons [steps, rows, ROW] by heart; a copy of the parameters, for a reference."""
        optimizer = torch.optim.Adam(self.model.parameters(), self.config.lesson_rate, fused=True)
        for ids in tqdm(lessons, desc="lessons", leave=False):
            told = rb.text.log_probs(self.lm.step, self.model, ids)
            self.descend(optimizer, -told[:, PROMPT:].mean())
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def surrogate(self, items: dict[str, Tensor], mask: Tensor | None) -> Tensor:
        """The clipped objective of GRPO, over the tokens of replies; to be minimised."""
        advantages = rb.text.group_advantages(items["reward"], mask).reshape(-1, 1)
        item = {name: x.flatten(0, 1) for name, x in items.items()}
        told = rb.text.log_probs(self.lm.step, self.model, item["ids"], item["mask"])[:, 1:]
        ratio = (told - item["log_prob"]).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(1 - self.config.clip, 1 + self.config.clip) * advantages)
        return -(gain * item["reply"]).sum() / item["reply"].sum()


def train(config: Config) -> Iterator[Row]:
    """Learns by examples, then by rewards; the points of the curves."""
    rng, learner = np.random.default_rng(config.seed), Learner(config)
    reference = learner.teach(torch.from_numpy(draw_lessons(rng, config.lessons, config.examples)))

    optimizer = torch.optim.Adam(learner.model.parameters(), config.learning_rate, fused=True)
    buffer, coefficient = rb.init(buffer_spec(config)), torch.tensor(config.controller.initial)
    prompts = torch.from_numpy(draw_prompts(rng, config.iterations, config.prompts))
    numbers = torch.arange(config.iterations * config.prompts, dtype=torch.int32).reshape(config.iterations, -1)
    told: list[Tensor] = []
    for i, key in enumerate(tqdm(rb.split(rb.key(config.seed), config.iterations), desc="iterations", leave=False)):
        k_rollout, k_update = rb.split(key)
        made = rb.text.rollout(
            learner.lm.step,
            learner.model,
            prompts[i],
            k_rollout,
            frb.text.Decoding(ROW - PROMPT, eos=END, pad=END, replies=config.replies),
            frb.text.Reward(score, reference, coefficient),
            cache=learner.lm.cache,
        )
        replies = {
            "prompt": numbers[i].repeat_interleave(config.replies),
            "ids": made.joined.ids,
            "mask": made.joined.mask,
            "reply": made.steps["reply"],
            "log_prob": made.steps["log_prob"],
            "reward": made.steps["next"]["reward"].sum(-1),
        }
        buffer = rb.add(buffer, replies)
        for k in rb.split(k_update, config.updates):
            buffer, sample = rb.sample(buffer, k)
            learner.descend(optimizer, learner.surrogate(sample.items, sample.mask))
        exact = right(made.joined.ids, made.joined.reply).all(-1).float()
        told.append(torch.stack([made.scores.mean(), exact.mean(), made.kl.mean(), coefficient]))
        coefficient = config.controller.update(coefficient, made.kl)
        if (i + 1) % config.report_every == 0:
            yield Row(i + 1, *torch.stack(told[-config.report_every :]).mean(0).tolist())


def main(config: Config, out: Path) -> list[Row]:
    begin = time.perf_counter()
    rows = list(train(config))
    finish(config, "torch", rows, time.perf_counter() - begin, out)
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)  # for matrices this small, handing work to threads costs more than it saves
    main(*arguments("GRPO on torch: a tiny GPT-2 of transformers learns to put digits in order.", "grpo_torch.png"))
