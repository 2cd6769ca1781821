"""Tokenizers for the tests of texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.tokenizers_trained import of_transformers


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tokenizers fork no threads, of which the processes that tests start would warn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        yield


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One of transformers, which takes a second to import."""
    return of_transformers()
