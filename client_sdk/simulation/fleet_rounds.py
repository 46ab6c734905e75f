"""How a fleet plays one round: everyone at once, or stage by stage where a round takes several messages of each."""

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
from protocols.errors import CodecError, RefusalError, ThresholdError
from protocols.messages import RoundView
from protocols.messages.stages import MASKED_STATES, RoundState

__all__ = ["FleetRound", "Seat", "play_at_once", "play_stages"]

T = TypeVar("T")
_DROPPED: Final = "dropped out on purpose"


class Spread(Protocol):
    """Runs one program a client on the fleet's workers."""

    def __call__(self, programs: Iterable[Callable[[], Program[T]]], /) -> list[T]: ...


@dataclass(frozen=True)
class Seat:
    """A client in a cohort, and whether it falls silent in this round."""

    client: Participation
    history: History
    drops: bool

    def view(self, seen: RoundView) -> RoundView:
        """The round as this client is asked in it: the watcher sees what is asked of itself."""
        mine = {"contribution_bytes": None, "in_cohort": True, "contributed": False, "delivered": False}
        return seen.model_copy(update=mine)


@dataclass(frozen=True)
class FleetRound:
    """What one round did and cost, all clients of the cohort together.

    seconds: wall clock from the round's opening being seen to the new model being known. The phases are sums over the
    clients, which run side by side. bytes: of bodies. missed: dropped out on purpose, refused or too late.
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
        """Mean training loss of the clients that delivered; NaN when none did."""
        return self._sum("loss") / len(self.reports) if self.reports else float("nan")

    @property
    def clipped(self) -> int:
        """Values that were clipped."""
        return int(self._sum("clipped"))

    @property
    def values(self) -> int:
        """Values that were uploaded."""
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
        """Bytes that the cohort would have received without a shared cache."""
        return int(self._sum("bytes_spared"))

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase, summed over the clients: catch_up, train, seal, upload."""
        return {name: self._sum(f"{name}_seconds") for name in ("catch_up", "train", "seal", "upload")}


def play_at_once(seats: Sequence[Seat], view: RoundView, spread: Spread) -> list[RoundReport | RoundMissed]:
    """One contribution each."""

    def part(seat: Seat) -> Callable[[], Program[RoundReport | RoundMissed]]:
        def program() -> Program[RoundReport | RoundMissed]:
            if seat.drops:
                return RoundMissed(view.number, _DROPPED)
            try:
                return (yield from seat.client.run_round(seat.view(view), seat.history))
            except PolicyRefused:
                raise
            except ClientSDKError as error:
                return RoundMissed(view.number, str(error))

        return program

    return spread(part(seat) for seat in seats)


def play_stages(
    seats: Sequence[Seat],
    view: RoundView,
    spread: Spread,
    await_change: Callable[[RoundView], RoundView],
    silent_from: str,
) -> list[RoundReport | RoundMissed]:
    """A masked round: every client's message of a stage, then the wait for the next one, until the round is over."""
    played = [_Played(seat, MaskedRound(seat.client, seat.view(view), seat.history)) for seat in seats]
    while view.state in MASKED_STATES:
        silent = MASKED_STATES.index(view.state) >= MASKED_STATES.index(RoundState(silent_from))
        spread(one.stage(view) for one in played if one.missed is None and not (silent and one.seat.drops))
        view = await_change(view)
    return [one.outcome(view) for one in played]


@dataclass
class _Played:
    """One client on its way through a round."""

    seat: Seat
    round: MaskedRound
    missed: str | None = None

    def stage(self, view: RoundView) -> Callable[[], Program[None]]:
        def program() -> Program[None]:
            try:
                yield from self.round.advance(self.seat.view(view))
            except PolicyRefused:
                raise
            except (ClientSDKError, RefusalError, ThresholdError, CodecError) as error:
                self.missed = str(error)

        return program

    def outcome(self, end: RoundView) -> RoundReport | RoundMissed:
        if self.missed is None and self.round.finished:
            return self.round.report()
        reason = _DROPPED if self.seat.drops else self.missed or end.failure or "the round ended before it was done"
        return RoundMissed(end.number, reason)
