"""A task begins with the model of a finished one, which may have fewer items: further ones are appended.

**Spectral start**: a task of a factor recipe begins with the factors that a finished `privirec-k` task computed.
PriviRec-k computes V and s, the leading right singular vectors and values of R~ = D_u^-a R D_i^-b, and the item degrees
d, from sums over the clients (Islam et al., PriviRec). With w = s^2 / (s^2 + l) of EASE (`spectrum`), the start takes
from them

    item factors    Q = t D_i^b V_k diag(w_k)^1/2, the `dim` leading columns, t such that mean |q_i|^2 = 1
    item counts     d and the number of clients, so that the task needs no sums of counts
    user factor     p = (c / sqrt(n)) * sum over the user's n items i of (mean(d) / d_i)^2b q_i

so that b_i + p . q_i is, up to a factor and with popularity added, the score D_i^b (V diag(w) V^T) D_i^-b r of EASE
before its division by the diagonal of G. A device computes p from the model it has and its own row.

A `privirec-k` task that does not sum degrees starts from the vectors themselves: they are the basis of its first
iteration. A factor recipe also goes on from the item factors of an earlier one of the same length, with item counts of
its own, as members have more by then; a device that took part before goes on with its user factor.

A new item has factors, counts and vectors of 0: no score of its own, until members train it.

The server derives the state of round 0 once and stores it as the task's snapshot of round 0. Its digest is part of the
task's parameters, so every client begins with the same bytes and masked rounds are bound to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.recipes.base import FactorState, ModelState, Recipe
from protocols.recipes.evaluated import Evaluated, EvaluatedState
from protocols.recipes.factors import BiasedParameters, CountedFactors, StartFrom
from protocols.recipes.private import Private
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.rows import FactorModel
from protocols.recipes.spectrum import chosen_weight, shares_and_diagonal
from protocols.recipes.state import state_as

N = TypeVar("N", bound=np.generic)


class Source(NamedTuple):
    """A task that another one starts from: a state of `privirec-k`, and b, the exponent of the items' degrees; or a
    state of a recipe over item factors."""

    state: ModelState
    item_exponent: float | None


def start_of(parameters: object) -> StartFrom | None:
    """Return where the initial state of a task with these parameters comes from; None if it follows from the seed."""
    return parameters.start_from if isinstance(parameters, BiasedParameters) else None


def projects(parameters: object) -> bool:
    """Return whether a device without a user factor computes it from the start: it is of a spectrum."""
    start = start_of(parameters)
    return start is not None and start.is_spectrum


def with_items(rows: NDArray[N], items: int) -> NDArray[N]:
    """Return the rows of the items of an earlier task, (m, ...), and zeros for those after them, (`items`, ...).

    Raises `ParameterError` if it has more items.
    """
    if len(rows) > items:
        raise ParameterError(
            f"the task has {items} items, the task that it starts from has {len(rows)}: items may only be appended"
        )
    return np.concatenate([rows, np.zeros((items - len(rows), *rows.shape[1:]), rows.dtype)])


def spectral_factors(source: Source, dim: int) -> NDArray[np.float32]:
    """Return Q, float32 (items, dim), from the `dim` leading singular vectors of `source`.

    Raises `ParameterError` if it has fewer singular vectors, or no singular values yet.
    """
    spectrum = state_as(source.state, PriviRecState)
    columns = spectrum.singular_values.size
    if not spectrum.singular_values.any():
        raise ParameterError("this spectrum has no singular values yet: its task must have completed an iteration")
    if columns < dim:
        raise ParameterError(f"a spectrum of {columns} singular vectors cannot start item factors of length {dim}")
    order = np.argsort(-spectrum.singular_values, kind="stable")[:dim]
    vectors, values = spectrum.basis[:, order], spectrum.singular_values
    shares, _ = shares_and_diagonal(vectors, values[order], chosen_weight(values))
    factors = spectrum.item_degrees[:, None] ** (source.item_exponent or 0.0) * vectors * np.sqrt(shares)
    power = float((factors**2).sum())
    return np.asarray(factors * np.sqrt(len(factors) / power), dtype=np.float32)


def start_state(recipe: Recipe, source: Source) -> ModelState:
    """Return the state of round 0 of a task of `recipe` that starts from `source`.

    Raises `ParameterError` for a recipe that cannot start from it, fewer items, and item factors of another length.
    """
    if isinstance(recipe, Private):
        return recipe.starting(start_state(recipe.inner, source))
    if isinstance(recipe, Evaluated):
        return EvaluatedState(0, start_state(recipe.inner, source), ())
    if isinstance(source.state, FactorState):
        return _next_state(recipe, source.state)
    spectrum = state_as(source.state, PriviRecState)
    if not isinstance(recipe, FactorModel) or not recipe.can_start:
        raise ParameterError(f"recipe {recipe.name!r} cannot start from a spectrum")
    if spectrum.sum_index and not spectrum.item_degrees.size:
        raise ParameterError("the task that it starts from did not sum item degrees, the first values of item biases")
    items = recipe.parameters.items
    factors = with_items(spectral_factors(source, recipe.parameters.dim), items)
    return CountedFactors(0, factors, with_items(spectrum.item_degrees, items), spectrum.clients)


def _next_state(recipe: Recipe, earlier: FactorState) -> FactorState:
    """Return the state of round 0 that goes on from item factors, with item counts of 0."""
    if not isinstance(recipe, FactorModel) or not recipe.can_start:
        raise ParameterError(f"recipe {recipe.name!r} cannot start from item factors")
    p = recipe.parameters
    if (dim := earlier.item_factors.shape[1]) != p.dim:
        raise ParameterError(f"the task has factors of length {p.dim}, the task that it starts from of length {dim}")
    factors = with_items(earlier.item_factors, p.items)
    if float(np.linalg.norm(factors, axis=1).max()) > recipe.longest_start:
        raise ParameterError("the task that it starts from has diverged: its item factors are too long to start from")
    return CountedFactors(0, factors, np.zeros(p.items), 0) if p.has_counts else FactorState(0, factors)


def start_parameters(
    recipe: Recipe, parameters: Mapping[str, Any], task: str, snapshot: bytes, source: Source
) -> tuple[dict[str, Any], bytes]:
    """Return `parameters` with `start_from`, and the encoded state of round 0.

    recipe: made from `parameters`. task, snapshot: id of the source task, and the encoding of its state. Raises
    `ParameterError` as `start_state` does.
    """
    inner = recipe.own
    if isinstance(inner, PriviRecK):
        vectors = state_as(source.state, PriviRecState).basis
        _, body = inner.starting_from(with_items(vectors, inner.parameters.items))
    else:
        body = recipe.encode_state(start_state(recipe, source))
    start = StartFrom(
        task=task,
        round=source.state.round_number,
        snapshot=_digest(snapshot),
        digest=_digest(body),
        item_exponent=source.item_exponent,
    )
    return {**parameters, "start_from": start.model_dump(mode="json")}, body


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def projected_user(
    state: CountedFactors, items: NDArray[np.int32], scale: float, item_exponent: float
) -> NDArray[np.float32]:
    """Return p, float32 (dim,), for a user with the distinct `items`, int32 (n,). scale: c. item_exponent: b."""
    counts = np.maximum(state.item_counts, 1.0)
    weights = (counts.mean() / counts[items]) ** (2 * item_exponent)
    return np.asarray(scale / np.sqrt(items.size) * (weights @ state.item_factors[items]), dtype=np.float32)
