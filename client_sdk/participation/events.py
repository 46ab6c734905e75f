"""What a participant tells while it works: frozen events, handed to a progress callback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from protocols.messages import TaskView

__all__ = [
    "ClipWarning",
    "Event",
    "KeyringDelivered",
    "KeyringRefused",
    "ModelBehind",
    "Progress",
    "RoundMissed",
    "RoundReport",
    "SnapshotPublished",
    "TaskEnded",
    "Waiting",
    "waiting_to_start",
]


@dataclass(frozen=True)
class RoundReport:
    """One contribution, delivered.

    Seconds are wall clock; bytes are of bodies, retries included, headers not. `values` were uploaded, of which
    `clipped` were moved to their bound. `bytes_spared` would have been downloaded without a shared `ModelCache`.
    `caught_up` says how the model was brought up to date.
    """

    round: int
    client_id: str
    loss: float
    samples: int
    values: int
    clipped: int
    contribution_bytes: int
    bytes_up: int
    bytes_down: int
    bytes_spared: int
    catch_up_seconds: float
    train_seconds: float
    seal_seconds: float
    upload_seconds: float
    caught_up: Literal["nothing", "replay", "snapshot"]


@dataclass(frozen=True)
class RoundMissed:
    """This client was asked in a round and its contribution is not in it."""

    round: int
    reason: str


@dataclass(frozen=True)
class ClipWarning:
    """More of an update was clipped than the policy takes for normal: a clip too small, or training that diverges."""

    round: int
    clipped: int
    values: int


@dataclass(frozen=True)
class Waiting:
    """Nothing to do for this client at the moment."""

    what: str


@dataclass(frozen=True)
class KeyringDelivered:
    """The key holder left a member its keyring envelope."""

    client_id: str


@dataclass(frozen=True)
class KeyringRefused:
    """The key holder refused a member: its proof of membership does not verify. The server may have invented it."""

    client_id: str


@dataclass(frozen=True)
class SnapshotPublished:
    """This client's sealed model was the first of its round."""

    round: int


@dataclass(frozen=True)
class ModelBehind:
    """The task ended, and its last model was not to be had."""

    reason: str


@dataclass(frozen=True)
class TaskEnded:
    """The task takes no more contributions."""

    state: Literal["closed", "complete", "failed"]


def waiting_to_start(task: TaskView, needs_keyring: bool) -> Waiting:
    """Why round 1 has not opened yet: how many members can take part, and how many it takes."""
    schedule, able = task.schedule, task.able_members
    ready = "have the keys" if needs_keyring else "are here"
    wanted = max(schedule.start_clients or schedule.cohort_size, schedule.min_clients)
    if len(able) < 2:
        here = task.keyed_members if needs_keyring else task.members
        return Waiting(f"the first round: {here} of {wanted} members {ready}")
    each = schedule.min_clients if schedule.start_clients else wanted
    counted = ", ".join(f"{count} in group {device_group}" for device_group, count in enumerate(able))
    in_all = f", {wanted} in all" if schedule.start_clients else ""
    return Waiting(f"the first round: {counted} {ready}, and it takes {each} in each{in_all}")


Event = (
    RoundReport
    | RoundMissed
    | ClipWarning
    | Waiting
    | KeyringDelivered
    | KeyringRefused
    | SnapshotPublished
    | ModelBehind
    | TaskEnded
)
Progress = Callable[[Event], None]
