"""Requests for a task that are repeated with the same idempotency key: they get the task that the first one created.

The id of such a task follows from the operator and the key, so that no record of keys is needed
(draft-ietf-httpapi-idempotency-key-header).
"""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy.orm import Session

from aggregator_service.problems import Problem
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.plans import row_evaluation
from protocols.codec import b64encode
from protocols.crypto.domain import digest
from protocols.messages import MechanismChoice, OrganiserPin, RecipeChoice, Schedule, TaskRequest

__all__ = ["find_repeated", "repeatable_id"]

_KEY: Final = re.compile(r'"[\x20\x21\x23-\x5b\x5d-\x7e]{1,128}"')
_ID_DIGITS: Final = 20


def repeatable_id(operator: str, key: str) -> str:
    """Return the id of the task that `operator` creates with the header value `key`, a string in quotation marks.

    Raises `Problem` bad-request for another form.
    """
    if not _KEY.fullmatch(key):
        raise Problem("bad-request", "Idempotency-Key must be 1 to 128 ASCII characters in quotation marks")
    return "t_" + digest("idempotent task", operator, key).hex()[:_ID_DIGITS]


def find_repeated(session: Session, task_id: str, request: TaskRequest) -> TaskRow | None:
    """Return the task that an earlier request with this key created, None if this is the first one.

    Raises `Problem` invalid-parameters (422) if the earlier request was another one.
    """
    task = session.get(TaskRow, task_id)
    if task is not None and _request_of(task) != request:
        raise Problem("invalid-parameters", "this Idempotency-Key was used for another task: use a new one")
    return task


def _request_of(task: TaskRow) -> TaskRequest:
    """Return the request that created a task."""
    pinned = task.organiser_key is not None and task.organiser_scope is not None
    return TaskRequest(
        name=task.name,
        recipe=RecipeChoice(name=task.recipe_name, parameters=task.recipe_parameters),
        mechanism=MechanismChoice(name=task.mechanism_name, parameters=task.mechanism_parameters),
        schedule=Schedule.model_validate(task.schedule),
        seed=b64encode(task.seed) if task.repeatable else None,
        data_set=task.data_set,
        organiser=OrganiserPin(key=b64encode(task.organiser_key or b""), scope=task.organiser_scope or "")
        if pinned
        else None,
        evaluation=row_evaluation(task),
    )
