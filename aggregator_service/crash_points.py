"""Named points at which a test can kill the process. SIGKILL runs no clean-up, like a power failure."""

from __future__ import annotations

import os
import signal
from typing import Final, Literal

CrashPoint = Literal[
    "upload.stored-before-row",
    "upload.row-before-ack",
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
    # in a command
    "move.marked",
    "move.copied-before-finished",
    # reached only if a job is split among workers
    "parts.folded-before-merge",
    "parts.unmasked-before-release",
    # in worker processes
    "worker.folding",
    "worker.unmasking",
]

_ARMED: Final = os.environ.get("HUSHREC_CRASH_AT", "")


def crash_point(name: CrashPoint) -> None:
    """Kill this process with SIGKILL if the environment variable HUSHREC_CRASH_AT names the point."""
    if name == _ARMED:
        os.kill(os.getpid(), signal.SIGKILL)
