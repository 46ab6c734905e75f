"""Views of rounds and snapshots: rows converted to the messages that operators and clients get.

`CachedRound` is the newest round of a task in memory, from which polls are answered. What a client reads about itself
only grows within a round: the cohort is drawn once, a delivery stays. So a cached round that is out of date may lack a
delivery, but never shows one that did not happen.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from aggregator_service.access.principals import Enrolled, Principal
from aggregator_service.polling.pace import seconds_to_rest, seconds_to_window
from aggregator_service.round_states import ACTIVE
from aggregator_service.storage.database import Delivery
from aggregator_service.storage.round_rows import last_round, refusals_by_reason
from aggregator_service.storage.schema import ClientRow, RoundRow, SnapshotRow, TaskRow, ViewRow
from aggregator_service.storage.stage_rows import (
    Handout,
    StagePart,
    awaited_message,
    clients_with,
    contributions_of,
    count_of,
    find_handout,
    prerequisite,
    takes_part,
)
from aggregator_service.tasks.committee_keys import encoded_keys
from aggregator_service.tasks.plans import TaskPlan, plan_round, round_spec
from protocols.codec import b64encode
from protocols.layout import Route
from protocols.messages import RoundView, SnapshotView
from protocols.messages.stages import MaskedMessage, RoundState
from protocols.recipes.base import RoundSpec

Found = TypeVar("Found")
_AS_IN_ROW: Final = (
    *("task_id", "number", "state", "levels", "cohort", "survivors", "folded", "committee"),
    *("aggregate_bytes", "aggregate_digest", "state_digest", "aggregate_chain", "failure", "report"),
)
"""Fields of a view that are fields of its round's row."""


_LAST_ENROLLED: Final = select(func.max(ClientRow.sequence)).where(ClientRow.task_id == bindparam("task"))


def compact_round(session: Session, round_: RoundRow, now: float) -> RoundView:
    """Return the view of a round that is the same for everybody; now: seconds since the epoch."""
    return compact_rounds(session, [round_], now)[0]


def compact_rounds(session: Session, rounds: Sequence[RoundRow], now: float) -> list[RoundView]:
    """Return the views of rounds of one task as `compact_round` does; a few queries however many have ended."""
    received = contributions_of(session, [round_.id for round_ in rounds])
    for round_ in rounds:
        if round_.tally is not None:  # the rows of its members are deleted
            received[round_.id] = round_.tally["parts"].get("contribute", (0, 0))[0]
    return [_compact(session, round_, received.get(round_.id, 0), now) for round_ in rounds]


def _compact(session: Session, round_: RoundRow, received: int, now: float) -> RoundView:
    waiting = awaited_message(round_) is not None
    return RoundView.model_validate(
        {
            **{name: getattr(round_, name) for name in _AS_IN_ROW},
            "step": round_.sum_index,
            "size": round_.size or [],
            "seed": b64encode(round_.seed),
            "received": received,
            "seconds_left": max(0.0, round_.deadline - now) if waiting else None,
            "answered": _answered(session, round_),
            "survivors_digest": _proposed(session, round_),
        }
    )


def _answered(session: Session, round_: RoundRow) -> int:
    """Number of members of the committee that have sent the message of the current stage."""
    awaited = awaited_message(round_)
    return count_of(session, round_.id, awaited) if round_.committee and awaited in ("confirm", "unmask") else 0


def _proposed(session: Session, round_: RoundRow) -> str | None:
    """Digest of the survivors that the committee is asked to confirm, hex; None when there is no such set."""
    found = find_handout(session, round_.id, "survivors") if round_.committee and round_.state in ACTIVE else None
    return None if found is None else found.body.hex()


@dataclass(frozen=True)
class ClientRoundStatus:
    """What the view of a round says about one client. Clients with equal status get the same answer."""

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


def client_status(
    round_: RoundRow, did: Callable[[StagePart], bool], contribution_bytes: Callable[[], int]
) -> ClientRoundStatus:
    """Return the status of the client that did the parts for which `did` returns true.

    contribution_bytes: returns the exact length of its contribution; called only if it is in the cohort.
    """
    required, awaited, asked = prerequisite(round_), awaited_message(round_), did("asked")
    return ClientRoundStatus(
        in_cohort=asked,
        in_committee=bool(round_.committee) and did("committee"),
        expected=required is not None and did(required),
        delivered=awaited is not None and did(awaited),
        contributed=did("contribute"),
        contribution_bytes=contribution_bytes() if asked else None,
    )


def round_view(session: Session, task: TaskRow, round_: RoundRow, principal: Principal, now: float) -> RoundView:
    """Return the view of a round; for a client it also says what the round expects of it."""
    view = compact_round(session, round_, now)
    if not isinstance(principal, Enrolled):
        refusals = refusals_by_reason(session, [round_.id])
        return view.model_copy(update={"refusals": refusals.get(round_.id, {})})
    client_id = principal.client_id
    status = client_status(
        round_,
        lambda part: takes_part(session, round_.id, part, client_id),
        lambda: plan_round(task, round_).contribution_bytes(round_spec(round_), client_id),
    )
    handed = _handed_out(session, round_) if status.is_awaited else {}
    return view.model_copy(update={**vars(status), **handed})


def _handed_out(session: Session, round_: RoundRow) -> Mapping[str, str | None]:
    """Return what the view has for whoever the round awaits, by field: the same for all of them."""
    found = {"committee_keys": encoded_keys(session, round_)}
    kind: Handout | None = None
    if round_.state == RoundState.UNMASKING:
        kind = "confirmations" if round_.confirms or round_.committee else "survivors"
    elif round_.state == RoundState.CONFIRMING and not round_.committee:
        kind = "survivors"
    row = None if kind is None else find_handout(session, round_.id, kind)
    if row is not None:
        found["survivor_set" if kind == "survivors" else "confirmations"] = b64encode(row.body)
    return found


_UNSEEN: Final = frozenset({"received", "folded", "answered", "delivered", "contributed"})
"""What changes in a client's view with its own message, or with each one that arrives."""
_HANDED_OUT: Final = frozenset({"committee_keys", "survivor_set", "confirmations"})
"""What a client's view no longer has once its message is stored."""


def round_etag(task: TaskRow, view: RoundView) -> str:
    """Return a weak ETag that changes when the view does, apart from the remaining seconds.

    A client's ETag also ignores the messages that are stored, its own and those of others: each one would otherwise
    answer the polls of all clients, or the next poll of the client that sent it, which knows. The task's state is part
    of the ETag, so that its end answers every poll.
    """
    excluded = {"seconds_left"} if view.in_cohort is None else {"seconds_left", *_UNSEEN, *_HANDED_OUT}
    body = f"{task.state} {view.model_dump_json(exclude=excluded)}"
    return f'W/"{hashlib.sha256(body.encode()).hexdigest()[:24]}"'


def snapshot_view(row: SnapshotRow, seen: SnapshotRow | ViewRow | None = None) -> SnapshotView:
    """Return the view of a snapshot; seen: what the client's device group downloads instead of all of it."""
    body = seen or row
    return SnapshotView(round=row.round_number, bytes=body.bytes, digest=body.digest, author=row.author)


@dataclass(frozen=True)
class _RoundData:
    """A round as it was read, and the ids of the clients that did each `StagePart` of it so far."""

    row: RoundRow
    view: RoundView
    plan: TaskPlan
    spec: RoundSpec
    clients: Mapping[str, set[str]]
    handed_out: Mapping[str, str | None]
    """What the view has for whoever the round awaits, by field."""


class CachedRound:
    """The newest round of a task at one version; the task may have no round yet.

    It may be read while another thread adds deliveries.
    """

    def __init__(self, task: TaskRow, members: int, data: _RoundData | None) -> None:
        self.task_id, self.version = task.id, task.version
        self._members = members
        self._task, self._data = task, data
        self._etags: dict[ClientRoundStatus, str] = {}
        self._route_lengths: dict[Route, tuple[Route, int]] = {}
        self._of_clients: dict[str, tuple[Route, int]] = {}
        self._once: dict[str, asyncio.Future[Any]] = {}

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
        return client_status(
            data.row,
            lambda part: client_id in data.clients.get(part, ()),
            lambda: self._route_and_length(data, client_id)[1],
        )

    def seconds_to_window(self, client_id: str, status: ClientRoundStatus, rate: float, now: float) -> int:
        """Return how many seconds before its window an awaited client is (`polling.pace`); 0 for others."""
        row = self._require_round().row
        return seconds_to_window(self._task, row, client_id, rate, now) if status.is_awaited else 0

    def seconds_to_rest(self, rate: float) -> int:
        """Return after how many seconds a client asks again whose poll finds no room (`polling.pace`)."""
        return seconds_to_rest(self._task, self._members, rate)

    def awaits(self, number: int, message: MaskedMessage, client_id: str) -> bool:
        """Whether round `number` is known to wait for this message of the client."""
        data = self._data
        if data is None or data.spec.number != number or awaited_message(data.row) != message:
            return False
        required = prerequisite(data.row)
        return required is not None and client_id in data.clients[required] and client_id not in data.clients[message]

    def contribution_of(self, client_id: str) -> tuple[RoundRow, TaskPlan, Route, int]:
        """Return round, plan, route and exact length in bytes of the contribution of a client in the cohort."""
        data = self._require_round()
        return data.row, data.plan, *self._route_and_length(data, client_id)

    def stages(self) -> tuple[TaskRow, RoundRow, TaskPlan]:
        """Return task, round and plan."""
        data = self._require_round()
        return self._task, data.row, data.plan

    def has(self, number: int, client_id: str, part: StagePart) -> bool:
        """Whether a client is known to have done `part` of round `number`, which is not over."""
        data = self._data
        if data is None or data.spec.number != number or data.row.state not in ACTIVE:
            return False
        return client_id in data.clients.get(part, ())

    async def once(self, what: str, read: Callable[[], Coroutine[Any, Any, Found]]) -> Found:
        """Return what `read` returns, which the requests of all clients of the active round share.

        It is called for the first of them, and again if it raised.
        """
        known = self._once
        if what not in known:

            def done(reading: asyncio.Future[Any]) -> None:
                if reading.cancelled() or reading.exception() is not None:
                    del known[what]

            known[what] = asyncio.ensure_future(read())
            known[what].add_done_callback(done)
        found: Found = await asyncio.shield(known[what])
        return found

    def reuse(self, older: CachedRound) -> None:
        """Take over what was computed and read for the same round, and does not change while it is active."""
        if self._data is None or older._data is None or self._data.row.id != older._data.row.id:
            return
        self._route_lengths, self._of_clients = older._route_lengths, older._of_clients
        if self._data.row.state in ACTIVE:
            self._once = older._once

    def _route_and_length(self, data: _RoundData, client_id: str) -> tuple[Route, int]:
        """A client's route and the length of its contribution. Equal routes are one object, computed once a client."""
        found = self._of_clients.get(client_id)
        if found is None:
            route = data.plan.recipe.route(data.spec, client_id)
            if route not in self._route_lengths:
                self._route_lengths[route] = route, data.plan.upload_bytes(route)
            found = self._of_clients[client_id] = self._route_lengths[route]
        return found

    def etag(self, status: ClientRoundStatus) -> str:
        """Return the ETag (`round_etag`) of the view for clients with this status."""
        found = self._etags.get(status)
        if found is None:
            found = self._etags[status] = round_etag(self._task, self.view(status, 0.0))
        return found

    def view(self, status: ClientRoundStatus, now: float) -> RoundView:
        """Return the view for clients with this status; now: seconds since the epoch."""
        data = self._require_round()
        awaited = awaited_message(data.row)
        update: dict[str, Any] = dict(vars(status))
        if status.is_awaited:
            update |= data.handed_out
        update["received"] = len(data.clients["contribute"])
        if data.row.committee and awaited is not None and awaited != "contribute":
            update["answered"] = len(data.clients[awaited])
        update["seconds_left"] = None if awaited is None else max(0.0, data.row.deadline - now)
        return data.view.model_copy(update=update)

    def _require_round(self) -> _RoundData:
        if self._data is None:
            raise LookupError("no round has been opened yet")
        return self._data


def read_round(session: Session, task_id: str, now: float, older: CachedRound | None = None) -> CachedRound | None:
    """Read the newest round of a task; None when there is no such task.

    older: what was read before. At the same version clients can only have done more parts of the round, so of a part
    that as many did as before the ids are not read again.
    """
    task = session.get(TaskRow, task_id)
    if task is None:
        return None
    round_ = last_round(session, task_id)
    # the order of enrolment: the last is found in an index, where a count reads all rows
    members = session.execute(_LAST_ENROLLED, {"task": task_id}).scalar() or 0
    known = {} if older is None or older._data is None or older.version != task.version else older._data.clients
    return CachedRound(task, members, None if round_ is None else _read_data(session, task, round_, known, now))


def _read_data(
    session: Session, task: TaskRow, round_: RoundRow, known: Mapping[str, set[str]], now: float
) -> _RoundData:
    required, awaited = prerequisite(round_), awaited_message(round_)
    needed: set[StagePart] = {"asked", "contribute", *(part for part in (required, awaited) if part is not None)}
    if round_.committee:
        needed.add("committee")
    elif round_.model_digest is not None:
        needed.add("advertise")

    def clients(part: StagePart) -> set[str]:
        # As many as are known need not be these, where another server has stored one: until the next read an id can be
        # missing, as between two reads, and whoever depends on it looks it up.
        if part in known and count_of(session, round_.id, part) == len(known[part]):
            return known[part]
        return set(session.scalars(clients_with(round_.id, part)))

    return _RoundData(
        row=round_,
        view=compact_round(session, round_, now),
        plan=plan_round(task, round_),
        spec=round_spec(round_),
        clients={part: clients(part) for part in needed},
        handed_out=_handed_out(session, round_) if awaited is not None else {},
    )
