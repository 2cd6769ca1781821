"""`datasets.get`: the files of a dataset that the table of sources knows, fetched to where its reader looks."""

from __future__ import annotations

import dataclasses
import os

from functional_rb.datasets.fetching import listing
from functional_rb.datasets.fetching.fetch import fetch
from functional_rb.datasets.fetching.names import checked
from functional_rb.datasets.fetching.remote import RemoteFile
from functional_rb.datasets.fetching.retry import Clock
from functional_rb.datasets.loading import folder_of
from functional_rb.datasets.reader import split_name
from functional_rb.datasets.sources import source_of


def get(
    name: str, root: str | os.PathLike[str] | None = None, *, progress: bool | None = None, clock: Clock | None = None
) -> list[str]:
    """Fetch the files of a dataset, those that are not there yet; then `load` finds them.

    Args:
        name: of the dataset with its prefix, "minari:D4RL/door/human-v2".
        root: the folder where datasets lie, as for `load`.
        progress: whether to show a bar for a file that takes more than a second; None for: on a terminal.
        clock: what waits; that of the system by default.

    Returns:
        The paths of the files.

    Raises:
        FetchError: if the files cannot be listed, or one cannot be had.
        ValueError: for a dataset of which nobody knows where its files lie, with what is known.

    Example:
        >>> get("d4rl:hopper-medium-v2")  # doctest: +SKIP
        ['/home/ada/.cache/functional_rb/datasets/d4rl/hopper-medium-v2.hdf5']
    """
    return fetch(files_of(name, clock or Clock()), folder_of(root), progress=progress, clock=clock)


def files_of(name: str, clock: Clock) -> list[RemoteFile]:
    """The files of a dataset, by the table of sources; repositories and buckets are asked for theirs."""
    prefix, rest = split_name(name)
    checked(rest)
    row = source_of(name)
    into = f"{prefix}/{row.into or rest}"
    if row.files:
        found = [
            RemoteFile(f"{prefix}/{path}", (url,), sha256=row.sha256.get(path, "")) for path, url in row.files.items()
        ]
    elif row.hub:
        found = listing.of_hub(row.hub, row.folder, into, clock)
    elif row.bucket:
        found = listing.of_bucket(row.bucket, row.folder, into, clock)
    else:
        known = ", ".join(dict.fromkeys(filter(None, (row.homepage, *row.urls)))) or "nothing"
        raise ValueError(f"datasets.get: {name}: nobody knows where its files lie; of where it comes from: {known}")
    if not found:
        raise FileNotFoundError(
            f"datasets.get: {name}: there are no files at {', '.join(row.urls)}; is the name right?"
        )
    if len(found) == 1 and row.nbytes is not None:
        return [dataclasses.replace(found[0], nbytes=row.nbytes)]
    return found
