"""Tasks: made, listed, shown, closed."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from aggregator_service.http.authentication import OperatorOnly, PrincipalOf, ReaderOnly, task_of
from aggregator_service.problems import Problem
from aggregator_service.rounds.transactions import close_task
from aggregator_service.routes.common import TaskId, guarded
from aggregator_service.services import Services, ServicesOf
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.tasks import create_task, list_tasks, plan_request, task_view
from protocols.messages import TaskPage, TaskRequest, TaskView

__all__ = ["router"]

_UNSIGNED: Final = "Requests need no signature here: whoever gets hold of a client's token can act as that client."

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
    plan = plan_request(request)
    with services.database.write() as session:
        return _told(services, session, create_task(session, request, plan, services.clock.now()))


@router.get("", summary="List tasks", dependencies=[ReaderOnly], responses=guarded())
def list_all(
    services: ServicesOf,
    name: Annotated[str | None, Query(description="Only the task of this name.", max_length=63)] = None,
) -> TaskPage:
    """Tasks, newest first."""
    with services.database.read() as session:
        return TaskPage(tasks=[_told(services, session, task) for task in list_tasks(session, name)])


@router.get("/{task}", summary="Show a task", responses=guarded())
def show(services: ServicesOf, principal: PrincipalOf, task: TaskId) -> TaskView:
    """A task as its operators and members see it."""
    with services.database.read() as session:
        return _told(services, session, task_of(session, principal, task))


@router.post("/{task}/close", summary="Close a task", dependencies=[OperatorOnly], responses=guarded())
def close(services: ServicesOf, task: TaskId) -> TaskView:
    """End a task for good; a round under way fails and its contributions are scrubbed. Idempotent."""

    def write(session: Session) -> TaskView:
        row = session.get(TaskRow, task)
        if row is None:
            raise Problem("not-found", "there is no such task")
        close_task(session, row, services.clock.now())
        return _told(services, session, row)

    return services.database.transact(write)


def _told(services: Services, session: Session, task: TaskRow) -> TaskView:
    """A task, with what this server's settings mean for it."""
    view = task_view(session, task)
    if services.settings.signatures == "required":
        return view
    return view.model_copy(update={"warnings": [*view.warnings, _UNSIGNED]})
