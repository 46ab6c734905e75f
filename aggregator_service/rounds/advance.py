"""The one thing that is due in a round: ending a stage, folding a batch, taking the masks off, releasing the sum.

Nothing is kept between two steps: everything follows from the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.clock import Clock
from aggregator_service.compute.jobs import BlobRef, FoldJob, Released, ReleaseJob
from aggregator_service.compute.split_jobs import SplitJobs
from aggregator_service.compute.unmasking import Masks
from aggregator_service.crash_points import CrashPoint, crash_point
from aggregator_service.logs import fields
from aggregator_service.observability.instruments import Instruments
from aggregator_service.round_states import ACTIVE, RoundEvent
from aggregator_service.rounds.masked_stages import end_stage, gather_masks, give_up
from aggregator_service.rounds.transactions import (
    LostRaceError,
    fail_round,
    missing_clients,
    open_round,
    record_fold,
    record_release,
    stop_collecting,
)
from aggregator_service.storage.blobs import BlobDamagedError, BlobStore
from aggregator_service.storage.database import Database
from aggregator_service.storage.rounds import (
    last_round,
    lock_round_exclusive,
    lock_task,
    newest_snapshot,
    unfolded,
    unfolded_count,
)
from aggregator_service.storage.schema import RoundRow, TaskRow
from aggregator_service.tasks.plans import TaskTerms, round_spec, row_terms
from protocols.errors import ThresholdError
from protocols.messages.stages import RoundState

__all__ = ["RoundAdvancer", "Situation"]

_LOG = logging.getLogger(__name__)
_IDLE: Final = 3600.0
_LOST_RACE: Final = 0.1
_ENDED: Final[Mapping[str, CrashPoint]] = {
    RoundState.ADVERTISING: "stage.advertising-ended",
    RoundState.SHARING: "stage.sharing-ended",
    RoundState.COLLECTING: "stage.collecting-ended",
    RoundState.CONFIRMING: "stage.confirming-ended",
}

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Situation:
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


class RoundAdvancer:
    """Looks at a task, and does what is due in it. `batch`: contributions a worker folds at once."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        jobs: SplitJobs,
        batch: int,
        instruments: Instruments,
    ) -> None:
        self._database, self._blobs, self._clock, self._jobs = database, blobs, clock, jobs
        self._batch, self._instruments = batch, instruments

    async def do(self, seen: Situation) -> float:
        """Do the one thing that is due. Seconds until something may be due again."""
        try:
            if seen.round.state == RoundState.FOLDING:
                return await self._fold(seen) if seen.batch else await self._release(seen)
            if seen.round.state == RoundState.UNMASKING:
                return await self._unmask(seen)
            return await self._gather(seen)
        except BlobDamagedError as error:
            await run_in_threadpool(self._storage_damaged, seen, error)
        except LostRaceError:
            _LOG.info("a round moved on meanwhile", extra=fields(task=seen.round.task_id, round=seen.round.number))
            return _LOST_RACE
        return 0.0

    def look(self, task_id: str) -> Situation | float | None:
        """The active round; or open one; or when to look again (None: never, the task is over)."""
        with self._database.read() as session:
            task = session.get_one(TaskRow, task_id)
            newest = last_round(session, task_id)
            if newest is not None and newest.state in ACTIVE:
                batch = self._waiting(session, newest)
                return Situation(
                    terms=row_terms(task),
                    task_seed=task.seed,
                    opened_by_anyone=task.opened_by == "anyone",
                    round=newest,
                    missing=missing_clients(session, newest),
                    batch=tuple((client, BlobRef(key or "", digest)) for client, key, digest in batch),
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

    def _waiting(self, session: Session, round_: RoundRow) -> Sequence[tuple[str, str | None, str]]:
        """What is to be folded next; while contributions still come in, nothing until there is enough for a fold."""
        if round_.state == RoundState.COLLECTING and unfolded_count(session, round_.id) < self._limit:
            return ()
        return unfolded(session, round_.id, self._limit)

    @property
    def _limit(self) -> int:
        """Contributions of one fold: a batch for every worker."""
        return self._batch * self._jobs.workers.width

    async def _gather(self, seen: Situation) -> float:
        """A stage that waits for clients: over when none is missing, or at its deadline."""
        left = seen.round.deadline - self._clock.now()
        if seen.missing == 0 or left <= 0:
            await run_in_threadpool(self._end_stage, seen)
            return 0.0
        if len(seen.batch) >= self._limit or (seen.batch and seen.round.state == RoundState.CONFIRMING):
            return await self._fold(seen)
        return left

    def _end_stage(self, seen: Situation) -> None:
        end = end_stage if seen.masked else stop_collecting
        self._database.transact(lambda session: end(session, seen.round.id, self._clock.now()))
        if seen.masked:
            crash_point(_ENDED[seen.round.state])

    async def _unmask(self, seen: Situation) -> float:
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

    def _masks(self, seen: Situation) -> Masks:
        with self._database.read() as session:
            return gather_masks(session, seen.round)

    def _give_up(self, seen: Situation, reason: str) -> None:
        def write(session: Session) -> None:
            round_ = lock_round_exclusive(session, seen.round.id)
            if round_.state == RoundState.UNMASKING:
                give_up(session, session.get_one(TaskRow, round_.task_id), round_, reason, self._clock.now())

        self._database.transact(write)

    async def _fold(self, seen: Situation) -> float:
        task_id, number = seen.round.task_id, seen.round.number
        job = FoldJob(self._blobs, task_id, seen.terms, round_spec(seen.round), seen.partial, seen.batch)
        with self._instruments.fold(task_id, number, len(seen.batch)):
            folded = await self._jobs.fold(job)
        crash_point("fold.blob-written-before-commit")
        clients = [client for client, _ in seen.batch]
        await run_in_threadpool(self._commit_fold, seen, clients, folded)
        crash_point("fold.committed")
        _LOG.info(
            "batch folded",
            extra=fields(task=task_id, round=number, batch=len(clients), folded=seen.round.folded + len(clients)),
        )
        return 0.0

    def _commit_fold(self, seen: Situation, clients: list[str], folded: BlobRef) -> None:
        self._guarded(
            lambda: self._write_fold(seen.round.id, clients, seen.partial, folded),
            folded.key,
        )

    def _write_fold(self, round_id: int, clients: list[str], previous: BlobRef | None, folded: BlobRef) -> None:
        self._database.transact(lambda session: record_fold(session, round_id, clients, previous, folded))

    async def _release(self, seen: Situation, masks: Masks | None = None) -> float:
        task_id, number, partial = seen.round.task_id, seen.round.number, seen.partial
        if partial is None:
            raise BlobDamagedError("a folding round has no partial sum")
        job = ReleaseJob(
            blobs=self._blobs,
            task_id=task_id,
            terms=seen.terms,
            task_seed=seen.task_seed,
            spec=round_spec(seen.round),
            partial=partial,
            survivors=seen.round.folded,
            masks=masks,
            absorb=seen.opened_by_anyone,
            state=await run_in_threadpool(self._newest_state, task_id, number) if seen.opened_by_anyone else None,
        )
        with self._instruments.release(task_id, number, seen.round.folded, masked=masks is not None):
            released = await self._jobs.release(job)
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

    def _newest_state(self, task_id: str, before: int) -> tuple[int, BlobRef] | None:
        """The newest snapshot and its round; `LostRaceError` when round `before` is released by now."""
        with self._database.read() as session:
            row = newest_snapshot(session, task_id)
        if row is not None and row.round_number >= before:
            raise LostRaceError
        return None if row is None else (row.round_number, BlobRef(row.blob_key or "", row.digest))

    def _guarded(self, commit: Callable[[], Outcome], *new_blobs: str) -> Outcome:
        """`commit()`; when it loses a race, the blobs that it would have published are deleted again."""
        try:
            return commit()
        except LostRaceError:
            self._blobs.delete(*new_blobs)
            raise

    def _storage_damaged(self, seen: Situation, error: BlobDamagedError) -> None:
        def write(session: Session) -> None:
            round_ = lock_round_exclusive(session, seen.round.id)
            if round_.state not in ACTIVE or round_.partial_key != seen.round.partial_key:
                return  # the blobs were let go of because the round had ended meanwhile: no damage
            _LOG.error("stored blob damaged: %s", error, extra=fields(task=seen.round.task_id, round=round_.number))
            task = session.get_one(TaskRow, round_.task_id)
            reason = "a stored contribution no longer matches its digest: the server's storage is damaged"
            fail_round(session, task, round_, RoundEvent.STORAGE_DAMAGED, reason, self._clock.now())

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
