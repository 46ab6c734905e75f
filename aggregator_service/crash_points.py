"""Named points at which a test may let the process die, as a power cut would: nothing runs after the signal."""

from __future__ import annotations

import os
import signal
from typing import Final, Literal, get_args

__all__ = ["CRASH_POINTS", "CrashPoint", "crash_point"]

CrashPoint = Literal[
    "upload.stored-before-row",
    "upload.row-before-ack",
    "chunk.stored-before-row",
    "fold.blob-written-before-commit",
    "fold.committed",
    "release.blob-written-before-commit",
    "release.committed",
    "round.opened",
    "stage.stored-before-ack",
    "stage.advertising-ended",
    "stage.sharing-ended",
    "stage.collecting-ended",
    "stage.confirming-ended",
    # only where a job is split among workers
    "parts.folded-before-merge",
    "parts.unmasked-before-release",
    # these end a worker
    "worker.folding",
    "worker.unmasking",
]

CRASH_POINTS: Final[tuple[str, ...]] = get_args(CrashPoint)

_ARMED: Final = os.environ.get("HUSHREC_CRASH_AT", "")


def crash_point(name: CrashPoint) -> None:
    """SIGKILL to this very process when HUSHREC_CRASH_AT names the point; otherwise nothing."""
    if name == _ARMED:
        os.kill(os.getpid(), signal.SIGKILL)
