"""The twin of `frames.places` as an XLA FFI handler.

A module of its own, as handlers are compiled when theirs is imported.
"""

from __future__ import annotations

from typing import Any

from functional_rb.native import chain
from functional_rb.native.frame import FRAME_ARGUMENTS, FRAME_RESULTS, answers_metadata, buffer_at, handler, ints


@handler
def places(frame: Any) -> Any:
    """plan, at, slots -> places."""
    if answers_metadata(frame):
        return 0
    chain.places(
        ints(buffer_at(frame, FRAME_ARGUMENTS, 0)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 1)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 2)),
        ints(buffer_at(frame, FRAME_RESULTS, 0)),
    )
    return 0
