"""Events that a participant reports to its progress callback."""

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
    """One uploaded contribution.

    loss: mean training loss. samples: training samples. values: uploaded values. clipped: values that were clipped to
    their bound. contribution_bytes: size of the contribution. bytes_up, bytes_down: bytes of bodies sent and received
    for it, retries included, headers not. bytes_spared: bytes that a shared `ModelCache` saved. The seconds are wall
    clock. caught_up: how the model was brought up to date; see `SyncPlan.kind`.
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
    """This client was in the cohort of a round and did not contribute, for `reason`."""

    round: int
    reason: str


@dataclass(frozen=True)
class ClipWarning:
    """More values were clipped than `Policy.max_clip_share` allows: the clip is too small, or training diverges."""

    round: int
    clipped: int
    values: int


@dataclass(frozen=True)
class Waiting:
    """This client waits for `what`."""

    what: str


@dataclass(frozen=True)
class KeyringDelivered:
    """The key holder has sent a member its keyring."""

    client_id: str


@dataclass(frozen=True)
class KeyringRefused:
    """The key holder refused a member whose proof of membership is invalid. The server may have invented it."""

    client_id: str


@dataclass(frozen=True)
class SnapshotPublished:
    """This client has published the sealed snapshot of a round."""

    round: int


@dataclass(frozen=True)
class ModelBehind:
    """The task ended, and its last model is not available, for `reason`."""

    reason: str


@dataclass(frozen=True)
class TaskEnded:
    """The task accepts no more contributions."""

    state: Literal["closed", "complete", "failed"]


def waiting_to_start(task: TaskView, needs_keyring: bool) -> Waiting:
    """Return why round 1 has not opened: how many members can take part, and how many are needed.

    needs_keyring: whether only members with a keyring can take part.
    """
    schedule, able = task.schedule, task.able_members
    ready = "have the keys" if needs_keyring else "are enrolled"
    wanted = max(schedule.start_clients or schedule.cohort_size, schedule.min_clients)
    if len(able) < 2:
        here = task.keyed_members if needs_keyring else task.members
        return Waiting(f"the first round: {here} of {wanted} members {ready}")
    each = schedule.min_clients if schedule.start_clients else wanted
    counted = ", ".join(f"{count} in group {device_group}" for device_group, count in enumerate(able))
    in_all = f" and {wanted} in total" if schedule.start_clients else ""
    return Waiting(f"the first round: {counted} {ready}; it needs {each} in each group{in_all}")


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
