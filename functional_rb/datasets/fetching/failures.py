"""How a source fails to give a file: for good, or for now."""

from __future__ import annotations


class RefusedError(Exception):
    """This address does not give the file; another one may.

    Attributes:
        reason: why.
    """


class PassingError(Exception):
    """The request failed, and may succeed if it is made again.

    Attributes:
        asked: seconds that the server asks to wait, None if it does not.
    """

    def __init__(self, reason: str, asked: float | None = None) -> None:
        super().__init__(reason)
        self.asked = asked
