"""A TransferQueue whose controller draws by this library's laws, and what producers and learners do with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from functional_rb.base import extras
from functional_rb.base.arrays import ArrayLike, Nest
from functional_rb.scale.transfer_queue.law import PROBABILITY, WEIGHT
from functional_rb.scale.transfer_queue.samplers import WHO, LawSampler

OLDEST = "0.1.11"
PARTITION, TASK = "train", "train"
# Seconds between two looks at whether enough rows are ready.
PAUSE = 0.05


class Batch(NamedTuple):
    """What a draw gives.

    Attributes:
        items: a TensorDict of the fields that were asked for, [B].
        indices: int64 [B], TransferQueue's numbers of the rows.
        probabilities: float32 [B], as of a sample.
        weights: float32 [B], as of a sample.
        tags: of each row.
        metadata: TransferQueue's own, by which fields are added to the rows.
    """

    items: Nest
    indices: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    probabilities: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    weights: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    tags: list[dict[str, Any]]
    metadata: Any


class Queue:
    """One process's way to a TransferQueue; made by `transfer_queue.start` or `connect`.

    Rows and fields come and go as TransferQueue has it, and `client` is its own client. What is added here is that rows
    have their tags before anybody can draw them, and that batches come with their probabilities and weights.
    """

    def __init__(self, transfer_queue: Any, priority_tag: str = "priority") -> None:
        self._package, self._priority_tag = transfer_queue, priority_tag
        self.client = transfer_queue.get_client()

    def put(self, items: object, tags: Mapping[str, object] | None = None, partition: str = PARTITION) -> Any:
        """Add rows.

        Args:
            items: a TensorDict [B], or a dict of tensors or arrays [B, *shape].
            tags: of each tag its value for all rows, or one for each: a list or array [B].
            partition: where to.

        Returns:
            TransferQueue's metadata of the rows.

        Raises:
            ValueError: if tags are not as many as rows.
        """
        data = _as_tensordict(items)
        count = data.batch_size[0]
        meta = self.client.get_meta(
            data_fields=list(data.keys()), batch_size=count, partition_id=partition, mode="insert"
        )
        meta.update_custom_meta(_by_row(tags or {}, count))
        self.client.set_custom_meta(meta)  # before the data, by which rows become ready
        return self.client.put(data, metadata=meta)

    def sample(
        self,
        batch_size: int,
        fields: Sequence[str],
        *,
        version: int | None = None,
        beta: float | None = None,
        partition: str = PARTITION,
        task: str = TASK,
        timeout: float = 60.0,
    ) -> Batch:
        """Draw rows by the law of the sampler that the queue was started with, and read them.

        Args:
            batch_size: how many; not more than rows are ready, as the controller asks no sampler before.
            fields: what of them; rows are ready that have all of these.
            version: from which age is counted, such as that of the policy which learns; by default the newest among the
                rows that are ready.
            beta: overrides that of the sampler.
            partition: where from.
            task: by which it is remembered what was consumed.
            timeout: seconds to wait for enough rows.

        Raises:
            TimeoutError: if for so long too few rows could be drawn.
        """
        config = {name: value for name, value in {"version": version, "beta": beta}.items() if value is not None}
        until = time.monotonic() + timeout
        while True:
            meta = self.client.get_meta(
                data_fields=list(fields), batch_size=batch_size, partition_id=partition, task_name=task,
                sampling_config=config,
            )  # fmt: skip
            if meta.size:
                break
            if time.monotonic() >= until:
                raise TimeoutError(
                    f"sample: waited {timeout} s for {batch_size} rows with the fields {list(fields)} in partition "
                    f"{partition!r} that are young enough, in whole groups if there are groups: are producers adding?"
                )
            time.sleep(PAUSE)
        tags = [dict(tag) for tag in meta.custom_meta]
        chances, weights = (np.array([tag[name] for tag in tags], np.float32) for name in (PROBABILITY, WEIGHT))
        items = self.client.get_data(meta)
        return Batch(items, np.array(meta.global_indexes, np.int64), chances, weights, tags, meta)

    def update(self, batch: Batch, priorities: ArrayLike) -> None:
        """Set priorities [B], before alpha, of what was drawn; of a row that came twice the last one counts.

        Rows must not have been removed since: TransferQueue gives their numbers to others.
        """
        ranks = np.asarray(priorities, np.float32)
        if ranks.shape != batch.indices.shape:
            raise ValueError(f"update: priorities: expected shape {batch.indices.shape}, got {ranks.shape}")
        batch.metadata.update_custom_meta([{self._priority_tag: rank} for rank in ranks.tolist()])
        self.client.set_custom_meta(batch.metadata)

    def remove(self, batch: Batch) -> None:
        """Take rows out of the queue."""
        self.client.clear_samples(batch.metadata)

    def close(self) -> None:
        """End the queue, if this process started it, and else what this process has of it."""
        self._package.close()


def start(sampler: LawSampler, *, units: int = 2, config: Mapping[str, Any] | None = None) -> Queue:
    """Start a TransferQueue whose controller asks this sampler for each batch, and connect to it.

    Ray must have been initialized. Where too few rows are ready, the controller answers that there are none, rather
    than hold up everybody else's calls while it waits.

    Args:
        sampler: `GroupSampler` or `PrioritizedSampler`.
        units: how many processes store rows.
        config: of TransferQueue, where it is to be other than its default.

    Raises:
        TypeError: for another sampler.
        RuntimeError: if this cluster has a TransferQueue already, whose sampler would stay.
        ImportError: without TransferQueue.
    """
    package = _package()
    if not isinstance(sampler, LawSampler):
        raise TypeError(f"start: expected a GroupSampler or PrioritizedSampler, got {type(sampler).__name__}")
    if _is_there():
        raise RuntimeError(
            "start: expected no TransferQueue in this cluster, and there is one, whose sampler stays; connect to it, "
            "or close it first"
        )
    omegaconf = extras.imported("omegaconf", WHO)
    ours = {"backend": {"SimpleStorage": {"num_data_storage_units": units}}, "controller": {"polling_mode": True}}
    whole = omegaconf.OmegaConf.create({}, flags={"allow_objects": True})
    whole = omegaconf.OmegaConf.merge(whole, ours, dict(config or {}), {"controller": {"sampler": sampler}})
    package.init(whole)
    return Queue(package, sampler.law.priority_tag)


def connect(priority_tag: str = "priority") -> Queue:
    """Connect to the TransferQueue of this cluster of Ray.

    Args:
        priority_tag: that of its sampler, which `update` writes.

    Raises:
        RuntimeError: if there is none.
        ImportError: without TransferQueue.
    """
    package = _package()
    if not _is_there():
        raise RuntimeError("connect: expected a TransferQueue in this cluster, got none; start one first")
    package.init()
    return Queue(package, priority_tag)


def _package() -> Any:
    package = extras.imported("transfer_queue", WHO)
    extras.check_version(package, OLDEST, WHO)
    return package


def _is_there() -> bool:
    try:
        extras.imported("ray", WHO).get_actor("TransferQueueController", namespace="transfer_queue")
    except ValueError:
        return False
    return True


def _as_tensordict(items: Nest) -> Any:
    torch, tensordict = extras.imported("torch", WHO), extras.imported("tensordict", WHO)
    if isinstance(items, tensordict.TensorDictBase):
        return items
    leaves = {name: torch.as_tensor(leaf) for name, leaf in items.items()}
    return tensordict.TensorDict(leaves, batch_size=[len(next(iter(leaves.values())))])


# Tags of each row, of Python's own numbers.
def _by_row(tags: Mapping[str, object], count: int) -> list[dict[str, Any]]:
    columns = {}
    for name, value in tags.items():
        values = value.tolist() if hasattr(value, "tolist") else value
        column = list(values) if isinstance(values, list | tuple) else [values] * count
        if len(column) != count:
            raise ValueError(f"put: tag {name!r}: expected {count} values, one for each row, got {len(column)}")
        columns[name] = column
    return [{name: column[k] for name, column in columns.items()} for k in range(count)]
