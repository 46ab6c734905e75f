"""A task from what an operator chose, on the command line or in the dashboard's form: its request, and its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from sqlalchemy.orm import Session

from aggregator_service.access.principals import new_id
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.rounds import add_snapshot
from aggregator_service.storage.schema import SnapshotRow, TaskRow
from aggregator_service.tasks.plans import TaskPlan
from aggregator_service.tasks.starts import add_catalogue, stored_catalogue, stored_start
from aggregator_service.tasks.tasks import create_task
from protocols.advice import Variant, parameters_for
from protocols.catalogue import Catalogue
from protocols.errors import CodecError, ParameterError
from protocols.messages import Evaluation, OrganiserPin, Schedule, TaskRequest
from protocols.messages.privacy import Privacy
from protocols.parameter_text import validated
from protocols.recipes.registry import recipe_entry
from protocols.sums.registry import mechanism_entry

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
    started: bool = False,
) -> TaskRequest:
    """Return the request of a task whose other parameters are those of `variant`.

    shapes: of the arrays that the task starts with, unless they are given. organiser: its public key. scope: of its
    certificates; None or empty: the task's name. catalogue: of the items, which then says how many they are. started:
    whether the task starts from another one. Raises `ParameterError`, whose text names what is wrong.
    """
    given = dict(parameters) if catalogue is None else _with_items(recipe, parameters, len(catalogue))
    chosen = parameters_for(recipe, given, variant, started=started, noisy=privacy is not None)
    if shapes is not None:
        chosen = {"shapes": shapes, **chosen}
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
    blobs: BlobStore | None,
    transact: Callable[[Callable[[Session], Result]], Result],
    request: TaskRequest,
    plan: TaskPlan,
    now: float,
    told: Callable[[Session, TaskRow], Result],
    *,
    start: bytes | None = None,
    catalogue: Catalogue | None = None,
) -> Result:
    """Add a task, with its start and its catalogue, in one transaction; return what is `told` of it there.

    blobs: may be None without a start and a catalogue. plan: of `plan_request`. start: the state of round 0. Stores no
    blob if it fails; raises what `create_task` raises.
    """
    task_id, snapshot, stored = new_id("t"), None, None
    if blobs is not None:  # before the transaction: a store may take longer than one may stand still
        snapshot = None if start is None else stored_start(blobs, task_id, start)
        stored = None if catalogue is None else stored_catalogue(blobs, task_id, catalogue)

    def work(session: Session) -> Result:
        task = create_task(session, request, plan, now, task_id)
        if snapshot is not None:
            add_snapshot(session, SnapshotRow(**snapshot))
        if stored is not None:
            add_catalogue(session, task_id, *stored)
        return told(session, task)

    try:
        return transact(work)
    except BaseException:
        keys = [*([str(snapshot["blob_key"])] if snapshot else []), *([stored[0]] if stored else [])]
        if blobs is not None:
            blobs.delete(*keys)
        raise
