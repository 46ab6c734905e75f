"""The routes of the dashboard and of the front page `/`. The OpenAPI document, for programs, leaves them out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from aggregator_service.dashboard.access import (
    HOME,
    EditorActorOf,
    EditorOf,
    SenderActorOf,
    SenderOf,
    VisitorOf,
    begin_sign_in,
    cookie,
    end_sign_in,
    refuse_foreign,
)
from aggregator_service.dashboard.live import (
    Screen,
    health_screen,
    live,
    round_screen,
    tally_of,
    task_of,
    task_screen,
    tasks_screen,
)
from aggregator_service.dashboard.pages import PageRoute, asset, page, redirect
from aggregator_service.dashboard.people_pages import confirmation
from aggregator_service.dashboard.words import span
from aggregator_service.observability.requests import client_address
from aggregator_service.problems import Problem
from aggregator_service.rounds.interventions import (
    abort_round,
    close_task,
    extend_round,
    refuse_abort,
    refuse_extension,
    refuse_resumption,
    resume_task,
)
from aggregator_service.routes.common import CheckedRoute, RoundNumber, TaskId
from aggregator_service.services import Services, ServicesOf
from aggregator_service.tasks.deletion import delete_task
from protocols.messages.rounds import LONGEST_STAGE

router = APIRouter(prefix=HOME, route_class=PageRoute, include_in_schema=False)
front_router = APIRouter(include_in_schema=False, route_class=CheckedRoute)

_PAGE_PATH: Final = re.compile(r"^/[A-Za-z0-9_/-]{0,120}$")


@front_router.get("/")
def front(request: Request) -> Response:
    """Return a page where the request accepts HTML, otherwise JSON with the paths of the API and the dashboard."""
    prefix = str(request.scope.get("root_path", ""))
    paths = {"openapi": f"{prefix}/openapi.json", "dashboard": f"{prefix}/dashboard", "health": f"{prefix}/healthz"}
    answer: Response = JSONResponse({"service": "hushrec aggregator", **paths})
    if "text/html" in request.headers.get("accept", ""):
        answer = page(request, "front", prefix=prefix)
    answer.headers["Vary"] = "Accept"
    return answer


# --- signing in and out ----------------------------------------------------------------------------------------------


@router.get("/sign-in")
def sign_in_page(request: Request, next: str = "") -> Response:
    """Show the sign-in form. next: the page to open after sign-in."""
    return page(request, "sign_in", next=_safe_return_path(next), failed=False)


@router.post("/sign-in")
def sign_in(
    services: ServicesOf,
    request: Request,
    token: Annotated[str, Form(max_length=400)] = "",
    next: Annotated[str, Form(max_length=400)] = "",
) -> Response:
    """Check the operator token and set the session cookie; the token is not stored."""
    refuse_foreign(request)
    address = client_address(request.scope)
    secret = begin_sign_in(services, token.strip(), address)
    if secret is None:
        services.limits.failure(address)
        return page(request, "sign_in", 401, next=_safe_return_path(next), failed=True)
    answer = redirect(request, _safe_return_path(next))
    answer.set_cookie(value=secret, max_age=int(services.settings.tuning.sign_in_seconds), **cookie(request))
    return answer


def _safe_return_path(asked: str) -> str:
    """Return the path to open after sign-in: `asked` if it is a page of the dashboard, otherwise ""."""
    return asked if _PAGE_PATH.match(asked) and not asked.startswith(("//", "/sign-")) else ""


@router.post("/sign-out")
def sign_out(services: ServicesOf, request: Request, visitor: SenderOf, actor: SenderActorOf) -> Response:
    """End the sign-in and the live updates of all its windows."""
    end_sign_in(services.database, visitor, actor)
    answer = redirect(request, "/sign-in")
    answer.delete_cookie(**cookie(request))
    return answer


# --- pages with live parts -------------------------------------------------------------------------------------------


def _add_screen(path: str, screen_of: Callable[..., Screen]) -> None:
    """Add the routes of a page and of its live updates. screen_of: a dependency that takes their parameters."""
    wanted = Depends(screen_of)

    @router.get(path)
    def show(services: ServicesOf, request: Request, visitor: VisitorOf, screen: Screen = wanted) -> Response:
        return screen.response(request, services, visitor)

    @router.get(f"{path}/live")
    def stream(services: ServicesOf, request: Request, visitor: VisitorOf, screen: Screen = wanted) -> Response:
        return live(request, services, request.app.state.live_streams, visitor, screen)


_add_screen("", tasks_screen)
_add_screen("/tasks/{task}", task_screen)
_add_screen("/tasks/{task}/rounds/{number}", round_screen)
_add_screen("/health", health_screen)


# --- actions ---------------------------------------------------------------------------------------------------------


@router.get("/tasks/{task}/rounds/{number}/extend")
def extend_page(
    services: ServicesOf, request: Request, _editor: EditorOf, task: TaskId, number: RoundNumber
) -> Response:
    """Show the form to extend a round, with the effects."""
    return _confirm(services, request, "extend", task, number)


@router.post("/tasks/{task}/rounds/{number}/extend")
def extend(
    services: ServicesOf,
    request: Request,
    actor: EditorActorOf,
    task: TaskId,
    number: RoundNumber,
    minutes: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    """Extend the round, or show the form again if the input is invalid."""
    try:
        seconds = float(minutes) * 60
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST_STAGE:
        text = f"Enter a number of minutes greater than 0 and at most {LONGEST_STAGE // 60:,}."
        return _confirm(services, request, "extend", task, number, text)
    try:
        services.database.transact(lambda session: extend_round(session, task, number, seconds, actor))
    except Problem as problem:
        if problem.slug != "invalid-parameters":
            raise
        return _confirm(services, request, "extend", task, number, problem.detail)
    return redirect(request, f"/tasks/{task}/rounds/{number}")


@router.get("/tasks/{task}/rounds/{number}/abort")
def abort_page(
    services: ServicesOf, request: Request, _editor: EditorOf, task: TaskId, number: RoundNumber
) -> Response:
    """Show the form to abort a round, with the effects."""
    return _confirm(services, request, "abort", task, number)


@router.post("/tasks/{task}/rounds/{number}/abort")
def abort(services: ServicesOf, request: Request, actor: EditorActorOf, task: TaskId, number: RoundNumber) -> Response:
    """Abort the round and return to its page; 409 if it has ended."""
    services.database.transact(lambda session: abort_round(session, task, number, actor))
    return redirect(request, f"/tasks/{task}/rounds/{number}")


@router.get("/tasks/{task}/resume")
def resume_page(services: ServicesOf, request: Request, _editor: EditorOf, task: TaskId) -> Response:
    """Show the form to resume a failed task, with the effects."""
    with services.database.read() as session:
        found = task_of(session, task)
    refuse_resumption(found)
    return page(request, "resume", task=found)


@router.post("/tasks/{task}/resume")
def resume(services: ServicesOf, request: Request, actor: EditorActorOf, task: TaskId) -> Response:
    """Resume the task and return to its page; 409 if it has not failed."""
    services.database.transact(lambda session: resume_task(session, task, actor))
    return redirect(request, f"/tasks/{task}")


_ENDINGS: Final = {
    "close": (
        "Close",
        (
            "The task ends for good: no round opens any more, and nobody can enrol.",
            "An active round fails, and what clients sent in it is deleted.",
            "The model, the sums and the members stay, until the task is deleted.",
        ),
    ),
    "delete": (
        "Delete",
        (
            "The model, all sums, rounds and members of the task are deleted.",
            "Digests stay: of the ledger of released sums and, with a data set label, of whose data they counted.",
            "Members keep the model that they have.",
        ),
    ),
}
Ending = Literal["close", "delete"]


@router.get("/tasks/{task}/end/{ending}")
def end_page(services: ServicesOf, request: Request, _editor: EditorOf, task: TaskId, ending: Ending) -> Response:
    """Show what closing or deleting a task does."""
    with services.database.read() as session:
        found = task_of(session, task)
    if ending == "delete" and found.state == "open":
        raise Problem("conflict", "The task is open: close it first.")
    if ending == "close" and found.state in ("closed", "complete"):
        raise Problem("conflict", f"The task is {found.state}: it has ended.")
    verb, effects = _ENDINGS[ending]
    return confirmation(
        request, f"{verb} {found.name}", effects, f"/tasks/{task}/end/{ending}", [(found.name, f"/tasks/{task}")]
    )


@router.post("/tasks/{task}/end/{ending}")
def end(services: ServicesOf, request: Request, actor: EditorActorOf, task: TaskId, ending: Ending) -> Response:
    """Close or delete a task."""

    def work(session: Session) -> None:
        found = task_of(session, task)
        if ending == "close":
            close_task(session, found, actor)
        else:
            delete_task(session, found, actor)

    services.database.transact(work)
    return redirect(request, f"/tasks/{task}" if ending == "close" else "")


def _confirm(services: Services, request: Request, action: str, task_id: str, number: int, wrong: str = "") -> Response:
    with services.database.read() as session:
        found, tally = task_of(session, task_id), tally_of(session, task_id, number)
    if action == "extend":
        refuse_extension(tally.round, services.clock.now())
    else:
        refuse_abort(tally.round)
    asked = {"task": found, "tally": tally, "wrong": wrong, "longest": span(LONGEST_STAGE)}
    return page(request, action, 422 if wrong else 200, **asked)


# --- static files, 404 ------------------------------------------------------------------------------------------------


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Serve a static file. Its address contains a hash of the content, so browsers can cache it indefinitely."""
    try:
        body, kind, version = asset(name)
    except KeyError:
        raise Problem("not-found", "No such file.") from None
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "ETag": f'"{version}"'}
    return Response(body, media_type=kind, headers=headers)


@router.get("/{rest:path}")
def not_found(request: Request, _visitor: VisitorOf, rest: str) -> Response:
    """Answer all other paths with 404."""
    if not rest:
        return redirect(request, "")
    raise Problem("not-found", "Check the address, or find the task in the list.")
