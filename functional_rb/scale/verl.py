"""What verl's trainers draw prompts from, by this library's laws: the interface of verl 0.9's `ReplayBuffer`.

verl keeps the trajectories of a prompt, and a mark for the prompt itself, under keys in TransferQueue. Its
configuration names a class for `trainer.v1.sampler.custom_sampler`, and this is one. verl itself is not needed here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from functional_rb.base import extras
from functional_rb.base.dtypes import checked_count
from functional_rb.samplers import Prioritized
from functional_rb.scale.transfer_queue.law import PROBABILITY, WEIGHT, Law, seed_of

WHO = "verl"
# The partition of which every prompt that is done is given, oldest first.
VALIDATION = "val"
# What `sampler_kwargs` may have, and what holds where it does not.
SETTINGS = {"alpha": 0.0, "beta": 0.0, "priority_tag": "priority", "per_group": None, "oldest_first": False, "seed": 0}

Tags = dict[str, Any]
Metrics = dict[str, Any]


class _Prompts(NamedTuple):
    """What a partition holds."""

    open: dict[str, Tags]  # the tags of prompts whose trajectories are not all there, by their keys
    done: dict[str, Tags]  # of those that are done
    failed: dict[str, Tags]  # of those that are done, but of which a trajectory failed
    trajectories: dict[str, dict[str, Tags]]  # the tags of each prompt's trajectories, by their keys


class ReplayBuffer:
    """Draws prompts that are done, each with all of its trajectories, in proportion to a power of their priorities.

    Without priorities, or with alpha = 0, all are equally likely. None comes twice, as what is drawn leaves the queue.

    In the trainer's modes that are not "sync", prompts that failed, that have too few trajectories, or that are older
    than the limit of staleness are given up, and as many new ones asked for. In "sync" what failed is given as it is,
    and there is no limit. The metrics that come with a batch have verl's names.
    """

    def __init__(
        self,
        trainer_mode: str,
        trainer_config: Any,
        max_off_policy_threshold: int | None,
        max_off_policy_strategy: str,
        sampler_kwargs: Mapping[str, Any],
        poll_interval: float = 2.0,
        refill_fn: Callable[[int], Any] | None = None,
        *,
        queue: Any = None,
    ) -> None:
        """Take what verl's trainer gives.

        Args:
            trainer_mode: "sync", or one of the others.
            trainer_config: not looked at.
            max_off_policy_threshold: how many versions of the policy a trajectory may span, 1 or more; None for no
                limit.
            max_off_policy_strategy: what becomes of what is older: "drop", or "wait": no batch is given while a prompt
                that has reached the limit is under way.
            sampler_kwargs: "alpha" and "beta" of `frb.Prioritized`; "priority_tag" of prompts; "per_group", how many
                trajectories a prompt must have; "oldest_first", verl's own order in place of a draw; "seed".
            poll_interval: seconds between two looks.
            refill_fn: is told for how many prompts others are to be begun.
            queue: what has TransferQueue's functions `kv_list` and `kv_clear`; by default the package.

        Raises:
            ValueError: for another strategy, a threshold that is no positive int, or other settings, naming them.
        """
        if max_off_policy_threshold is not None:
            checked_count("max_off_policy_threshold", max_off_policy_threshold, 1, 2**62)
        if max_off_policy_strategy not in ("drop", "wait"):
            raise ValueError(f"max_off_policy_strategy: expected 'drop' or 'wait', got {max_off_policy_strategy!r}")
        settings = {**SETTINGS, **(sampler_kwargs or {})}
        if unknown := sorted(settings.keys() - SETTINGS.keys()):
            raise ValueError(f"sampler_kwargs: expected some of {sorted(SETTINGS)}, got {unknown}")
        self.poll_interval, self._refill = poll_interval, refill_fn
        self._synchronous, self._strategy = trainer_mode == "sync", max_off_policy_strategy
        self._threshold = None if self._synchronous else max_off_policy_threshold
        self._per_group, self._in_order = settings["per_group"], bool(settings["oldest_first"])
        drops = self._threshold is not None and max_off_policy_strategy == "drop"
        self._law = Law(
            Prioritized(settings["alpha"], settings["beta"], replacement=False),
            priority_tag=settings["priority_tag"],
            version_tag="global_steps",
            max_staleness=self._threshold - 1 if drops and self._threshold is not None else None,
        )
        self._seed, self._draws = checked_count("sampler_kwargs['seed']", settings["seed"], 0, 2**63 - 1), 0
        self._queue = extras.imported("transfer_queue", WHO) if queue is None else queue

    # ---------------------------------------------------------------- what trainers call

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, Metrics]:
        """Draw prompts, as soon as enough are done, and take them out of the queue.

        Args:
            global_steps: the version that the trainer is at.
            partition_id: where from.
            batch_size: how many prompts.

        Returns:
            TransferQueue's `KVBatchMeta` of all their trajectories, prompt by prompt, and metrics.
        """
        _, metrics = self.wait_for_sampleable(global_steps, partition_id, batch_size)
        prompts = self._prompts(partition_id)
        may = self._sampleable(prompts, partition_id, global_steps)
        keys, tags = [], []
        chosen = self._chosen(may, batch_size, global_steps, partition_id)
        for uid, chance, weight in chosen:
            for key, tag in prompts.trajectories.get(uid, {}).items():
                keys.append(key)
                tags.append({**tag, PROBABILITY: chance, WEIGHT: weight})
        self._queue.kv_clear(partition_id=partition_id, keys=[uid for uid, _, _ in chosen])
        return self._queue.KVBatchMeta(partition_id=partition_id, keys=keys, tags=tags), metrics

    def get_sampleable_count(self, global_steps: int, partition_id: str) -> int:
        """How many prompts could be drawn now."""
        return len(self._sampleable(self._prompts(partition_id), partition_id, global_steps))

    def wait_for_sampleable(self, global_steps: int, partition_id: str, target_count: int) -> tuple[set[str], Metrics]:
        """Wait until so many prompts can be drawn; meanwhile give up what cannot be, and ask for others.

        Returns:
            Their keys, and metrics of what was given up.
        """
        old: list[int] = []
        failed = 0
        while True:
            prompts = self._prompts(partition_id)
            stale, spoiled = self._given_up(prompts, partition_id, global_steps)
            if stale or spoiled:
                old += [global_steps - prompts.done[uid]["global_steps"] + 1 for uid in stale]
                failed += len(spoiled)
                self._clear(partition_id, stale | spoiled, prompts)
                if self._refill is not None:
                    self._refill(len(stale | spoiled))
                continue
            may = self._sampleable(prompts, partition_id, global_steps)
            if len(may) >= target_count and not self._awaits(prompts, partition_id, global_steps):
                return set(may), _metrics(partition_id, old, failed)
            time.sleep(self.poll_interval)

    # ---------------------------------------------------------------- how prompts stand

    def _prompts(self, partition_id: str) -> _Prompts:
        prompts = _Prompts({}, {}, {}, {})
        places = {"pending": prompts.open, "running": prompts.open, "finished": prompts.done, "failure": prompts.failed}
        for key, tag in ((self._queue.kv_list() or {}).get(partition_id) or {}).items():
            if not tag.get("is_prompt", False):
                prompts.trajectories.setdefault(key.split("_")[0], {})[key] = dict(tag)
                continue
            if tag["status"] not in places:
                raise ValueError(f"prompt {key!r}: status: expected one of {sorted(places)}, got {tag['status']!r}")
            places[tag["status"]][key] = dict(tag)
        return prompts

    # Prompts that are done with fewer trajectories than a group must have.
    def _short(self, prompts: _Prompts) -> set[str]:
        if self._per_group is None:
            return set()
        return {uid for uid in prompts.done if len(prompts.trajectories.get(uid, {})) < self._per_group}

    # Prompts that are too old, and those that failed.
    def _given_up(self, prompts: _Prompts, partition_id: str, global_steps: int) -> tuple[set[str], set[str]]:
        if partition_id == VALIDATION or self._synchronous:
            return set(), set()
        uids = sorted(prompts.done)
        stale = self._law.stale([prompts.done[uid] for uid in uids], global_steps)
        return {uids[k] for k in stale}, self._short(prompts) | set(prompts.failed)

    # The tags of the prompts that may be drawn.
    def _sampleable(self, prompts: _Prompts, partition_id: str, global_steps: int) -> dict[str, Tags]:
        stale, spoiled = self._given_up(prompts, partition_id, global_steps)
        every = prompts.done | prompts.failed
        return {uid: every[uid] for uid in sorted(every) if uid not in stale | spoiled}

    # Whether a prompt is under way that must not get older.
    def _awaits(self, prompts: _Prompts, partition_id: str, global_steps: int) -> bool:
        if self._threshold is None or self._strategy != "wait" or partition_id == VALIDATION:
            return False
        return any(global_steps - tag["global_steps"] + 1 >= self._threshold for tag in prompts.open.values())

    # Prompts with their chances and weights.
    def _chosen(
        self, may: Mapping[str, Tags], n: int, global_steps: int, partition_id: str
    ) -> list[tuple[str, float, float]]:
        uids = list(may)
        if self._in_order or partition_id == VALIDATION:
            return [(uid, 1.0, 1.0) for uid in sorted(uids, key=lambda uid: may[uid]["global_steps"])[:n]]
        seed = seed_of(self._seed, self._draws)
        self._draws += 1
        drawn = self._law.draw([may[uid] for uid in uids], n, seed, global_steps)
        if not drawn.rows:
            raise ValueError(
                f"sample: {len(uids)} prompts are done, and fewer than {n} of them have a priority above 0; set others "
                f"in the tag {self._law.priority_tag!r}, or give alpha=0 and leave the tag out"
            )
        named = [uids[k] for k in drawn.rows]
        return list(zip(named, drawn.probabilities.tolist(), drawn.weights.tolist(), strict=True))

    def _clear(self, partition_id: str, uids: set[str], prompts: _Prompts) -> None:
        keys = [key for uid in sorted(uids) for key in (uid, *prompts.trajectories.get(uid, {}))]
        self._queue.kv_clear(partition_id=partition_id, keys=keys)


# What verl logs of prompts that were given up, by its names.
def _metrics(partition_id: str, old: list[int], failed: int) -> Metrics:
    prefix = "training" if partition_id == "train" else "validation"
    metrics: Metrics = {}
    if old:
        metrics[f"{prefix}/off_policy/evicted_samples"] = len(old)
        for name, of in (("mean", np.mean), ("max", np.max), ("min", np.min)):
            metrics[f"{prefix}/off_policy/evicted_samples_staleness/{name}"] = float(of(old))
    if failed:
        metrics[f"{prefix}/rollout_failure/evicted_samples"] = failed
    return metrics
