"""The best measured model of one task, in the client's store."""

from __future__ import annotations

import struct
from typing import Final

from client_sdk.errors import LocalFileError
from client_sdk.local_state.client_store import ClientStore
from protocols.errors import CodecError
from protocols.recipes.base import ModelState, Recipe

__all__ = ["keep_best_state", "read_best_state"]

_NAME: Final = "best_state.bin"
_ROUND: Final = struct.Struct("<Q")


def read_best_state(store: ClientStore, task_id: str, recipe: Recipe) -> ModelState | None:
    """Return the stored best model, None if there is none; `LocalFileError` for a damaged file."""
    body = store.read(task_id, _NAME)
    if body is None:
        return None
    try:
        (number,) = _ROUND.unpack_from(body)
        return recipe.decode_state(number, body[_ROUND.size :])
    except (struct.error, CodecError) as error:
        raise LocalFileError(f"the stored best model of task {task_id} is damaged") from error


def keep_best_state(store: ClientStore, task_id: str, recipe: Recipe, state: ModelState) -> None:
    """Store a model: its round number (8 bytes, little-endian), then its encoding."""
    store.write(task_id, _NAME, _ROUND.pack(state.round_number) + recipe.encode_state(state))
