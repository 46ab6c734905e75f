"""A task from what an operator chose, on the command line or in the dashboard's form: its request, and its rows.

Also the parameters to choose from, as rows for people: name, type, default, bounds and meaning.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from sqlalchemy.orm import Session

from aggregator_service.access.audit import Actor
from aggregator_service.access.principals import new_id
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.database import Database
from aggregator_service.storage.rounds import add_snapshot
from aggregator_service.storage.schema import SnapshotRow, TaskRow
from aggregator_service.storage.stores import insert_named
from aggregator_service.tasks.plans import TaskPlan
from aggregator_service.tasks.starts import Start, add_catalogue, stored_catalogue, stored_start
from aggregator_service.tasks.tasks import create_task
from protocols.advice import IN_GROUPS, MOST_FACTORS, RECOMMENDED, Variant, parameters_for
from protocols.catalogue import Catalogue
from protocols.errors import CodecError, ParameterError
from protocols.messages import Evaluation, OrganiserPin, Schedule, TaskRequest
from protocols.messages.privacy import Privacy
from protocols.parameter_text import validated
from protocols.recipes.registry import recipe_entry
from protocols.sums.masked.parameters import MaskedParameters, advised_split
from protocols.sums.masked.plan import MASKED
from protocols.sums.registry import mechanism_entry, parameters_of

Result = TypeVar("Result")


def requested(
    name: str,
    recipe: str,
    parameters: Mapping[str, Any],
    mechanism: str,
    mechanism_parameters: Mapping[str, Any],
    schedule: Schedule,
    *,
    variant: Variant = "recommended",
    shapes: Mapping[str, Any] | None = None,
    data_set: str | None = None,
    organiser: str | None = None,
    scope: str | None = None,
    evaluation: Evaluation | None = None,
    privacy: Privacy | None = None,
    catalogue: Catalogue | None = None,
    start: Start | None = None,
) -> TaskRequest:
    """Return the request of a task whose other parameters are those of `variant`.

    shapes: of the arrays that the task starts with, unless they are given. organiser: its public key. scope: of its
    certificates; None or empty: the task's name. catalogue: of the items, which then says how many they are. start:
    what the task starts from. The sums of a masked task that says nothing of groups are split into some where that
    fits. Raises `ParameterError`, whose text names what is wrong.
    """
    given = dict(parameters) if catalogue is None else _with_items(recipe, parameters, len(catalogue))
    chosen = parameters_for(
        recipe,
        given,
        variant,
        started=start is not None,
        vectors=MOST_FACTORS if start is None else start.vectors,
        noisy=privacy is not None,
        clients=schedule.cohort_size,
    )
    if shapes is not None:
        chosen = {"shapes": shapes, **chosen}
    apart = privacy is None and data_set is None  # each group would need all noise; groups of a label are not compared
    if mechanism == MASKED.name and recipe in IN_GROUPS and variant == "recommended" and apart:
        mechanism_parameters, schedule = _with_groups(mechanism_parameters, schedule)
    values = {
        "name": name,
        "recipe": {"name": recipe, "parameters": chosen, "version": recipe_entry(recipe).version},
        "mechanism": {
            "name": mechanism,
            "parameters": dict(mechanism_parameters),
            "version": mechanism_entry(mechanism).version,
        },
        "schedule": schedule,
        "data_set": data_set,
        "organiser": None if organiser is None else _organiser(organiser, scope or name),
        "evaluation": evaluation,
        "catalogue_digest": None if catalogue is None else catalogue.digest,
        "privacy": privacy,
    }
    return validated("task", TaskRequest, values)


def _with_groups(given: Mapping[str, Any], schedule: Schedule) -> tuple[Mapping[str, Any], Schedule]:
    """Return the parameters of masked sums of training, with groups if they say nothing of them and the cohort fits.

    And the schedule, with the smallest number of clients in a group, if it states none. What is wrong in the parameters
    is left for the check of the whole request.
    """
    try:
        chosen = MaskedParameters.model_validate(dict(given))
    except ValidationError:
        return given, schedule
    stated = schedule.min_clients if "min_clients" in schedule.model_fields_set else None
    split = None if "groups" in given else advised_split(schedule.cohort_size, stated, chosen)
    if split is None:
        return given, schedule
    return {**given, "groups": split.groups}, schedule.model_copy(update={"min_clients": split.min_clients})


def _with_items(recipe: str, given: Mapping[str, Any], count: int) -> dict[str, Any]:
    if not recipe_entry(recipe).has_items:
        raise ParameterError(f"the model of recipe {recipe!r} has no numbered items: leave the file of items out")
    if given.get("items", count) != count:
        raise ParameterError(f"items is {given['items']}, but the file has {count} items: leave items out")
    return {**given, "items": count}


def _organiser(key: str, scope: str) -> OrganiserPin:
    try:
        return OrganiserPin(key=key, scope=scope)
    except (ValidationError, CodecError):
        raise ParameterError("the organiser's public key is what hushrec organiser init printed") from None


def add_task(
    database: Database,
    blobs: BlobStore | None,
    request: TaskRequest,
    plan: TaskPlan,
    actor: Actor,
    told: Callable[[Session, TaskRow], Result],
    *,
    start: bytes | None = None,
    catalogue: Catalogue | None = None,
) -> Result:
    """Add a task, with its start and its catalogue, in one transaction; return what is `told` of it there.

    blobs: may be None without a start and a catalogue. plan: of `plan_request`. start: the state of round 0. Raises
    what `create_task` raises.
    """
    task_id, snapshot, stored = new_id("t"), None, None
    if blobs is not None:  # before the transaction: a store may take longer than one may stand still
        snapshot = None if start is None else stored_start(blobs, task_id, start)
        stored = None if catalogue is None else stored_catalogue(blobs, task_id, catalogue)

    def work(session: Session) -> Result:
        task = create_task(session, request, plan, actor, task_id)
        if snapshot is not None:
            add_snapshot(session, SnapshotRow(**snapshot))
        if stored is not None:
            add_catalogue(session, task_id, *stored, actor)
        return told(session, task)

    if blobs is None:
        return database.transact(work)
    keys = [*([str(snapshot["blob_key"])] if snapshot else []), *([stored[0]] if stored else [])]
    return insert_named(database, blobs, keys, work, lambda session: session.get(TaskRow, task_id) is not None)


# --- parameters, for people -------------------------------------------------------------------------------------------

_WIDTH: Final = 100
_INDENT: Final = " " * 6
_WORDS: Final = {int: "whole number", float: "number", str: "text", bool: "true or false", bytes: "base64url"}
_SIGNS: Final = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
_LENGTHS: Final = (("min_length", "at least"), ("max_length", "at most"))


@dataclass(frozen=True)
class ParameterRow:
    """One parameter."""

    name: str
    type: str
    default: str
    """As it is written on the command line, "required" if there is none."""
    bounds: str
    """In words, "" for none."""
    meaning: str
    declared_in: str
    """Module of the class that declares the parameter in its present form."""
    recommended: str | None = None
    """What a new task gets where its maker names no value, None if that is the default."""


def parameter_rows(model: type[BaseModel], recommended: Mapping[str, Any] | None = None) -> list[ParameterRow]:
    """Return a row for each field of `model`, in its order. recommended: values that differ from the defaults."""
    values = recommended or {}
    return [
        ParameterRow(
            name=name,
            type=_type(field.annotation),
            default="required" if field.is_required() else _value(field.get_default(call_default_factory=True)),
            bounds=_bounds(field),
            meaning=field.description or "",
            declared_in=_declaring_module(model, name),
            recommended=_value(values[name]) if name in values else None,
        )
        for name, field in model.model_fields.items()
    ]


def as_text(rows: Iterable[ParameterRow]) -> str:
    """Return the rows as plain text for a terminal: a line of facts and an indented meaning for each."""
    lines: list[str] = []
    for row in rows:
        default = row.default if row.default == "required" else f"default {row.default}"
        recommended = f"new tasks get {row.recommended}" if row.recommended is not None else ""
        facts = "; ".join(fact for fact in (row.type, row.bounds, default, recommended) if fact)
        lines += [
            f"  {row.name}: {facts}",
            *textwrap.wrap(row.meaning, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT),
        ]
    return "\n".join(lines)


def parameter_help(recipe: str, mechanism: str) -> str:
    """Return the rows of the page of parameters for this choice as text; `ParameterError` for an unknown name."""
    own = recipe_entry(recipe).parameters
    sums = parameters_of(mechanism)
    parts = [
        f"Recipe {recipe}, -r name=value:",
        as_text(parameter_rows(own, RECOMMENDED.get(recipe))),
        f"Mechanism {mechanism}, -m name=value:",
        "  no parameters" if sums is None else as_text(parameter_rows(sums)),
        "Schedule, -s name=value:",
        as_text(parameter_rows(Schedule)),
    ]
    return "\n\n".join(f"{parts[i]}\n{parts[i + 1]}" for i in range(0, len(parts), 2))


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join("null" if part is NoneType else _type(part) for part in parts)
    if origin is Literal:
        return ", ".join(str(part) for part in parts)
    if origin is Annotated:
        return _type(parts[0])
    if origin is dict:
        return f"object, name to {_type(parts[1])}"
    if origin is tuple:
        return f"list of {_type(parts[0])}s"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"object ({', '.join(annotation.model_fields)})"
    return _WORDS.get(annotation, str(annotation))


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _bounds(field: FieldInfo) -> str:
    found = {sign: getattr(rule, sign) for rule in field.metadata for sign, _ in _SIGNS if hasattr(rule, sign)}
    words = [f"{word} {_number(found[sign])}" for sign, word in _SIGNS if sign in found]
    for rule in field.metadata:
        words += [f"{word} {getattr(rule, sign)} entries" for sign, word in _LENGTHS if hasattr(rule, sign)]
    return ", ".join(words)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _declaring_module(model: type[BaseModel], name: str) -> str:
    return next(kind.__module__ for kind in model.__mro__ if name in kind.__dict__.get("__annotations__", {}))
