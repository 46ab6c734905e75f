"""Plans of simulated tasks, drawn from a seed: what is summed, which clients drop out when, and which faults happen."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, Literal, get_args

__all__ = ["FAULTS", "MEMBERS", "Fault", "FaultInjector", "Job", "Part", "Plan", "draw_plan"]

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


Part = Literal["advertise", "share", "contribute", "confirm", "unmask"]
Job = Literal["plain", "frozen", "groups", "curious", "semi-malicious"]
"""One sum a round over anybody; sums over the same data, which keep apart; groups that take turns; two masked modes."""
MEMBERS = 6


@dataclass(frozen=True)
class Plan:
    """A task and its faults.

    processes: number of servers on one storage, each with an engine. silent: the part from which on a client sends
    nothing in a round. chunks: number of pieces in which it sends its contribution. Both are by (round, client).
    garbage: clients that seal random bytes instead of shares, in every round.
    """

    seed: int
    job: Job
    cohort: int
    floor: int
    rounds: int
    batch: int
    processes: int
    silent: Mapping[tuple[int, int], Part]
    chunks: Mapping[tuple[int, int], int]
    faults: tuple[Fault, ...]
    garbage: frozenset[int] = frozenset()

    @property
    def inline_bytes(self) -> int:
        """Longest body that is a row of the database: in every other plan all contributions are files."""
        return 0 if self.seed % 2 else 65_536

    @property
    def masked(self) -> bool:
        """Whether the task is masked."""
        return self.job in ("curious", "semi-malicious")

    @property
    def parts(self) -> tuple[Part, ...]:
        """What a client does in a round, in this order."""
        if not self.masked:
            return ("contribute",)
        if self.job == "curious":
            return ("advertise", "share", "contribute", "unmask")
        return ("advertise", "share", "contribute", "confirm", "unmask")

    def lines(self) -> Iterator[str]:
        """The plan as readable lines."""
        yield (
            f"seed {self.seed}: {self.job}, {MEMBERS} members, cohorts of {self.cohort}, floor "
            f"{self.floor}, {self.rounds} rounds, batches of {self.batch}, {self.processes} processes"
        )
        for (number, client), part in sorted(self.silent.items()):
            yield f"  round {number}: client {client} is silent from {part!r} on"
        yield from (f"  client {client} seals random bytes" for client in sorted(self.garbage))
        for (number, client), pieces in sorted(self.chunks.items()):
            yield f"  round {number}: client {client} uploads in {pieces} pieces"
        yield from (f"  {fault}" for fault in self.faults)


def draw_plan(seed: int) -> Plan:
    """Return the plan of a seed, always the same. Every fifth is masked, every eighth has no faults."""
    choose = random.Random(seed)
    job = _draw_job(seed, choose)
    plan = _sized(seed, job, choose)
    often = choose.choice([0.0, 0.1, 0.3])
    everybody = [(number, client) for number in range(1, plan.rounds + 4) for client in range(MEMBERS)]
    silent = {who: choose.choice(plan.parts) for who in everybody if choose.random() < often}
    often = choose.choice([0.0, 0.0, 0.4])
    chunks = {who: choose.randint(2, 4) for who in everybody if choose.random() < often}
    sends = plan.rounds * plan.cohort * len(plan.parts)
    drawn = () if seed % 8 == 7 else tuple(islice(draw_faults(choose, sends), choose.randint(1, 10)))
    chosen = tuple(sorted(drawn, key=lambda one: (one.at, one.kind)))
    garbage = frozenset[int]()
    if plan.masked:
        for number in range(1, 4):
            leaving = choose.sample(range(MEMBERS), choose.choice([0, 0, 3, 4]))  # too many for the thresholds
            silent |= {(number, client): "unmask" for client in leaving}
        garbage = frozenset(choose.sample(range(MEMBERS), choose.choice([0, 0, 1])))
    return replace(plan, silent=silent, chunks=chunks, faults=chosen, garbage=garbage)


def _draw_job(seed: int, choose: random.Random) -> Job:
    masked: tuple[Job, ...] = ("curious", "semi-malicious")
    clear: tuple[Job, ...] = ("plain", "plain", "plain", "frozen", "groups")
    return choose.choice(masked if seed % 5 == 4 else clear)


def _sized(seed: int, job: Job, choose: random.Random) -> Plan:
    match job:
        case "curious" | "semi-malicious":
            cohort, floor, rounds = choose.randint(4, 6), choose.randint(3, 4), 2
        case "frozen":
            cohort, floor, rounds = choose.randint(4, 6), choose.randint(2, 3), choose.choice([2, 3])
        case "groups":
            cohort, floor, rounds = choose.randint(2, 3), 2, 2
        case "plain":
            cohort = choose.randint(2, 5)
            floor, rounds = choose.randint(2, cohort), choose.choice([1, 1, 2])
    return Plan(
        seed=seed,
        job=job,
        cohort=cohort,
        floor=floor,
        rounds=rounds,
        batch=choose.randint(1, 4),
        processes=choose.choice([1, 1, 2]),
        silent={},
        chunks={},
        faults=(),
    )
