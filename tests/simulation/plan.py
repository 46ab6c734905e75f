"""Seeded plans of a simulated job: what is summed, who falls silent when, and which faults strike where."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, get_args

__all__ = ["FAULTS", "FaultKind", "Part", "Plan", "Strike", "draw_plan"]

Part = Literal["advertise", "share", "contribute", "confirm", "unmask"]

FaultKind = Literal[
    # to the n-th message that clients send
    "drop",
    "answer lost",
    "delay",
    "duplicate",
    "reorder",
    "cut",
    "altered byte",
    # at the n-th point at which a process touches storage or gives way
    "crash",
    "crash of all",
    "database gone",
    "commit unanswered",
    "disk full",
    "torn blob",
    "store gone",
    "blob corrupted",
]
FAULTS: Final[tuple[FaultKind, ...]] = get_args(FaultKind)
_ON_MESSAGES: Final = FAULTS[: FAULTS.index("crash")]
_AT_POINTS: Final = FAULTS[FAULTS.index("crash") :]
_LONGEST: Final = 40


@dataclass(frozen=True)
class Strike:
    """One fault. `at`: the message's number, or that of the point. `size`: of seconds, points or bytes, as it needs."""

    kind: FaultKind
    at: int
    size: int

    @property
    def on_message(self) -> bool:
        return self.kind in _ON_MESSAGES

    def __str__(self) -> str:
        return f"{'message' if self.on_message else 'point'} {self.at}: {self.kind} ({self.size})"


@dataclass(frozen=True)
class Plan:
    """A job and its faults. `mode`: of a masked job; None: a plain one. `processes`: servers over one storage.

    `silent`: the part from which on a client is not heard in a round, by (round, client).
    """

    seed: int
    mode: str | None
    members: int
    cohort: int
    floor: int
    rounds: int
    batch: int
    processes: int
    silent: Mapping[tuple[int, int], Part]
    strikes: tuple[Strike, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """What a client does in a round, in order."""
        if self.mode is None:
            return ("contribute",)
        if self.mode == "curious":
            return ("advertise", "share", "contribute", "unmask")
        return ("advertise", "share", "contribute", "confirm", "unmask")

    def lines(self) -> Iterator[str]:
        """The schedule for people."""
        yield (
            f"seed {self.seed}: {self.mode or 'plain'}, {self.members} members, cohorts of {self.cohort}, floor "
            f"{self.floor}, {self.rounds} rounds, batches of {self.batch}, {self.processes} processes"
        )
        for (number, client), part in sorted(self.silent.items()):
            yield f"  round {number}: client {client} is silent from {part!r} on"
        yield from (f"  {strike}" for strike in self.strikes)


def draw_plan(seed: int) -> Plan:
    """The plan of a seed; the same one always. Every fifth is masked, every eighth without faults."""
    choose = random.Random(seed)
    mode = (choose.choice(["curious", "semi-malicious"])) if seed % 5 == 4 else None
    cohort = choose.randint(4, 6) if mode else choose.randint(2, 5)
    plan = Plan(
        seed=seed,
        mode=mode,
        members=6,
        cohort=cohort,
        floor=choose.randint(3, 4) if mode else choose.randint(2, cohort),
        rounds=1 if mode else choose.choice([1, 1, 2]),
        batch=choose.randint(1, 4),
        processes=choose.choice([1, 1, 2]),
        silent={},
        strikes=(),
    )
    often = choose.choice([0.0, 0.1, 0.3])
    silent = {
        (number, client): choose.choice(plan.parts)
        for number in range(1, plan.rounds + 4)
        for client in range(plan.members)
        if choose.random() < often
    }
    strikes = () if seed % 8 == 7 else tuple(islice(_strikes(choose, plan), choose.randint(1, 10)))
    return Plan(
        **{**vars(plan), "silent": silent, "strikes": tuple(sorted(strikes, key=lambda one: (one.at, one.kind)))}
    )


def _strikes(choose: random.Random, plan: Plan) -> Iterator[Strike]:
    messages, points = plan.rounds * plan.cohort * len(plan.parts) + 4, 90 * plan.rounds * len(plan.parts)
    while True:
        if choose.random() < 0.5:
            yield Strike(choose.choice(_ON_MESSAGES), choose.randrange(messages), choose.randint(1, 120))
        else:
            yield Strike(choose.choice(_AT_POINTS), choose.randrange(points), choose.randint(1, _LONGEST))
