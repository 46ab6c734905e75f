"""Tasks and their invitations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from aggregator_service.auth import OperatorOnly, PrincipalOf, ReaderOnly, task_of
from aggregator_service.problems import Problem
from aggregator_service.rounds.operations import close_task
from aggregator_service.routes.common import TaskId, guarded
from aggregator_service.services import ServicesOf
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks import create_invitation, create_task, list_tasks, task_view
from protocols.messages import Invitation, InvitationRequest, TaskPage, TaskRequest, TaskView

__all__ = ["router"]

router = APIRouter(prefix="/v1/tasks", tags=["tasks"])


@router.post(
    "",
    status_code=201,
    summary="Create a task",
    dependencies=[OperatorOnly],
    responses=guarded("bad-request", "conflict", "body-too-long", "upload-timeout"),
)
def create(services: ServicesOf, request: TaskRequest) -> TaskView:
    """Agree on recipe, mechanism and schedule. What cannot work is refused here, with the reason."""
    with services.database.write() as session:
        return task_view(session, create_task(session, request, services.clock.now()))


@router.get("", summary="List tasks", dependencies=[ReaderOnly], responses=guarded())
def list_all(
    services: ServicesOf,
    name: Annotated[str | None, Query(description="Only the task of this name.", max_length=63)] = None,
) -> TaskPage:
    """Tasks, newest first."""
    with services.database.read() as session:
        return TaskPage(tasks=[task_view(session, task) for task in list_tasks(session, name)])


@router.get("/{task}", summary="Show a task", responses=guarded())
def show(services: ServicesOf, principal: PrincipalOf, task: TaskId) -> TaskView:
    """A task as its operators and members see it."""
    with services.database.read() as session:
        return task_view(session, task_of(session, principal, task))


@router.post("/{task}/close", summary="Close a task", dependencies=[OperatorOnly], responses=guarded())
def close(services: ServicesOf, task: TaskId) -> TaskView:
    """End a task for good; a round under way fails and its contributions are scrubbed. Idempotent."""

    def write(session: Session) -> TaskView:
        row = session.get(TaskRow, task)
        if row is None:
            raise Problem("not-found", "there is no such task")
        close_task(session, row)
        return task_view(session, row)

    return services.database.transact(write)


@router.post(
    "/{task}/invitations",
    status_code=201,
    summary="Invite clients",
    dependencies=[OperatorOnly],
    responses=guarded("bad-request", "conflict", "body-too-long", "upload-timeout"),
)
def invite(services: ServicesOf, task: TaskId, request: InvitationRequest) -> Invitation:
    """An invitation for one or many clients. It is shown once; the server keeps a hash."""
    with services.database.write() as session:
        row = session.get(TaskRow, task)
        if row is None:
            raise Problem("not-found", "there is no such task")
        return create_invitation(session, row, request, services.clock.now())
