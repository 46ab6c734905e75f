"""The engine: looks at a task, does the one thing that is due, and looks again.

It keeps no state of its own: everything it decides follows from the rows, so that a killed engine goes on where it
stood, and two engines on one database get in each other's way without harm (the loser's outcome is thrown away).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.clock import Clock
from aggregator_service.faults import CrashPoint, crash_point
from aggregator_service.logs import fields
from aggregator_service.observability.instruments import Instruments
from aggregator_service.plans import TaskTerms, plan_task, round_spec, row_terms
from aggregator_service.rounds.folding import BlobRef, FoldJob, Released, ReleaseJob, fold_batch, release_sum
from aggregator_service.rounds.masked import end_stage, gather_masks, give_up
from aggregator_service.rounds.operations import (
    LostRaceError,
    fail_round,
    missing_clients,
    open_round,
    record_fold,
    record_release,
    stop_collecting,
)
from aggregator_service.rounds.table import ACTIVE, RoundEvent, RoundState
from aggregator_service.rounds.unmasking import Masks
from aggregator_service.rounds.workers import FoldPool
from aggregator_service.storage.blobs import BlobDamagedError, BlobStore, BlobsUnavailableError, new_key
from aggregator_service.storage.database import DATABASE_GONE, Database
from aggregator_service.storage.rounds import last_round, lock_round, lock_task, newest_snapshot, unfolded
from aggregator_service.storage.schema import RoundRow, TaskRow
from protocols.errors import ThresholdError

__all__ = ["RoundEngine"]

_LOG = logging.getLogger(__name__)
_IDLE: Final = 3600.0
_BACK_OFF: Final = 1.0
_LOST_RACE: Final = 0.1
_ENDED: Final[Mapping[str, CrashPoint]] = {
    RoundState.ADVERTISING: "stage.advertising-ended",
    RoundState.SHARING: "stage.sharing-ended",
    RoundState.COLLECTING: "stage.collecting-ended",
    RoundState.CONFIRMING: "stage.confirming-ended",
}

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class _Situation:
    """What the engine sees of a task at one moment."""

    terms: TaskTerms
    task_seed: bytes
    opened_by_anyone: bool
    round: RoundRow
    missing: int
    batch: tuple[tuple[str, BlobRef], ...]

    @property
    def masked(self) -> bool:
        """Whether the round has a masked one's stages."""
        return self.round.model_digest is not None

    @property
    def partial(self) -> BlobRef | None:
        key, digest = self.round.partial_key, self.round.partial_digest
        return BlobRef(key, digest) if key is not None and digest is not None else None


class RoundEngine:
    """Drives every open task, each in a coroutine of its own, so that a long fold holds up no other task."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        pool: FoldPool,
        *,
        batch: int,
        recheck: float,
        instruments: Instruments | None = None,
    ) -> None:
        self._database, self._blobs, self._clock, self._pool = database, blobs, clock, pool
        self._batch, self._recheck = batch, recheck
        self._instruments = instruments or Instruments()
        self._wake: dict[str, asyncio.Event] = {}
        self._drivers: dict[str, asyncio.Task[None]] = {}

    def wake(self, task_id: str) -> None:
        """Have a look at this task now (call it in the event loop)."""
        if task_id in self._wake:
            self._wake[task_id].set()

    async def run(self) -> None:
        """Serve until cancelled: a driver for each open task, those made by other processes included."""
        try:
            while True:
                try:
                    open_tasks = await run_in_threadpool(self._open_tasks)
                    for task_id in open_tasks:
                        if task_id not in self._drivers:
                            self._start(task_id)
                except DATABASE_GONE as error:
                    _LOG.warning("the engine cannot list the tasks (%s) and tries again", type(error).__name__)
                except Exception:
                    _LOG.exception("the engine could not list the tasks and tries again")
                await asyncio.sleep(self._recheck)
        finally:
            for driver in self._drivers.values():
                driver.cancel()
            await asyncio.gather(*self._drivers.values(), return_exceptions=True)

    def _open_tasks(self) -> list[str]:
        with self._database.read() as session:
            return list(session.scalars(select(TaskRow.id).where(TaskRow.state == "open")))

    def _start(self, task_id: str) -> None:
        self._wake[task_id] = asyncio.Event()
        driver = self._drivers[task_id] = asyncio.create_task(self._drive(task_id), name=f"round engine {task_id}")
        driver.add_done_callback(lambda _: (self._drivers.pop(task_id, None), self._wake.pop(task_id, None)))

    async def _drive(self, task_id: str) -> None:
        wake = self._wake[task_id]
        while True:
            wake.clear()
            try:
                pause = await self.step(task_id)
            except (BlobsUnavailableError, *DATABASE_GONE) as error:
                _LOG.warning("storage fails with %s; trying again", type(error).__name__, extra=fields(task=task_id))
                pause = _BACK_OFF
            except Exception:
                # The rows are as they were: nothing is lost by trying again, and other tasks go on.
                _LOG.exception("the engine failed at a task and tries again", extra=fields(task=task_id))
                pause = _BACK_OFF
            if pause is None:
                return
            if pause > 0:
                try:
                    await asyncio.wait_for(wake.wait(), min(pause, self._recheck))
                except TimeoutError:
                    continue

    async def step(self, task_id: str) -> float | None:
        """Do the one thing that is due. Seconds until something may be due again; None: the task is over."""
        seen = await run_in_threadpool(self._look, task_id)
        if not isinstance(seen, _Situation):
            return seen
        try:
            if seen.round.state == RoundState.FOLDING:
                return await self._fold(seen) if seen.batch else await self._release(seen)
            if seen.round.state == RoundState.UNMASKING:
                return await self._unmask(seen)
            return await self._gather(seen)
        except BlobDamagedError as error:
            await run_in_threadpool(self._storage_damaged, seen, error)
        except LostRaceError:
            _LOG.info("a round moved on meanwhile", extra=fields(task=task_id, round=seen.round.number))
            return _LOST_RACE
        return 0.0

    def _look(self, task_id: str) -> _Situation | float | None:
        """The active round; or open one; or when to look again."""
        with self._database.read() as session:
            task = session.get_one(TaskRow, task_id)
            newest = last_round(session, task_id)
            if newest is not None and newest.state in ACTIVE:
                limit = self._batch
                batch = unfolded(session, newest.id, limit)
                return _Situation(
                    terms=row_terms(task),
                    task_seed=task.seed,
                    opened_by_anyone=task.opened_by == "anyone",
                    round=newest,
                    missing=missing_clients(session, newest),
                    batch=tuple((row.client_id, BlobRef(row.blob_key or "", row.digest)) for row in batch),
                )
            if task.state != "open":
                return None
        opened = self._database.transact(
            lambda session: open_round(session, lock_task(session, task_id), self._clock.now()) is not None
        )
        if not opened:
            return _IDLE
        crash_point("round.opened")
        return 0.0

    async def _gather(self, seen: _Situation) -> float:
        """A stage that waits for clients: over when none is missing, or at its deadline."""
        left = seen.round.deadline - self._clock.now()
        if seen.missing == 0 or left <= 0:
            await run_in_threadpool(self._end_stage, seen)
            return 0.0
        if len(seen.batch) == self._batch or (seen.batch and seen.round.state == RoundState.CONFIRMING):
            return await self._fold(seen)
        return left

    def _end_stage(self, seen: _Situation) -> None:
        end = end_stage if seen.masked else stop_collecting
        self._database.transact(lambda session: end(session, seen.round.id, self._clock.now()))
        if seen.masked:
            crash_point(_ENDED[seen.round.state])

    async def _unmask(self, seen: _Situation) -> float:
        """What is left to fold is folded while the replies come in; then the masks are taken off."""
        if seen.batch:
            return await self._fold(seen)
        left = seen.round.deadline - self._clock.now()
        if seen.missing and left > 0:
            return left
        try:
            return await self._release(seen, await run_in_threadpool(self._masks, seen))
        except ThresholdError as error:
            await run_in_threadpool(self._give_up, seen, str(error))
            return 0.0

    def _masks(self, seen: _Situation) -> Masks:
        with self._database.read() as session:
            return gather_masks(session, seen.round)

    def _give_up(self, seen: _Situation, reason: str) -> None:
        def write(session: Session) -> None:
            round_ = lock_round(session, seen.round.id)
            if round_.state == RoundState.UNMASKING:
                give_up(session, session.get_one(TaskRow, round_.task_id), round_, reason)

        self._database.transact(write)

    async def _fold(self, seen: _Situation) -> float:
        task_id, number = seen.round.task_id, seen.round.number
        output = new_key("partials", task_id, number)
        job = FoldJob(self._blobs, seen.terms, round_spec(seen.round), seen.partial, seen.batch, output)
        with self._instruments.fold(task_id, number, len(seen.batch)):
            folded = await self._pool.run(fold_batch, job)
        crash_point("fold.blob-written-before-commit")
        clients = [client for client, _ in seen.batch]
        await run_in_threadpool(self._commit_fold, seen, clients, folded)
        crash_point("fold.committed")
        _LOG.info(
            "batch folded",
            extra=fields(task=task_id, round=number, batch=len(clients), folded=seen.round.folded + len(clients)),
        )
        return 0.0

    def _commit_fold(self, seen: _Situation, clients: list[str], folded: BlobRef) -> None:
        self._guarded(
            lambda: self._write_fold(seen.round.id, clients, seen.partial, folded),
            folded.key,
        )

    def _write_fold(self, round_id: int, clients: list[str], previous: BlobRef | None, folded: BlobRef) -> None:
        self._database.transact(lambda session: record_fold(session, round_id, clients, previous, folded))

    async def _release(self, seen: _Situation, masks: Masks | None = None) -> float:
        task_id, number, partial = seen.round.task_id, seen.round.number, seen.partial
        if partial is None:
            raise BlobDamagedError("a folding round has no partial sum")
        state, state_output, view_outputs = None, None, list[str]()
        if seen.opened_by_anyone:
            state = await run_in_threadpool(self._newest_state, task_id)
            state_output = new_key("snapshots", task_id, number)
            groups = plan_task(seen.terms, seen.round.step).recipe.groups
            view_outputs = [new_key("views", task_id, number, group) for group in range(groups) if groups > 1]
        job = ReleaseJob(
            blobs=self._blobs,
            terms=seen.terms,
            task_seed=seen.task_seed,
            spec=round_spec(seen.round),
            partial=partial,
            survivors=seen.round.folded,
            masks=masks,
            output=new_key("aggregates", task_id, number),
            state=state,
            state_output=state_output,
            view_outputs=tuple(view_outputs),
        )
        with self._instruments.release(task_id, number, seen.round.folded, masked=masks is not None):
            released = await self._pool.run(release_sum, job)
        crash_point("release.blob-written-before-commit")

        def commit() -> None:
            self._database.transact(
                lambda session: record_release(session, seen.round.id, partial, released, self._clock.now())
            )

        states = [*([released.state] if released.state else []), *released.views]
        await run_in_threadpool(self._guarded, commit, released.aggregate.key, *(state.blob_key for state in states))
        crash_point("release.committed")
        _log_release(seen.round, released)
        return 0.0

    def _newest_state(self, task_id: str) -> tuple[int, BlobRef] | None:
        with self._database.read() as session:
            row = newest_snapshot(session, task_id)
            return None if row is None else (row.round_number, BlobRef(row.blob_key or "", row.digest))

    def _guarded(self, commit: Callable[[], Outcome], *new_blobs: str) -> Outcome:
        """`commit()`; when it loses a race, the blobs that it would have published are deleted again."""
        try:
            return commit()
        except LostRaceError:
            self._blobs.delete(*new_blobs)
            raise

    def _storage_damaged(self, seen: _Situation, error: BlobDamagedError) -> None:
        def write(session: Session) -> None:
            round_ = lock_round(session, seen.round.id)
            if round_.state not in ACTIVE or round_.partial_key != seen.round.partial_key:
                return  # the blobs were let go of because the round had ended meanwhile: no damage
            _LOG.error("stored blob damaged: %s", error, extra=fields(task=seen.round.task_id, round=round_.number))
            task = session.get_one(TaskRow, round_.task_id)
            reason = "a stored contribution no longer matches its digest: the server's storage is damaged"
            fail_round(session, task, round_, RoundEvent.STORAGE_DAMAGED, reason)

        self._database.transact(write)


def _log_release(round_: RoundRow, released: Released) -> None:
    _LOG.info(
        "round complete",
        extra=fields(
            task=round_.task_id,
            round=round_.number,
            survivors=round_.folded,
            cohort=round_.cohort,
            aggregate_bytes=released.aggregate_bytes,
            digest=released.aggregate.digest,
        ),
    )
    for share in released.bad_shares:
        _LOG.warning(
            "a share was wrong: its owner or its holder made it so",
            extra=fields(task=round_.task_id, round=round_.number, client=share.owner, holder=share.holder),
        )
