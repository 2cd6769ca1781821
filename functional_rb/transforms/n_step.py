"""n-step returns, as users ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from functional_rb.base.nest import Key
from functional_rb.transforms.n_step_added import NStepOfAdded
from functional_rb.transforms.n_step_stored import NStepOfStored
from functional_rb.transforms.returns import NStep


def n_step(
    n: int,
    gamma: float,
    *,
    at: Literal["sample", "add"] = "sample",
    reward_key: Key | Sequence[Key] | None = None,
    terminated_key: Key | None = None,
    next_keys: Key | Sequence[Key] | None = None,
    end_keys: Key | Sequence[Key] | None = None,
    trajectory_key: Key | None = None,
) -> NStep:
    """n-step returns, for `BufferSpec(transforms=...)`.

    Of a step t the reward becomes R_t = sum_{k < m} gamma^k r_{t+k}, and what follows on it (next observation, flags)
    that of step t + m - 1. Here m is n, or less where the trajectory ends earlier: by a termination, after which there
    is nothing to bootstrap from, or by a truncation, after which one bootstraps from the final observation. Where it is
    still under way, m are the steps stored so far. A sample's `extras` hold, beside each item:

    - `steps`: int32, m.
    - `discount`: float32, gamma^m, with which to bootstrap.
    - `original_reward`: r_t; of several rewards `original_reward/<leaf>` each, such as "original_reward/reward/left".
    - `nonterminal`: bool, whether to bootstrap at all: step t + m - 1 did not terminate.

    There may be several leaves of rewards, such as a dict of agents. Each is added up by itself, over the same steps.

    Rewards and flags may be of agents in one leaf: where the leaf of terminations has the shape of the rewards, each
    agent has its own m, and `steps`, `discount` and `nonterminal` have that shape too. An agent is done where its flag
    `terminated`, `truncated` or `done` is set; its rewards after that count no more. What follows comes from its own
    last step in leaves that begin with the agents' axes (one that does so by chance takes an axis of 1 in front), in
    others from the last of all m, and rewards of another shape, such as a team's, are added up over all m. A trajectory
    then ends where all agents are done, or where `end_keys` name a leaf of one bool.

    So the target is `reward + discount * nonterminal * V(next observation)` (R. S. Sutton, A. G. Barto, "Reinforcement
    Learning", 2018, chapter 7).

    Args:
        n: how many steps, 1 to 1024.
        gamma: the discount, 0 to 1.
        at: "sample": single steps are stored, and a sample looks ahead. "add": the state carries each lane's last
            n - 1 steps, and items are written, in their order, once they are complete: sampling costs no more than
            without, but what is stored are transitions over n steps.
        reward_key: the leaf of rewards, of a float dtype, a nest of nothing but such leaves, or a list of several; by
            default "next/reward" or "reward".
        terminated_key: a bool leaf; by default "next/terminated", "terminated", or "done" (where there is "truncated"
            too, done and not truncated). With `end_keys=()` there need be none: all steps are nonterminal.
        next_keys: the leaves that follow on a step; by default all below "next" and all "next_...", and of an item
            without "next" also "done", "terminated" and "truncated".
        end_keys: where trajectories end, as for `Slices`; by default as the sampler has it, or as usual.
        trajectory_key: an integer leaf that is another in every trajectory, as for `Slices`; by default as the sampler
            has it, or none.

    Raises:
        ValueError: for numbers out of range, leaves that the item lacks or that do not fit, or a sampler or writer that
            does not.

    Example:
        >>> item = {"obs": frb.Unbounded((3,)), "next_obs": frb.Unbounded((3,))}
        >>> item |= {"reward": frb.Unbounded(()), "done": frb.Binary(())}
        >>> frb.BufferSpec(item, 100, transforms=n_step(3, gamma=0.99)).transforms[0].end_keys
        ['done']
    """
    if at not in ("sample", "add"):
        raise ValueError(f"n_step: expected at='sample' or at='add', got {at!r}")
    kind = NStepOfStored if at == "sample" else NStepOfAdded
    # Keys in any form: the transform brings them to the one that it keeps.
    keys: Any = {"reward_key": reward_key, "next_keys": next_keys, "end_keys": end_keys}
    return kind(n, gamma, terminated_key=terminated_key, trajectory_key=trajectory_key, **keys)
