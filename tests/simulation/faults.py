"""The faults of a schedule: their kinds, and which of them happens when."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

__all__ = ["FAULTS", "FaultKind", "Striker", "Strike", "strikes"]

OnMessage = Literal[
    # at the n-th message that clients send
    "drop",
    "answer lost",
    "delay",
    "duplicate",
    "replayed later",
    "reorder",
    "cut",
    "altered byte",
]
AtPoint = Literal[
    # at the n-th point at which a process uses storage or pauses
    "crash",
    "crash of all",
    "database gone",
    "commit unanswered",
    "disk full",
    "torn blob",
    "store gone",
    "blob corrupted",
]
AtTick = Literal[
    # between two steps of the schedule: time and operators
    "clock jump",
    "revoked",
    "enrolled again",
    "newcomer",
    "extended",
    "aborted",
    "closed",
]
FaultKind = Literal[OnMessage, AtPoint, AtTick]
FAULTS: Final[tuple[FaultKind, ...]] = get_args(FaultKind)

_ON_MESSAGE: Final[tuple[FaultKind, ...]] = get_args(OnMessage)
_AT_POINT: Final[tuple[FaultKind, ...]] = get_args(AtPoint)
_AT_TICK: Final[tuple[FaultKind, ...]] = get_args(AtTick)
_WINDOWS: Final[tuple[FaultKind, ...]] = ("database gone", "disk full", "store gone")
_ONLY_AT: Final[Mapping[FaultKind, tuple[str, ...]]] = {
    "database gone": ("database.read", "database.begin", "database.commit"),
    "commit unanswered": ("database.committed",),
    "disk full": ("blob.put", "blob.adopt"),
    "torn blob": ("blob.put",),
    "store gone": ("blob.put", "blob.adopt", "blob.view", "blob.delete"),
}
_LONGEST: Final = 40


@dataclass(frozen=True)
class Strike:
    """One fault.

    at: number of the message, of the point or of the tick. size: number of seconds, points, bytes or clients, as the
    kind needs it."""

    kind: FaultKind
    at: int
    size: int

    @property
    def place(self) -> str:
        """What `at` counts: messages, points or ticks."""
        return "message" if self.kind in _ON_MESSAGE else "point" if self.kind in _AT_POINT else "tick"

    def __str__(self) -> str:
        return f"{self.place} {self.at}: {self.kind} ({self.size})"


def strikes(choose: random.Random, sends: int, seldom: Sequence[FaultKind] = ("closed",)) -> Iterator[Strike]:
    """Generate faults without end, spread over about `sends` messages; those in `seldom` are ten times rarer."""
    while True:
        kinds, reach, most = choose.choices(
            ((_ON_MESSAGE, sends + 4, 120), (_AT_POINT, 22 * sends, _LONGEST), (_AT_TICK, 18 * sends, 120)), (5, 5, 2)
        )[0]
        (kind,) = choose.choices(kinds, [0.1 if kind in seldom else 1.0 for kind in kinds])
        yield Strike(kind, choose.randrange(reach), choose.randint(1, most))


@dataclass
class Striker:
    """Selects the fault that is due. calm: no more faults. injected: counts the faults so far."""

    plan: Sequence[Strike]
    note: Callable[[str], None]
    calm: bool = False
    points: int = 0
    injected: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._at_points = [strike for strike in self.plan if strike.place == "point"]
        self._at_ticks = [strike for strike in self.plan if strike.place == "tick"]
        self._of_messages: dict[int, list[Strike]] = {}
        for strike in self.plan:
            if strike.place == "message":
                self._of_messages.setdefault(strike.at, []).append(strike)

    def of_message(self, number: int) -> Sequence[Strike]:
        """Return the fault of message `number`, if any."""
        return () if self.calm else self._of_messages.pop(number, ())

    def at_tick(self, tick: int) -> Strike | None:
        """Return the fault of this tick, if any; each one once."""
        if self._at_ticks and not self.calm and self._at_ticks[0].at <= tick:
            return self._at_ticks.pop(0)
        return None

    def at_point(self, name: str, corrupt: Callable[[Strike], bool]) -> Strike | None:
        """Return the fault at the next point, called `name`. corrupt: damages a blob, if there is one."""
        self.points += 1
        if self.calm:
            return None
        for strike in self._at_points:
            if strike.at > self.points:
                return None
            if strike.kind in _WINDOWS and self.points >= strike.at + strike.size:
                self._at_points.remove(strike)
                return None
            if name not in _ONLY_AT.get(strike.kind, (name,)):
                continue
            if strike.kind == "blob corrupted":
                if corrupt(strike):
                    self._at_points.remove(strike)
                continue
            if strike.kind not in _WINDOWS:
                self._at_points.remove(strike)
            return strike
        return None

    def struck(self, strike: Strike, where: str) -> None:
        """Record that a fault happened."""
        self.injected[strike.kind] += 1
        self.note(f"FAULT {strike.kind}: {where}")
