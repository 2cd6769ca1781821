"""Recordings of environments of one's own: `gymnasium:CartPole-v1`, or any environment and policy by `Recording`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from functional_rb.base import nest
from functional_rb.base.extras import imported
from functional_rb.base.strict_json import Json
from functional_rb.convert.common import stored_dtype
from functional_rb.convert.gymnasium import spec_of_space
from functional_rb.datasets.episode import Episode, StepSpec
from functional_rb.datasets.pieces import steps_of_piece
from functional_rb.specs import Unbounded
from functional_rb.specs.rows import is_unit

if TYPE_CHECKING:
    from gymnasium import Env

WHO = "datasets: gymnasium"
Policy = Callable[[Any], Any]


class Recording:
    """Records episodes of an environment; a `Reader`, so `convert` makes a dataset of it.

    Episode k begins with `env.reset(seed=seed + k)`. If the policy is a function of the observation alone, a conversion
    that was killed goes on with the same episodes.

    Attributes:
        name, files, counts, facts: see `Reader`.

    Example:
        >>> import tempfile
        >>> import gymnasium, torch_backend as rb
        >>> env = gymnasium.make("CartPole-v1")
        >>> recording = Recording(env, lambda observation: int(observation[2] > 0), episodes=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = frb.datasets.convert(recording, f"{folder}/cartpole")
        ...     state = frb.datasets.load(f"{folder}/cartpole", rb, batch_size=32)
        ...     made.episodes, made.steps == int(rb.size(state))
        (3, True)
    """

    files: Sequence[str] = ()

    def __init__(
        self,
        env: Env[Any, Any],
        policy: Policy | None = None,
        *,
        episodes: int,
        seed: int = 0,
        name: str | None = None,
        infos: Mapping[str, object] | None = None,
        max_length: int | None = None,
        max_edges: int | None = None,
    ) -> None:
        """Take an environment, which is not touched yet.

        Args:
            env: a Gymnasium environment, no vector one.
            policy: gives an action for an observation; None for random actions.
            episodes: how many.
            seed: the seed of the first episode, and of random actions.
            name: the name of the dataset; by default that of the environment.
            infos: specs of what is kept of the infos that `env.step` returns, by name.
            max_length: the most elements of a `Sequence`, and nodes of a `Graph`, if the spaces have some.
            max_edges: the most edges of a `Graph`.
        """
        self._env, self._policy, self._seed = env, policy, seed
        registered = getattr(env, "spec", None)
        self.name = name or f"gymnasium:{getattr(registered, 'id', type(env).__name__)}"
        self.counts, self.facts = {"episodes": episodes}, {"seed": seed}
        self._infos, self._limits = dict(infos or {}), (max_length, max_edges)

    def spec(self, narrow: bool) -> StepSpec:
        """What the spaces say; the reward is float64, as Gymnasium has it."""
        observation, action = (
            spec_of_space(getattr(self._env, f"{of}_space"), narrow, *self._limits, WHO, (of,))
            for of in ("observation", "action")
        )
        return StepSpec(observation, action, Unbounded((), stored_dtype("float64", narrow)), self._infos)

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """Record the episodes from number `first` on; each is seeded by its own number."""
        spec = self.spec(narrow=False)
        most = steps_of_piece(spec)
        for k in range(first, self.counts["episodes"]):
            yield from self._episode(k, spec, most)

    def _episode(self, k: int, spec: StepSpec, most: int) -> Iterator[Episode]:
        seed = self._seed + k
        # Environments may write to the arrays that they have given.
        observation = copy.deepcopy(self._env.reset(seed=seed)[0])
        # So that an episode is the same, from whichever one on a killed conversion goes on.
        if self._policy is None:
            self._env.action_space.seed(seed)
        steps = []
        done = False
        while not done:
            action = self._env.action_space.sample() if self._policy is None else self._policy(observation)
            action = copy.deepcopy(action)
            after, reward, terminated, truncated, infos = self._env.step(action)
            kept = {name: copy.deepcopy(infos[name]) for name in self._infos}
            steps.append((observation, action, float(reward), bool(terminated), bool(truncated), kept))
            observation, done = copy.deepcopy(after), terminated or truncated
            # One is kept back, so that the last piece has two steps at least.
            if done or len(steps) > most:
                finished = steps if done else steps[:most]
                steps = steps[len(finished) :]
                last = observation if done else steps[0][0]
                yield self._piece(finished, last, spec, not done, {"seed": seed})

    def _piece(
        self, steps: Sequence[tuple[object, ...]], last: int, spec: StepSpec, goes_on: bool, about: Json
    ) -> Episode:
        observations, actions, rewards, terminated, truncated, infos = zip(*steps, strict=True)
        return Episode(
            _stacked(spec.observation, [*observations, last]),
            _stacked(spec.action, actions),
            np.array(rewards),
            np.array(terminated),
            np.array(truncated),
            {name: _stacked(info_spec, [info[name] for info in infos]) for name, info_spec in self._infos.items()},
            goes_on=goes_on,
            about=about,
        )


def open_gymnasium(
    rest: str, root: str | None = None, *, episodes: int = 100, seed: int = 0, env: Mapping[str, object] | None = None
) -> Recording:
    """The recording of an environment by its name, with random actions.

    The first episode, and its actions, have the seed; `env` are arguments of `gymnasium.make`.
    """
    gymnasium = imported("gymnasium", WHO)
    try:
        environment = gymnasium.make(rest, **dict(env or {}))
    except gymnasium.error.Error as error:
        raise ValueError(f"gymnasium:{rest}: {error}") from error
    return Recording(environment, None, episodes=episodes, seed=seed, name=f"gymnasium:{rest}")


def _stacked(spec: object, values: Sequence[object]) -> object:
    # Values of a spec, in the form that episodes have: units of arrays as one array, others as a sequence.
    structure = nest.flatten(spec, is_unit)[1]
    columns = zip(*(nest.flatten_as(structure, value) for value in values), strict=True)
    stacked = [np.stack(column) if hasattr(column[0], "shape") else list(column) for column in columns]
    return nest.unflatten(structure, stacked, lambda container, parts, batch: parts)
