"""What the server deletes by itself, so that nothing is stored for ever, and what it logs of the command line.

| what | kept for |
|---|---|
| aggregates and rows of members of older rounds (`tasks.tidying`) | the newest `keep_rounds` rounds of a task |
| members whose membership has ended: keys, certificate, id (`tasks.erasure`) | `revoked_days` after its end |
| tasks that have ended, with models and members (`tasks.deletion`) | `ended_days`; by default, until deleted |
| the audit trail | `audit_days` |

A task may have its own numbers. Only the process that drives the rounds deletes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.access.audit_trail import Actor, prune, record, relay
from aggregator_service.clock import Clock
from aggregator_service.settings import Settings
from aggregator_service.storage.blobs import BlobsUnavailableError
from aggregator_service.storage.database import DATABASE_GONE, Database, changed_rows
from aggregator_service.storage.dialects import database_cause
from aggregator_service.storage.growth import measure
from aggregator_service.storage.schema import ClientRow, SizeRow, TaskRow
from aggregator_service.tasks.deletion import delete_task
from aggregator_service.tasks.erasure import erase_member, finish_erasures
from aggregator_service.tasks.tidying import is_due, tidy_task

_LOG = logging.getLogger(__name__)
_DAY: Final = 86_400.0
_RELAY_SECONDS: Final = 2.0
_TIDY_SECONDS: Final = 60.0
_MEASURE_SECONDS: Final = 3600.0
_MEMBERS_AT_ONCE: Final = 50
_WAITING: Final = select(ClientRow.id).where(ClientRow.erase_asked_at.is_not(None)).limit(1)


def by_server(now: float) -> Actor:
    """Return the server as the one who acts, as its settings say; now: seconds since the epoch."""
    return Actor("(server)", "server", "", now)


async def keep_up(database: Database, settings: Settings, clock: Clock) -> None:
    """Log what was done at the command line within two seconds, and delete once a minute, until cancelled."""
    tidied = -_TIDY_SECONDS
    while True:
        try:
            await run_in_threadpool(relay, database)
            await run_in_threadpool(erase_waiting, database, clock.now())
            if time.monotonic() - tidied >= _TIDY_SECONDS:
                await run_in_threadpool(delete_expired, database, settings, clock.now())
                tidied = time.monotonic()
        except DATABASE_GONE as error:
            _LOG.warning("cannot delete what has expired: %s; trying again later", database_cause(error))
        except BlobsUnavailableError as error:
            _LOG.warning("cannot delete what has expired: %s; trying again later", error)
        except Exception:
            _LOG.exception("failed to delete what has expired; trying again later")
            tidied = time.monotonic()
        await asyncio.sleep(_RELAY_SECONDS)


def erase_waiting(database: Database, now: float) -> int:
    """Erase the members whose erasure waited for a round that is over; return their number. now: see below."""
    if not database.rows(_WAITING, {}):
        return 0
    return database.transact(lambda session: finish_erasures(session, now))


def delete_expired(database: Database, settings: Settings, now: float) -> None:
    """Delete what the settings and the tasks keep no longer. now: seconds since the epoch, here and above."""
    database.transact(lambda session: prune(session, now - settings.audit_days * _DAY))
    database.transact(lambda session: _note_ends(session, now))
    with database.read() as session:
        tasks = session.scalars(select(TaskRow)).all()
        due = {task.id for task in tasks if is_due(session, task, _kept(task, settings))}
    for task in tasks:
        while task.id in due and _tidy(database, task.id, _kept(task, settings)):
            pass
        days = settings.ended_days if task.ended_days is None else task.ended_days
        if days is not None and task.ended_at is not None and now - task.ended_at >= days * _DAY:
            _delete_ended(database, task.id, days, now)
    _erase_revoked(database, now - settings.revoked_days * _DAY, now)
    database.transact(lambda session: _measure_if_due(session, now))


def _kept(task: TaskRow, settings: Settings) -> int:
    return task.keep_rounds or settings.keep_rounds


def _tidy(database: Database, task_id: str, keep: int) -> bool:
    return database.transact(
        lambda session: session.get(TaskRow, task_id) is not None and tidy_task(session, task_id, keep)
    )


def _note_ends(session: Session, now: float) -> None:
    """Note when tasks ended, and forget it of those that were resumed."""
    ended = update(TaskRow).where(TaskRow.state != "open", TaskRow.ended_at.is_(None))
    changed_rows(session, ended.values(ended_at=now))
    resumed = update(TaskRow).where(TaskRow.state == "open", TaskRow.ended_at.is_not(None))
    changed_rows(session, resumed.values(ended_at=None))


def _delete_ended(database: Database, task_id: str, days: int, now: float) -> None:
    def work(session: Session) -> None:
        task = session.get(TaskRow, task_id)
        if task is not None and task.state != "open":
            record(session, by_server(now), "task has expired", task=task, days=days)
            delete_task(session, task, by_server(now))

    database.transact(work)


def _erase_revoked(database: Database, before: float, now: float) -> None:
    """Erase the members whose membership ended before `before`."""
    query = select(ClientRow.task_id, ClientRow.id).where(
        ClientRow.revoked_at < before, ClientRow.erased_at.is_(None), ClientRow.erase_asked_at.is_(None)
    )
    while True:
        with database.read() as session:
            due = session.execute(query.limit(_MEMBERS_AT_ONCE)).all()
        for task_id, client_id in due:
            _erase(database, task_id, client_id, now)
        if len(due) < _MEMBERS_AT_ONCE:
            return


def _erase(database: Database, task_id: str, client_id: str, now: float) -> None:
    database.transact(lambda session: erase_member(session, task_id, client_id, by_server(now)))


def _measure_if_due(session: Session, now: float) -> None:
    newest = session.scalars(select(SizeRow.measured_at).order_by(SizeRow.measured_at.desc()).limit(1)).first()
    if newest is None or now - newest >= _MEASURE_SECONDS:
        measure(session, now)
