"""Answers with items that were taken out, kept until their clients have heard them."""

from __future__ import annotations

from collections.abc import Callable

from functional_rb.scale.ray.messages import Drawn, Ticket

# So many connections are remembered, with their last answers; then that is forgotten which has not asked for longest.
MOST_CLIENTS = 100


class KeptAnswers:
    """What each question was answered, so that one which is asked again is answered the same."""

    def __init__(self) -> None:
        # By connection: up to which question it has heard the answers, and the answers from there on.
        self._clients: dict[str, tuple[int, dict[int, Drawn]]] = {}

    def once(self, ticket: Ticket, epoch: int, take: Callable[[], Drawn], nothing: Callable[[], Drawn]) -> Drawn:
        """What a ticket was given before, or else what is taken now; nothing for one that nobody asks by any more."""
        if ticket.epoch != epoch:
            return nothing()
        before, kept = self._clients.pop(ticket.connection, (0, {}))
        heard = max(before, ticket.heard)
        kept = {number: drawn for number, drawn in kept.items() if number >= heard}
        self._clients[ticket.connection] = heard, kept
        while len(self._clients) > MOST_CLIENTS:
            del self._clients[next(iter(self._clients))]
        if ticket.number < heard:  # it was under way for longer than its repetition
            return nothing()
        if ticket.number not in kept:
            kept[ticket.number] = take()
        return kept[ticket.number]
