"""What a task has before round 1 besides its seed, with its digest in the terms: a state of round 0, and a catalogue.

The state is derived from the model of a finished task, or made of values that the operator uploads, and stored as a
snapshot. The item catalogue is a blob, uploaded once; the terms fix it for the life of the task: another set of items
is another task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from aggregator_service.access.audit_trail import Actor, record
from aggregator_service.problems import Problem
from aggregator_service.storage.blobs import BlobStore, map_file, new_key
from aggregator_service.storage.database import announce, discard
from aggregator_service.storage.round_rows import SERVER_AUTHOR, lock_task, newest_snapshot
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.plans import StoredTerms, plan_task, row_terms
from protocols.catalogue import Catalogue
from protocols.errors import ParameterError
from protocols.messages import TaskRequest
from protocols.recipes.base import ItemParameters, Recipe
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.registry import recipe as make_recipe

if TYPE_CHECKING:  # which only starts need
    from protocols.recipes.spectral_start import Source


@dataclass(frozen=True)
class StartSource:
    """The newest snapshot of a finished task: its round, and the blob's key and digest; and its catalogue's, if any."""

    task_id: str
    terms: StoredTerms
    round: int
    blob_key: str
    digest: str
    catalogue: tuple[str, str] | None

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
        named = None
        if task.catalogue_key is not None and task.catalogue_digest is not None:
            named = task.catalogue_key, task.catalogue_digest
        return cls(task.id, row_terms(task), snapshot.round_number, snapshot.blob_key, snapshot.digest, named)

    def read(self, blobs: BlobStore) -> Start:
        """Return the model. Raises `ParameterError` for another recipe's, `BlobDamagedError` for a damaged blob."""
        # recipes that only this command needs
        from protocols.recipes.arrays import Arrays
        from protocols.recipes.evaluated import EvaluatedState
        from protocols.recipes.privirec import PriviRecK
        from protocols.recipes.rows import FactorModel
        from protocols.recipes.spectral_start import Source

        body = bytes(blobs.view(self.blob_key, self.digest))
        recipe = plan_task(self.terms).recipe
        made, exponent, arrays = recipe.own, None, None
        if isinstance(made, PriviRecK):
            exponent = made.parameters.degree_exponent
        elif not isinstance(made, Arrays) and not (isinstance(made, FactorModel) and made.can_start):
            raise ParameterError(f"a task of recipe {made.name!r} cannot be started from")
        state = recipe.decode_state(self.round, body)
        state = state.used if isinstance(state, EvaluatedState) else state
        if isinstance(made, Arrays):
            arrays = {name: np.array(array) for name, array in made.arrays(state).items()}
        catalogue = None if self.catalogue is None else Catalogue.decode(bytes(blobs.view(*self.catalogue)))
        return Start(self.task_id, body, Source(state, exponent), arrays, catalogue)


@dataclass(frozen=True)
class Start:
    """The model of a finished task, `source`, its encoding, and what else a task that starts from it needs."""

    task_id: str
    body: bytes
    source: Source
    arrays: dict[str, NDArray[np.float32]] | None
    """Of a task of `arrays`."""
    catalogue: Catalogue | None

    @property
    def is_spectrum(self) -> bool:
        """Whether it is a task of `privirec-k`."""
        return self.source.item_exponent is not None

    @property
    def vectors(self) -> int:
        """How many singular vectors it has, or the length of its item factors."""
        from protocols.recipes.base import FactorState
        from protocols.recipes.privirec_state import PriviRecState
        from protocols.recipes.state import state_as

        if isinstance(self.source.state, FactorState):
            return int(self.source.state.item_factors.shape[1])
        return int(state_as(self.source.state, PriviRecState).singular_values.size) if self.is_spectrum else 0

    def given(self, parameters: Mapping[str, object]) -> dict[str, object]:
        """Return parameters of a task that goes on from it, with what has to be as it is and is not named."""
        if self.arrays is not None:
            return {"shapes": {name: list(array.shape) for name, array in self.arrays.items()}, **parameters}
        return dict(parameters) if self.is_spectrum else {"dim": self.vectors, **parameters}

    def check_catalogue(self, catalogue: Catalogue | None) -> None:
        """Raise `ParameterError` unless the items of a task that starts from it are its own, or its own and others."""
        if self.catalogue is None:
            return
        ids = self.catalogue.ids
        if catalogue is None or len(catalogue) < len(ids) or catalogue.ids[: len(ids)] != tuple(ids):
            raise ParameterError(
                "the catalogue must begin with the items of the task that it starts from, in their order; new ones "
                "come after them"
            )

    def grown(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, NDArray[np.float32]]:
        """Return its arrays in these shapes, which may have more rows: these are 0.

        Raises `ParameterError`, naming the array, for any other difference.
        """
        found = {}
        for name, array in (self.arrays or {}).items():
            shape = tuple(shapes.get(name, array.shape))
            if len(shape) != array.ndim or shape[1:] != array.shape[1:] or shape[:1] < array.shape[:1]:
                raise ParameterError(
                    f"array {name!r} has the shape {list(shape)}, and {list(array.shape)} in the task that it starts "
                    "from: only rows may be appended"
                )
            found[name] = np.zeros(shape, np.float32)
            found[name][tuple(map(slice, array.shape))] = array
        return found


def with_start(request: TaskRequest, start_of: Start) -> tuple[TaskRequest, bytes]:
    """Return `request` with the parameter `start_from`, and the encoded state of round 0.

    Raises `ParameterError` if the recipe cannot start from this source.
    """
    from protocols.recipes.spectral_start import start_parameters  # which only this command needs

    if start_of.arrays is not None:
        return with_values(request, start_of.grown(request.recipe.parameters.get("shapes", {})))
    plain = make_recipe(request.recipe.name, request.recipe.parameters, noisy=request.privacy is not None)
    recipe = with_evaluation(plain, request.evaluation, request.schedule.rounds)
    given = request.recipe.parameters
    parameters, start = start_parameters(recipe, given, start_of.task_id, start_of.body, start_of.source)
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


def check_no_evaluation(request: TaskRequest) -> None:
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


def check_catalogue(request: TaskRequest, recipe: Recipe) -> None:
    """Raise `ParameterError` if a request names a catalogue and its recipe has no items: none could be uploaded."""
    if request.catalogue_digest is not None:
        _items(recipe)


def task_items(task: TaskRow) -> int:
    """Return the number of items of a task; `ParameterError` for a recipe whose model has no numbered items."""
    return _items(plan_task(row_terms(task)).recipe)


def _items(recipe: Recipe) -> int:
    if not isinstance(recipe.parameters, ItemParameters):
        raise ParameterError(
            f"the model of recipe {recipe.name!r} has no numbered items, so a task with it has no catalogue"
        )
    return recipe.parameters.items


def awaited_catalogue(task: TaskRow) -> str | None:
    """Return what round 1 waits for, in plain words; None when it does not wait for a catalogue."""
    if task.state != "open" or task.catalogue_digest is None or task.catalogue_key is not None:
        return None
    return "the item catalogue: the operator has not uploaded it"


def check_upload(task: TaskRow, digest: str) -> bool:
    """Return whether the catalogue with this SHA-256 (hex) is stored already.

    Raises `Problem`: conflict (409) for a task without a catalogue, and for another one than the stored one;
    invalid-parameters (422) for another one than the terms name.
    """
    if task.catalogue_digest is None:
        raise Problem("conflict", "the task was created without a catalogue: create one with catalogue_digest")
    if digest == task.catalogue_digest:
        return task.catalogue_key is not None
    if task.catalogue_key is not None:
        raise Problem("conflict", "another catalogue is stored, and stays: new items need a new task")
    raise Problem("invalid-parameters", "the SHA-256 of the catalogue is not the catalogue_digest of the task")


def check_file(path: Path, items: int) -> None:
    """Check a received catalogue of a task with so many items.

    Raises `CodecError`, which names the line, for what is no catalogue, and `Problem` invalid-parameters (422) for
    another number of lines than `items`.
    """
    lines = len(Catalogue.decode(map_file(path)))
    if lines != items:
        raise Problem(
            "invalid-parameters",
            f"the catalogue has {lines} lines and the recipe has {items} items: the operator must create a task whose "
            "recipe has as many items as its catalogue",
        )


def add_catalogue(session: Session, task_id: str, key: str, length: int, digest: str, actor: Actor) -> bool:
    """Store the key of the blob of a catalogue; return False, and discard it, if the same one is stored already.

    length: in bytes. digest: SHA-256 (hex). Raises `Problem` as `check_upload`.
    """
    task = lock_task(session, task_id)
    if check_upload(task, digest):
        discard(session, key)
        return False
    task.catalogue_key, task.catalogue_bytes = key, length
    session.flush()
    announce(session, task_id, "round")  # round 1 may open
    record(session, actor, "catalogue stored", task=task, bytes=length, digest=digest)
    return True


def stored_catalogue(blobs: BlobStore, task_id: str, catalogue: Catalogue) -> tuple[str, int, str]:
    """Store the catalogue of a new task; return arguments of `add_catalogue`: key, length and digest.

    Call it before the transaction that adds the task: a store may take longer than a transaction may stand still.
    """
    key, body = new_key("catalogues", task_id), catalogue.encode()
    return key, len(body), blobs.put(key, body)
