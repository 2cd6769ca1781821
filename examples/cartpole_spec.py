"""What the two DQN examples share: the task's buffer spec, the settings of the algorithm and its schedules."""

from dataclasses import dataclass

import numpy as np

import functional_rb as frb


@dataclass(frozen=True)
class Config:
    """One training run. An iteration steps every environment once and takes one gradient step."""

    seed: int = 0
    iterations: int = 20_000
    num_envs: int = 16
    warmup: int = 64  # iterations of random actions before the first gradient step
    eval_every: int = 500  # iterations between greedy evaluations; each gives a point of the learning curve
    eval_episodes: int = 32
    capacity: int = 100_000
    batch_size: int = 128
    hidden: int = 64
    learning_rate: float = 1e-3  # falls linearly to 0
    gamma: float = 0.99
    n_step: int = 1  # rewards summed up before the value of the observation reached takes over
    tau: float = 0.01  # fraction by which the target network follows at each gradient step
    final_epsilon: float = 0.05
    exploration: float = 0.25  # fraction of the run over which epsilon falls from 1 to final_epsilon
    priority_floor: float = 1e-3  # added to |TD error|, so that a well predicted item can still be drawn

    def __post_init__(self) -> None:
        if self.iterations % self.eval_every:
            raise ValueError(f"iterations={self.iterations} must be a multiple of eval_every={self.eval_every}")


# The same program at a size for tests: seconds, and nothing is learned. 48 warm-up items are enough for a batch.
QUICK = Config(
    iterations=40, num_envs=4, warmup=12, eval_every=10, eval_episodes=2, capacity=1_000, batch_size=16, hidden=8
)


# Observations are multiplied by this on their way into the network: the angle stays within 0.2 rad, the speeds do
# not, and a network that starts out smooth would hardly see it.
OBS_SCALE = (1 / 2.4, 1 / 2.0, 1 / 0.21, 1 / 2.0)


def buffer_spec(config: Config) -> frb.BufferSpec:
    """The prioritized buffer of CartPole transitions.

    `terminated` and `truncated` are stored rather than `done`: where the time limit cut an episode off, the task would
    have gone on, so the value of `next_obs` counts as everywhere else. n-step returns look ahead in each environment's
    own sequence, so then each has a lane of the buffer.
    """
    several = config.n_step > 1
    return frb.BufferSpec(
        item={
            "obs": frb.Unbounded((4,)),
            "action": frb.Bounded(0, 1, (), dtype="int32"),
            "reward": frb.Unbounded(()),
            "next_obs": frb.Unbounded((4,)),
            "terminated": frb.Binary(()),
            "truncated": frb.Binary(()),
        },
        capacity=config.capacity,
        sampler=frb.Prioritized(alpha=0.6, beta=0.4),
        batch_size=config.batch_size,
        lanes=config.num_envs if several else None,
        transforms=frb.n_step(config.n_step, config.gamma) if several else (),
    )


def schedules(config: Config) -> tuple[np.ndarray, np.ndarray]:
    """Epsilon and beta of every iteration, each float32 [iterations].

    Beta rises to 1 over the run: the bias of prioritized sampling matters most near convergence (Schaul et al., 2016).
    """
    progress = np.linspace(0.0, 1.0, config.iterations, dtype=np.float32)
    epsilon = np.interp(progress, (0.0, config.exploration), (1.0, config.final_epsilon))
    beta = np.interp(progress, (0.0, 1.0), (0.4, 1.0))
    return epsilon.astype(np.float32), beta.astype(np.float32)
