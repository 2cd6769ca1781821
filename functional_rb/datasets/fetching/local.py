"""Folders as sources: mirrors on disk, and the cache of Hugging Face, in which a repository has snapshots and refs."""

from __future__ import annotations

import os
import re

from functional_rb.datasets.fetching.names import checked

REVISION = "main"


def is_folder(source: str) -> bool:
    """Whether a source is a path, and no address."""
    return not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source)


def find(folder: str, name: str) -> str | None:
    """The path of a file in a folder, or in a repository's folder of a Hugging Face cache; None if it is not there."""
    base = snapshot(folder) or folder
    path = os.path.join(base, *checked(name).split("/"))
    return path if os.path.isfile(path) else None


def snapshot(folder: str, revision: str = REVISION) -> str | None:
    """The folder of a snapshot in a repository's folder of a Hugging Face cache; None for other folders."""
    snapshots = os.path.join(folder, "snapshots")
    if not os.path.isdir(snapshots):
        return None
    commit = revision
    try:
        with open(os.path.join(folder, "refs", *checked(revision).split("/")), encoding="ascii") as file:
            commit = file.read(100).strip()
    except (OSError, UnicodeError):
        pass
    path = os.path.join(snapshots, commit)
    return path if re.fullmatch(r"[\w.-]+", commit) and commit not in (".", "..") and os.path.isdir(path) else None


def hub_folder(repository: str) -> str:
    """Where the cache of Hugging Face has the repository of a dataset, whether it is there or not."""
    home = os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    return os.path.join(cache, "datasets--" + checked(repository).replace("/", "--"))
