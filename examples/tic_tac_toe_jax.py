"""AlphaZero on tic-tac-toe, all of it in JAX: self-play by a search, whose games a replay buffer holds.

Each turn of self-play searches from where the last search has been (`rb.trees.subtree`); what the search proposes is
the target of the policy, and the game's end that of the value (Silver et al., 2018; Danihelka et al., 2022).

    python examples/tic_tac_toe_jax.py
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

import functional_rb as frb
import jax_backend as rb

LINES = jnp.array([(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)])
MOVES = 9


class Config(NamedTuple):
    rounds: int = 60
    games: int = 64  # played side by side
    simulations: int = 32
    batch: int = 256
    updates: int = 32  # after each round
    hidden: int = 128
    learning_rate: float = 2e-3
    capacity: int = 20_000
    tests: int = 1024  # games against a random player
    seed: int = 0


# --- the game: a board has 1 for the stones of whoever moves, -1 for the other's ------------------------------------


def play(board: jax.Array, move: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Boards [B, 9] after moves [B], as the other player sees them; the reward of whoever moved; and who is done."""
    placed = jnp.where(jnp.arange(MOVES) == move[:, None], 1, board)
    won = (placed[:, LINES].sum(-1) == 3).any(-1)
    return -placed, won.astype(jnp.float32), won | (placed != 0).all(-1)


# --- the network: two hidden layers, logits of moves and a value ----------------------------------------------------


def network(key: jax.Array, hidden: int) -> Any:
    sizes = [(2 * MOVES, hidden), (hidden, hidden), (hidden, MOVES + 1)]
    pairs = zip(jax.random.split(key, len(sizes)), sizes, strict=True)
    return [(jax.random.normal(key, size) * size[0] ** -0.5, jnp.zeros(size[1])) for key, size in pairs]


def predict(params: Any, board: jax.Array) -> tuple[jax.Array, jax.Array]:
    x = jnp.concatenate([board == 1, board == -1], -1).astype(jnp.float32)
    for weights, bias in params[:-1]:
        x = jax.nn.relu(x @ weights + bias)
    out = x @ params[-1][0] + params[-1][1]
    return out[:, :MOVES], jnp.tanh(out[:, MOVES])


# --- the search -----------------------------------------------------------------------------------------------------


def expansion(params: Any, board: jax.Array, reward: Any, done: Any) -> frb.trees.Expansion:
    prior, value = predict(params, board)
    return frb.trees.Expansion(
        node={"board": board},
        prior=prior,
        value=jnp.where(done, 0.0, value),
        reward=reward,
        discount=-1.0,  # the other player moves next
        valid=board == 0,
        terminal=jnp.broadcast_to(done, board.shape[:1]),
    )


def model(params: Any) -> Any:
    def step(node: Any, action: jax.Array, key: jax.Array) -> frb.trees.Expansion:
        return expansion(params, *play(node["board"], action))

    return step


TREE = frb.trees.TreeSpec(node={"board": frb.Unbounded((MOVES,), "int32")}, capacity=64, children=MOVES)


# --- self-play and learning -----------------------------------------------------------------------------------------


def buffer_spec(config: Config) -> frb.BufferSpec:
    return frb.BufferSpec(
        item={
            "board": frb.Unbounded((MOVES,), "int32"),
            "policy": frb.Unbounded((MOVES,)),
            "outcome": frb.Unbounded(()),
        },
        capacity=config.capacity,
        batch_size=config.batch,
    )


def self_play(config: Config, params: Any, key: jax.Array) -> tuple[Any, jax.Array]:
    """Whole games side by side: what each position taught, leaves [9 * games, ...], and which are real."""
    boards = jnp.zeros((config.games, MOVES), jnp.int32)
    start = rb.init(TREE, items=expansion(params, boards, 0.0, False))

    def turn(carry: Any, key: jax.Array) -> Any:
        boards, tree, over = carry
        tree, proposal = rb.trees.search(tree, key, model(params), config.simulations, frb.trees.GumbelMuZero())
        after, reward, done = play(boards, jnp.maximum(proposal.slot, 0))
        told = {"board": boards, "policy": proposal.weights, "reward": reward, "live": ~over}
        # What is known below the move is searched further, with the stones of the other player.
        tree = rb.trees.subtree(tree, proposal.slot)
        fresh = expansion(params, after, 0.0, over | done)
        tree = rb.trees.reset(tree, tree.size == 0, fresh)
        return (jnp.where(over[:, None], boards, after), tree, over | done), told

    carry = boards, start, jnp.zeros(config.games, bool)
    _, told = lax.scan(turn, carry, jax.random.split(key, MOVES))

    def backwards(outcome: jax.Array, step: Any) -> Any:
        """The outcome as whoever moves sees it: the reward of this move, or the opposite of what comes next."""
        outcome = jnp.where(step["live"], jnp.where(step["reward"] > 0, 1.0, -outcome), outcome)
        return outcome, outcome

    _, outcome = lax.scan(backwards, jnp.zeros(config.games), told, reverse=True)
    items = {"board": told["board"], "policy": told["policy"], "outcome": outcome}
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), items), told["live"].reshape(-1)


def loss(params: Any, items: Any) -> jax.Array:
    logits, value = predict(params, items["board"])
    logits = jnp.where(items["board"] == 0, logits, -1e9)
    policy = optax.softmax_cross_entropy(logits, items["policy"]).mean()
    return policy + ((value - items["outcome"]) ** 2).mean()


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def improve(config: Config, run: Any, key: jax.Array) -> tuple[Any, jax.Array]:
    """One round: games by the network as it is, and updates by what the buffer holds."""
    params, moments, buffer = run
    play_key, key = jax.random.split(key)
    items, live = self_play(config, params, play_key)
    buffer = rb.add(buffer, items, mask=live)
    optimizer = optax.adam(config.learning_rate)

    def update(carry: Any, key: jax.Array) -> Any:
        params, moments, buffer = carry
        buffer, sample = rb.sample(buffer, key)
        value, gradient = jax.value_and_grad(loss)(params, sample.items)
        changes, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(params, changes), moments, buffer), value

    run, losses = lax.scan(update, (params, moments, buffer), jax.random.split(key, config.updates))
    return run, losses.mean()


@partial(jax.jit, static_argnums=0)
def against_random(config: Config, params: Any, key: jax.Array) -> jax.Array:
    """The shares of games won, drawn and lost against a random player, who begins every other one."""
    games = config.tests
    boards, mine = jnp.zeros((games, MOVES), jnp.int32), jnp.arange(games) % 2 == 0

    def turn(carry: Any, key: jax.Array) -> Any:
        boards, mine, over, result = carry
        search_key, random_key = jax.random.split(key)
        tree = rb.init(TREE, items=expansion(params, boards, 0.0, over))
        policy = frb.trees.GumbelMuZero(scale=0.0)
        _, proposal = rb.trees.search(tree, search_key, model(params), config.simulations, policy)
        chance = jax.random.categorical(random_key, jnp.where(boards == 0, 0.0, -jnp.inf))
        move = jnp.where(mine, jnp.maximum(proposal.slot, 0), chance)
        after, reward, done = play(boards, move)
        result = jnp.where(over, result, jnp.where(mine, reward, -reward))
        return (jnp.where(over[:, None], boards, after), ~mine, over | done, result), None

    carry = boards, mine, jnp.zeros(games, bool), jnp.zeros(games)
    (_, _, _, result), _ = lax.scan(turn, carry, jax.random.split(key, MOVES))
    return jnp.stack([(result == x).mean() for x in (1, 0, -1)])


def train(config: Config, say: Callable[[str], None] = print) -> tuple[Any, jax.Array]:
    """The network's parameters, and the shares of games won, drawn and lost against a random player."""
    key, network_key = jax.random.split(rb.key(config.seed))
    params = network(network_key, config.hidden)
    run = params, optax.adam(config.learning_rate).init(params), rb.init(buffer_spec(config))
    began = time.perf_counter()
    for number in range(config.rounds):
        key, round_key, test_key = jax.random.split(key, 3)
        run, found = improve(config, run, round_key)
        if number % 10 == 9 or number == config.rounds - 1:
            shares = against_random(config, run[0], test_key)
            won, drawn, lost = shares
            result = f"won {won:.1%}, drawn {drawn:.1%}, lost {lost:.1%}"
            say(f"{time.perf_counter() - began:3.0f} s, round {number + 1}: {result}, loss {found:.3f}")
    return run[0], shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=Config().rounds)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    train(Config(rounds=asked.rounds, seed=asked.seed))


if __name__ == "__main__":
    main()
