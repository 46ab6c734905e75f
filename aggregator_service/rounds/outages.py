"""Outages: the deadlines of rounds do not run while clients cannot send their messages.

Every few seconds each server process checks the database and the blob store, and notes in the database that both work.
After a gap between two notes, the first process that notes again moves the deadlines of the active rounds by it. So it
does not matter which processes ran, or whether any did. While the blob store alone does not work, the leading process
moves the deadlines.

An outage of the database that is shorter than `LONGEST_GAP` moves nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, cast

from sqlalchemy import Table, select, update
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.clock import Clock
from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.round_states import ACTIVE
from aggregator_service.storage.blobs import BlobStore, BlobsUnavailableError
from aggregator_service.storage.database import DATABASE_GONE, Database, announce
from aggregator_service.storage.round_rows import entered_states, lock_round_exclusive
from aggregator_service.storage.schema import RoundRow, StorageRow

_LOG = logging.getLogger(__name__)
_STORAGE: Final = cast(Table, StorageRow.__table__)
_NOTE_SECONDS: Final = 3.0
_RETRY_SECONDS: Final = 1.0
LONGEST_GAP: Final = 10.0
"""Seconds between two notes of a service that works, at most: also a takeover or a slow disk makes gaps."""


class OutageWatch:
    """Notes that this process can use database and blob store, and moves deadlines after an outage.

    leads: whether this process drives the rounds. clock_is_right: False keeps it from noting: its notes would look like
    an outage, or hide one. monotonic: the seconds of a clock that nobody sets.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        leads: Callable[[], bool],
        clock_is_right: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._blobs, self._clock = database, blobs, clock
        self._leads, self._clock_is_right, self._monotonic = leads, clock_is_right, monotonic
        self._noted: float | None = None

    def works(self) -> bool:
        """Return whether this process noted lately that the service works; only then a stage ends at its deadline."""
        return self._noted is not None and self._monotonic() - self._noted < LONGEST_GAP

    def judge(self, deadline: float) -> None:
        """Raise `Problem` unavailable (503) if a deadline is over, but may still be moved by an outage."""
        if self._clock.now() >= deadline and not self.works():
            text = "the service was not available, and the deadlines are being moved; try again"
            raise Problem("unavailable", text, headers={"Retry-After": "1"})

    async def run(self) -> None:
        """Note every few seconds, until cancelled."""
        while True:
            pause = _NOTE_SECONDS
            try:
                await run_in_threadpool(self.note)
            except DATABASE_GONE:
                pause = _RETRY_SECONDS  # requests and the round engine report it
            except Exception:
                _LOG.exception("failed to note that the service works")
            await asyncio.sleep(pause)

    def note(self) -> None:
        """Move the deadlines by an outage that is over, and note that the service works, if it does.

        Raises SQLAlchemy's errors while the database does not answer.
        """
        begun = self._monotonic()
        if not self._clock_is_right():
            return
        try:
            self._blobs.check()
        except BlobsUnavailableError:
            if not self._leads():
                return
            stored = False
        else:
            stored = True
        with self._database.read() as session:
            if not self._active(session):
                self._noted = begun if stored else self._noted
                return
        self._database.transact(lambda session: self._write(session, stored, begun))
        if stored:
            self._noted = begun

    def _write(self, session: Session, stored: bool, begun: float) -> None:
        last = session.execute(select(_STORAGE.c.noted_at).with_for_update()).scalar_one()
        now = self._clock.now()
        gaps = [] if last is None else [now - last]
        if self._noted is not None:
            gaps.append(begun - self._noted)  # a clock that was set is no outage, nor is a time without rounds
        gap = min(gaps, default=0.0)
        if gap > (LONGEST_GAP if stored else 0.0):
            self._move(session, now - gap, now)
        session.execute(update(_STORAGE).values(noted_at=now))

    def _move(self, session: Session, since: float, now: float) -> None:
        """Move the deadlines that were not over at `since` to leave each stage the time that it had then."""
        for round_id in self._active(session):
            task, round_ = lock_round_exclusive(session, round_id)
            if round_.state not in ACTIVE or round_.deadline <= since:
                continue
            lost = now - max(since, entered_states(session, round_id)[-1].entered_at)
            if lost <= 0:
                continue
            round_.deadline += lost
            session.flush()
            announce(session, task.id, "round")
            _LOG.info("deadline moved by an outage", extra=fields(task=task.id, round=round_.number, seconds=lost))

    def _active(self, session: Session) -> list[int]:
        return list(session.scalars(select(RoundRow.id).where(RoundRow.state.in_(ACTIVE)).order_by(RoundRow.id)))
