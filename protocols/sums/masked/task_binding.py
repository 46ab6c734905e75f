"""What the parties of a masked round must agree on: the task's terms, the sum and the model, as one digest.

Each side computes it from what it knows itself. A client that was told other terms, or given another model, makes
masks that cancel against nobody's: it cannot be singled out by a crafted model (model inconsistency attack).
"""

from __future__ import annotations

import json

from protocols.messages import TaskView
from protocols.sums.masked.context import model_digest

__all__ = ["broadcast_digest"]


def broadcast_digest(task: TaskView, sum_index: int, snapshot_digest: bytes | None) -> bytes:
    """32 bytes for a round that is sum `sum_index` of `task`.

    snapshot_digest: SHA-256 (32 bytes) of the model state after the newest completed round, as the server publishes it
    and clients take it; None while no round is complete: the first state follows from the task's seed.
    """
    terms = {
        "task": task.task_id,
        "recipe": task.recipe.model_dump(mode="json"),
        "mechanism": task.mechanism.model_dump(mode="json"),
        "schedule": task.schedule.model_dump(mode="json"),
        "seed": task.seed,
    }
    if task.organiser is not None:
        terms["organiser"] = task.organiser.model_dump(mode="json")
    parameters = json.dumps(terms, sort_keys=True, separators=(",", ":")).encode()
    state = b"initial" if snapshot_digest is None else snapshot_digest
    return model_digest(parameters, b"step:%d\n" % sum_index + state)
