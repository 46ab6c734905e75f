"""The simulated task in the database: created at the beginning, read by clients after each commit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from aggregator_service.access.principals import hash_token
from aggregator_service.storage.rounds import cohort_clients, last_round
from aggregator_service.storage.schema import ClientRow, RoundRow, TaskRow
from aggregator_service.tasks.members import able_members
from aggregator_service.tasks.plans import plan_task, row_terms
from aggregator_service.tasks.tasks import create_invitation, create_task, plan_request
from protocols.codec import b64encode
from protocols.messages import InvitationRequest, TaskRequest
from tests.simulation.clients import PLACES, Client
from tests.simulation.plan import MEMBERS, Job, Plan
from tests.simulation.storage import Disk

__all__ = ["GROUPS", "STAGE_SECONDS", "View", "create_job", "device_group_of", "read_view"]

STAGE_SECONDS: Final = 100.0
GROUPS: Final = 2
_RECIPES: Final[dict[Job, dict[str, Any]]] = {
    "frozen": {"name": "privirec-k", "parameters": {"items": PLACES, "components": 1, "iterations": 2}},
    "groups": {"name": "fair", "parameters": {"items": PLACES, "dim": 1, "clip": 50.0, "capacities": [0, 1]}},
}
_PLAIN: Final[dict[str, Any]] = {"name": "fedmf", "parameters": {"items": 3, "dim": 4, "clip": 5000.0}}


@dataclass(frozen=True)
class View:
    """What clients see of the task. stuck: it is open, but has too few members for another round."""

    task: TaskRow
    round: RoundRow | None
    asked: frozenset[str]


def device_group_of(plan: Plan, index: int) -> int:
    """Return the device group of a client."""
    return index % GROUPS if plan.job == "groups" else 0


def create_job(plan: Plan, disk: Disk, now: float, clients: Sequence[Client]) -> tuple[str, str]:
    """Create a task with its first members; return its id and an invitation for others."""
    masked = {"mode": plan.job, "corrupt": 0.0, "dropout": 0.25}
    request = {
        "name": "simulated",
        "recipe": _RECIPES.get(plan.job, _PLAIN),
        "mechanism": {"name": "masked", "parameters": masked} if plan.masked else {"name": "plain"},
        "schedule": {
            "rounds": plan.rounds,
            "cohort_size": plan.cohort,
            "min_clients": plan.floor,
            "collect_seconds": STAGE_SECONDS,
            "stage_seconds": STAGE_SECONDS,
            "max_failed_rounds": 3,
        },
        "seed": b64encode(random.Random(plan.seed).randbytes(32)),
    }
    asked = TaskRequest.model_validate(request)
    with disk.database.write() as session:
        task = create_task(session, asked, plan_request(asked), now)
        for client in clients[:MEMBERS]:
            client.id, client.token = f"c_{client.index:02}", f"token-{client.index}"
            session.add(_member(client, task.id, device_group_of(plan, client.index)))
        many = InvitationRequest(uses=100, role="member", expires_seconds=86_400.0 * 30)
        return task.id, create_invitation(session, task, many, now).invitation


def _member(client: Client, task_id: str, device_group: int) -> ClientRow:
    return ClientRow(
        id=client.id,
        task_id=task_id,
        sequence=client.index + 1,
        role="member",
        device_group=device_group,
        identity_key=client.identity.public_key().public_bytes_raw(),
        mailbox_key=client.mailbox.public_key().public_bytes_raw(),
        token_hash=hash_token(client.token),
        enrolled_at=0.0,
        turn=client.index,
    )


def read_view(disk: Disk, task_id: str) -> View:
    """Read the task from the database."""
    with disk.database.read() as session:
        newest = last_round(session, task_id)
        asked = frozenset(cohort_clients(session, newest.id)) if newest is not None else frozenset[str]()
        return View(session.get_one(TaskRow, task_id), newest, asked)


def has_members(disk: Disk, view: View, floor: int) -> bool:
    """Whether each group has enough members for a sum."""
    with disk.database.read() as session:
        device_groups = plan_task(row_terms(view.task)).recipe.device_groups
        return min(able_members(session, view.task, device_groups)) >= floor
