"""GRPO on JAX: a tiny GPT-2 learns to put digits in order, held to a reference by an adaptive KL penalty.

Rollouts, the buffer of replies, the updates and the penalty's coefficient are one compiled program: between two rows of
the table nothing comes back to Python. Replies stay in the buffer for four iterations, and are drawn as groups to one
prompt; a clipped ratio of probabilities makes up for their age (Z. Shao et al., "DeepSeekMath", 2024, section 4.1).

    python examples/grpo_jax.py [--quick] [--seed 0] [--target 4] [--out grpo_jax.png]
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gpt2_jax
import jax
import jax.numpy as jnp
import numpy as np
import optax
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

import functional_rb as frb
import jax_backend as rb


class Learner(NamedTuple):
    params: gpt2_jax.Params
    opt_state: optax.OptState


class Run(NamedTuple):
    learner: Learner
    buffer: frb.State
    coefficient: jax.Array  # of the penalty


def right(ids: jax.Array, reply: jax.Array) -> jax.Array:
    """Which tokens of the replies are right, bool [N, REPLY]: the prompt's digits in ascending order, then an end.

    Behind a reply there is padding, which is an end too, and earns nothing.
    """
    ascending = jnp.minimum(jnp.sort(ids[:, :PROMPT], -1), END)  # the colon, the largest token, stands for the end
    return reply[:, PROMPT:] & (ids[:, PROMPT:] == ascending)


def score(ids: jax.Array, mask: jax.Array, reply: jax.Array) -> jax.Array:
    """The programmed reward, float32 [N]: the share of places that are right."""
    return right(ids, reply).mean(-1)


def descend(
    optimizer: optax.GradientTransformation, loss: Callable[[Any], jax.Array], learner: Learner
) -> tuple[Learner, jax.Array]:
    value, gradient = jax.value_and_grad(loss)(learner.params)
    updates, opt_state = optimizer.update(gradient, learner.opt_state, learner.params)
    return Learner(optax.apply_updates(learner.params, updates), opt_state), value


@partial(jax.jit, static_argnums=(0, 1))
def teach(step: Any, optimizer: optax.GradientTransformation, learner: Learner, lessons: jax.Array) -> Learner:
    """Learns the replies of lessons [steps, rows, ROW] by heart."""

    def lesson(learner: Learner, ids: jax.Array) -> tuple[Learner, jax.Array]:
        return descend(optimizer, lambda p: -rb.text.log_probs(step, p, ids)[:, PROMPT:].mean(), learner)

    return jax.lax.scan(lesson, learner, lessons)[0]


def surrogate(config: Config, step: Any, params: Any, items: dict[str, jax.Array], mask: jax.Array | None) -> jax.Array:
    """The clipped objective of GRPO, over the tokens of replies; to be minimised."""
    advantages = rb.text.group_advantages(items["reward"], mask).reshape(-1, 1)
    item = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), items)
    told = rb.text.log_probs(step, params, item["ids"], item["mask"])[:, 1:]
    ratio = jnp.exp(told - item["log_prob"])
    gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - config.clip, 1 + config.clip) * advantages)
    return -(gain * item["reply"]).sum() / item["reply"].sum()


def make_iterate(config: Config, step: Any, cache: Any, optimizer: optax.GradientTransformation) -> Any:
    """The compiled iterations between two rows of the table."""

    def iteration(reference: Any, run: Run, given: Any) -> tuple[Run, Any]:
        key, prompts, numbers = given
        k_rollout, k_update = rb.split(key)
        made = rb.text.rollout(
            step,
            run.learner.params,
            prompts,
            k_rollout,
            frb.text.Decoding(ROW - PROMPT, eos=END, pad=END, replies=config.replies),
            frb.text.Reward(score, reference, run.coefficient),
            cache=cache,
        )
        replies = {
            "prompt": jnp.repeat(numbers, config.replies),
            "ids": made.joined.ids,
            "mask": made.joined.mask,
            "reply": made.steps["reply"],
            "log_prob": made.steps["log_prob"],
            "reward": made.steps["next"]["reward"].sum(-1),
        }
        buffer = rb.add(run.buffer, replies)

        def update(learner: Learner, key: jax.Array) -> tuple[Learner, jax.Array]:
            _, sample = rb.sample(buffer, key)
            return descend(optimizer, lambda p: surrogate(config, step, p, sample.items, sample.mask), learner)

        learner, _ = jax.lax.scan(update, run.learner, rb.split(k_update, config.updates))
        coefficient = config.controller.update(run.coefficient, made.kl)
        exact = right(made.joined.ids, made.joined.reply).all(-1)
        told = made.scores.mean(), exact.mean(), made.kl.mean(), run.coefficient
        return Run(learner, buffer, coefficient), told

    @rb.jit
    def iterate(reference: Any, run: Run, given: Any) -> tuple[Run, Any]:
        run, told = jax.lax.scan(partial(iteration, reference), run, given)
        return run, jax.tree.map(jnp.mean, told)

    return iterate


def train(config: Config) -> list[Row]:
    """Learns by examples, then by rewards; the curves."""
    rng = np.random.default_rng(config.seed)
    step, cache = gpt2_jax.model(config.heads, config.layers, config.width)
    params = gpt2_jax.init_params(config.seed, VOCABULARY, ROW, config.width, config.layers, deviation=0.05)
    params = jax.tree.map(jnp.asarray, params)
    optimizer = optax.adam(config.lesson_rate)
    lessons = draw_lessons(rng, config.lessons, config.examples)
    reference = teach(step, optimizer, Learner(params, optimizer.init(params)), jnp.asarray(lessons)).params

    optimizer = optax.adam(config.learning_rate)
    buffer = rb.init(buffer_spec(config))
    run = Run(Learner(reference, optimizer.init(reference)), buffer, jnp.float32(config.controller.initial))
    prompts = draw_prompts(rng, config.iterations, config.prompts)
    numbers = np.arange(config.iterations * config.prompts, dtype=np.int32).reshape(config.iterations, -1)
    keys, rows = rb.split(rb.key(config.seed), config.iterations), []
    iterate = make_iterate(config, step, cache, optimizer)
    for end in range(config.report_every, config.iterations + 1, config.report_every):
        part = slice(end - config.report_every, end)
        run, told = iterate(reference, run, (keys[part], jnp.asarray(prompts[part]), jnp.asarray(numbers[part])))
        rows.append(Row(end, *map(float, told)))
    return rows


def main(config: Config, out: Path) -> list[Row]:
    begin = time.perf_counter()
    rows = train(config)
    finish(config, "JAX", rows, time.perf_counter() - begin, out)
    return rows


if __name__ == "__main__":
    main(*arguments("GRPO on JAX: a tiny GPT-2 learns to put digits in order.", "grpo_jax.png"))
