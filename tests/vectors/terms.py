"""Vectors of the model digest, from a task's JSON on, and of the canonical form of JSON."""

from __future__ import annotations

from typing import Any, Final

from protocols.canonical_json import canonical_json
from protocols.codec import b64encode
from protocols.crypto.domain import digest
from protocols.messages import Evaluation, OrganiserPin, TaskView
from protocols.task_binding import bound_terms, broadcast_bytes, broadcast_digest
from tests.vectors.common import SEED, error_of

__all__ = ["canonical", "model_digest"]

_TASK: Final[dict[str, Any]] = {
    "task_id": "t_0f3a9c5b7d1e2f4a6b8c",
    "name": "movies",
    "state": "open",
    "recipe": {"name": "colr", "parameters": {"items": 30, "dim": 8, "rank": 2, "clip": 0.1, "learning_rate": 1e-7}},
    "mechanism": {"name": "masked", "parameters": {"corrupt": 0.05, "dropout": 0.0}},
    "schedule": {"rounds": 10, "cohort_size": 20, "min_clients": 5, "collect_seconds": 90.5},
    "seed": b64encode(SEED),
    "plan": {},
    "opened_by": "anyone",
    "members": 20,
    "keyed_members": 0,
    "able_members": [20],
    "completed_rounds": 3,
    "failed_rounds": 0,
}
_ORGANISER: Final = OrganiserPin(key=b64encode(SEED), scope="Kinofreunde Köln")
_NUMBERS: Final[tuple[int | float, ...]] = (
    *(0, -0.0, 600.0, -1, 2**53 - 1, 0.1, 1e-7, 1e-6, 1.5e-7, 1e20, 1e21, 1.5e21, 123456.75, 5e-324),
    *(
        1.7976931348623157e308,
        9007199254740993.0,
        333333333.33333329,
        4.5,
        2e-3,
        -0.000001,
        1e23,
        295147905179352830000.0,
    ),
)


def model_digest() -> dict[str, Any]:
    """Digests of tasks, from the JSON that the server answers on."""
    snapshot = digest("vector snapshot")
    plain = TaskView.model_validate(_TASK)
    full = plain.model_copy(update={"organiser": _ORGANISER, "evaluation": Evaluation(every=5)})
    cases = []
    for task, sum_index, state, levels in (
        (plain, 1, None, []),
        (plain, 4, snapshot, []),
        (full, 4, snapshot, []),
        (plain, 4, snapshot, [1, 3, 12]),
    ):
        cases.append(
            {
                "task": task.model_dump(mode="json"),
                "sum_index": sum_index,
                "snapshot_digest": None if state is None else state.hex(),
                "levels": levels,
                "terms": bound_terms(task).decode(),
                "broadcast": broadcast_bytes(sum_index, state, levels).hex(),
                "model_digest": broadcast_digest(task, sum_index, state, levels).hex(),
            }
        )
    return {
        "about": "terms: RFC 8785 form of an object with the members task (the task's task_id), recipe, mechanism, "
        "schedule and seed, as in the task's JSON, and organiser and evaluation unless they are null. Recipe and "
        "mechanism have all their parameters, with the defaults of those that the task leaves out. broadcast: "
        "'step:', the index of the sum in decimal, a line feed; where a round has levels in use 'levels:', these in "
        "decimal with commas between them, a line feed; then the SHA-256 of the snapshot of the newest "
        "complete round, or 'initial'. model_digest = digest('masked model', terms, broadcast), two byte strings.",
        "cases": cases,
    }


def canonical() -> dict[str, Any]:
    """Canonical forms of numbers, strings and objects, and values that have none."""
    values: list[Any] = [
        None,
        [True, False],
        {"b": 1, "a": [], "": {}, "é": 1, "\U0001f600": 2, "\ufb33": 3, "A": "x"},
        '"\\/\b\f\n\r\t\u0000\u001f\u007f€\u2028',
    ]
    refused = {"2^53": 2**53, "-2^60": -(2**60), "half a surrogate pair": "\ud800"}
    return {
        "about": "canonical: RFC 8785 form of value. refused: these have none; implementations whose numbers are all "
        "double precision cannot notice the first two.",
        "numbers": [{"value": number, "canonical": canonical_json(number).decode()} for number in _NUMBERS],
        "values": [{"value": value, "canonical": canonical_json(value).decode()} for value in values],
        "refused": [
            {"what": what, "error": error_of(lambda value=value: canonical_json(value))}
            for what, value in refused.items()
        ],
    }
