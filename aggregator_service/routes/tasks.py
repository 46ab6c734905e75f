"""Tasks: create, list, show, close, resume; their privacy budgets, item catalogues and ledgers of released sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from fastapi import Path, Query, Request, Response
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.access.principals import existing_task, task_of
from aggregator_service.http.authentication import ActorOf, MemberOf, PrincipalOf, ReaderOnly
from aggregator_service.problems import Problem
from aggregator_service.rounds.interventions import close_task, resume_task
from aggregator_service.routes.common import (
    TAGGED,
    AnswerOf,
    RawBodyOf,
    TaskId,
    api_router,
    binary_response,
    guarded,
    stored_once,
)
from aggregator_service.services import Services, ServicesOf
from aggregator_service.storage.blobs import new_key
from aggregator_service.storage.data_directory import body_path
from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.creation import add_task
from aggregator_service.tasks.deletion import delete_task
from aggregator_service.tasks.ledger import client_ledger, privacy_view, task_ledger
from aggregator_service.tasks.plans import row_terms
from aggregator_service.tasks.starts import add_catalogue, check_file, check_start, check_upload, task_items
from aggregator_service.tasks.task_views import following_task, list_tasks, plan_request, sum_view, task_view
from aggregator_service.uploads.receive import store_file, stream_body
from protocols.catalogue import MAX_CATALOGUE_BYTES, longest_catalogue
from protocols.messages import DeletedTask, LedgerPage, SumView, TaskPage, TaskRequest, TaskView
from protocols.messages.privacy import PrivacyView

router = api_router("/v1/tasks", tag="tasks")
ledger_router = api_router("/v1/tasks/{task}", tag="ledger")

_LIMIT: Final = 100
After = Annotated[int, Query(description="Return only sums of rounds with a larger number.", ge=0, le=2**31 - 1)]
Limit = Annotated[int, Query(description="Largest number of sums in the page.", ge=1, le=1000)]

SumIndex = Annotated[int, Path(description="Index of the sum.", ge=1, le=1_000_000, examples=[1])]


@router.post(
    "",
    status_code=201,
    summary="Create a task",
    responses=guarded("conflict"),
)
def create(services: ServicesOf, actor: ActorOf, request: TaskRequest) -> TaskView:
    """Create a task with a recipe, a mechanism and a schedule; 422 with the reason if they cannot work together."""
    check_start(request)
    plan = plan_request(request)
    return add_task(services.database, None, request, plan, actor, services.settings.signatures)


def _changed(services: Services, change: Callable[[Session], TaskRow]) -> TaskView:
    """Return the view of the task that `change` returns, both in one transaction."""

    def write(session: Session) -> TaskView:
        return task_view(session, change(session), services.settings.signatures, services.clock.now())

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


@router.get("/{task}", summary="Show a task", response_model=TaskView, responses=TAGGED)
def show(services: ServicesOf, principal: PrincipalOf, task: TaskId, answer: AnswerOf) -> Response:
    """Return a task as operators and its members see it."""
    with services.database.read() as session:
        found = task_of(session, principal, task)
        view = task_view(session, found, services.settings.signatures, services.clock.now())
    return answer.json(view)


@router.get("/{task}/successor", summary="Show the task that follows", responses=guarded())
def show_successor(services: ServicesOf, principal: PrincipalOf, task: TaskId) -> TaskView:
    """Return the last task that follows this one, directly or not: members of this one enrol in it by its id.

    404 while there is none.
    """
    with services.database.read() as session:
        found = following_task(session, task_of(session, principal, task))
        if found is None:
            raise Problem("not-found", "no task follows this one")
        return task_view(session, found, services.settings.signatures, services.clock.now())


@router.get("/{task}/privacy", summary="Show a task's privacy budget", responses=guarded())
def show_privacy(services: ServicesOf, principal: PrincipalOf, task: TaskId) -> PrivacyView:
    """Return what the task's privacy block promises, and how much of it is spent; 404 if the task has none."""
    with services.database.read() as session:
        return privacy_view(session, task_of(session, principal, task))


@router.get("/{task}/sums/{number}", summary="Show a sum", responses=guarded())
def show_sum(services: ServicesOf, principal: PrincipalOf, task: TaskId, number: SumIndex) -> SumView:
    """Return layout and plan of one of the task's sums, from 1; a round's `step` says which sum it computes."""
    with services.database.read() as session:
        terms = row_terms(task_of(session, principal, task))
    return sum_view(terms, number)


@router.post("/{task}/close", summary="Close a task", responses=guarded("conflict"))
def close(services: ServicesOf, actor: ActorOf, task: TaskId) -> TaskView:
    """End a task for good, also one that has failed. An active round fails and its contributions are deleted.

    Idempotent. 409 if the task is complete.
    """
    return _changed(services, lambda session: close_task(session, existing_task(session, task), actor))


@router.post("/{task}/resume", summary="Resume a failed task", responses=guarded("conflict"))
def resume(services: ServicesOf, actor: ActorOf, task: TaskId) -> TaskView:
    """Open a failed task again: its next round computes the sum at which it failed. Idempotent.

    409 if the task is complete or closed. Clients that left it when it failed have to be started again.
    """
    return _changed(services, lambda session: resume_task(session, task, actor))


@router.delete("/{task}", summary="Delete a task", responses=guarded("conflict"))
def delete(services: ServicesOf, actor: ActorOf, task: TaskId) -> DeletedTask:
    """Delete a task that has ended, for good: its model, aggregates, rounds and members. 409 while it is open.

    What later tasks over the same data set are judged by stays, as digests; the answer says what.
    """
    return services.database.transact(lambda session: delete_task(session, existing_task(session, task), actor))


# --- the item catalogue -----------------------------------------------------------------------------------------------

_CATALOGUE: Final = "UTF-8, one line `id TAB title LF` for each item, in order of the item numbers."


@router.put(
    "/{task}/catalogue",
    summary="Upload the item catalogue",
    **stored_once(_CATALOGUE, "Stored.", "The same catalogue was stored before."),
)
async def put_catalogue(
    services: ServicesOf, actor: ActorOf, request: Request, raw: RawBodyOf, task: TaskId
) -> Response:
    """Store the catalogue whose digest the task names, once. Round 1 waits for it, and it never changes.

    422 if it has another digest, or another number of lines than the recipe has items. 409 if the task names none, or
    another one is stored.
    """
    length, digest = raw.announced(most=MAX_CATALOGUE_BYTES)
    items = await run_in_threadpool(_admit_catalogue, services.database, task, digest)
    if items is None:
        return Response(status_code=200)
    raw.announced(most=longest_catalogue(items))
    path, key = body_path(services.settings.upload_dir, "catalogue"), new_key("catalogues", task)

    def insert(session: Session) -> bool:
        return add_catalogue(session, task, key, length, digest, actor)

    def is_named(session: Session) -> bool:
        return existing_task(session, task).catalogue_key == key

    async with stream_body(services.settings, request, path, length, digest) as body:
        await run_in_threadpool(body.persist)
        await run_in_threadpool(check_file, path, items)
        stored = await run_in_threadpool(store_file, services.database, services.blobs, path, key, insert, is_named)
    return Response(status_code=201 if stored else 200)


def _admit_catalogue(database: Database, task_id: str, digest: str) -> int | None:
    """Return the number of lines that an awaited catalogue must have; None if it is stored already."""
    with database.read() as session:
        task = existing_task(session, task_id)
        return None if check_upload(task, digest) else task_items(task)


@router.get("/{task}/catalogue", summary="Download the item catalogue", **binary_response(_CATALOGUE))
def get_catalogue(services: ServicesOf, principal: PrincipalOf, task: TaskId, answer: AnswerOf) -> Response:
    """Return the catalogue, whose SHA-256 is the task's `catalogue_digest`; 404 if there is none, or none yet."""
    with services.database.read() as session:
        row = task_of(session, principal, task)
    missing = "the task has no catalogue, or the operator has not uploaded it yet"
    return answer.blob(row.catalogue_key, row.catalogue_digest, row.catalogue_bytes, missing=missing)


@ledger_router.get("/ledger", summary="List released sums", dependencies=[ReaderOnly], responses=guarded())
def of_task(
    services: ServicesOf, principal: PrincipalOf, task: TaskId, after: After = 0, limit: Limit = _LIMIT
) -> LedgerPage:
    """Return the released sums in order of rounds, each with the number and the digest of its survivors."""
    with services.database.read() as session:
        return task_ledger(session, task_of(session, principal, task), after, limit)


@ledger_router.get(
    "/members/me/ledger",
    summary="List the sums that contain one's data",
    response_model=LedgerPage,
    responses=TAGGED,
)
def of_client(
    services: ServicesOf, member: MemberOf, task: TaskId, answer: AnswerOf, after: After = 0, limit: Limit = _LIMIT
) -> Response:
    """Return the released sums that include the client's contributions, with the digest of each contribution."""
    with services.database.read() as session:
        page = client_ledger(session, existing_task(session, task), member.client_id, after, limit)
    return answer.json(page)
