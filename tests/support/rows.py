"""Rows with default values, of which a test sets only those that it needs."""

from __future__ import annotations

import hashlib
from typing import Any

from aggregator_service.storage.schema import ClientRow, RoundRow, TaskRow

__all__ = ["client_row", "round_row", "task_row"]


def task_row(task_id: str = "t_1", **values: Any) -> TaskRow:
    """An open plain task."""
    ordinary: dict[str, Any] = {
        "name": task_id.replace("_", "-"),
        "state": "open",
        "recipe_name": "fedmf",
        "recipe_parameters": {},
        "mechanism_name": "plain",
        "mechanism_parameters": {},
        "schedule": {},
        "seed": bytes(32),
        "opened_by": "anyone",
        "needs_keyring": False,
        "repeatable": False,
        "created_at": 0.0,
        "completed_rounds": 0,
        "version": 0,
    }
    return TaskRow(id=task_id, **(ordinary | values))


def client_row(client_id: str, task_id: str = "t_1", **values: Any) -> ClientRow:
    """A member with keys and token derived from its id."""
    own = hashlib.sha256(client_id.encode())
    ordinary: dict[str, Any] = {
        "sequence": int.from_bytes(own.digest()[:3], "big"),
        "role": "member",
        "identity_key": own.digest(),
        "mailbox_key": bytes(32),
        "token_hash": own.hexdigest(),
        "enrolled_at": 0.0,
        "turn": 0,
    }
    return ClientRow(id=client_id, task_id=task_id, **(ordinary | values))


def round_row(task_id: str = "t_1", **values: Any) -> RoundRow:
    """A collecting round."""
    ordinary: dict[str, Any] = {
        "number": 1,
        "sum_index": 1,
        "sum_rule": "trained",
        "state": "collecting",
        "seed": bytes(32),
        "opened_at": 0.0,
        "deadline": 2e9,
        "cohort": 2,
    }
    return RoundRow(task_id=task_id, **(ordinary | values))
