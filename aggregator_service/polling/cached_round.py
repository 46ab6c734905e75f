"""A task's newest round as it stands, in memory: what thousands of polls are answered from.

Within a round everything that a client is told of itself only ever grows (the cohort is drawn once, a delivery is for
good), so a board that is behind may miss a delivery and never invents one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from aggregator_service.polling.round_views import compact_round, round_etag
from aggregator_service.storage.database import Delivery
from aggregator_service.storage.rounds import last_round
from aggregator_service.storage.schema import RoundRow, TaskRow
from aggregator_service.storage.stages import Part, awaited_message, clients_with, prerequisite
from aggregator_service.tasks.plans import TaskPlan, plan_round, round_spec
from protocols.layout import Route
from protocols.messages import RoundView
from protocols.recipes.base import RoundSpec

__all__ = ["AwaitedContribution", "CachedRound", "ClientRoundStatus", "look_at"]


@dataclass(frozen=True)
class _Current:
    """A round, and who did what in it so far."""

    row: RoundRow
    view: RoundView
    plan: TaskPlan
    spec: RoundSpec
    before: Part | None
    taken: Part | None
    parts: Mapping[str, set[str]]


@dataclass(frozen=True)
class ClientRoundStatus:
    """What a round is to one client; clients of the same standing get the same answer."""

    in_cohort: bool
    expected: bool
    delivered: bool
    contributed: bool
    contribution_bytes: int | None

    @property
    def is_awaited(self) -> bool:
        """Whether the round waits for this client, as far as is known here."""
        return self.expected and not self.delivered


@dataclass(frozen=True)
class AwaitedContribution:
    """A contribution that a round waits for."""

    round: RoundRow
    plan: TaskPlan
    route: Route
    length: int


class CachedRound:
    """One task at one version. Safe to read while another thread notes deliveries."""

    def __init__(self, task: TaskRow, current: _Current | None) -> None:
        self.task_id, self.version = task.id, task.version
        self._task, self._current = task, current
        self._etags: dict[ClientRoundStatus, str] = {}
        self._lengths: dict[Route, int] = {}
        self._length_of: dict[str, int] = {}

    @property
    def has_round(self) -> bool:
        """Whether a round was ever opened."""
        return self._current is not None

    def note(self, delivery: Delivery) -> None:
        """Somebody delivered, in whichever round."""
        current = self._current
        if current is not None and current.row.id == delivery.round_id and delivery.part in current.parts:
            current.parts[delivery.part].add(delivery.client_id)

    def status(self, client_id: str) -> ClientRoundStatus:
        """How this client stands in the round."""
        current = self._known()
        parts = current.parts
        asked = client_id in parts["asked"]
        length = self._length(current, client_id) if asked else None
        return ClientRoundStatus(
            in_cohort=asked,
            expected=current.before is not None and client_id in parts[current.before],
            delivered=current.taken is not None and client_id in parts[current.taken],
            contributed=client_id in parts["contribute"],
            contribution_bytes=length,
        )

    def awaited_contribution(self, number: int, client_id: str) -> AwaitedContribution | None:
        """What this client must send in round `number`, if the round is known to collect and to lack it."""
        current = self._current
        if current is None or current.row.number != number or current.taken != "contribute":
            return None
        if not self.status(client_id).is_awaited:
            return None
        route = current.plan.route(current.spec, client_id)
        return AwaitedContribution(current.row, current.plan, route, self._length(current, client_id))

    def inherit(self, older: CachedRound) -> None:
        """Take over what was reckoned for the same round."""
        if self._current is not None and older._current is not None and self._current.row.id == older._current.row.id:
            self._lengths, self._length_of = older._lengths, older._length_of

    def _length(self, current: _Current, client_id: str) -> int:
        """What this client's contribution weighs: laid out once a client, summed up once a route."""
        found = self._length_of.get(client_id)
        if found is None:
            route = current.plan.route(current.spec, client_id)
            if route not in self._lengths:
                self._lengths[route] = current.plan.sum_plan.contribution_bytes(route)
            found = self._length_of[client_id] = self._lengths[route]
        return found

    def etag(self, status: ClientRoundStatus) -> str:
        """As `views.round_etag`; for clients it does not depend on what changes without a new board."""
        found = self._etags.get(status)
        if found is None:
            found = self._etags[status] = round_etag(self._task, self.view(status, 0.0))
        return found

    def view(self, status: ClientRoundStatus, now: float) -> RoundView:
        """The round as a client of this standing sees it; now: seconds since the epoch."""
        current = self._known()
        waiting = current.taken is not None
        seen: dict[str, Any] = dict(vars(status))
        seen["received"] = len(current.parts["contribute"])
        seen["seconds_left"] = max(0.0, current.row.deadline - now) if waiting else None
        return current.view.model_copy(update=seen)

    def _known(self) -> _Current:
        if self._current is None:
            raise LookupError("no round has been opened yet")
        return self._current


def look_at(session: Session, task_id: str, now: float) -> CachedRound | None:
    """The board of a task; None when there is no such task."""
    task = session.get(TaskRow, task_id)
    if task is None:
        return None
    round_ = last_round(session, task_id)
    return CachedRound(task, None if round_ is None else _current(session, task, round_, now))


def _current(session: Session, task: TaskRow, round_: RoundRow, now: float) -> _Current:
    before, taken = prerequisite(round_), awaited_message(round_)
    known: set[Part] = {"asked", "contribute", *(part for part in (before, taken) if part is not None)}
    return _Current(
        row=round_,
        view=compact_round(session, round_, now),
        plan=plan_round(task, round_),
        spec=round_spec(round_),
        before=before,
        taken=taken,
        parts={part: set(session.scalars(clients_with(round_.id, part))) for part in known},
    )
