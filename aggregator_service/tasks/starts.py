"""Tasks that do not start from their seed: the state of round 0, stored as a snapshot with its digest in the terms.

It is derived from the model of a finished task, or made of values that the operator uploads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from aggregator_service.storage.blobs import BlobStore, new_key
from aggregator_service.storage.rounds import SERVER_AUTHOR, newest_snapshot
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.plans import TaskTerms, plan_task, row_terms
from protocols.errors import ParameterError
from protocols.messages import TaskRequest
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.registry import recipe as make_recipe

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["StartSource", "check_start", "check_start_alone", "stored_start", "with_start", "with_values"]


@dataclass(frozen=True)
class StartSource:
    """The newest snapshot of a finished task: its round, and the blob's key and digest."""

    task_id: str
    terms: TaskTerms
    round: int
    blob_key: str
    digest: str

    @classmethod
    def of(cls, session: Session, task: TaskRow) -> StartSource:
        """Return `task` as a source. Raises `ParameterError` if it is not complete, or the server cannot open it."""
        if task.opened_by != "anyone":
            raise ParameterError(
                f"task {task.name!r} cannot be started from: the server cannot open the sums of {task.mechanism_name!r}"
            )
        snapshot = newest_snapshot(session, task.id)
        if task.state != "complete" or snapshot is None or snapshot.blob_key is None or not snapshot.round_number:
            raise ParameterError(f"task {task.name!r} is {task.state}: only a complete task can be started from")
        return cls(task.id, row_terms(task), snapshot.round_number, snapshot.blob_key, snapshot.digest)


def with_start(request: TaskRequest, source: StartSource, blobs: BlobStore) -> tuple[TaskRequest, bytes]:
    """Return `request` with the parameter `start_from`, and the encoded state of round 0.

    Raises `ParameterError` if the recipe cannot start from this source, `BlobDamagedError` if the snapshot is damaged.
    """
    # recipes that only this command needs
    from protocols.recipes.private import unwrapped
    from protocols.recipes.privirec import PriviRecK
    from protocols.recipes.spectral_start import Source, start_parameters

    body = bytes(blobs.view(source.blob_key, source.digest))
    recipe_of_source = plan_task(source.terms).recipe
    made = unwrapped(recipe_of_source)
    if not isinstance(made, PriviRecK):
        raise ParameterError(f"a task of recipe {made.name!r} cannot be started from: only one of privirec-k")
    state = recipe_of_source.decode_state(source.round, body)
    plain = make_recipe(request.recipe.name, request.recipe.parameters, noisy=request.privacy is not None)
    recipe = with_evaluation(plain, request.evaluation, request.schedule.rounds)
    given = request.recipe.parameters
    parameters, start = start_parameters(
        recipe, given, source.task_id, body, Source(state, made.parameters.degree_exponent)
    )
    chosen = request.recipe.model_copy(update={"parameters": parameters})
    return request.model_copy(update={"recipe": chosen}), start


def with_values(request: TaskRequest, arrays: Mapping[str, NDArray[np.float32]]) -> tuple[TaskRequest, bytes]:
    """Return `request` with the parameter `initial`, and the encoded state of round 0 with these values.

    Raises `ParameterError` for another recipe than `arrays`, and for arrays that do not fit its parameters.
    """
    from protocols.recipes.arrays import initial_parameters  # a recipe that only this command needs

    given = request.recipe.parameters
    recipe = make_recipe(request.recipe.name, given, noisy=request.privacy is not None)
    parameters, start = initial_parameters(recipe, given, arrays)
    chosen = request.recipe.model_copy(update={"parameters": parameters})
    return request.model_copy(update={"recipe": chosen}), start


def check_start(request: TaskRequest) -> None:
    """Raise `ParameterError` if a request names a start whose state of round 0 does not come with it."""
    for name, option in (("start_from", "--start-from TASK"), ("initial", "--initial FILE")):
        if request.recipe.parameters.get(name) is not None:
            raise ParameterError(
                f"{name} is set by the server: create the task with hushrec-server task create {option}"
            )


def check_start_alone(request: TaskRequest) -> None:
    """Raise `ParameterError` if a task that starts from a spectrum has an evaluation: its state has another form."""
    if request.evaluation is not None:
        raise ParameterError(
            "a task that starts from another one cannot have an evaluation: leave out --evaluate-every"
        )


def stored_start(blobs: BlobStore, task_id: str, body: bytes) -> dict[str, str | int]:
    """Store the state of round 0 of a new task; return the values of the `SnapshotRow` that names it.

    Call it before the transaction that adds the task: a store may take longer than a transaction may stand still.
    """
    key = new_key("snapshots", task_id, 0)
    digest = blobs.put(key, body)
    named: dict[str, str | int] = {"task_id": task_id, "round_number": 0, "author": SERVER_AUTHOR}
    return {**named, "digest": digest, "bytes": len(body), "blob_key": key}
