"""The simulation can fail: with a defence taken out, some schedule breaks the invariant that the defence is for."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from aggregator_service import contributions
from aggregator_service.rounds import engine, operations
from aggregator_service.rounds.folding import BlobRef
from aggregator_service.rounds.table import RoundEvent
from aggregator_service.routes import contributions as routes
from aggregator_service.storage.database import DATABASE_GONE, discard
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.rounds import lock_round
from aggregator_service.storage.schema import ContributionRow, RoundRow
from protocols.messages import Schedule, UploadReceipt
from tests.simulation.plan import draw_plan
from tests.simulation.storage import Disk
from tests.simulation.world import ScheduleError, play

Patch = pytest.MonkeyPatch
_ENOUGH = 400


def fold_without_comparing(patch: Patch) -> None:
    """Whoever folded last is right: neither the pointer nor the marks are looked at."""

    def record_fold(
        session: Session, round_id: int, batch: Sequence[str], previous: BlobRef | None, folded: BlobRef
    ) -> None:
        round_ = lock_round(session, round_id)
        if round_.state not in operations.ACTIVE:
            raise operations.LostRaceError
        mine = ContributionRow.round_id == round_id, ContributionRow.client_id.in_(batch)
        session.execute(update(ContributionRow).where(*mine).values(folded=True))
        operations.move(round_, RoundEvent.BATCH_FOLDED)
        discard(session, round_.partial_key)
        round_.partial_key, round_.partial_digest = folded.key, folded.digest
        round_.folded += len(batch)

    patch.setattr(engine, "record_fold", record_fold)


def no_floor(patch: Patch) -> None:
    """A round takes what it gets."""

    def model_validate(schedule: Any) -> Schedule:
        return Schedule.model_validate(schedule).model_copy(update={"min_clients": 1})

    patch.setattr(operations, "Schedule", SimpleNamespace(model_validate=model_validate))


def unchecked_blobs(patch: Patch) -> None:
    """What is read is what was written."""

    def view(self: DirectoryBlobs, key: str, digest: str) -> memoryview:
        with Path(self.root / key).open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    patch.setattr(DirectoryBlobs, "view", view)


def contributions_at_any_time(patch: Patch) -> None:
    """Whether the round still takes contributions is asked before the body arrives, and not again."""
    held = contributions.hold_round

    def hold_round(session: Session, round_id: int, client_id: str) -> Any:
        row: RoundRow = held(session, round_id, client_id)
        return SimpleNamespace(**{**_columns(row), "state": "collecting", "deadline": float("inf")})

    patch.setattr(contributions, "hold_round", hold_round)


def _columns(row: RoundRow) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in RoundRow.__table__.columns}


def receipts_before_rows(patch: Patch) -> None:
    """The receipt is given whether or not the database took the row."""
    commit = routes.commit_contribution

    async def commit_contribution(
        services: Any, admission: contributions.Admission, path: Path, digest: str
    ) -> tuple[UploadReceipt, bool]:
        try:
            return await commit(services, admission, path, digest)
        except DATABASE_GONE:
            client = admission.client.client_id
            return UploadReceipt(round=admission.round.number, client_id=client, bytes=1, digest=digest), True

    patch.setattr(routes, "commit_contribution", commit_contribution)


def blob_gone_with_the_answer(patch: Patch) -> None:
    """An error of the database is taken to mean that no row was written."""

    def let_go_of(services: Any, _admission: contributions.Admission, key: str) -> None:
        services.blobs.delete(key)

    patch.setattr(contributions, "_let_go_of", let_go_of)


@pytest.mark.parametrize(
    ("take_out", "invariants"),
    [
        (fold_without_comparing, {2, 6, 8}),
        (no_floor, {3}),
        (unchecked_blobs, {1}),
        (contributions_at_any_time, {4, 7}),
        (receipts_before_rows, {4}),
        (blob_gone_with_the_answer, {8}),
    ],
)
def test_without_a_defence(
    disk: Disk, monkeypatch: Patch, take_out: Callable[[Patch], None], invariants: set[int]
) -> None:
    take_out(monkeypatch)
    found = (broken for seed in range(_ENOUGH) for broken in _violations(seed, disk))
    assert any(broken.startswith(f"invariant {number}:") for broken in found for number in invariants)


def _violations(seed: int, disk: Disk) -> list[str]:
    try:
        play(draw_plan(seed), disk)
    except ScheduleError as error:
        return str(error).splitlines()
    return []
