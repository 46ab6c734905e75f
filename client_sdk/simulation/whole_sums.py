"""The sums of a PriviRec task over many clients as sparse matrix products, in place of one dense vector a client.

A client's part of a power iteration, r_u^T (r_u Q), is non-zero in the rows of its own items only. Over plain sums the
total is R~^T (R~ Q). Over masked sums every value is rounded to the ring's grid first, as a client does, so the total
has the same bits as the sum of the clients' ring elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array

from client_sdk.data.interactions import Interactions
from client_sdk.filters.rows import interaction_rows
from protocols.recipes.base import ModelState, RoundSpec
from protocols.recipes.privirec.recipe import PriviRecK
from protocols.recipes.privirec.state import PriviRecState, privirec_state
from protocols.sums.base import SumPlan
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.segments import decode_sum

__all__ = ["whole_sum"]

_CHUNK_VALUES: Final = 8_000_000


def whole_sum(
    recipe: PriviRecK, plan: SumPlan, spec: RoundSpec, state: ModelState, train: Interactions, cohort: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the opened sum of degrees or of an iteration over the users of `cohort`, float64 (layout.length,).

    state: the model before the sum. Equal to the sum of the clients' contributions: exactly over masked sums, and up to
    the float32 rounding of contributions over plain ones.
    """
    rows = interaction_rows(train)[cohort].astype(np.float64)
    if recipe.sum_of(spec.sum_index) == "degrees":
        return np.bincount(rows.indices, minlength=rows.shape[1]).astype(np.float64)
    own = privirec_state(state)
    scaled = _scaled(recipe, own, rows)
    basis = own.basis.astype(np.float64)
    if isinstance(plan, MaskedPlan):
        return _ring_sum(plan, scaled, basis)
    return np.asarray(scaled.T @ (scaled @ basis)).ravel().astype(np.float32).astype(np.float64)


def _scaled(recipe: PriviRecK, state: PriviRecState, rows: csr_array[Any, Any]) -> csr_array[Any, Any]:
    """Return the users' rows of R~, float64 CSR."""
    p, degrees = recipe.parameters, state.item_degrees
    items = np.power(degrees, -p.degree_exponent, out=np.zeros_like(degrees), where=degrees > 0)
    users = np.diff(rows.indptr).astype(np.float64) ** -p.user_exponent
    return csr_array(diags_array(users) @ rows @ diags_array(items))


def _ring_sum(plan: MaskedPlan, scaled: csr_array[Any, Any], basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of the clients' ring elements, opened."""
    ((ring, _),) = plan.places[0]
    clip, (items, columns) = plan.layout.blocks[0].segments[0].clip, basis.shape
    total = np.zeros((items, columns), np.int64)
    for chunk in _chunks(scaled, columns):
        owners = np.repeat(np.arange(chunk.shape[0]), np.diff(chunk.indptr))
        values = chunk.data[:, None] * (chunk @ basis)[owners]
        elements, _ = ring.encode(values, clip)
        places = csr_array(
            (np.ones(chunk.nnz, np.int64), chunk.indices, np.arange(chunk.nnz + 1)), shape=(chunk.nnz, items)
        )
        total += places.T @ elements.astype(np.int64)
    elements = ring.reduce(total.view(np.uint64).ravel())
    return decode_sum(plan.layout, plan.places, elements, scaled.shape[0])


def _chunks(rows: csr_array[Any, Any], columns: int) -> Iterator[csr_array[Any, Any]]:
    """Cut the rows so that a chunk has about `_CHUNK_VALUES` values of interactions times columns."""
    most = max(1, _CHUNK_VALUES // columns)
    start = 0
    while start < rows.shape[0]:
        end = int(np.searchsorted(rows.indptr, rows.indptr[start] + most, side="right")) - 1
        end = min(max(end, start + 1), rows.shape[0])
        yield rows[start:end]
        start = end
