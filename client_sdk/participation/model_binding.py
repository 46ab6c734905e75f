"""The digest of the terms and the model that a client binds its keys and masks to, computed by the client itself."""

from __future__ import annotations

import hashlib

from client_sdk.agreement.terms import TaskTerms
from protocols.recipes.base import ModelState, RoundSpec
from protocols.task_binding import broadcast_digest

__all__ = ["own_digest"]


def own_digest(terms: TaskTerms, spec: RoundSpec, state: ModelState) -> bytes:
    """Return the digest (32 bytes) of the terms and of `state`, the model that this client trains on in the round."""
    held = terms.recipe.encode_view(state, terms.recipe.device_group_of(spec.sum_index)) if state.round_number else None
    model = None if held is None else hashlib.sha256(held).digest()
    return broadcast_digest(terms.view, spec.sum_index, model, spec.levels)
