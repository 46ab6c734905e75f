"""Short bodies as rows of the database.

A file for each short body costs more than its bytes: two syncs, a rename and a directory entry. As a row, the body is
committed with the row that names it, so that there is no orphan after a crash, and a group of requests shares one sync
(`storage.group_commit`). The key has the kind `rows`, and stands where a blob's key stands.

Longer bodies are blobs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, cast

from sqlalchemy import Table, bindparam, delete, insert, select
from sqlalchemy.orm import Session

from aggregator_service.storage.blobs import new_key
from aggregator_service.storage.schema import ContributionRow, SmallBodyRow

_KIND: Final = "rows"
_BATCH: Final = 500
"""Keys of one statement."""
_UNSYNCHRONISED: Final = {"synchronize_session": False}
_TABLE: Final = cast(Table, SmallBodyRow.__table__)
_INSERT: Final = insert(_TABLE)
_DELETE: Final = delete(_TABLE).where(_TABLE.c.key == bindparam("key_"))


def new_small_key(task_id: str) -> str:
    """Return a new key for a small body of a task.

    Later keys are greater: the bodies of a group change one page of the index, not one each.
    """
    return new_key(_KIND, task_id, f"{time.time_ns():016x}")


def is_small(key: str) -> bool:
    """Return whether a key names a small body, and not a blob."""
    return key.startswith(f"{_KIND}/")


def add_small_body(session: Session, key: str, body: bytes) -> None:
    """Add a body under a new key. Another row of the same transaction must name the key."""
    session.execute(_INSERT, {"key": key, "body": body})


def small_bodies(session: Session, keys: Sequence[str]) -> dict[str, bytes]:
    """Return the bodies that exist by key."""
    found: dict[str, bytes] = {}
    for start in range(0, len(keys), _BATCH):
        some = select(SmallBodyRow.key, SmallBodyRow.body).where(SmallBodyRow.key.in_(keys[start : start + _BATCH]))
        found.update((key, body) for key, body in session.execute(some))
    return found


def delete_small_body(session: Session, key: str) -> None:
    session.execute(_DELETE, {"key_": key})


def delete_small_bodies(session: Session, round_id: int) -> None:
    """Delete the bodies of all contributions of a round."""
    keys = select(ContributionRow.blob_key).where(
        ContributionRow.round_id == round_id, ContributionRow.blob_key.startswith(f"{_KIND}/")
    )
    session.execute(delete(SmallBodyRow).where(SmallBodyRow.key.in_(keys)), execution_options=_UNSYNCHRONISED)
