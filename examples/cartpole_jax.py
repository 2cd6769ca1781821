"""CartPole-v1 of Gymnasium as pure JAX functions (Barto, Sutton and Anderson, 1983).

Written out because gymnax 1.0.1, which has the same dynamics, brings 23 more packages for these few lines and cannot
be imported with the dependencies it declares (`six` is missing). tests/programs/test_examples.py
compares each step with Gymnasium.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

MAX_STEPS = 500
GRAVITY, CART_MASS, POLE_MASS, HALF_POLE, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
X_LIMIT, ANGLE_LIMIT = 2.4, math.radians(12)


class EnvState(NamedTuple):
    obs: jax.Array  # f32[4]: position (m) and velocity of the cart, angle (rad) and angular velocity of the pole
    time: jax.Array  # i32[]: steps since the reset


class Step(NamedTuple):
    state: EnvState
    reward: jax.Array  # f32[]
    terminated: jax.Array  # bool[]: the pole fell or the cart left the track
    truncated: jax.Array  # bool[]: the time limit was reached


def reset(key: jax.Array) -> EnvState:
    """A state near the upright rest."""
    return EnvState(jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05), jnp.zeros((), jnp.int32))


def step(state: EnvState, action: jax.Array) -> Step:
    """One step of one environment, without reset; `vmap` it for several."""
    _, speed, angle, spin = state.obs
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    mass = CART_MASS + POLE_MASS
    push = (jnp.where(action == 1, FORCE, -FORCE) + POLE_MASS * HALF_POLE * spin**2 * sin) / mass
    spin_rate = (GRAVITY * sin - cos * push) / (HALF_POLE * (4.0 / 3.0 - POLE_MASS * cos**2 / mass))
    acceleration = push - POLE_MASS * HALF_POLE * spin_rate * cos / mass
    # Explicit Euler: positions move by the speeds of before.
    obs = state.obs + SECONDS * jnp.stack([speed, acceleration, spin, spin_rate])
    time = state.time + 1
    terminated = (jnp.abs(obs[0]) > X_LIMIT) | (jnp.abs(obs[2]) > ANGLE_LIMIT)
    return Step(EnvState(obs, time), jnp.ones((), jnp.float32), terminated, time >= MAX_STEPS)
