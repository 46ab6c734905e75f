"""The invariants of every schedule, whatever fails, checked at each release and at the end:

1. The released sum is exactly the sum of the survivors' contributions, and holds none of a client that lies about its
   values. With groups that holds for each sum, but for one with a liar: it is left out where it is beyond all bounds,
   and else no row of what is used is farther from the median of all groups than its limit. (All are whole numbers
   below 2^24, so that float32, float64 and the masked ring hold each sum exactly.)
2. No contribution counts twice.
3. No sum over fewer than `min_clients` clients is released, nor that of a group.
4. Every acknowledged contribution is in the sum, or its loss is reported: the round has failed with a reason. But that
   of a client whose shares too few of the committee of a one-shot round can open is in none.

Without the following, these would mean little:

5. A released sum never changes, and neither does a finished round.
6. Once the faults are over, the task ends: no round waits forever.
7. After a restart nothing is stored that no row names: no body, no blob.
8. No fault causes an unexpected error, and no round fails for damaged storage unless a stored byte was flipped.
9. Sums over the same data (a frozen cohort) are over the same clients, or over sets that differ by the floor or more.
10. No revoked client is asked, nor one of another device group; one identity is one member.
11. Neither clients that vanish before they unmask nor shares that do not open end a task. It fails only after
    `max_failed_rounds` rounds before their survivors were fixed, or if nobody opened any of its sums; a frozen cohort
    also if it gets too small.
12. Every party that a one-shot round awaits is shown the committee's keys, the same as all others.

The clients in a sum are read from the sum itself (`clients.vector`), not from the rows of the service.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from aggregator_service.storage.round_rows import has_fixed_survivors, list_rounds
from aggregator_service.storage.schema import ClientRow, RoundRow, TaskRow
from aggregator_service.tasks.plans import plan_round
from protocols.sums.base import SumPlan
from protocols.sums.group_sums import GroupSums
from protocols.sums.masked.plan import MASKED, MaskedPlan
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.plan import OneshotPlan
from tests.simulation.clients import View, device_group_of, vector
from tests.simulation.machine import Disk
from tests.simulation.plan import BEYOND, PLACES, Plan


@dataclass
class Ledger:
    """What clients and operators know: who sent a whole contribution, who got a receipt, what was released."""

    plan: Plan
    disk: Disk
    damaged: set[str] = field(default_factory=set)
    sent: set[tuple[int, int]] = field(default_factory=set)
    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    released: dict[int, tuple[frozenset[int], str] | None] = field(default_factory=dict)
    shown: dict[int, str | None] = field(default_factory=dict)
    """The committee's keys by round, as the first party saw them."""
    ended: dict[int, str] = field(default_factory=dict)
    revoked: dict[str, int] = field(default_factory=dict)
    """Revoked clients, and the number of the newest round at that time."""
    violations: list[str] = field(default_factory=list)

    def check_releases(self, task_id: str) -> None:
        for task, row in self._rounds(task_id):
            before = self.ended.get(row.number)
            if before is not None and before != row.state:
                self._broken(5, row, f"was {before} and is {row.state} now")
            if row.state in ("complete", "failed"):
                self.ended[row.number] = row.state
            if row.aggregate_key is not None and row.number not in self.released:
                self._check_release(task, row)

    def _check_release(self, task: TaskRow, row: RoundRow) -> None:
        sums, digest = self._opened(task, row)
        if digest != row.aggregate_digest:
            if row.aggregate_key not in self.damaged:
                self._broken(1, row, "the stored aggregate is not the computed one")
            self.released[row.number] = None  # it was damaged before the commit: a request for it gets an error
            return
        inside = [self._check_sum(task, row, total, count) for total, count in sums if total is not None]
        survivors = frozenset[int]().union(*inside)
        self.released[row.number] = (survivors, digest)
        if sum(map(len, inside)) > len(survivors):
            self._broken(2, row, f"contributions counted in two of {inside}")
        spoilt = [count for total, count in sums if total is None]
        liar = self.plan.lying.get(row.number)
        if spoilt and (len(spoilt) > 1 or (row.number, liar) not in self.sent or liar in survivors):
            self._broken(1, row, f"sums of {spoilt} clients are left out, and client {liar} lies")
        if row.survivors != len(survivors) + sum(spoilt) or min(count for _, count in sums) < self.plan.floor:
            counts = [count for _, count in sums]
            self._broken(3, row, f"{counts} in the sums, {row.survivors} stated, the floor is {self.plan.floor}")

        self._check_used(task, row)
        self._check_apart(task, row, survivors)

    def _check_used(self, task: TaskRow, row: RoundRow) -> None:
        """Check what the rule makes of the sums of groups: no row of the mean is beyond its limit, whoever lies."""
        plan = plan_round(task, row).sum_plan
        if plan.groups == 1:
            return
        found = self._groups(plan, row)
        means = [total / count for total, count in zip(found.sums, found.clients, strict=True) if total is not None]
        centre, start = np.median(means, axis=0), 0
        for used in found.used.values():
            part = slice(start, start := start + used.total.size)
            off = (used.total / sum(found.clients) - centre[part]).reshape(used.limits.size, -1)
            if len(means) > 2 and (np.linalg.norm(off, axis=1) > used.limits * (1.0 + 1e-6) + 1e-9).any():
                self._broken(1, row, f"the used mean is {off} from the median, the limits are {used.limits}")

    def _check_sum(self, task: TaskRow, row: RoundRow, total: NDArray[np.float64], count: int) -> frozenset[int]:
        """Check one sum that was released, of `count` clients, and return who is in it."""
        times = [round(value) for value in total[:PLACES]]
        survivors = frozenset(index for index, often in enumerate(times) if often)
        if max(times) > 1:
            self._broken(2, row, f"contributions counted {times} times")
        of_it = [vector(plan_round(task, row).sum_plan.layout, row.number, index) for index in sorted(survivors)]
        expected = np.sum(of_it, axis=0) if of_it else np.zeros(total.size)
        if self.plan.lying.get(row.number) in survivors:
            expected[-1] += self.plan.lies.get(row.number, BEYOND)
        if not of_it or not np.array_equal(total, expected):
            self._broken(1, row, f"the sum {total} is not that of the contributions of {sorted(survivors)}")
        unknown = {index for index in survivors if (row.number, index) not in self.sent}
        if unknown:
            self._broken(1, row, f"clients {sorted(unknown)} are in the sum but sent nothing")
        if len(survivors) != count:
            self._broken(3, row, f"{len(survivors)} in the sum, {count} stated")
        return survivors

    def _check_apart(self, task: TaskRow, row: RoundRow, survivors: frozenset[int]) -> None:
        plan = plan_round(task, row)
        recipe = plan.recipe
        strangers = {
            index for index in survivors if device_group_of(self.plan, index) != recipe.device_group_of(row.sum_index)
        }
        if strangers:
            self._broken(10, row, f"clients {sorted(strangers)} are not of the round's device group")
        if not plan.sum_class.repeated:
            return
        for number, known in self.released.items():
            difference = len(survivors ^ known[0]) if known is not None else 0
            if 0 < difference < self.plan.floor:
                self._broken(9, row, f"differs from the sum of round {number} by {difference} clients")

    def check_shown(self, row: RoundRow, keys: str | None) -> None:
        """When a party that the round awaits reads it."""
        if keys is None or self.shown.setdefault(row.number, keys) != keys:
            self._broken(12, row, f"shows {keys} where it showed {self.shown.get(row.number)}")

    def check_asked(self, view: View) -> None:
        """When clients read the round: the cohort consists of members."""
        if view.round is not None:
            out = {client for client in view.asked if self.revoked.get(client, view.round.number) < view.round.number}
            if out:
                self._broken(10, view.round, f"asks {sorted(out)}, whose membership was revoked")

    def check_end(self, task_id: str) -> None:
        """After the end of the task and the clean-up of the storage."""
        self.check_releases(task_id)
        with self.disk.database.read() as session:
            keys = session.scalars(select(ClientRow.identity_key)).all()
        if len(keys) > len(set(keys)):
            self.violations.append("invariant 10: an identity has become several members")
        self._check_failure(task_id)
        for task, row in self._rounds(task_id):
            if row.state not in ("complete", "failed"):
                self._broken(6, row, f"is {row.state} although the task is {task.state}")
            if (row.state == "complete") != (row.number in self.released):
                self._broken(3, row, f"is {row.state} and its sum is {'' if row.aggregate_key else 'not '}there")
            if row.state == "complete":
                self._check_kept(task, row)
            elif not row.failure:
                self._broken(4, row, "failed without a reason")
            elif ("damaged" in row.failure or "missing" in row.failure) and not self.damaged:
                self._broken(8, row, "failed for damaged storage, but nothing was damaged")

    def _check_failure(self, task_id: str) -> None:
        with self.disk.database.read() as session:
            task = session.get_one(TaskRow, task_id)
            rounds = list_rounds(session, task_id, 0, 1000, "failed")
            early = [row for row in rounds if not has_fixed_survivors(session, row)]
        if task.state != "failed" or self.plan.job == "frozen" or task.abandoned_sums == task.schedule["rounds"]:
            return
        if len([row for row in early if row.again is None]) < task.schedule["max_failed_rounds"]:
            self.violations.append(f"invariant 11: the task failed after {len(early)} rounds without fixed survivors")

    def _check_kept(self, task: TaskRow, row: RoundRow) -> None:
        known = self.released.get(row.number)
        if known is None:
            return
        survivors, digest = known
        if survivors & self.plan.unopenable:
            self._broken(4, row, f"clients {sorted(survivors & self.plan.unopenable)} are in a sum that nobody opens")
        lost = {index for number, index in self.acknowledged if number == row.number} - survivors - self.plan.unopenable
        if len(lost) > row.survivors - len(survivors):  # as many are in the sum of a group that is left out
            self._broken(4, row, f"clients {sorted(lost)} have a receipt but are not in the sum")
        if row.aggregate_digest != digest:
            self._broken(5, row, "names another sum than at its release")
        if row.aggregate_key not in self.damaged and self._opened(task, row)[1] != digest:
            self._broken(5, row, "has another sum stored than at its release")

    def _opened(self, task: TaskRow, row: RoundRow) -> tuple[list[tuple[NDArray[np.float64] | None, int]], str]:
        """Return each sum, None for one that is left out, with the number of its clients; and the digest of all."""
        body = (self.disk.blobs.root / str(row.aggregate_key)).read_bytes()
        plan, digest = plan_round(task, row), hashlib.sha256(body).hexdigest()
        if plan.sum_plan.groups > 1:
            found = self._groups(plan.sum_plan, row)
            return list(zip(found.sums, found.clients, strict=True)), digest
        opened = plan.mechanism.open(plan.sum_plan, body, row.survivors, None)
        return [(np.asarray(opened, dtype=np.float64), row.survivors)], digest

    def _groups(self, plan: SumPlan, row: RoundRow) -> GroupSums:
        body = (self.disk.blobs.root / str(row.aggregate_key)).read_bytes()
        if isinstance(plan, OneshotPlan):
            return ONESHOT.open_groups(plan, body, row.survivors)
        return MASKED.open_groups(MaskedPlan.of(plan), body, row.survivors)

    def _rounds(self, task_id: str) -> list[tuple[TaskRow, RoundRow]]:
        with self.disk.database.read() as session:
            task = session.get_one(TaskRow, task_id)
            return [(task, row) for row in list_rounds(session, task_id, 0, 1000, None)]

    def _broken(self, invariant: int, row: RoundRow, what: str) -> None:
        self.violations.append(f"invariant {invariant}: round {row.number}: {what}")
