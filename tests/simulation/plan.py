"""Plans of simulated tasks, drawn from a seed: what is summed, which clients drop out when, and which faults happen."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Literal

from protocols.messages.stages import MASKED_MESSAGES, MaskedMessage

_BLOBS: Final = ("blob.put", "blob.adopt", "blob.append", "blob.view", "blob.delete")
_KINDS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    # at the n-th message that clients send
    "message": dict.fromkeys(
        ("drop", "answer lost", "delay", "duplicate", "replayed later", "reorder", "cut", "altered byte"), ()
    ),
    # at the n-th point at which a process uses storage or pauses; of these points only (none: at any)
    "point": {
        "crash": (),
        "crash of all": (),
        "database unavailable": ("database.read", "database.begin", "database.commit"),
        "commit unanswered": ("database.committed",),
        "disk full": _BLOBS[:3],
        "torn blob": ("blob.put", "blob.append"),
        "store unavailable": _BLOBS,
        "blob corrupted": (),
    },
    # between two steps of the schedule: time and operators
    "tick": dict.fromkeys(("clock jump", "revoked", "enrolled again", "newcomer", "extended", "aborted", "closed"), ()),
}
"""The faults by what their `at` counts."""
FAULTS: Final = {kind: place for place, kinds in _KINDS.items() for kind in kinds}
_WINDOWS: Final = ("database unavailable", "disk full", "store unavailable")
_LONGEST: Final = 40
_LIES: Final = 0.3
"""Share of the rounds without proofs of values in which a client lies about its values, if it is asked."""
BEYOND: Final = 0
UNMATCHED: Final = -1
"""A liar of a one-shot round sends a contribution of whose mask it has not shared the secret."""
LIE_PARTS: Final = 4
WITHIN: Final = (4, 40, 12_000)
"""What a liar adds that its group can have: as much as honest values differ, more, and more than its own bound."""


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: str
    at: int
    """Number of the message, of the point or of the tick."""
    size: int
    """Number of seconds, points, bytes or clients, as the kind needs it."""

    @property
    def place(self) -> str:
        return FAULTS[self.kind]

    def __str__(self) -> str:
        return f"{self.place} {self.at}: {self.kind} ({self.size})"


def draw_faults(choose: random.Random, sends: int) -> Iterator[Fault]:
    """Generate faults without end, spread over about `sends` messages; tasks are closed ten times more rarely."""
    places = (("message", sends + 4, 120), ("point", 22 * sends, _LONGEST), ("tick", 18 * sends, 120))
    while True:
        ((place, reach, most),) = choose.choices(places, (5, 5, 2))
        kinds = list(_KINDS[place])
        (kind,) = choose.choices(kinds, [0.1 if kind == "closed" else 1.0 for kind in kinds])
        yield Fault(kind, choose.randrange(reach), choose.randint(1, most))


@dataclass
class FaultInjector:
    """Selects the fault that is due."""

    plan: Sequence[Fault]
    note: Callable[[str], None]
    calm: bool = False
    """No more faults."""
    points: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    """Counts the faults so far."""

    def __post_init__(self) -> None:
        self._left = {place: [fault for fault in self.plan if fault.place == place] for place in _KINDS}

    def of_message(self, number: int) -> Sequence[Fault]:
        return () if self.calm else [fault for fault in self._left["message"] if fault.at == number]

    def at_tick(self, tick: int) -> Fault | None:
        left = self._left["tick"]
        return left.pop(0) if left and not self.calm and left[0].at <= tick else None

    def at_point(self, name: str, corrupt: Callable[[Fault], bool]) -> Fault | None:
        """Return the fault at the next point, called `name`. corrupt: damages a blob, if there is one."""
        self.points += 1
        left = self._left["point"]
        for fault in [] if self.calm else left:
            if fault.at > self.points:
                return None
            if fault.kind in _WINDOWS and self.points >= fault.at + fault.size:
                left.remove(fault)
                return None
            if name not in (_KINDS["point"][fault.kind] or (name,)):
                continue
            if fault.kind == "blob corrupted":
                if corrupt(fault):
                    left.remove(fault)
                continue
            if fault.kind not in _WINDOWS:
                left.remove(fault)
            return fault
        return None

    def record(self, fault: Fault, where: str) -> None:
        self.injected[fault.kind] += 1
        self.note(f"FAULT {fault.kind}: {where}")


Job = Literal["plain", "frozen", "groups", "curious", "semi-malicious", "split", "one-shot", "one-shot split"]
"""One sum a round over anybody; sums over the same data, which keep apart; groups that take turns; two masked modes;
the second mode with rosters that are split into groups; one-shot sums, and those with survivors that are split."""
Part = MaskedMessage | Literal["key"]
"""What parties send: messages of rounds, and the keys that a committee publishes ahead."""
MEMBERS = 6
PLACES: Final = 2 * MEMBERS + 2
"""Members at the beginning, and newcomers at most. The committee of a one-shot task has the indices behind."""
SPLIT: Final = 3
"""Groups of a roster, or of survivors."""
COMMITTEE: Final = 4
OPENERS: Final = 3
"""Members of a committee, and how many of them open a sum."""


@dataclass(frozen=True)
class Plan:
    """A task and its faults."""

    seed: int
    job: Job
    cohort: int
    floor: int
    rounds: int
    batch: int
    processes: int
    """Number of servers on one storage, each with an engine."""
    silent: Mapping[tuple[int, int], MaskedMessage] = field(default_factory=dict)
    """The part from which on a client sends nothing in a round."""
    chunks: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Number of pieces in which it sends its contribution. Both are by (round, client)."""
    faults: tuple[Fault, ...] = ()
    garbage: frozenset[int] = frozenset()
    """Clients that seal random bytes instead of shares, in every round; in one-shot rounds for some members of the
    committee."""
    lying: Mapping[int, int] = field(default_factory=dict)
    """By round, a client that lies about its last value in a masked or one-shot sum."""
    lies: Mapping[int, int] = field(default_factory=dict)
    """By round, what it adds; none for a value beyond all bounds."""

    @property
    def inline_bytes(self) -> int:
        """Longest body that is a row of the database: in every other plan all contributions are files."""
        return 0 if self.seed % 2 else 65_536

    @property
    def masked(self) -> bool:
        return self.job in ("curious", "semi-malicious", "split")

    @property
    def one_shot(self) -> bool:
        return self.job in ("one-shot", "one-shot split")

    @property
    def of_committee(self) -> tuple[MaskedMessage, ...]:
        """What the committee sends in a round."""
        return ("confirm", "unmask") if self.one_shot else ()

    @property
    def groups(self) -> int:
        """Groups of a cohort, with a sum each."""
        return SPLIT if self.job in ("split", "one-shot split") else 1

    @property
    def members(self) -> int:
        """Members at the beginning, without the committee."""
        return 2 * MEMBERS if self.groups > 1 else MEMBERS

    def spoilt_by(self, client: int) -> int:
        """Return for how many members of the committee a client seals random bytes; in odd plans for too many."""
        return (COMMITTEE if self.seed % 2 else 1) if client in self.garbage else 0

    @property
    def unopenable(self) -> frozenset[int]:
        """Clients of one-shot rounds whose shares too few members of the committee can open."""
        if not self.one_shot:
            return frozenset()
        return frozenset(client for client in self.garbage if self.spoilt_by(client) > COMMITTEE - OPENERS)

    @property
    def parts(self) -> tuple[MaskedMessage, ...]:
        """What clients send in a round."""
        if not self.masked:
            return ("contribute",)
        return tuple(part for part in MASKED_MESSAGES if part != "confirm" or self.job != "curious")

    def lines(self) -> Iterator[str]:
        yield (
            f"seed {self.seed}: {self.job}, {self.members} members, cohorts of {self.cohort}, floor "
            f"{self.floor}, {self.rounds} rounds, batches of {self.batch}, {self.processes} processes"
        )
        for (number, client), part in sorted(self.silent.items()):
            yield f"  round {number}: client {client} is silent from {part!r} on"
        yield from (f"  client {client} seals random bytes" for client in sorted(self.garbage))
        for number, client in sorted(self.lying.items()):
            lie = self.lies.get(number, BEYOND)
            adds = {BEYOND: "adds half the ring", UNMATCHED: "shares another secret"}.get(lie, f"adds {lie}")
            yield f"  round {number}: client {client} {adds}"
        for (number, client), pieces in sorted(self.chunks.items()):
            yield f"  round {number}: client {client} uploads in {pieces} pieces"
        yield from (f"  {fault}" for fault in self.faults)

    def smaller(self) -> Iterator[Plan]:
        """Yield the plans that lack one thing of this one."""
        ordinary: dict[str, Any] = {"silent": {}, "garbage": frozenset(), "chunks": {}, "processes": 1}
        ordinary |= {"lying": {}, "lies": {}}
        yield from (replace(self, **{name: value}) for name, value in ordinary.items() if vars(self)[name] != value)
        for fault in self.faults:
            yield replace(self, faults=tuple(one for one in self.faults if one is not fault))


def draw_plan(seed: int) -> Plan:
    """Return the plan of a seed, always the same.

    Every fifth is masked, two of fifty are of one-shot sums, and every eighth has no faults.
    """
    choose = random.Random(seed)
    plan = _draw_task(seed, choose)
    often = choose.choice([0.0, 0.1, 0.3])
    everybody = [(number, client) for number in range(1, plan.rounds + 4) for client in range(plan.members)]
    silent = {who: choose.choice(plan.parts) for who in everybody if choose.random() < often}
    often = choose.choice([0.0, 0.0, 0.4])
    chunks = {who: choose.randint(2, 4) for who in everybody if choose.random() < often}
    sends = plan.rounds * plan.cohort * len(plan.parts)
    drawn = () if seed % 8 == 7 else tuple(islice(draw_faults(choose, sends), choose.randint(1, 10)))
    chosen = tuple(sorted(drawn, key=lambda one: (one.at, one.kind)))
    garbage, lying, lies = frozenset[int](), dict[int, int](), dict[int, int]()
    if plan.masked:
        for number in range(1, 4):
            leaving = choose.sample(range(plan.members), choose.choice([0, 0, 3, 4]))  # too many for the thresholds
            silent |= {(number, client): "unmask" for client in leaving}
        garbage = frozenset(choose.sample(range(plan.members), choose.choice([0, 0, 1])))
        lying = {number: choose.randrange(plan.members) for number in range(1, 4) if choose.random() < _LIES}
    if plan.one_shot:
        for member in range(PLACES, PLACES + COMMITTEE):
            often = choose.choice([0.0, 0.0, 0.2])
            late = {number: choose.choice(plan.of_committee) for number in range(1, 4) if choose.random() < often}
            silent |= {(number, member): part for number, part in late.items()}
        garbage = frozenset(choose.sample(range(plan.members), choose.choice([0, 0, 1])))
        lying = {number: choose.randrange(plan.members) for number in range(1, 4) if choose.random() < 2 * _LIES}
    if plan.one_shot or plan.groups > 1:
        kinds = (BEYOND, UNMATCHED, *WITHIN) if plan.one_shot else (BEYOND, *WITHIN)
        lies = {number: lie for number in lying if (lie := choose.choice(kinds)) != BEYOND}
    return replace(plan, silent=silent, chunks=chunks, faults=chosen, garbage=garbage, lying=lying, lies=lies)


def _draw_task(seed: int, choose: random.Random) -> Plan:
    masked: tuple[Job, ...] = ("curious", "semi-malicious")
    clear: tuple[Job, ...] = ("plain", "plain", "plain", "frozen", "groups")
    job: Job = "split" if seed % 15 == 14 else choose.choice(masked if seed % 5 == 4 else clear)
    if seed % 25 == 13:
        job = "one-shot" if seed % 50 == 13 else "one-shot split"
    match job:
        case "curious" | "semi-malicious" | "one-shot":
            cohort, floor, rounds = choose.randint(4, 6), choose.randint(3, 4), 2
        case "split" | "one-shot split":
            cohort, floor, rounds = 12, 3, 2
        case "frozen":
            cohort, floor, rounds = choose.randint(4, 6), choose.randint(2, 3), choose.choice([2, 3])
        case "groups":
            cohort, floor, rounds = choose.randint(2, 3), 2, 2
        case "plain":
            cohort = choose.randint(2, 5)
            floor, rounds = choose.randint(2, cohort), choose.choice([1, 1, 2])
    return Plan(seed, job, cohort, floor, rounds, batch=choose.randint(1, 4), processes=choose.choice([1, 1, 2]))
