"""The audit trail: a row and a log line for each action of an operator, and counts of the attempts that were refused.

A row says who did what, to what, when and from where. It holds the name of a token, never the token. The functions that
change something call `record` in their own transaction, so there is no action without its row. Refused attempts change
nothing and may be many: `Refusals` counts them in memory, and stores each kind as one row a day and address.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.access.rate_limits import network
from aggregator_service.logs import fields
from aggregator_service.storage.database import DATABASE_GONE, Database, changed_rows
from aggregator_service.storage.dialects import database_cause
from aggregator_service.storage.schema import AuditRow, TaskRow
from protocols.messages.audit import AuditEntry, AuditPage

_LOG = logging.getLogger(__name__)

Via = Literal["api", "dashboard", "command line", "server"]
"""How an operator acted; `server`: the server itself, as it was told earlier, such as a setting."""

NOBODY: Final = ""
"""The operator of an attempt without a valid token."""
_DAY: Final = 86_400.0
_MOST_KINDS: Final = 1000
"""Kinds of refused attempts that are told apart in a day; those of further addresses are counted together."""
_OTHERS: Final = "other addresses"
_STORE_SECONDS: Final = 5.0
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class Actor:
    """An operator who acts."""

    name: str
    """Of the token; at the command line the account of the operating system."""
    via: Via
    address: str
    """The client's IP address; at the command line the name of the machine."""
    at: float
    """Seconds since the epoch."""


def record(
    session: Session,
    actor: Actor,
    action: str,
    *,
    task: TaskRow | None = None,
    target: str | None = None,
    **details: str | float | None,
) -> None:
    """Add the row of an action and log it; call it in the transaction of the action.

    action: in the past, such as "task closed". target: the id or name of what was changed, besides the task. details:
    what else the row and the line say; None is left out. An action at the command line is logged by the server that
    drives the rounds (`relay`): the terminal of a command is not the server's log.
    """
    stated = {name: value for name, value in details.items() if value is not None}
    at_terminal = actor.via == "command line"
    session.add(
        AuditRow(
            at=actor.at,
            until=actor.at,
            operator=actor.name,
            via=actor.via,
            address=actor.address,
            action=action,
            task_id=None if task is None else task.id,
            task_name=None if task is None else task.name,
            target=target,
            details=stated,
            times=1,
            logged=not at_terminal,
        )
    )
    if not at_terminal:
        _log(actor.name, actor.via, actor.address, action, None if task is None else task.id, target, stated)


def _log(
    operator: str, via: str, address: str, action: str, task: str | None, target: str | None, details: dict[str, Any]
) -> None:
    who = {"operator": operator, "via": via.replace(" ", "-"), "address": address or None}
    _LOG.info("%s", action, extra=fields(**who, task=task, target=target, **details))


_WAITING: Final = select(AuditRow).where(AuditRow.logged.is_(False)).order_by(AuditRow.id)
_FIRST_WAITING: Final = _WAITING.with_only_columns(AuditRow.id).limit(1)


def relay(database: Database) -> int:
    """Log the actions of the command line that were not logged yet; return their number."""
    if not database.rows(_FIRST_WAITING, {}):
        return 0

    def mark(session: Session) -> list[AuditRow]:
        rows = list(session.scalars(_WAITING.with_for_update()))
        changed_rows(session, update(AuditRow).where(AuditRow.id.in_([row.id for row in rows])).values(logged=True))
        return rows

    rows = database.transact(mark)
    for row in rows:
        details = {**row.details, "refused": row.refused}
        _log(row.operator, row.via, row.address, row.action, row.task_id, row.target, details)
    return len(rows)


# --- refused attempts -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attempt:
    """A kind of refused attempt."""

    operator: str
    """`NOBODY` without a valid token."""
    via: Via
    address: str
    action: str
    refused: str
    """Slug of the problem type."""
    task_id: str | None = None


@dataclass
class _Count:
    """How often a kind of attempt was made in a day."""

    day: int
    first: float
    last: float
    times: int = 0
    stored: int = 0
    row: int | None = None
    """Of the database, None until it is stored."""


@dataclass
class Refusals:
    """Counts refused attempts by kind, and stores the counts every five seconds. Thread-safe."""

    database: Database
    _counts: dict[Attempt, _Count] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _storing: threading.Lock = field(default_factory=threading.Lock)

    def note(self, attempt: Attempt, now: float) -> None:
        """Count an attempt. now: seconds since the epoch."""
        day = int(now // _DAY)
        kind = _kind(attempt, network(attempt.address))
        with self._lock:
            known = self._counts.get(kind)
            if known is None and len(self._counts) >= _MOST_KINDS:
                kind = replace(_kind(attempt, _OTHERS), task_id=None)
                known = self._counts.get(kind)
            if known is None or known.day != day:
                if known is not None and known.times > known.stored:  # of yesterday, and not stored yet
                    known.last, known.times = now, known.times + 1
                    return
                known = self._counts[kind] = _Count(day, now, now)
            known.last, known.times = now, known.times + 1

    def store(self, now: float) -> None:
        """Store the counts that have changed, and forget those of earlier days. Raises what the database raises."""
        with self._storing:
            with self._lock:
                changed = [
                    (kind, one, one.last, one.times) for kind, one in self._counts.items() if one.times > one.stored
                ]
                earlier = [
                    kind
                    for kind, one in self._counts.items()
                    if one.times == one.stored and one.day != int(now // _DAY)
                ]
                for kind in earlier:
                    del self._counts[kind]
            if not changed:
                return

            def write(session: Session) -> list[AuditRow | None]:
                return [_store(session, kind, one, last, times) for kind, one, last, times in changed]

            rows = self.database.transact(write)
            with self._lock:
                for (_, one, _, times), row in zip(changed, rows, strict=True):
                    one.stored, one.row = times, one.row if row is None else row.id

    async def run(self) -> None:
        """Store the counts every five seconds, until cancelled."""
        while True:
            await asyncio.sleep(_STORE_SECONDS)
            await run_in_threadpool(self.store_if_possible)

    def store_if_possible(self) -> None:
        """Store the counts; while the database does not answer, keep them for the next call."""
        try:
            with self._lock:
                now = max((one.last for one in self._counts.values()), default=0.0)
            self.store(now)
        except DATABASE_GONE as error:
            _LOG.warning("cannot store refused attempts: %s; trying again later", database_cause(error))


def _kind(attempt: Attempt, address: str) -> Attempt:
    return Attempt(
        attempt.operator[:_LONGEST], attempt.via, address, attempt.action[:_LONGEST], attempt.refused, attempt.task_id
    )


def _store(session: Session, kind: Attempt, one: _Count, last: float, times: int) -> AuditRow | None:
    """Raise the count of a kind that has a row; return the row of one that has none, and that none has pruned."""
    if one.row is not None:
        found = update(AuditRow).where(AuditRow.id == one.row).values(until=last, times=times)
        if changed_rows(session, found):
            return None
    row = refused_row(kind, one.first, last, times)
    session.add(row)
    session.flush()
    return row


def refused_row(kind: Attempt, first: float, last: float, times: int = 1) -> AuditRow:
    """Return the row of a kind of refused attempt; first, last: seconds since the epoch."""
    own = {"details": {}, "times": times, "logged": kind.via != "command line"}
    return AuditRow(**asdict(kind), at=first, until=last, **own)


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """Which entries of the trail are wanted; None and "" for any."""

    operator: str = ""
    """A name."""
    task: str = ""
    """A name or an id."""
    outcome: Literal["", "done", "refused"] = ""
    """Those that were done, or refused."""
    since: float | None = None
    """Seconds since the epoch."""
    target: str = ""
    """What was changed, such as a client id."""


def audit_page(session: Session, wanted: Wanted, limit: int, *, after: int = 0) -> AuditPage:
    """Return entries with ids above `after`, oldest first; at most `limit`."""
    rows = session.scalars(_query(wanted).where(AuditRow.id > after).order_by(AuditRow.id).limit(limit + 1)).all()
    shown = [_entry(row) for row in rows[:limit]]
    return AuditPage(entries=shown, next=shown[-1].id if len(rows) > limit else None)


def newest_entries(session: Session, wanted: Wanted, limit: int, before: int | None = None) -> Sequence[AuditEntry]:
    """Return entries with ids below `before`, newest first; at most `limit`."""
    query = _query(wanted)
    if before is not None:
        query = query.where(AuditRow.id < before)
    return [_entry(row) for row in session.scalars(query.order_by(AuditRow.id.desc()).limit(limit))]


def _query(wanted: Wanted) -> Any:
    query = select(AuditRow)
    if wanted.operator:
        query = query.where(AuditRow.operator == wanted.operator)
    if wanted.target:
        query = query.where(AuditRow.target == wanted.target)
    if wanted.task:
        query = query.where((AuditRow.task_id == wanted.task) | (AuditRow.task_name == wanted.task))
    if wanted.outcome:
        done = AuditRow.refused.is_(None)
        query = query.where(done if wanted.outcome == "done" else ~done)
    return query if wanted.since is None else query.where(AuditRow.until >= wanted.since)


def _entry(row: AuditRow) -> AuditEntry:
    stored = {name: getattr(row, name) for name in AuditEntry.model_fields}
    return AuditEntry.model_validate(stored | {"operator": row.operator or None})


def prune(session: Session, before: float) -> int:
    """Delete the entries that ended before `before` (seconds since the epoch); return their number."""
    return changed_rows(session, delete(AuditRow).where(AuditRow.until < before, AuditRow.logged.is_(True)))
