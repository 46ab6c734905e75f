"""The forms that create a task and an invitation, and their choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO, TextIOWrapper
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from aggregator_service.dashboard.access import HOME, EditorActorOf, EditorOf, editor
from aggregator_service.dashboard.access import visitor as signed_in
from aggregator_service.dashboard.live import task_of
from aggregator_service.dashboard.pages import PageRoute, page, redirect
from aggregator_service.problems import Problem
from aggregator_service.routes.common import TaskId
from aggregator_service.services import ServicesOf
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.committee_keys import committee_size
from aggregator_service.tasks.creation import add_task, evaluation_block, privacy_block, requested
from aggregator_service.tasks.files import read_items
from aggregator_service.tasks.parameter_rows import ParameterRow, mechanism_rows, parameter_rows
from aggregator_service.tasks.starts import check_start
from aggregator_service.tasks.task_views import create_invitation, plan_request
from protocols.advice import RECOMMENDED
from protocols.catalogue import Catalogue
from protocols.errors import HushRecError, ParameterError
from protocols.messages import Evaluation, InvitationRequest, Schedule, TaskRequest
from protocols.messages.privacy import Privacy
from protocols.parameter_text import first_fault, named_values, validated
from protocols.plugins import Entry
from protocols.recipes.registry import recipe_entry, recipes
from protocols.sums.registry import mechanism_entry, mechanisms
from protocols.task_terms import check_combination

_FIRST: Final = ("masked", "oneshot")
"""Mechanisms at the beginning of their list."""
_SCHEDULE_FIRST: Final = ("rounds", "cohort_size", "min_clients")
_EVALUATION: Final = ("every", "keep")
_PRIVACY: Final = ("epsilon", "delta", "clip", "rounds", "corrupt", "most_items")
_LABELS: Final = {"privacy.rounds": "sums of a client", "privacy.corrupt": "corrupt share of a cohort"}
"""Labels of fields whose names alone do not say what they are."""
_BY_COMMAND: Final = ("start_from", "start_weight")
"""Parameters that only `hushrec-server task create --start-from` can set."""


@dataclass(frozen=True)
class FieldGroup:
    """Fields under one heading."""

    title: str
    prefix: str
    """Of their names in the form."""
    rows: Sequence[ParameterRow]
    folded: bool = True
    """Shown only when it is opened."""


def _text(entry: Entry) -> str:
    """Return what a recipe or a mechanism is, for a list."""
    return entry.text or entry.source or entry.name


def require_choice(recipe: str, mechanism: str) -> None:
    """Raise `ParameterError` unless the recipe and the mechanism exist and fit together."""
    if recipe not in recipes() or mechanism not in mechanisms():
        raise ParameterError("choose a recipe and a mechanism from the lists")
    check_combination(recipe, mechanism)


def field_groups(recipe: str, mechanism: str) -> list[FieldGroup]:
    """Return the fields for a recipe and a mechanism: what must be chosen first, then what has a default."""
    rows = parameter_rows(recipe_entry(recipe).parameters, RECOMMENDED.get(recipe))
    own = [row for row in rows if row.name not in _BY_COMMAND]
    schedule = parameter_rows(Schedule)
    required = [row for row in own if row.default == "required"]
    evaluation = [row for row in parameter_rows(Evaluation) if row.name in _EVALUATION]
    privacy = _privacy_rows() if "noise" in mechanism_entry(mechanism).carries else []
    groups = [
        FieldGroup("Data", "recipe", required, folded=False),
        FieldGroup("Rounds", "schedule", [row for row in schedule if row.name in _SCHEDULE_FIRST], folded=False),
        FieldGroup(f"Recipe {recipe}", "recipe", [row for row in own if row not in required]),
        FieldGroup(f"Mechanism {mechanism}", "mechanism", mechanism_rows(mechanism)),
        FieldGroup("Schedule", "schedule", [row for row in schedule if row.name not in _SCHEDULE_FIRST]),
        FieldGroup("Evaluation by the clients", "evaluation", evaluation),
        FieldGroup("Differential privacy", "privacy", privacy),
    ]
    return [group for group in groups if group.rows]


def _privacy_rows() -> list[ParameterRow]:
    """Return the fields of a privacy block that the form has; without an epsilon a task has no block."""
    rows = {row.name: row for row in parameter_rows(Privacy)}
    optional = replace(rows["epsilon"], default="null")
    delta = replace(rows["delta"], default="clients^-1.1, at most 1e-5")
    return [{"epsilon": optional, "delta": delta}.get(name, rows[name]) for name in _PRIVACY]


def requested_task(form: Mapping[str, str], catalogue: Catalogue | None = None) -> TaskRequest:
    """Return the request that a form's values make; empty fields keep their defaults or recommended values.

    catalogue: of the items, which then says how many they are. Raises `ParameterError`, whose text names the field.
    """
    recipe, mechanism = form.get("recipe", ""), form.get("mechanism", "")
    require_choice(recipe, mechanism)
    schedule = validated("schedule", Schedule, _values(form, "schedule"))
    return requested(
        form.get("name", "").strip(),
        recipe,
        _values(form, "recipe"),
        mechanism,
        _values(form, "mechanism"),
        schedule,
        data_set=form.get("data_set", "").strip() or None,
        organiser=form.get("organiser", "").strip() or None,
        scope=form.get("scope", "").strip(),
        evaluation=evaluation_block(_values(form, "evaluation")),
        privacy=privacy_block(_values(form, "privacy"), schedule),
        catalogue=catalogue,
    )


def _values(form: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """Return the values of the fields of one group that are not empty."""
    group = f"{prefix}."
    filled = [name for name, value in form.items() if name.startswith(group) and value.strip()]
    return named_values(f"{name.removeprefix(group)}={form[name].strip()}" for name in filled)


router = APIRouter(prefix=HOME, route_class=PageRoute, include_in_schema=False)

LONGEST_ITEMS_FILE: Final = 16 * 1024 * 1024
"""Bytes of a form with a file of items: some 200,000 items. The command takes longer files."""
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


async def _items_file(request: Request) -> tuple[str, bytes] | None:
    """Return name and bytes of the file of items that was sent; None without one."""
    sent = (await request.form()).get("items_file")
    if not isinstance(sent, UploadFile) or not sent.filename:
        return None
    return sent.filename, await sent.read()


ItemsFile = Annotated[tuple[str, bytes] | None, Depends(_items_file)]


class _FileFormRoute(PageRoute):
    """A route for a form with a file. Who is not signed in sends none: the body is in memory."""

    async def longest_body(self, request: Request) -> int:
        """Return the limit for operators who may create tasks; raises what `editor` and `visitor` raise."""
        services = request.app.state.services
        await run_in_threadpool(lambda: editor(signed_in(services, request)))
        return LONGEST_ITEMS_FILE


_files = APIRouter(route_class=_FileFormRoute)


# --- a new task ------------------------------------------------------------------------------------------------------


@router.get("/new")
def new_task(request: Request, _editor: EditorOf, recipe: Chosen = "", mechanism: Chosen = "") -> Response:
    """Show the choice of recipe and mechanism; with both chosen, the form with their parameters."""
    wrong = ""
    if recipe or mechanism:
        try:
            return _task_form(request, {"recipe": recipe, "mechanism": mechanism})
        except ParameterError as error:
            wrong = str(error)
    facts = {
        "recipes": {name: _text(recipe_entry(name)) for name in recipes()},
        "mechanisms": {name: _text(mechanism_entry(name)) for name in (*_FIRST, *mechanisms())},
        "recipe": recipe,
        "mechanism": mechanism,
        "wrong": wrong,
    }
    return page(request, "new", 422 if wrong else 200, **facts)


@_files.post("/new")
def create(
    services: ServicesOf, request: Request, by: EditorActorOf, submitted: Submitted, file: ItemsFile
) -> Response:
    """Create the task and open its page, or show the form again with what is wrong."""
    try:
        catalogue = None if file is None else _catalogue(*file)
        wanted = requested_task(submitted, catalogue)
        check_start(wanted)
        database, blobs = services.database, services.blobs
        plan = plan_request(wanted)
        made = add_task(database, blobs, wanted, plan, by, services.settings.signatures, catalogue=catalogue)
    except (HushRecError, Problem) as error:
        wrong = error.detail if isinstance(error, Problem) else str(error)
        return _task_form(request, submitted, wrong)
    return redirect(request, f"/tasks/{made.task_id}")


router.include_router(_files)


def _catalogue(name: str, body: bytes) -> Catalogue:
    with TextIOWrapper(BytesIO(body), encoding="utf-8-sig", newline="") as text:
        return read_items(text, f"the file {name}")


def _task_form(request: Request, values: Mapping[str, str], wrong: str = "") -> Response:
    recipe, mechanism = values.get("recipe", ""), values.get("mechanism", "")
    require_choice(recipe, mechanism)
    groups = field_groups(recipe, mechanism)
    facts = {
        "recipe": recipe,
        "mechanism": mechanism,
        "groups": groups,
        "labels": _LABELS,
        "has_items": recipe_entry(recipe).has_items,
        "longest_file": LONGEST_ITEMS_FILE,
        "opened": {one.title for one in groups if any(values.get(f"{one.prefix}.{row.name}") for row in one.rows)},
        "values": values,
        "wrong": wrong,
    }
    return page(request, "new_task", 422 if wrong else 200, **facts)


# --- an invitation ---------------------------------------------------------------------------------------------------


@router.get("/tasks/{task}/invite")
def invite_page(services: ServicesOf, request: Request, _editor: EditorOf, task: TaskId) -> Response:
    """Show the form for an invitation."""
    with services.database.read() as session:
        return _invitation_form(request, task_of(session, task))


@router.post("/tasks/{task}/invite")
def invite(
    services: ServicesOf,
    request: Request,
    by: EditorActorOf,
    task: TaskId,
    role: Annotated[str, Form(max_length=20)] = "",
    uses: Annotated[str, Form(max_length=20)] = "",
    hours: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    """Create an invitation and show it once, or show the form again with what is wrong."""
    with services.database.write() as session:
        row = task_of(session, task)
        try:
            made = create_invitation(session, row, _invitation(role, uses, hours), by)
        except ParameterError as error:
            return _invitation_form(request, row, str(error))
    origins = services.settings.public_origins  # else the address at which the browser reached the server
    address = (origins[0] if origins else str(request.base_url).rstrip("/")) + services.settings.root_path
    return page(request, "invited", task=row, made=made, address=address)


def _invitation(role: str, uses: str, hours: str) -> InvitationRequest:
    """Return the request for an invitation. Raises `ParameterError`, which names the field."""
    try:
        seconds = float(hours) * _HOUR
        return InvitationRequest.model_validate({"role": role, "uses": int(uses), "expires_seconds": seconds})
    except ValidationError as error:
        raise ParameterError(first_fault(error).replace("expires_seconds: ", "hours, in seconds: ")) from None
    except (ValueError, OverflowError):
        raise ParameterError("enter a whole number of clients and a number of hours") from None


def _invitation_form(request: Request, task: TaskRow, wrong: str = "") -> Response:
    roles = ["member", *(["holder"] if task.needs_keyring else []), *(["committee"] if committee_size(task) else [])]
    if task.state != "open":
        raise Problem("conflict", "the task is over: no client can enrol any more")
    facts: dict[str, Any] = {"task": task, "roles": {role: _ROLE_TEXTS[role] for role in roles}, "wrong": wrong}
    return page(request, "invite", 422 if wrong else 200, **facts)
