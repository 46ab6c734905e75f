"""One round of a fleet: one contribution per client, or masked (one message per client and stage)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar

from client_sdk.api.effects import Program
from client_sdk.errors import ClientSDKError, PolicyRefused
from client_sdk.history import History
from client_sdk.participation.events import RoundMissed, RoundReport
from client_sdk.participation.masked_rounds import MaskedRound
from client_sdk.participation.participation import Participation
from client_sdk.participation.refusals import tell_refusals
from protocols.errors import CodecError, RefusalError, ThresholdError
from protocols.messages import RoundView
from protocols.messages.stages import MASKED_STATES, RoundState

__all__ = ["FleetRound", "CohortMember", "play_masked_round", "play_unmasked_round"]

T = TypeVar("T")
_DROPPED: Final = "simulated dropout"


class RunAll(Protocol):
    """Runs one program per client on the fleet's workers and returns the results in order."""

    def __call__(self, programs: Iterable[Callable[[], Program[T]]], /) -> list[T]: ...


@dataclass(frozen=True)
class CohortMember:
    """A client in a cohort. drops: whether it drops out of this round."""

    client: Participation
    history: History
    drops: bool

    def view(self, seen: RoundView) -> RoundView:
        """Return `seen`, the round as client 0 sees it, as this client sees it."""
        own_fields = {"contribution_bytes": None, "in_cohort": True, "contributed": False, "delivered": False}
        return seen.model_copy(update=own_fields)


@dataclass(frozen=True)
class FleetRound:
    """The outcome and the cost of one round, for all clients of the cohort together.

    failure: the reason when `state` is "failed". asked: clients in the cohort. reports: one per contribution. missed:
    clients that dropped out, were refused or came too late. seconds: wall clock from the poll that returned the round
    to the new model. Bytes are of bodies.
    """

    number: int
    state: Literal["complete", "failed"]
    failure: str | None
    asked: int
    survivors: int
    reports: tuple[RoundReport, ...]
    missed: tuple[RoundMissed, ...]
    seconds: float

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
    def bytes_spared(self) -> int:
        """Bytes that a shared cache saved the cohort from downloading."""
        return int(self._sum("bytes_spared"))

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

    def part(member: CohortMember) -> Callable[[], Program[RoundReport | RoundMissed]]:
        def program() -> Program[RoundReport | RoundMissed]:
            if member.drops:
                return RoundMissed(view.number, _DROPPED)
            try:
                return (yield from member.client.run_round(member.view(view), member.history))
            except PolicyRefused:
                raise
            except (ClientSDKError, RefusalError) as error:
                return RoundMissed(view.number, str(error))

        return program

    return run_all(part(member) for member in members)


def play_masked_round(
    members: Sequence[CohortMember],
    view: RoundView,
    run_all: RunAll,
    await_next_state: Callable[[RoundView], RoundView],
    dropout_stage: str,
) -> list[RoundReport | RoundMissed]:
    """Play a masked round: in each stage one message per client. Returns one outcome per member, in order.

    await_next_state: returns the round once its state differs from that of the argument. dropout_stage: first stage to
    which the members with `drops` send no message. Raises `PolicyRefused`; other errors of a client become its
    `RoundMissed`.
    """
    masked = [
        _MaskedMember(member, MaskedRound(member.client, member.view(view), member.history)) for member in members
    ]
    while view.state in MASKED_STATES:
        dropped = MASKED_STATES.index(view.state) >= MASKED_STATES.index(RoundState(dropout_stage))
        run_all(one.send_message(view) for one in masked if one.missed is None and not (dropped and one.member.drops))
        view = await_next_state(view)
    return [one.outcome(view) for one in masked]


@dataclass
class _MaskedMember:
    """One client in a masked round. missed: why it did not contribute, if so."""

    member: CohortMember
    round: MaskedRound
    missed: str | None = None

    def send_message(self, view: RoundView) -> Callable[[], Program[None]]:
        def program() -> Program[None]:
            try:
                advance = self.round.respond(self.member.view(view))
                yield from tell_refusals(self.member.client, view.number, advance)
            except PolicyRefused:
                raise
            except (ClientSDKError, RefusalError, ThresholdError, CodecError) as error:
                self.missed = str(error)

        return program

    def outcome(self, end: RoundView) -> RoundReport | RoundMissed:
        if self.missed is None and self.round.finished:
            return self.round.report()
        reason = (
            _DROPPED
            if self.member.drops
            else self.missed or end.failure or "the round ended before this client had sent all its messages"
        )
        return RoundMissed(end.number, reason)
