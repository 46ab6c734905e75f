"""A new task, created by the API, the command or the dashboard's form: its request, its blocks, and its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError
from sqlalchemy.orm import Session

from aggregator_service.access.audit_trail import Actor
from aggregator_service.access.principals import new_id
from aggregator_service.settings import Signatures
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.database import Database
from aggregator_service.storage.round_rows import add_snapshot
from aggregator_service.storage.schema import SnapshotRow, TaskRow
from aggregator_service.storage.stores import insert_named
from aggregator_service.tasks.plans import TaskPlan
from aggregator_service.tasks.starts import Start, add_catalogue, stored_catalogue, stored_start
from aggregator_service.tasks.task_views import create_task, task_view
from protocols.advice import MOST_FACTORS, Variant, degrees_are_split, groups_for, parameters_for
from protocols.catalogue import Catalogue
from protocols.errors import CodecError, ParameterError
from protocols.messages import Evaluation, OrganiserPin, Schedule, TaskRequest, TaskView
from protocols.messages.privacy import Privacy, default_delta
from protocols.parameter_text import validated
from protocols.recipes.base import Recipe
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.registry import recipe as make_recipe
from protocols.recipes.registry import recipe_entry
from protocols.sums.masked.parameters import FEWEST_BITS, MaskedParameters
from protocols.sums.masked.plan import MASKED
from protocols.sums.registry import mechanism_entry
from protocols.sums.ring import spare_bits


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
    what the task starts from. Large cohorts are split into groups (`groups_for`), unless the task has a privacy block,
    whose noise each group would need alone, or a label, whose tasks may have none. Raises `ParameterError`, whose text
    names what is wrong.
    """
    given = dict(parameters) if catalogue is None else _with_items(recipe, parameters, len(catalogue))
    if start is not None:
        start.check_catalogue(catalogue)
        given = start.given(given)
    chosen = parameters_for(
        recipe,
        given,
        variant,
        started=start is not None and start.is_spectrum,
        vectors=MOST_FACTORS if start is None else start.vectors,
        noisy=privacy is not None,
        clients=schedule.cohort_size,
    )
    if shapes is not None:
        chosen = {"shapes": shapes, **chosen}
    if variant == "recommended" and privacy is None and data_set is None:
        items = chosen["items"] if degrees_are_split(recipe, chosen) else None
        groups = groups_for(recipe, mechanism, mechanism_parameters, schedule, items)
        mechanism_parameters = {**mechanism_parameters, **({"groups": groups} if groups > 1 else {})}
    if mechanism == MASKED.name and variant == "recommended" and "spare" not in mechanism_parameters:
        mechanism_parameters = _with_spare_bits(mechanism_parameters, schedule)
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
    request = validated("task", TaskRequest, values)
    if recipe_entry(recipe).frozen:
        _require_every_sum(make_recipe(recipe, chosen, noisy=privacy is not None), schedule.rounds)
    return request


def _require_every_sum(recipe: Recipe, rounds: int) -> None:
    """Raise `ParameterError` for fewer rounds than a task needs whose last sums choose how scores are made."""
    if not isinstance(recipe, PriviRecK) or rounds >= recipe.steps or recipe.steps == recipe.last_iteration:
        return
    last = [name for name in ("next_vectors", "validation") if getattr(recipe.parameters, name)]
    leave = " ".join(f"-r {name}=0" for name in last)
    if last and rounds >= recipe.last_iteration:
        raise ParameterError(
            f"the task has {recipe.steps} sums, and {rounds} rounds leave no room for the last: say -s "
            f"rounds={recipe.steps}, or leave them out with {leave}"
        )
    raise ParameterError(
        f"the task has {recipe.steps} sums, and {rounds} rounds end it before its model is whole: say -s "
        f"rounds={recipe.steps}, or fewer -r iterations"
    )


def _with_spare_bits(given: Mapping[str, Any], schedule: Schedule) -> Mapping[str, Any]:
    """Return the parameters of masked sums with the bits that can be spared, so that garbage shows; see above."""
    try:
        chosen = MaskedParameters.model_validate(dict(given))
    except ValidationError:
        return given
    spare = min(spare_bits(chosen.bits, schedule.cohort_size), chosen.bits - FEWEST_BITS)
    return {**given, "spare": spare} if spare else given


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


GATE: Final = 2.0
"""Standard errors of the gate of tasks that measure themselves, unless the operator says otherwise."""


def evaluation_block(given: Mapping[str, Any]) -> Evaluation | None:
    """Return the evaluation block of a new task from its fields; None without any.

    A gate of 0 is none. Without final rounds, whose model nobody can measure, it is `GATE` where it is not given.
    Raises `ParameterError` for values out of range.
    """
    if not given:
        return None
    chosen = dict(given)
    if not chosen.get("final_rounds"):
        chosen.setdefault("gate", GATE)
    if not chosen.get("gate", 1.0):
        del chosen["gate"]
    return validated("evaluation", Evaluation, chosen)


def privacy_block(given: Mapping[str, Any], schedule: Schedule) -> Privacy | None:
    """Return the privacy block of a new task from its fields; None without any.

    The default of `delta` follows from the number of clients. Raises `ParameterError` for values out of range.
    """
    if not given:
        return None
    clients = max(schedule.cohort_size, schedule.start_clients)
    return validated("privacy", Privacy, {"delta": default_delta(clients), **given})


def add_task(
    database: Database,
    blobs: BlobStore | None,
    request: TaskRequest,
    plan: TaskPlan,
    actor: Actor,
    signatures: Signatures,
    *,
    start: bytes | None = None,
    catalogue: Catalogue | None = None,
) -> TaskView:
    """Add a task, with its start and its catalogue, in one transaction; return its view.

    blobs: may be None without a start and a catalogue. plan: of `plan_request`. signatures: whether this server
    requires signed requests. start: the state of round 0. Raises what `create_task` raises.
    """
    task_id, snapshot, stored = new_id("t"), None, None
    if blobs is not None:  # before the transaction: a store may take longer than one may stand still
        snapshot = None if start is None else stored_start(blobs, task_id, start)
        stored = None if catalogue is None else stored_catalogue(blobs, task_id, catalogue)

    def work(session: Session) -> TaskView:
        task = create_task(session, request, plan, actor, task_id)
        if snapshot is not None:
            add_snapshot(session, SnapshotRow(**snapshot))
        if stored is not None:
            add_catalogue(session, task_id, *stored, actor)
        return task_view(session, task, signatures, actor.at)

    if blobs is None:
        return database.transact(work)
    keys = [*([str(snapshot["blob_key"])] if snapshot else []), *([stored[0]] if stored else [])]
    return insert_named(database, blobs, keys, work, lambda session: session.get(TaskRow, task_id) is not None)
