"""Plans of simulated tasks, drawn from a seed: what is summed, which clients drop out when, and which faults happen."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from tests.simulation.faults import Fault, draw_faults

__all__ = ["MEMBERS", "Job", "Part", "Plan", "draw_plan"]

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
