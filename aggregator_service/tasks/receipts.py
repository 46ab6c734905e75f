"""What a server signs for receipts (`protocols.receipts`): acknowledgements of contributions, and the ends of rounds.

Each task has a receipt key of its own, made when the task is created and deleted with it. Its public half is in the
terms that members agree to. Tasks of earlier versions have none.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Final

from cachetools import LRUCache
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.problems import Problem
from aggregator_service.round_states import TERMINAL
from aggregator_service.storage.schema import ClientRow, RoundRow, TaskRow
from aggregator_service.storage.stage_rows import clients_with, takes_part
from protocols import receipts
from protocols.codec import b64encode
from protocols.messages.receipts import RoundReceipt
from protocols.messages.stages import RoundState


@lru_cache(maxsize=1024)
def signing_key(seed: bytes) -> Ed25519PrivateKey:
    """Return the receipt key of a task from its seed, 32 bytes."""
    return Ed25519PrivateKey.from_private_bytes(seed)


def receipt_key(task: TaskRow) -> str | None:
    """Return the public receipt key of a task, base64url; None if it has none."""
    if task.receipt_seed is None:
        return None
    return b64encode(signing_key(task.receipt_seed).public_key().public_bytes_raw())


def survivors_digest(session: Session, round_id: int) -> str:
    """Return the root (hex) of the tree over a round's survivors (`protocols.receipts.Survivors`)."""
    return receipts.Survivors(_leaves(session, round_id)).root


def round_receipt(session: Session, task: TaskRow, round_: RoundRow, client_id: str) -> RoundReceipt:
    """Return what a member shows of a round that is over; an erased member is among its survivors as before.

    Raises `Problem` conflict (409) while the round goes on, and not-found (404) for a client outside its cohort, for a
    task without a receipt key, and once the rows of the round's members are deleted.
    """
    if task.receipt_seed is None:
        raise Problem("not-found", "the task was created before there were receipts")
    if round_.state not in TERMINAL:
        raise Problem("conflict", "the round is not over: ask again when it is complete or has failed")
    took_part = takes_part(session, round_.id, "asked", client_id) or takes_part(
        session, round_.id, "contribute", client_id
    )
    if not took_part:
        raise Problem("not-found", "the server has no record that this client was asked in the round")
    complete = round_.state == RoundState.COMPLETE
    survivors = _kept(session, round_.id, round_.survivors_digest) if complete else receipts.Survivors([])
    released = receipts.release(
        signing_key(task.receipt_seed),
        *(task.id, round_.number, round_.sum_index, len(survivors), survivors.root),
        round_.aggregate_digest if len(survivors) else None,
    )
    person = session.get_one(ClientRow, client_id).person
    return RoundReceipt(release=released, places=survivors.places_of(bytes(person)))


_KEPT: Final[LRUCache[tuple[int, str], receipts.Survivors]] = LRUCache(2)
_MAKING: Final = threading.Lock()


def _kept(session: Session, round_id: int, digest: str | None) -> receipts.Survivors:
    """Return the survivors with this digest (hex) of a complete round; the trees of the newest two are kept.

    Raises `Problem` not-found when their rows are deleted.
    """
    with _MAKING:  # all members may ask at the same time: the tree is made once
        found = _KEPT.get((round_id, digest or ""))
        if found is None:
            found = receipts.Survivors(_leaves(session, round_id))
            if len(found) and found.root != digest:
                raise Problem(
                    "not-found", "the server no longer keeps who contributed to the round, or it is of an old version"
                )
            _KEPT[round_id, digest or ""] = found
        return found


def _leaves(session: Session, round_id: int) -> list[bytes]:
    persons = select(ClientRow.person).where(ClientRow.id.in_(clients_with(round_id, "contribute")))
    return [bytes(person) for person in session.scalars(persons)]
