"""Fault schedules, each from a seed, against the real routes, engine, database and blobs; and without a defence.

The invariants are listed in `tests/simulation/invariants.py`; docs/testing.md describes how to replay a seed. CI runs
thousands of schedules with `python -m tests.simulation`; the tests here run a few."""

from __future__ import annotations

import hashlib
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, get_args

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from aggregator_service.compute import jobs
from aggregator_service.compute.jobs import BlobRef
from aggregator_service.problems import Problem
from aggregator_service.round_states import RoundEvent
from aggregator_service.rounds import advance, openings, transactions
from aggregator_service.routes import contributions as routes
from aggregator_service.storage.database import DATABASE_GONE, Database, discard
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.rounds import lock_round_exclusive
from aggregator_service.storage.schema import ClientRow, ContributionRow, RoundRow, TaskRow
from aggregator_service.uploads import contributions
from aggregator_service.uploads.admission import Admission
from aggregator_service.uploads.contributions import Stored, UploadOutcome
from protocols.messages import Schedule, UploadReceipt
from tests.simulation import process
from tests.simulation.plan import FAULTS, Job, draw_plan
from tests.simulation.runner import Play, failure
from tests.simulation.world import playing

_SEEDS: Final = (*range(12), 34, 43, 58, 59, 84, 91, 147, 152, 162)
"""Among them are all faults, and rounds of all kinds of tasks that complete and that fail."""
_REPEATED: Final = (4, 91, 152)


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    """Run schedules, one after the other on one disk."""
    with playing() as made:
        yield made


def test_schedules_keep_the_invariants_and_every_fault_happens(play: Play) -> None:
    """Where a seed no longer shows what it should, further ones do."""
    missing = {*FAULTS, *product(get_args(Job), ("complete", "failed"))}
    for number, seed in enumerate((*_SEEDS, *range(200, 300))):
        if number >= len(_SEEDS) and not missing:
            break
        world = play(draw_plan(seed))
        missing -= {*world.injector.injected, *((world.plan.job, end) for end in world.ledger.ended.values())}
    assert not missing


def traces(play: Play) -> str:
    """Run a few schedules; return the digest of their traces."""
    worlds = [play(draw_plan(seed)) for seed in _REPEATED]
    lines = [f"{one.trace} {sorted(one.ledger.released)} {sorted(one.ledger.acknowledged)}" for one in worlds]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_a_seed_repeats_its_schedule(play: Play) -> None:
    """A seed gives the same trace, whatever ran before, also in another process with other hash seeds.

    Except where a bit of stored masked messages is flipped: what comes of it depends on the members' keys.
    """
    elsewhere = (
        "from tests.simulation.test_simulation import playing, traces\nwith playing() as play: print(traces(play))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    found = subprocess.run(
        [sys.executable, "-c", elsewhere], env=environment, capture_output=True, text=True, check=True
    )
    assert traces(play) == found.stdout.strip()


Patch = pytest.MonkeyPatch
_ENOUGH: Final = 100
"""Schedules without a defence, from a seed on that shows the lack of it, of which one must break an invariant."""


def fold_without_comparing(patch: Patch) -> None:
    """The last fold wins: neither the partial sum nor the folded marks are compared."""

    def record_fold(
        session: Session, round_id: int, batch: Sequence[str], previous: BlobRef | None, folded: BlobRef
    ) -> None:
        _, round_ = lock_round_exclusive(session, round_id)
        if round_.state not in transactions.ACTIVE:
            raise transactions.LostRaceError
        mine = ContributionRow.round_id == round_id, ContributionRow.client_id.in_(batch)
        session.execute(update(ContributionRow).where(*mine).values(folded=True))
        round_.state = transactions.next_state(round_.state, RoundEvent.BATCH_FOLDED).value
        discard(session, round_.partial_key)
        round_.partial_key, round_.partial_digest = folded.key, folded.digest
        round_.folded += len(batch)

    patch.setattr(advance, "record_fold", record_fold)


def no_floor(patch: Patch) -> None:
    """A round releases a sum over any number of clients."""

    def model_validate(schedule: Any) -> Schedule:
        return Schedule.model_validate(schedule).model_copy(update={"min_clients": 1})

    for module in (openings, transactions):
        patch.setattr(module, "Schedule", SimpleNamespace(model_validate=model_validate))


def unchecked_blobs(patch: Patch) -> None:
    """The digest of a blob is not verified."""

    def view(self: DirectoryBlobs, key: str, digest: str) -> memoryview:
        with Path(self.root / key).open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    patch.setattr(DirectoryBlobs, "view", view)
    patch.setattr(jobs, "_has_digest", lambda body, digest: True)
    patch.setattr(jobs, "matches_tag", lambda body, tag: True)


def contributions_at_any_time(patch: Patch) -> None:
    """Whether the round still takes contributions is checked before the body arrives, and not again."""
    lock = contributions.lock_round_shared

    def lock_round_shared(session: Session, round_id: int, client_id: str) -> Any:
        row: RoundRow = lock(session, round_id, client_id)
        return SimpleNamespace(**{**_columns(row), "state": "collecting", "deadline": float("inf")})

    patch.setattr(contributions, "lock_round_shared", lock_round_shared)
    statement = contributions._insert_where(*contributions._HAS_NOTHING_STORED)
    patch.setattr(contributions, "_INSERT", statement)


def _columns(row: RoundRow) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in RoundRow.__table__.columns}


def receipts_before_rows(patch: Patch) -> None:
    """The receipt is sent whether or not the database stored the row."""
    insert = contributions.insert_contribution

    def insert_or_pretend(database: Database, admission: Admission, key: str, digest: str, *rest: Any) -> UploadOutcome:
        try:
            return insert(database, admission, key, digest, *rest)
        except DATABASE_GONE:
            return Stored(contributions.new_receipt(admission, digest))

    patch.setattr(contributions, "insert_contribution", insert_or_pretend)


def blob_gone_with_the_answer(patch: Patch) -> None:
    """A database error is taken to mean that no row was written."""

    def delete(services: Any, _admission: Admission, key: str) -> None:
        services.blobs.delete(key)

    patch.setattr(contributions, "_delete_unless_named", delete)


def never_swept(patch: Patch) -> None:
    """The orphans of a dead server are not deleted."""
    patch.setattr(process, "collect_orphans", lambda database, blobs: 0)


def no_guard(patch: Patch) -> None:
    """Sums over the same data may differ by any number of clients."""
    patch.setattr(transactions, "retire_if_too_similar", lambda session, task, round_: None)


def any_group(patch: Patch) -> None:
    """A cohort is drawn from all groups."""

    def draw_cohort(session: Session, task: TaskRow, schedule: Schedule, *_: object) -> list[str]:
        everyone = list(session.scalars(select(ClientRow.id).where(ClientRow.revoked_at.is_(None))))
        return openings._RANDOM.sample(everyone, min(schedule.cohort_size, len(everyone)))

    patch.setattr(openings, "draw_cohort", draw_cohort)


def no_second_receipt(patch: Patch) -> None:
    """The same bytes again are refused as a conflict."""

    def same_or_conflict(round_: RoundRow, stored: ContributionRow, digest: str) -> UploadReceipt:
        raise Problem("contribution-conflict", "another contribution of this client is stored and stays")

    patch.setattr(routes, "same_or_conflict", same_or_conflict)


def unopened_sums_of_anybody(patch: Patch) -> None:
    """A sum that was not opened is asked of a new cohort."""
    patch.setattr(openings, "repeat_or_abandon", lambda *_: None)


def unopened_sums_count(patch: Patch) -> None:
    """A round that fails with fixed survivors counts towards the end of the task."""
    patch.setattr(transactions, "counts_as_failure", lambda *_: True)


@pytest.mark.parametrize(
    ("take_out", "invariants", "first"),
    [
        (fold_without_comparing, {2, 6, 8}, 5),
        (no_floor, {3}, 2),
        (unchecked_blobs, {1}, 67),
        (contributions_at_any_time, {4, 7}, 33),
        (receipts_before_rows, {4}, 213),
        (blob_gone_with_the_answer, {8}, 57),
        (never_swept, {7}, 5),
        (no_guard, {9}, 0),
        (any_group, {10}, 5),
        (no_second_receipt, {8}, 0),
        (unopened_sums_of_anybody, {8}, 34),
        (unopened_sums_count, {11}, 34),
    ],
)
def test_a_missing_defence_breaks_an_invariant(
    play: Play, monkeypatch: Patch, take_out: Callable[[Patch], None], invariants: set[int], first: int
) -> None:
    take_out(monkeypatch)
    found = (failure(play, draw_plan(seed)) for seed in range(first, first + _ENOUGH))
    starts = tuple(f"invariant {number}:" for number in invariants)
    assert any(line.startswith(starts) for error in found for line in error.splitlines())
