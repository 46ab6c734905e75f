"""Advance a round by one action: open it, end a stage, fold a batch of contributions, or release the sum.

`RoundAdvancer.read` reads the rows of a task and `RoundAdvancer.advance` executes the one action that is due. No state
is kept between two actions, except that a sum is released at once after the fold of the last contributions. The
`RoundEngine` (`engine.py`) calls both for each open task, again and again.

| state of the round | action | when |
|---|---|---|
| none active | open the next round | enough members can contribute |
| advertising, sharing, collecting, confirming | end the stage | all clients have sent, or at the deadline |
| confirming, unmasking, folding | fold a batch | any contribution is not folded |
| collecting | fold a batch | enough contributions for a whole batch are not folded; a few, where adding takes long |
| folding | release the sum | every contribution is folded |
| unmasking | remove the masks, release the sum | every contribution is folded; all replies, or at the deadline |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.clock import Clock
from aggregator_service.compute.jobs import BlobRef, FoldJob, Released, ReleaseJob
from aggregator_service.compute.split_jobs import SplitJobs
from aggregator_service.compute.unmasking import Masks, OneshotMasks, SumUnopenedError
from aggregator_service.crash_points import CrashPoint, crash_point
from aggregator_service.logs import fields
from aggregator_service.observability.metrics import Instruments
from aggregator_service.round_states import ACTIVE, RoundEvent
from aggregator_service.rounds.batches import ActiveRound, Batch, Batches, partial_of
from aggregator_service.rounds.masked import MASKED_STAGES, fail_at_fault, read_masks, roster_of, sharing, write_inboxes
from aggregator_service.rounds.oneshot import (
    ONESHOT_STAGES,
    fail_committee_absent,
    grouped_survivors,
    proposed_survivors,
    read_oneshot_masks,
)
from aggregator_service.rounds.opening import open_round
from aggregator_service.rounds.transactions import (
    PLAIN_STAGES,
    LostRaceError,
    awaited_clients,
    end_stage,
    fail_round,
    record_fold,
    record_release,
)
from aggregator_service.storage.blobs import BlobDamagedError, BlobMissingError, BlobStore
from aggregator_service.storage.database import Database, discard
from aggregator_service.storage.round_rows import (
    last_round,
    lock_round_exclusive,
    lock_task,
    newest_snapshot,
    unfolded_among,
)
from aggregator_service.storage.schema import TaskRow
from aggregator_service.storage.stores import insert_named
from aggregator_service.tasks.plans import plan_task, round_spec, row_terms
from protocols.errors import AtFaultError, ThresholdError
from protocols.messages.stages import RoundState

_LOG = logging.getLogger(__name__)
_IDLE_SECONDS: Final = 3600.0
_LOST_RACE_SECONDS: Final = 0.1
_OUTAGE_SECONDS: Final = 0.2
_SUM_WRONG: Final = (
    "nothing is released, because what comes out is no sum of honest contributions: a client sent values beyond its "
    "bounds, or a contribution does not match its client's sealed shares, or a member of the committee sent a wrong "
    "summed share; nobody can tell which client it was ({})"
)
_AFTER_STAGE: Final[Mapping[str, CrashPoint]] = {
    RoundState.ADVERTISING: "stage.advertising-ended",
    RoundState.SHARING: "stage.sharing-ended",
    RoundState.COLLECTING: "stage.collecting-ended",
    RoundState.CONFIRMING: "stage.confirming-ended",
}


class RoundAdvancer:
    """Executes the next action of a task's round.

    jobs: runs folds and releases. batch: contributions that one worker folds at once; None: chosen by their length.
    works: whether clients can send their messages; while they cannot, no stage ends at its deadline (`rounds.outages`).
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        jobs: SplitJobs,
        batch: int | None,
        instruments: Instruments,
        works: Callable[[], bool],
    ) -> None:
        self._database, self._blobs, self._clock, self._jobs = database, blobs, clock, jobs
        self._batches, self._instruments, self._works = Batches(jobs, batch), instruments, works

    async def advance(self, active: ActiveRound) -> float:
        """Execute the action that is due. Return the seconds until the next one may be due; 0: at once."""
        try:
            if active.round.state == RoundState.FOLDING:
                return await self._fold(active) if active.batch else await self._release(active)
            if active.round.state == RoundState.UNMASKING:
                return await self._unmask(active)
            return await self._wait_for_clients(active)
        except SumUnopenedError as error:
            await run_in_threadpool(self._fail_stage, active, error)
        except BlobDamagedError as error:
            await run_in_threadpool(self._fail_damaged, active, error)
        except LostRaceError:
            _LOG.info(
                "the round changed during the action; its result is discarded",
                extra=fields(task=active.round.task_id, round=active.round.number),
            )
            return _LOST_RACE_SECONDS
        return 0.0

    def read(self, task_id: str) -> ActiveRound | float | None:
        """Return the task's active round. When there is none, try to open one.

        Without an active round, return the seconds until the next call; None when the task is over.
        """
        with self._database.read() as session:
            task = session.get_one(TaskRow, task_id)
            newest = last_round(session, task_id)
            if newest is not None and newest.state in ACTIVE:
                terms = row_terms(task)
                due = self._batches.next(session, terms, newest)
                return ActiveRound(
                    terms=terms,
                    task_seed=task.seed,
                    opened_by_anyone=task.opened_by == "anyone",
                    round=newest,
                    missing=awaited_clients(session, newest),
                    batch=due.batch,
                    is_last=due.is_last,
                    partial=partial_of(newest),
                    folded=newest.folded,
                    lacking=due.lacking,
                )
            if task.state != "open":
                return None
        opened = self._database.transact(
            lambda session: open_round(session, lock_task(session, task_id), self._clock.now()) is not None
        )
        if not opened:
            return _IDLE_SECONDS
        crash_point("round.opened")
        return 0.0

    async def _wait_for_clients(self, active: ActiveRound) -> float:
        """End the stage when no client is missing or at the deadline; until then, fold what there is to fold."""
        left = self._left(active)
        if active.missing == 0 or left <= 0:
            await run_in_threadpool(self._end_stage, active)
            return 0.0
        if active.batch:
            return await self._fold(active)
        return left

    def _left(self, active: ActiveRound) -> float:
        """Return the seconds until the stage may end without the clients that are missing; 0 or less: it may now."""
        left = active.round.deadline - self._clock.now()
        return left if left > 0 or self._works() else _OUTAGE_SECONDS

    def _end_stage(self, active: ActiveRound) -> None:
        interactive = active.round.model_digest is not None
        if active.round.state == RoundState.SHARING:
            self._end_sharing(active)
        else:
            stages = ONESHOT_STAGES if active.round.committee else MASKED_STAGES if interactive else PLAIN_STAGES
            self._database.transact(lambda session: end_stage(session, stages, active.round.id, self._clock.now()))
        if interactive:
            crash_point(_AFTER_STAGE[active.round.state])

    def _end_sharing(self, active: ActiveRound) -> None:
        """End the stage with inboxes that are written before: a store may take longer than a transaction may."""
        inboxes = write_inboxes(self._database, self._blobs, active.round)

        def end(session: Session) -> None:
            end_stage(session, sharing(inboxes), active.round.id, self._clock.now())
            if not inboxes.packed.are_named(session):  # the stage goes on, or the round has failed
                for key in inboxes.packed.keys:
                    discard(session, key)

        insert_named(self._database, self._blobs, inboxes.packed.keys, end, inboxes.packed.are_named)

    async def _unmask(self, active: ActiveRound) -> float:
        """Fold what is left; when all replies are in, or at the deadline, remove the masks and release the sum."""
        if active.batch:
            return await self._fold(active)
        left = self._left(active)
        if active.missing and left > 0:
            return left
        try:
            masks = await run_in_threadpool(self._read_masks, active)
            if masks is None:
                await run_in_threadpool(self._fail_stage, active, None)
                return 0.0
            return await self._release(active, masks)
        except (ThresholdError, AtFaultError) as error:
            await run_in_threadpool(self._fail_stage, active, error)
            return 0.0

    def _read_masks(self, active: ActiveRound) -> Masks | OneshotMasks | None:
        """Return what removes the masks; None if too few members of the committee answered."""
        if not active.round.committee:
            return read_masks(self._database, self._blobs, active.round)
        with self._database.read() as session:
            return read_oneshot_masks(session, active.round)

    def _fail_stage(self, active: ActiveRound, error: ThresholdError | AtFaultError | SumUnopenedError | None) -> None:
        """Fail a round whose sum cannot be released; error: None when too few members of the committee answered."""

        def write(session: Session) -> None:
            task, round_ = lock_round_exclusive(session, active.round.id)
            if round_.state not in (RoundState.UNMASKING, RoundState.FOLDING):
                return
            now = self._clock.now()
            if error is None:
                fail_committee_absent(session, task, round_, now)
            elif isinstance(error, SumUnopenedError):
                fail_round(session, task, round_, RoundEvent.SUM_WRONG, _SUM_WRONG.format(error), now)
            elif isinstance(error, AtFaultError):
                fail_at_fault(session, task, round_, error, now)
            else:
                fail_round(session, task, round_, RoundEvent.STAGE_MISSED, str(error), now)

        self._database.transact(write)

    async def _fold(self, active: ActiveRound) -> float:
        task_id, number = active.round.task_id, active.round.number
        batch, groups, survivors = await run_in_threadpool(self._grouped, active)
        job = FoldJob(self._blobs, task_id, active.terms, round_spec(active.round), active.partial, batch, groups)
        with self._instruments.fold(task_id, number, len(active.batch)):
            folded = await self._jobs.fold(job)
        crash_point("fold.blob-written-before-commit")
        clients = [client for client, _ in active.batch]

        def commit(session: Session) -> None:
            if survivors is not None and proposed_survivors(session, active.round.id) != survivors:
                raise LostRaceError  # clients were taken out meanwhile: the others are in other groups
            record_fold(session, active.round.id, clients, active.partial, folded)

        await run_in_threadpool(self._commit, commit, folded.key)
        crash_point("fold.committed")
        _LOG.info(
            "batch folded",
            extra=fields(task=task_id, round=number, batch=len(clients), folded=active.folded + len(clients)),
        )
        if not active.is_last:
            return 0.0
        return await self._release(replace(active, partial=folded, folded=active.folded + len(clients), batch=()))

    def _grouped(self, active: ActiveRound) -> tuple[Batch, tuple[int, ...], bytes | None]:
        """Return the batch in the order of its clients' groups, and these; of a round without groups none.

        And the digest of the set that a one-shot round's groups are of.
        """
        plan = plan_task(active.terms, active.round.sum_index, active.round.size or ()).sum_plan
        if plan.groups == 1:
            return active.batch, (), None
        survivors: bytes | None = None
        try:
            if plan.committee:
                survivors, found = grouped_survivors(self._database, active.round.id, plan.groups)
                group_of = {client: found[client] for client, _ in active.batch}
            else:
                roster = roster_of(self._database, active.round.id)
                group_of = {client: roster.group_of(client) for client, _ in active.batch}
        except LookupError:  # the round ended, or the set changed, meanwhile
            raise LostRaceError from None
        batch = tuple(sorted(active.batch, key=lambda one: group_of[one[0]]))
        return batch, tuple(group_of[client] for client, _ in batch), survivors

    async def _release(self, active: ActiveRound, masks: Masks | OneshotMasks | None = None) -> float:
        task_id, number, partial = active.round.task_id, active.round.number, active.partial
        if partial is None:
            raise BlobDamagedError("the round has no partial sum")
        job = ReleaseJob(
            blobs=self._blobs,
            task_id=task_id,
            terms=active.terms,
            task_seed=active.task_seed,
            spec=round_spec(active.round),
            partial=partial,
            survivors=active.folded,
            masks=masks,
            absorb=active.opened_by_anyone,
            state=await run_in_threadpool(self._newest_state, task_id, number) if active.opened_by_anyone else None,
        )
        with self._instruments.release(task_id, number, active.folded, masked=masks is not None):
            released = await self._jobs.release(job)
        crash_point("release.blob-written-before-commit")
        states = [*([released.state] if released.state else []), *released.views]
        await run_in_threadpool(
            self._commit,
            lambda session: record_release(session, active.round.id, partial, released, self._clock.now()),
            released.aggregate.key,
            *(state.blob_key for state in states),
        )
        crash_point("release.committed")
        self._instruments.metrics.groups_left_out.inc(released.groups_left_out)
        _log_release(active, released)
        return 0.0

    def _newest_state(self, task_id: str, before: int) -> tuple[int, BlobRef] | None:
        """Return the newest snapshot and its round, if any. Raises `LostRaceError` when round `before` is released."""
        with self._database.read() as session:
            row = newest_snapshot(session, task_id)
        if row is not None and row.round_number >= before:
            raise LostRaceError
        return None if row is None else (row.round_number, BlobRef(row.blob_key or "", row.digest))

    def _commit(self, work: Callable[[Session], object], *new_blobs: str) -> None:
        """Call `work` in a transaction; on `LostRaceError`, delete the blobs that it would have published."""
        try:
            self._database.transact(work)
        except LostRaceError:
            self._blobs.delete(*new_blobs)
            raise

    def _fail_damaged(self, active: ActiveRound, error: BlobDamagedError) -> None:
        def write(session: Session) -> None:
            task, round_ = lock_round_exclusive(session, active.round.id)
            if round_.state not in ACTIVE or partial_of(round_) != active.partial:
                return  # the blobs were deleted because the round ended meanwhile: no damage
            if unfolded_among(session, round_.id, [client for client, _ in active.batch]) < len(active.batch):
                return  # the committee took clients of this batch out meanwhile
            is_missing = isinstance(error, BlobMissingError)
            _LOG.error(
                "a stored blob is %s, the round fails: %s",
                "missing" if is_missing else "damaged",
                error,
                extra=fields(task=active.round.task_id, round=round_.number),
            )
            reason = (
                "what a client sent is missing in the server's blob store"
                if is_missing
                else "what a client sent no longer matches its digest: the server's storage is damaged"
            )
            # what is missing may be there again once the right storage is mounted; what is damaged stays so
            now = self._clock.now()
            fail_round(session, task, round_, RoundEvent.STORAGE_DAMAGED, reason, now, counts=not is_missing)

        self._database.transact(write)


def _log_release(active: ActiveRound, released: Released) -> None:
    round_ = active.round
    _LOG.info(
        "round complete",
        extra=fields(
            task=round_.task_id,
            round=round_.number,
            survivors=active.folded,
            cohort=round_.cohort,
            aggregate_bytes=released.aggregate_bytes,
            digest=released.aggregate.digest,
        ),
    )
    if released.groups_left_out:
        _LOG.warning(
            "the sums of some groups are not used: they are far from the others, or none of honest clients",
            extra=fields(task=round_.task_id, round=round_.number, groups=released.groups_left_out),
        )
    for share in released.bad_shares:
        _LOG.warning(
            "a share does not match its commitment: its holder sent false bytes",
            extra=fields(task=round_.task_id, round=round_.number, client=share.owner, holder=share.holder),
        )
    for member in released.wrong_members:
        _LOG.warning(
            "the summed share of a member of the committee is wrong, and was left out",
            extra=fields(task=round_.task_id, round=round_.number, client=member),
        )
