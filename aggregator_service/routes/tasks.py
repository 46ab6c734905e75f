"""Tasks: create, list, show, close, resume."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response
from sqlalchemy.orm import Session

from aggregator_service.access.principals import existing_task, task_of
from aggregator_service.http.authentication import OperatorIs, OperatorOnly, PrincipalOf, ReaderOnly
from aggregator_service.http.fields import TAGGED, TaggedJson
from aggregator_service.rounds.interventions import resume_task
from aggregator_service.rounds.transactions import close_task
from aggregator_service.routes.bodies import api_router
from aggregator_service.routes.common import IfNoneMatch, TaskId, guarded
from aggregator_service.services import ServicesOf
from aggregator_service.tasks.plans import row_terms
from aggregator_service.tasks.starts import check_start
from aggregator_service.tasks.tasks import create_task, list_tasks, plan_request, sum_view, task_view
from protocols.messages import SumView, TaskPage, TaskRequest, TaskView

__all__ = ["router"]

router = api_router("/v1/tasks", tag="tasks")

SumIndex = Annotated[int, Path(description="Index of the sum.", ge=1, le=1_000_000, examples=[1])]


@router.post(
    "",
    status_code=201,
    summary="Create a task",
    dependencies=[OperatorOnly],
    responses=guarded("bad-request", "conflict", "body-too-long", "upload-timeout"),
)
def create(services: ServicesOf, request: TaskRequest) -> TaskView:
    """Create a task with a recipe, a mechanism and a schedule; 422 with the reason if they cannot work together."""
    check_start(request)
    plan = plan_request(request)
    now = services.clock.now()

    def write(session: Session) -> TaskView:
        return task_view(session, create_task(session, request, plan, now), services.settings.signatures, now)

    return services.database.transact(write)


@router.get("", summary="List tasks", dependencies=[ReaderOnly], responses=guarded())
def list_all(
    services: ServicesOf,
    name: Annotated[str | None, Query(description="Return only the task with this name.", max_length=63)] = None,
) -> TaskPage:
    """Return all tasks, newest first."""
    signatures, now = services.settings.signatures, services.clock.now()
    with services.database.read() as session:
        return TaskPage(tasks=[task_view(session, task, signatures, now) for task in list_tasks(session, name)])


@router.get("/{task}", summary="Show a task", response_model=TaskView, responses={**TAGGED, **guarded()})
def show(services: ServicesOf, principal: PrincipalOf, task: TaskId, if_none_match: IfNoneMatch = None) -> Response:
    """Return a task as operators and its members see it."""
    with services.database.read() as session:
        found = task_of(session, principal, task)
        view = task_view(session, found, services.settings.signatures, services.clock.now())
    return TaggedJson(view.model_dump_json().encode()).response(if_none_match)


@router.get("/{task}/sums/{number}", summary="Show a sum", responses=guarded())
def show_sum(services: ServicesOf, principal: PrincipalOf, task: TaskId, number: SumIndex) -> SumView:
    """Return layout and plan of one of the task's sums, from 1; a round's `step` says which sum it computes."""
    with services.database.read() as session:
        terms = row_terms(task_of(session, principal, task))
    return sum_view(terms, number)


@router.post("/{task}/close", summary="Close a task", dependencies=[OperatorOnly], responses=guarded())
def close(services: ServicesOf, task: TaskId) -> TaskView:
    """End a task for good. An active round fails and its contributions are deleted. Idempotent."""

    def write(session: Session) -> TaskView:
        row = existing_task(session, task)
        close_task(session, row, services.clock.now())
        return task_view(session, row, services.settings.signatures, services.clock.now())

    return services.database.transact(write)


@router.post("/{task}/resume", summary="Resume a failed task", responses=guarded("conflict"))
def resume(services: ServicesOf, operator: OperatorIs, task: TaskId) -> TaskView:
    """Open a failed task again: its next round computes the sum at which it failed. Idempotent.

    409 if the task is complete or closed. Clients that left it when it failed have to be started again.
    """

    def write(session: Session) -> TaskView:
        row = resume_task(session, task, operator.name)
        return task_view(session, row, services.settings.signatures, services.clock.now())

    return services.database.transact(write)
