"""Events that a participant reports to its progress callback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from protocols.messages import TaskView


@dataclass(frozen=True)
class _OfRound:
    """What happened in a round."""

    round: int


@dataclass(frozen=True)
class _WithReason(_OfRound):
    """What happened in a round, and why."""

    reason: str


@dataclass(frozen=True)
class _OfMember:
    """What happened to a member."""

    client_id: str


@dataclass(frozen=True)
class RoundReport:
    """One uploaded contribution."""

    round: int
    """Number of the round."""
    client_id: str
    """The client's id in the task."""
    loss: float
    """Mean training loss; NaN where nothing was trained."""
    samples: int
    """Training samples."""
    values: int
    """Uploaded values."""
    clipped: int
    """Values that were clipped to their bound."""
    contribution_bytes: int
    """Size of the contribution."""
    bytes_up: int
    """Bytes of bodies sent for it, retries included, headers not."""
    bytes_down: int
    """Bytes of bodies received for it, retries included, headers not."""
    catch_up_seconds: float
    """Wall clock of catching up with the model."""
    train_seconds: float
    """Wall clock of training."""
    seal_seconds: float
    """Wall clock of making the contribution; in masked rounds of all work on shares and masks."""
    upload_seconds: float
    """Wall clock of the upload; in masked rounds of the requests of every stage."""
    caught_up: Literal["nothing", "replay", "snapshot"]
    """How the model was brought up to date; see `SyncPlan.kind`."""
    scaled: float = 1.0
    """Factor by which the whole update was scaled to a bound on its norm, 1.0 if it was not."""


class RoundMissed(_WithReason):
    """This client was in the cohort of a round and did not contribute, for `reason`."""


class RoundAbstained(_WithReason):
    """This client was in the cohort of a round and has nothing to add to its sum, for `reason`. It sent nothing.

    No error: the client takes part in later rounds.
    """


class AggregateRejected(_WithReason):
    """The aggregate of a round did not open, or cannot be used, for `reason`; this client goes on without it.

    The server is not told, and sees the same requests as ever. It, or a member, may have altered the aggregate, or too
    few clients of the round had anything to add.
    """


class TrainingFailed(_WithReason):
    """Training for a round failed, for `reason`, and zeros were sent in its place, so that nobody sees it.

    The sum of an encrypted task does not count this client among those whose contributions carry data.
    """


@dataclass(frozen=True)
class ClipWarning(_OfRound):
    """In a `plain` task more values were clipped than `Policy.max_clip_share`: the clip is too small, or training
    diverges. In other tasks training has failed then."""

    clipped: int
    values: int


@dataclass(frozen=True)
class Waiting:
    """This client waits for `what`."""

    what: str


class KeyringDelivered(_OfMember):
    """The key holder has sent a member its keyring."""


class KeyringRefused(_OfMember):
    """The key holder refused a member whose proof of membership is invalid. The server may have invented it."""


class SnapshotPublished(_OfRound):
    """This client has published the sealed snapshot of a round."""


@dataclass(frozen=True)
class SurvivorsConfirmed(_OfRound):
    """This member of the committee has signed the set of `survivors` clients whose sum a round is to open."""

    survivors: int


@dataclass(frozen=True)
class ClientsNamed(_OfRound):
    """This member of the committee named clients whose sealed share does not open. It does not sign their set."""

    clients: tuple[str, ...]


class ShareSent(_OfRound):
    """This member of the committee has sent its summed share of a round, and deleted its key of the round."""


class CommitteeRefused(_WithReason):
    """This member of the committee refused its part in a round, for `reason`. It sent nothing."""


@dataclass(frozen=True)
class ModelBehind:
    """The newest model is not available, for `reason`: of a task that ended, or because no server answers."""

    reason: str


@dataclass(frozen=True)
class ServerUnreachable:
    """No server has answered for `seconds`, for `reason`; this client keeps trying."""

    seconds: float
    reason: str


@dataclass(frozen=True)
class ServerBack:
    """The server answers again after an outage of `seconds`."""

    seconds: float


@dataclass(frozen=True)
class ServerRestored:
    """The server's newest round is `round`, and this client has seen round `known`: it was restored from a backup."""

    round: int
    known: int
    then: str
    """What this client does, or what its task needs."""


@dataclass(frozen=True)
class TaskEnded:
    """The task accepts no more contributions."""

    state: Literal["closed", "complete", "failed"]


def report_outage(progress: Progress) -> Callable[[float, str | None], None]:
    """Return what an `Outage` calls, which tells `progress` how long the server is away, or was."""

    def report(seconds: float, reason: str | None) -> None:
        progress(ServerBack(seconds) if reason is None else ServerUnreachable(seconds, reason))

    return report


def waiting_to_start(task: TaskView, needs_keyring: bool) -> Waiting:
    """Return why round 1 has not opened: its key is missing, or how many members can take part and are needed.

    needs_keyring: whether only members with a keyring can take part.
    """
    if task.waiting_for is not None:
        return Waiting(task.waiting_for)
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


@dataclass(frozen=True)
class ModelMeasured:
    """The members of a round measured the model after round `model_round`."""

    model_round: int
    clients: int
    """How many measured."""
    metrics: Mapping[str, float]
    """By name, such as hr@10."""
    best_round: int
    """Round after which the model was best so far."""


_OfContributors = RoundReport | RoundMissed | RoundAbstained | AggregateRejected | TrainingFailed | ClipWarning
_OfKeysAndSnapshots = Waiting | KeyringDelivered | KeyringRefused | SnapshotPublished
_OfCommittee = SurvivorsConfirmed | ClientsNamed | ShareSent | CommitteeRefused
_OfModel = ModelBehind | ModelMeasured
_OfServer = ServerUnreachable | ServerBack | ServerRestored | TaskEnded
Event = _OfContributors | _OfKeysAndSnapshots | _OfCommittee | _OfModel | _OfServer
Progress = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """Do nothing with an event: the progress callback where the application has none."""
