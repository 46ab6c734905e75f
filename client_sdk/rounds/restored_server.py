"""A server that is behind its clients, because it was restored from a backup: notice it, say so, and go on."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from client_sdk.api.wire import Pause, Program
from client_sdk.rounds.events import Progress, ServerRestored
from client_sdk.rounds.loop import RoundChanged, is_over
from client_sdk.rounds.member import LocalWork
from protocols.messages import RoundView

__all__ = [
    "SeenRounds",
]


_LOG = logging.getLogger(__name__)
_SETTLE_SECONDS: Final = 3.0
"""Another replica may answer with an older round for so long: it has not yet learned of the newest one."""


@dataclass
class SeenRounds:
    """The rounds that one client has seen, compared with the server's newest one.

    handled: the newest round that the client was asked in by this process, 0 at first.
    """

    client: LocalWork
    handled: int = 0
    _told: int = 0

    def checked(self, change: RoundChanged, progress: Progress | None) -> Program[RoundChanged]:
        """Return `change`; if the server seems to be behind this client, what it answers a few seconds later.

        If it still is, report `ServerRestored`, and forget the model of the lost rounds where the server has another
        one. Members of encrypted tasks keep it: they are told once, and miss the rounds that they know already.
        """
        if not self._is_ahead(change.view):
            return change
        yield Pause(_SETTLE_SECONDS)
        current = yield from self.client.calls.current_round(self.client.terms.task_id)
        if current is None:
            return change
        change = RoundChanged(current.round, current.etag)
        if self._is_ahead(change.view):
            self._go_back(change.view, progress)
        return change

    def _is_ahead(self, view: RoundView) -> bool:
        known = self.client.follower.known if view.in_cohort else 0
        completed = view.number if is_over(view) else view.number - 1
        return max(self.handled, known) > self._told and (self.handled > view.number or known > completed)

    def _go_back(self, view: RoundView, progress: Progress | None) -> None:
        client, follower = self.client, self.client.follower
        known = max(self.handled, follower.known)
        if client.terms.chained:
            self._told, then = known, "an encrypted task cannot go on so: its operator closes it and creates another"
        else:
            follower.start_again()
            self._told, then = 0, "this client takes over the server's model and goes on"
            if client.terms.mechanism.name != "plain":
                then += "; it takes no part in a sum before the newest one that it took part in"
        self.handled = 0
        event = ServerRestored(view.number, known, then)
        _LOG.warning(
            "task %s: the server's newest round is %d, and this client has seen round %d: the server was restored from "
            "a backup; %s",
            *(client.terms.name, event.round, event.known, event.then),
        )
        if progress:
            progress(event)
