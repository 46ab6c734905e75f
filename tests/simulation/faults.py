"""The faults of a schedule: their kinds, and which of them happens when."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

__all__ = ["FAULTS", "FaultKind", "Fault", "FaultInjector", "draw_faults"]

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
    "database unavailable",
    "commit unanswered",
    "disk full",
    "torn blob",
    "store unavailable",
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
_WINDOWS: Final[tuple[FaultKind, ...]] = ("database unavailable", "disk full", "store unavailable")
_ONLY_AT: Final[Mapping[FaultKind, tuple[str, ...]]] = {
    "database unavailable": ("database.read", "database.begin", "database.commit"),
    "commit unanswered": ("database.committed",),
    "disk full": ("blob.put", "blob.adopt"),
    "torn blob": ("blob.put",),
    "store unavailable": ("blob.put", "blob.adopt", "blob.view", "blob.delete"),
}
_LONGEST: Final = 40


@dataclass(frozen=True)
class Fault:
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


def draw_faults(choose: random.Random, sends: int, seldom: Sequence[FaultKind] = ("closed",)) -> Iterator[Fault]:
    """Generate faults without end, spread over about `sends` messages; those in `seldom` are ten times rarer."""
    while True:
        kinds, reach, most = choose.choices(
            ((_ON_MESSAGE, sends + 4, 120), (_AT_POINT, 22 * sends, _LONGEST), (_AT_TICK, 18 * sends, 120)), (5, 5, 2)
        )[0]
        (kind,) = choose.choices(kinds, [0.1 if kind in seldom else 1.0 for kind in kinds])
        yield Fault(kind, choose.randrange(reach), choose.randint(1, most))


@dataclass
class FaultInjector:
    """Selects the fault that is due. calm: no more faults. injected: counts the faults so far."""

    plan: Sequence[Fault]
    note: Callable[[str], None]
    calm: bool = False
    points: int = 0
    injected: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._at_points = [fault for fault in self.plan if fault.place == "point"]
        self._at_ticks = [fault for fault in self.plan if fault.place == "tick"]
        self._of_messages: dict[int, list[Fault]] = {}
        for fault in self.plan:
            if fault.place == "message":
                self._of_messages.setdefault(fault.at, []).append(fault)

    def of_message(self, number: int) -> Sequence[Fault]:
        """Return the fault of message `number`, if any."""
        return () if self.calm else self._of_messages.pop(number, ())

    def at_tick(self, tick: int) -> Fault | None:
        """Return the fault of this tick, if any; each one once."""
        if self._at_ticks and not self.calm and self._at_ticks[0].at <= tick:
            return self._at_ticks.pop(0)
        return None

    def at_point(self, name: str, corrupt: Callable[[Fault], bool]) -> Fault | None:
        """Return the fault at the next point, called `name`. corrupt: damages a blob, if there is one."""
        self.points += 1
        if self.calm:
            return None
        for fault in self._at_points:
            if fault.at > self.points:
                return None
            if fault.kind in _WINDOWS and self.points >= fault.at + fault.size:
                self._at_points.remove(fault)
                return None
            if name not in _ONLY_AT.get(fault.kind, (name,)):
                continue
            if fault.kind == "blob corrupted":
                if corrupt(fault):
                    self._at_points.remove(fault)
                continue
            if fault.kind not in _WINDOWS:
                self._at_points.remove(fault)
            return fault
        return None

    def record(self, fault: Fault, where: str) -> None:
        """Record that a fault happened."""
        self.injected[fault.kind] += 1
        self.note(f"FAULT {fault.kind}: {where}")
