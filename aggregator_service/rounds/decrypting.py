"""The key holder's part of a round: it opens the sum, checks it, and publishes the model or refuses the sum.

Members cannot open the sums of these tasks, and need the published model to train, so the next round waits.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy.orm import Session

from aggregator_service.problems import Problem
from aggregator_service.round_states import RoundEvent
from aggregator_service.rounds.transactions import complete_round, fail_round
from aggregator_service.storage.rounds import lock_round_exclusive
from aggregator_service.storage.schema import RoundRow
from protocols.messages.stages import RoundState

__all__ = ["end_decrypting", "record_decrypted", "refuse_sum"]

_REFUSED: Final = "the key holder refused the sum: "


def record_decrypted(session: Session, round_id: int, now: float) -> None:
    """Complete a round whose model the holder publishes in the same transaction.

    Raises `Problem` conflict (409) when the round does not wait for the holder any more.
    """
    task, round_ = lock_round_exclusive(session, round_id)
    complete_round(session, task, _waiting_round(round_), RoundEvent.DECRYPTED, now)


def refuse_sum(session: Session, round_id: int, reason: str, now: float) -> RoundRow:
    """Fail a round whose sum the holder refuses: nothing of it is published, and the task continues. Idempotent.

    Raises `Problem` conflict (409) when the round does not wait for the holder.
    """
    task, round_ = lock_round_exclusive(session, round_id)
    if round_.state == RoundState.FAILED and (round_.failure or "").startswith(_REFUSED):
        return round_
    fail_round(session, task, _waiting_round(round_), RoundEvent.REFUSED, f"{_REFUSED}{reason}", now)
    return round_


def end_decrypting(session: Session, round_id: int, now: float) -> None:
    """Fail a round whose holder has not answered by the deadline.

    It does not count towards `max_failed_rounds`: no member caused it, and no further round opens without its key.
    """
    task, round_ = lock_round_exclusive(session, round_id)
    if round_.state != RoundState.DECRYPTING or now < round_.deadline:
        return
    reason = "the key holder did not open the sum in time; is `hushrec keyring serve` running?"
    fail_round(session, task, round_, RoundEvent.HOLDER_ABSENT, reason, now, counts=False)


def _waiting_round(round_: RoundRow) -> RoundRow:
    if round_.state != RoundState.DECRYPTING:
        raise Problem("conflict", f"the round is {round_.state}: it does not wait for the key holder")
    return round_
