"""The forms that create a task and an invitation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from pydantic import ValidationError

from aggregator_service.dashboard.access import HOME, ActorOf, PosterOf
from aggregator_service.dashboard.choices import (
    field_groups,
    mechanism_texts,
    recipe_texts,
    requested_task,
    require_choice,
)
from aggregator_service.dashboard.pages import PageRoute, page, redirect
from aggregator_service.dashboard.screens import task_of
from aggregator_service.dashboard.sign_ins import Visitor
from aggregator_service.problems import Problem
from aggregator_service.routes.common import TaskId
from aggregator_service.services import Services, ServicesOf
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.committee import committee_size
from aggregator_service.tasks.starts import check_start
from aggregator_service.tasks.tasks import create_invitation, create_task, plan_request
from protocols.errors import HushRecError, ParameterError
from protocols.messages import InvitationRequest
from protocols.parameter_text.first_fault import first_fault

__all__ = ["router"]

router = APIRouter(prefix=HOME, route_class=PageRoute, include_in_schema=False)

_HOUR: Final = 3600.0
_ROLE_TEXTS: Final = {
    "member": "takes part in rounds",
    "holder": "creates the task's keys; a task has one",
    "committee": "takes the masks off the sums",
}
Chosen = Annotated[str, Query(max_length=40)]


async def _submitted(request: Request) -> dict[str, str]:
    """Return the text fields of the form that was sent."""
    return {name: value for name, value in (await request.form()).items() if isinstance(value, str)}


Submitted = Annotated[dict[str, str], Depends(_submitted)]


# --- a new task ------------------------------------------------------------------------------------------------------


@router.get("/new")
def new_task(
    services: ServicesOf, request: Request, visitor: ActorOf, recipe: Chosen = "", mechanism: Chosen = ""
) -> Response:
    """Show the choice of recipe and mechanism; with both chosen, the form with their parameters."""
    wrong = ""
    if recipe or mechanism:
        try:
            require_choice(recipe, mechanism)
            return _task_form(services, request, visitor, {"recipe": recipe, "mechanism": mechanism})
        except ParameterError as error:
            wrong = str(error)
    texts = {"recipes": recipe_texts(), "mechanisms": mechanism_texts(), "recipe": recipe, "mechanism": mechanism}
    return page(request, "new", services.clock.now(), visitor, 422 if wrong else 200, wrong=wrong, **texts)


@router.post("/new")
def create(
    services: ServicesOf, request: Request, _poster: PosterOf, visitor: ActorOf, submitted: Submitted
) -> Response:
    """Create the task and open its page, or show the form again with what is wrong."""
    try:
        wanted = requested_task(submitted)
        check_start(wanted)
        plan = plan_request(wanted)
        with services.database.write() as session:
            task_id = create_task(session, wanted, plan, services.clock.now()).id
    except (HushRecError, Problem) as error:
        wrong = error.detail if isinstance(error, Problem) else str(error)
        return _task_form(services, request, visitor, submitted, wrong)
    return redirect(request, f"/tasks/{task_id}")


def _task_form(
    services: Services, request: Request, visitor: Visitor, values: Mapping[str, str], wrong: str = ""
) -> Response:
    recipe, mechanism = values.get("recipe", ""), values.get("mechanism", "")
    require_choice(recipe, mechanism)
    groups = field_groups(recipe, mechanism)
    facts = {
        "recipe": recipe,
        "mechanism": mechanism,
        "groups": groups,
        "opened": {one.title for one in groups if any(values.get(f"{one.prefix}.{row.name}") for row in one.rows)},
        "values": values,
        "wrong": wrong,
    }
    return page(request, "new_task", services.clock.now(), visitor, 422 if wrong else 200, **facts)


# --- an invitation ---------------------------------------------------------------------------------------------------


@router.get("/tasks/{task}/invite")
def invite_page(services: ServicesOf, request: Request, visitor: ActorOf, task: TaskId) -> Response:
    """Show the form for an invitation."""
    with services.database.read() as session:
        return _invitation_form(services, request, visitor, task_of(session, task))


@router.post("/tasks/{task}/invite")
def invite(
    services: ServicesOf,
    request: Request,
    _poster: PosterOf,
    visitor: ActorOf,
    task: TaskId,
    role: Annotated[str, Form(max_length=20)] = "",
    uses: Annotated[str, Form(max_length=20)] = "",
    hours: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    """Create an invitation and show it once, or show the form again with what is wrong."""
    with services.database.write() as session:
        row = task_of(session, task)
        try:
            made = create_invitation(session, row, _invitation(role, uses, hours), services.clock.now())
        except ParameterError as error:
            return _invitation_form(services, request, visitor, row, str(error))
    return page(
        request, "invited", services.clock.now(), visitor, task=row, made=made, address=_address(services, request)
    )


def _invitation(role: str, uses: str, hours: str) -> InvitationRequest:
    """Return the request for an invitation. Raises: `ParameterError`, which names the field."""
    try:
        seconds = float(hours) * _HOUR
        return InvitationRequest.model_validate({"role": role, "uses": int(uses), "expires_seconds": seconds})
    except ValidationError as error:
        raise ParameterError(first_fault(error).replace("expires_seconds: ", "hours, in seconds: ")) from None
    except (ValueError, OverflowError):
        raise ParameterError("enter a whole number of clients and a number of hours") from None


def _invitation_form(
    services: Services, request: Request, visitor: Visitor, task: TaskRow, wrong: str = ""
) -> Response:
    roles = ["member", *(["holder"] if task.needs_keyring else []), *(["committee"] if committee_size(task) else [])]
    if task.state != "open":
        raise Problem("conflict", "the task is over: no client can enrol any more")
    facts: dict[str, Any] = {"task": task, "roles": {role: _ROLE_TEXTS[role] for role in roles}, "wrong": wrong}
    return page(request, "invite", services.clock.now(), visitor, 422 if wrong else 200, **facts)


def _address(services: Services, request: Request) -> str:
    """Return the address for clients: the first public origin, or the one at which the browser reached the server."""
    origins = services.settings.public_origins
    return (origins[0] if origins else str(request.base_url).rstrip("/")) + services.settings.root_path
