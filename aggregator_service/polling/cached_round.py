"""The newest round of a task in memory, from which polls are answered.

What a client reads about itself only grows within a round: the cohort is drawn once, a delivery stays. So a cached
round that is out of date may lack a delivery, but never shows one that did not happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

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

__all__ = ["AwaitedContribution", "CachedRound", "ClientRoundStatus", "read_round"]


@dataclass(frozen=True)
class _RoundData:
    """A round as it was read, and the ids of the clients that did each part (`storage.stages.Part`) of it so far."""

    row: RoundRow
    view: RoundView
    plan: TaskPlan
    spec: RoundSpec
    prerequisite: Part | None
    awaited: Part | None
    clients: Mapping[str, set[str]]


class ClientRoundStatus(NamedTuple):
    """What a round view says about one client. Clients with equal status get the same answer."""

    in_cohort: bool
    in_committee: bool
    expected: bool
    delivered: bool
    contributed: bool
    contribution_bytes: int | None

    @property
    def is_awaited(self) -> bool:
        """Whether the round waits for this client, as far as this process knows."""
        return self.expected and not self.delivered


class AwaitedContribution(NamedTuple):
    """A contribution that a round waits for. length: its exact length in bytes."""

    round: RoundRow
    plan: TaskPlan
    route: Route
    length: int


class CachedRound:
    """The newest round of a task at one version; the task may have no round yet.

    It may be read while another thread adds deliveries.
    """

    def __init__(self, task: TaskRow, data: _RoundData | None) -> None:
        self.task_id, self.version = task.id, task.version
        self._task, self._data = task, data
        self._etags: dict[ClientRoundStatus, str] = {}
        self._route_lengths: dict[Route, tuple[Route, int]] = {}
        self._of_clients: dict[str, tuple[Route, int]] = {}

    @property
    def has_round(self) -> bool:
        """Whether the task has a round. The methods below raise `LookupError` when it has none."""
        return self._data is not None

    def add_delivery(self, delivery: Delivery) -> None:
        """Add a delivery; one that belongs to another round is ignored."""
        data = self._data
        if data is not None and data.row.id == delivery.round_id and delivery.part in data.clients:
            data.clients[delivery.part].add(delivery.client_id)

    def status(self, client_id: str) -> ClientRoundStatus:
        """Return the status of a client in the round."""
        data = self._require_round()
        in_cohort = client_id in data.clients["asked"]
        return ClientRoundStatus(
            in_cohort=in_cohort,
            in_committee=client_id in data.clients.get("committee", ()),
            expected=data.prerequisite is not None and client_id in data.clients[data.prerequisite],
            delivered=data.awaited is not None and client_id in data.clients[data.awaited],
            contributed=client_id in data.clients["contribute"],
            contribution_bytes=self._route_and_length(data, client_id)[1] if in_cohort else None,
        )

    def awaited_contribution(self, number: int, client_id: str) -> AwaitedContribution | None:
        """Return what this client must send in round `number`; None unless that round is known to wait for it."""
        data = self._data
        if data is None or data.spec.number != number or data.awaited != "contribute":
            return None
        required, awaited = data.prerequisite, data.clients[data.awaited]
        if required is None or client_id not in data.clients[required] or client_id in awaited:
            return None
        route, length = self._route_and_length(data, client_id)
        return AwaitedContribution(data.row, data.plan, route, length)

    def reuse_lengths(self, older: CachedRound) -> None:
        """Take over the contribution lengths that were computed for the same round."""
        if self._data is not None and older._data is not None and self._data.row.id == older._data.row.id:
            self._route_lengths, self._of_clients = older._route_lengths, older._of_clients

    def _route_and_length(self, data: _RoundData, client_id: str) -> tuple[Route, int]:
        """A client's route and the length of its contribution. Equal routes are one object, computed once a client."""
        found = self._of_clients.get(client_id)
        if found is None:
            route = data.plan.route(data.spec, client_id)
            if route not in self._route_lengths:
                self._route_lengths[route] = route, data.plan.upload_bytes(route)
            found = self._of_clients[client_id] = self._route_lengths[route]
        return found

    def etag(self, status: ClientRoundStatus) -> str:
        """Return the ETag (`round_views.round_etag`) of the view for clients with this status."""
        found = self._etags.get(status)
        if found is None:
            found = self._etags[status] = round_etag(self._task, self.view(status, 0.0))
        return found

    def view(self, status: ClientRoundStatus, now: float) -> RoundView:
        """Return the view for clients with this status; now: seconds since the epoch."""
        data = self._require_round()
        update: dict[str, Any] = status._asdict()
        update["received"] = len(data.clients["contribute"])
        if data.row.committee and data.awaited is not None and data.awaited != "contribute":
            update["answered"] = len(data.clients[data.awaited])
        update["seconds_left"] = None if data.awaited is None else max(0.0, data.row.deadline - now)
        return data.view.model_copy(update=update)

    def _require_round(self) -> _RoundData:
        if self._data is None:
            raise LookupError("no round has been opened yet")
        return self._data


def read_round(session: Session, task_id: str, now: float) -> CachedRound | None:
    """Read the newest round of a task; None when there is no such task."""
    task = session.get(TaskRow, task_id)
    if task is None:
        return None
    round_ = last_round(session, task_id)
    return CachedRound(task, None if round_ is None else _read_data(session, task, round_, now))


def _read_data(session: Session, task: TaskRow, round_: RoundRow, now: float) -> _RoundData:
    required, awaited = prerequisite(round_), awaited_message(round_)
    needed: set[Part] = {"asked", "contribute", *(part for part in (required, awaited) if part is not None)}
    if round_.committee:
        needed.add("committee")
    return _RoundData(
        row=round_,
        view=compact_round(session, round_, now),
        plan=plan_round(task, round_),
        spec=round_spec(round_),
        prerequisite=required,
        awaited=awaited,
        clients={part: set(session.scalars(clients_with(round_.id, part))) for part in needed},
    )
