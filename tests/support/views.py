"""What a server shows of a task and of its rounds, for tests without one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from protocols.codec import b64encode
from protocols.messages import RoundView, TaskView

__all__ = ["SEED", "round_view", "task_view"]

SEED = bytes(range(32))


def task_view(
    recipe: str = "colr",
    parameters: Mapping[str, Any] | None = None,
    mechanism: str = "plain",
    how: Mapping[str, Any] | None = None,
    **changes: Any,
) -> TaskView:
    """An open task of ten members in cohorts of ten; by default one of CoLR over six items."""
    ordinary: dict[str, Any] = {
        "task_id": "t_1",
        "name": "movies",
        "state": "open",
        "recipe": {"name": recipe, "parameters": dict(parameters or {"items": 6, "dim": 4, "rank": 2})},
        "mechanism": {"name": mechanism, "parameters": dict(how or {})},
        "schedule": {"cohort_size": 10, "min_clients": 3},
        "seed": b64encode(SEED),
        "plan": {},
        "opened_by": "members" if mechanism in ("ckks", "paillier") else "anyone",
        "members": 10,
        "keyed_members": 10,
        "completed_rounds": 0,
        "failed_rounds": 0,
    }
    return TaskView.model_validate({**ordinary, **changes})


def round_view(
    number: int,
    state: str = "collecting",
    seed: bytes = bytes(32),
    survivors: int = 4,
    aggregate: bytes | None = None,
    **changes: Any,
) -> RoundView:
    """A round of a cohort of ten. survivors, aggregate: of one that is complete."""
    done = state == "complete"
    ordinary: dict[str, Any] = {
        "task_id": "t_1",
        "number": number,
        "step": number,
        "state": state,
        "seed": b64encode(seed),
        "cohort": 10,
        "received": survivors,
        "survivors": survivors if done else 0,
        "folded": survivors if done else 0,
        "seconds_left": None if done else 60.0,
        "aggregate_bytes": len(aggregate) if done and aggregate is not None else None,
        "aggregate_digest": hashlib.sha256(aggregate).hexdigest() if done and aggregate is not None else None,
    }
    return RoundView.model_validate({**ordinary, **changes})
