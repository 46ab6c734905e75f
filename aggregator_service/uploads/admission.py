"""Admission: which client may contribute to which round, and how many bytes it must send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.concurrency import run_in_threadpool

from aggregator_service.access.principals import Enrolled, Principal, member_of, task_of
from aggregator_service.problems import Problem
from aggregator_service.services import Services
from aggregator_service.storage.chunks import upload_progress
from aggregator_service.storage.file_maps import forget_pages
from aggregator_service.storage.rounds import find_contribution, find_round, in_cohort
from aggregator_service.storage.schema import ContributionRow, RoundRow
from aggregator_service.storage.stages import prerequisite, takes_part
from aggregator_service.tasks.plans import TaskPlan, plan_round, round_spec
from protocols.codec import exact
from protocols.layout import Route
from protocols.sums.base import ChecksByParts

__all__ = ["Admission", "admit", "admit_cached"]

_PART: Final = 4 * 1024 * 1024
"""Bytes of a long contribution that are checked at a time: a body that is mapped from its file takes no more memory."""


@dataclass
class Admission:
    """A client that may contribute to a round.

    length: exact bytes of its upload. stored: the contribution that is stored already, if any. status: bytes
    stored of an upload in chunks, and the number of chunks. attestation: see `ContributionRow`; the route sets it.
    """

    round: RoundRow
    client: Enrolled
    plan: TaskPlan
    route: Route
    length: int
    stored: ContributionRow | None
    status: tuple[int, int] = (0, 0)
    attestation: str | None = None

    def check(self, body: memoryview) -> None:
        """Raise `ContributionError` when the bytes must not enter the sum; body: the whole upload."""
        how, plan, contribution = self.plan.mechanism, self.plan.sum_plan, body[self.plan.ticket_bytes :]
        if len(contribution) <= _PART or plan.layout.chosen or not isinstance(how, ChecksByParts):
            how.check(plan, self.route, contribution)
            return
        exact(contribution, plan.contribution_bytes(self.route), "a contribution along this route")
        for start in range(0, len(contribution), _PART):
            how.check_part(plan, self.route, start, contribution[start : start + _PART])
            forget_pages(body)

    def refuse_late(self, now: float) -> None:
        """Raise `Problem` round-closed (409) unless the round takes contributions at `now`."""
        if self.round.state != "collecting" or now >= self.round.deadline:
            raise Problem("round-closed", f"the round is {self.round.state}: it takes no contributions now")


def admit(
    services: Services, principal: Principal, task_id: str, number: int, client_id: str, *, resumable: bool = False
) -> Admission:
    """Admit a client to round `number`, whatever state the round is in.

    resumable: also read the progress of an upload in chunks.

    Raises `Problem`: 403 for another client, 403 not-in-cohort for a client outside the cohort or, in a masked round,
    without shared keys, 404 for an unknown task or round.
    """
    client = member_of(principal, task_id, client_id)
    with services.database.read() as session:
        task = task_of(session, principal, task_id)
        round_ = find_round(session, task_id, number)
        if round_ is None:
            raise Problem("not-found", "there is no such round")
        if not in_cohort(session, round_.id, client.client_id):
            raise Problem("not-in-cohort", "this client is not in the cohort of this round")
        before = prerequisite(round_) if round_.state == "collecting" else None
        if before is not None and not takes_part(session, round_.id, before, client.client_id):
            raise Problem("not-in-cohort", "this client shared no keys in this round, so it has left the round")
        plan = plan_round(task, round_)
        route = plan.route(round_spec(round_), client.client_id)
        return Admission(
            round=round_,
            client=client,
            plan=plan,
            route=route,
            length=plan.upload_bytes(route),
            stored=find_contribution(session, round_.id, client.client_id),
            status=upload_progress(session, round_.id, client.client_id) if resumable else (0, 0),
        )


async def admit_cached(
    services: Services, principal: Principal, task_id: str, number: int, client_id: str
) -> Admission:
    """Admit a client as `admit` does, from the task cache when that shows that the round waits for its contribution.

    The cache may be out of date: the insert checks the round again.
    """
    client = member_of(principal, task_id, client_id)
    cached_round = await services.task_cache.current_round(task_id)
    awaited = None if cached_round is None else cached_round.awaited_contribution(number, client_id)
    if awaited is None:
        return await run_in_threadpool(admit, services, principal, task_id, number, client_id)
    return Admission(awaited.round, client, awaited.plan, awaited.route, awaited.length, stored=None)
