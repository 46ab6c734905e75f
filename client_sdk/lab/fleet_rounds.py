"""One round of a fleet: one contribution per client, or masked (one message per client and stage)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Final, Literal, Protocol, TypeVar

import numpy as np

from client_sdk.agreement.policy import Policy
from client_sdk.api.retry import Outage
from client_sdk.api.wire import Program
from client_sdk.committee import CommitteeMember
from client_sdk.errors import ClientSDKError, PolicyRefused
from client_sdk.history import History
from client_sdk.lab.shared_model import FleetPart
from client_sdk.rounds.account import Account, ClientOptions
from client_sdk.rounds.events import Progress, RoundMissed, RoundReport, ignore_event
from client_sdk.rounds.join import join
from client_sdk.rounds.loop import REFUSED, play, tell_refusal
from client_sdk.rounds.masked import MaskedRound
from client_sdk.rounds.member import CertificateSource
from client_sdk.rounds.polling import is_over
from client_sdk.store import MemoryStore
from client_sdk.store.identity import Identity
from client_sdk.training.base import TrainingConfig
from protocols.errors import CodecError, ParameterError, RefusalError, ThresholdError
from protocols.messages import RoundView
from protocols.messages.stages import MASKED_STATES, RoundState
from protocols.sums.base import SumPlan
from protocols.sums.registry import OWN

T = TypeVar("T")
_DROPPED: Final = "simulated dropout"
_SHOWING: Final = (RoundState.CONFIRMING, RoundState.UNMASKING)
"""The states of a masked round in which its view shows more to whom it awaits: the same to all of them."""
AwaitChange = Callable[[RoundView, Callable[[RoundView], object]], RoundView]
"""Returns the round of a view once the value of the function is another than for this view."""


class RunAll(Protocol):
    """Runs one program per client on the fleet's workers and returns the results in order."""

    def __call__(self, programs: Iterable[Callable[[], Program[T]]], /) -> list[T]: ...


@dataclass(frozen=True)
class CohortMember:
    """A client in a cohort."""

    client: FleetPart
    history: History
    drops: bool
    """Whether it drops out of this round."""

    def view(self, seen: RoundView) -> RoundView:
        """Return `seen`, the round as client 0 sees it, as this client sees it."""
        own_fields = {"contribution_bytes": None, "in_cohort": True, "contributed": False, "delivered": False}
        return seen.model_copy(update=own_fields)


@dataclass(frozen=True)
class FleetRound:
    """The outcome and the cost of one round, for all clients of the cohort together."""

    number: int
    state: Literal["complete", "failed"]
    failure: str | None
    """The reason when `state` is "failed"."""
    asked: int
    """Clients in the cohort."""
    survivors: int
    reports: tuple[RoundReport, ...]
    """One per contribution."""
    missed: tuple[RoundMissed, ...]
    """Clients that dropped out, were refused or came too late."""
    seconds: float
    """Wall clock from the poll that returned the round to the new model. Bytes are of bodies."""
    bytes_spared: int = 0
    """That a shared model saved the cohort from downloading."""

    def _sum(self, name: str) -> float:
        return float(sum(getattr(report, name) for report in self.reports))

    @property
    def loss(self) -> float:
        """Mean training loss of the clients that contributed; NaN when none did."""
        return self._sum("loss") / len(self.reports) if self.reports else float("nan")

    @property
    def clipped(self) -> int:
        """Number of values that were clipped."""
        return int(self._sum("clipped"))

    @property
    def values(self) -> int:
        """Number of values that were uploaded."""
        return int(self._sum("values"))

    @property
    def bytes_up(self) -> int:
        """Bytes sent by the cohort."""
        return int(self._sum("bytes_up"))

    @property
    def bytes_down(self) -> int:
        """Bytes received by the cohort."""
        return int(self._sum("bytes_down"))

    @property
    def phases(self) -> dict[str, float]:
        """Seconds spent on catch_up, train, seal and upload, each summed over the clients, which run in parallel."""
        return {name: self._sum(f"{name}_seconds") for name in ("catch_up", "train", "seal", "upload")}


def play_unmasked_round(
    members: Sequence[CohortMember], view: RoundView, run_all: RunAll
) -> list[RoundReport | RoundMissed]:
    """Play a round in which each client sends one contribution, and no more. Returns one outcome per member, in order.

    Raises `PolicyRefused`; other errors of a client become its `RoundMissed`.
    """

    def part(member: CohortMember) -> Program[RoundReport | RoundMissed]:
        if member.drops:
            return RoundMissed(view.number, _DROPPED)
        try:
            return (yield from play(member.client, member.view(view), member.history))
        except PolicyRefused:
            raise
        except (ClientSDKError, RefusalError) as error:
            return RoundMissed(view.number, str(error))

    return run_all(partial(part, member) for member in members)


def play_masked_round(
    members: Sequence[CohortMember],
    view: RoundView,
    run_all: RunAll,
    await_change: AwaitChange,
    dropout_stage: str,
) -> list[RoundReport | RoundMissed]:
    """Play a masked round: in each stage one message per client. Returns one outcome per member, in order.

    dropout_stage: first stage to which the members with `drops` send no message. Raises `PolicyRefused`; other errors
    of a client become its `RoundMissed`.
    """
    masked = [
        _MaskedMember(member, MaskedRound(member.client, member.view(view), member.history)) for member in members
    ]
    while view.state in MASKED_STATES:
        dropped = MASKED_STATES.index(view.state) >= MASKED_STATES.index(RoundState(dropout_stage))
        sending = [one for one in masked if one.missed is None and not (dropped and one.member.drops)]
        if sending and view.state in _SHOWING and view.survivor_set is None and view.confirmations is None:
            first = sending[0].member.client.member  # client 0 is not awaited
            (view,) = run_all([partial(first.calls.round, first.task_id, view.number)])
        run_all(partial(one.send_message, view) for one in sending)
        view = await_change(view, attrgetter("state"))
    return [one.outcome(view) for one in masked]


@dataclass
class _MaskedMember:
    """One client in a masked round."""

    member: CohortMember
    round: MaskedRound
    missed: str | None = None
    """Why it did not contribute, if so."""

    def send_message(self, view: RoundView) -> Program[None]:
        try:
            try:
                yield from self.round.advance(self.member.view(view))
            except REFUSED as error:
                yield from tell_refusal(self.member.client.member, view.number, error)
                raise
        except PolicyRefused:
            raise
        except (ClientSDKError, RefusalError, ThresholdError, CodecError) as error:
            self.missed = str(error)

    def outcome(self, end: RoundView) -> RoundReport | RoundMissed:
        if self.missed is None and self.round.finished:
            return self.round.final_report()
        reason = (
            _DROPPED
            if self.member.drops
            else self.missed or end.failure or "the round ended before this client had sent all its messages"
        )
        return RoundMissed(end.number, reason)


# --- the options of a fleet: how its clients train, what they agree to, and how many of them drop out ----------------


_ANY_MECHANISM: Final = Policy(mechanisms=frozenset(OWN), reveal_gram=True, trust_models=True)


@dataclass(frozen=True, eq=False)
class FleetOptions:
    """Options of a `Fleet`. Raises `ParameterError` for values out of range."""

    training: TrainingConfig | None = None
    """Training parameters; None uses the defaults of the task's recipe."""
    policy: Policy = _ANY_MECHANISM
    """Every client's policy; by default it allows every mechanism."""
    seed: int | None = None
    """Fixes the training draws of every client; None draws fresh randomness."""
    workers: int = 2
    """Worker threads, each with one connection."""
    cohort: Callable[[int], Iterable[str]] | None = None
    """Returns the ids of the clients in a round's cohort, as `Operator.cohort` does; by default every client of the
    fleet asks for itself, as members do."""
    downloads: Literal["each", "once"] = "each"
    """"each": every client downloads and checks all that it would need alone; "once": only the watcher does."""
    dropout: float = 0.0
    """Share of each cohort that drops out, 0 <= dropout < 1. The round then waits for its deadline."""
    dropout_rng: np.random.Generator = field(default_factory=np.random.default_rng, repr=False)
    """Decides which clients drop out; only its `random(size)` method is called."""
    dropout_stage: str = "collecting"
    """First stage of a masked round to which these clients send no message."""
    identities: Sequence[Identity] | None = field(default=None, repr=False)
    """One per client; None generates fresh ones. A task with the same seed asks the same identities in the same rounds.
    """
    device_groups: Sequence[int] | None = None
    """The device group of each client. Required when the recipe has several groups."""
    client: ClientOptions = field(default_factory=ClientOptions)
    """Retries, timeouts and chunk size of every client."""
    patience: float | None = None
    """Seconds for which an unreachable server is waited for, each time; None waits as long as it takes."""
    progress: Progress | None = field(default=None, repr=False)
    """Receives `ServerUnreachable` and `ServerBack`, from the workers' threads."""

    def __post_init__(self) -> None:
        Outage(self.patience)  # checks it
        if self.workers < 1:
            raise ParameterError(f"workers must be at least 1, got {self.workers}")
        if not 0.0 <= self.dropout < 1.0:
            raise ParameterError(f"dropout must be at least 0 and less than 1, got {self.dropout}")
        if self.dropout_stage not in MASKED_STATES:
            raise ParameterError(f"dropout_stage must be one of {', '.join(MASKED_STATES)}; got {self.dropout_stage!r}")

    def check_size(self, clients: int) -> None:
        """Raise `ParameterError` unless `clients` is positive and equals the number of identities and groups given."""
        if clients < 1:
            raise ParameterError("a fleet needs at least one client")
        for name, given in (("identities", self.identities), ("device_groups", self.device_groups)):
            if given is not None and len(given) != clients:
                raise ParameterError(f"{name} must have one entry per client: expected {clients}, got {len(given)}")


# --- the committee of a fleet's task: further clients of the same process that contribute nothing --------------------
# In a real task its members are run by different parties; here they make demos, tests and benchmarks complete.


class FleetCommittee:
    """The members of a committee in one process. run_all: runs one program per member on the fleet's workers."""

    def __init__(self, options: FleetOptions, run_all: RunAll) -> None:
        self._options, self._run_all = options, run_all
        self.members: list[CommitteeMember] = []

    def enrol(self, url: str, plan: SumPlan, invitation: str, certificate: CertificateSource | None) -> None:
        """Enrol as many members as `plan` has and publish their first keys; `ParameterError` for another mechanism."""
        if not plan.committee:
            raise ParameterError(f"tasks with {plan.mechanism} have no committee")
        options = self._options

        def program() -> Program[CommitteeMember]:
            account = Account.at(url, Identity.generate(), MemoryStore(), options.policy, options.client)
            member = yield from join(account, None, invitation, certificate)
            return CommitteeMember(member, options.progress or ignore_event)

        self.members = self._run_all(program for _ in range(plan.committee))
        self.attend()

    def attend(self) -> None:
        """Let every member attend the newest round."""
        self._run_all(each.attend_newest for each in self.members)

    def unmask(self, view: RoundView, await_change: AwaitChange) -> None:
        """Attend whenever the round's state or its proposed set of survivors is another, until the round is over."""
        while self.members and not is_over(view):
            view = await_change(view, attrgetter("state", "survivors_digest"))
            self.attend()
