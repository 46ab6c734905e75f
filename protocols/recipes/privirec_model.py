"""What PriviRec makes of the sums: the state after each, what it reports, and when a task is done.

`protocols.recipes.privirec` has the mathematics, and what clients contribute.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.layout import Floats
from protocols.recipes.base import ModelState, RoundSpec, check_follows
from protocols.recipes.bounds import noise_level
from protocols.recipes.next_item import model_of, places
from protocols.recipes.nonnegative import corrected, fits
from protocols.recipes.privirec_parameters import PriviRecKParameters
from protocols.recipes.privirec_plan import PriviRecPlan
from protocols.recipes.privirec_state import PriviRecState, rows_of_all, triangle_of_all
from protocols.recipes.spectrum import (
    Spectrum,
    above_noise,
    captured,
    iterate,
    of_factor,
    relative_change,
    ritz,
    shrunk_rows,
    start_basis,
    symmetric_above_noise,
)
from protocols.recipes.staircase import first_basis, next_basis, places_of, require_of_rows, tiers_of, whole_spectrum
from protocols.recipes.state import STATE_TOLERANCE, state_as
from protocols.recipes.validation import chosen_setting, usual_of

_AT_LIMIT: Final = 1.0 - 1e-5  # the state has 32 bits
_UNDETERMINED: Final = 1e-8  # share of the largest eigenvalue below which rounding decides a vector


@dataclass(frozen=True)
class PriviRecModel(PriviRecPlan):
    """The states of PriviRec-k."""

    def rows_in(self, state: PriviRecState, spec: RoundSpec) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which of the kept rows each item is, int64 (items,), -1 for others, and where in the sum of `spec`
        each kept row begins, int64 (m,); in a Gram sum, which row it is.

        A sum of the largest size has places for all items and columns, which stay 0 where a row does not have them.
        Raises `ParameterError` for any other size than the state tells.
        """
        p, kept, size = self.parameters, self.kept(state), self.size_after(state)
        if spec.size and spec.size != size:
            raise ParameterError(f"the round has a sum of size {spec.size}, but the model before it says {size}")
        rows = np.full(p.items, -1)
        rows[kept] = np.arange(kept.size)
        if self.sum_of(spec.sum_index) != "iteration":
            return rows, np.arange(kept.size) if spec.size else kept
        widths = self.widths(state)[0]
        return rows, np.cumsum(widths) - widths if spec.size else kept * p.columns

    def span_in(self, spec: RoundSpec) -> tuple[int, int]:
        """Return which values of the triangle a Gram sum of counts has; `ParameterError` for a round without a size."""
        if not spec.size:
            raise ParameterError("a Gram sum of counts has the size that the model before it says")
        return self.span_of_pairs(spec.sum_index, spec.size[0])

    def with_rows(self, state: PriviRecState, items: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return those of `items` that have rows in the sums, in their order."""
        kept = np.zeros(self.parameters.items, bool)
        kept[self.kept(state)] = True
        found: NDArray[np.int32] = items[kept[items]]
        return found

    def places_of(self, state: PriviRecState, items: NDArray[np.integer]) -> Floats:
        """Return x of `next_item` for items (k,) in their order, float64 (k, next_vectors)."""
        p = self.parameters
        return places(self.item_scales(state)[items], state.basis[items, : _used(p)], p.next_vectors)

    def item_scales(self, state: PriviRecState) -> Floats:
        """Return the diagonal of D_i^-b, float64 (m,): 0 for an item without users, 1 where degrees are not summed."""
        if not self.parameters.degrees:
            return np.ones(self.parameters.items)
        degrees = state.item_degrees
        return np.power(degrees, -self.parameters.degree_exponent, out=np.zeros_like(degrees), where=degrees > 0)

    def basis_before(self, state: PriviRecState, spec: RoundSpec) -> NDArray[np.float32]:
        """Return Q before the sum of `spec`: of the state; from the round's seed if it has none, before a first sum."""
        if state.basis.size:
            return state.basis
        return start_basis(spec.seed, self.parameters.items, self.parameters.columns).astype(np.float32)

    def absorb(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> ModelState:
        own = state_as(state, PriviRecState)
        check_follows(own, spec, every_sum=True)
        total = self.layout(spec.sum_index, spec.size).split(total)[0]
        match self.sum_of(spec.sum_index):
            case "degrees":
                # a sum of honest clients has no degree outside 0..contributions; noise makes no degree small, or items'
                # scales would be noise
                least = min(np.ceil(noise_level(spec.noise)), contributions)
                degrees = np.clip(np.rint(total), least, contributions)
                return self._begun(own.following(spec, item_degrees=degrees, clients=contributions), spec)
            case "lists":
                entries = np.clip(np.rint(total[self.rows_in(own, spec)[1]]), 0.0, contributions * self._longest_list)
                whole = rows_of_all(entries, self.kept(own), self.parameters.items)
                return self._begun(own.following(spec, list_entries=whole), spec)
            case "iteration":
                widths, columns = self.widths(own)
                has, places = places_of(widths, self.rows_in(own, spec)[1])
                product = np.zeros((widths.size, columns))
                product[:, : has.shape[1]][has] = total[places]
                return self._iterated(own, spec, product, contributions)
            case "next":
                return own.following(spec, transitions=self._model(own, spec, total))
            case "validation":
                measured = np.clip(total, 0.0, contributions)
                chosen = chosen_setting(measured, spec.noise, usual_of(self.settings))
                return own.following(spec, measured=measured, setting=chosen)
            case "gram" if self.parameters.counted:
                counts = np.clip(np.rint(total), 0.0, contributions).astype(np.uint32)
                return own.following(
                    spec,
                    pairs=np.concatenate([own.pairs, counts]),
                    pair_clients=np.append(own.pair_clients, np.uint32(contributions)),
                )
            case "gram" if spec.noise:
                return self._gram_in_noise(own, spec, total)
            case "gram":
                rows = self.kept(own) if spec.size else np.arange(self.parameters.items)
                return own.following(spec, gram=triangle_of_all(total.astype(np.float32), rows, self.parameters.items))

    def _model(self, state: PriviRecState, spec: RoundSpec, total: Floats) -> NDArray[np.float32]:
        count = self.parameters.next_vectors
        found = np.zeros(count, bool)
        values = state.singular_values[: min(count, _used(self.parameters) or count)]
        found[: values.size] = values > 0
        return model_of(total, count, found, spec.noise)

    def _begun(self, state: PriviRecState, spec: RoundSpec) -> PriviRecState:
        """Return the state before the first iteration with Q_0, drawn from the round's seed.

        With `krylov` the rows of the Gaussian are as long as the columns of R~, whose squares are the diagonal of P, so
        that fewer directions find what is frequent.
        """
        p, kept = self.parameters, self.kept(state)
        if p.counted or state.sum_index + 1 < self.first_vectors:
            return state
        widths, columns = self.widths(state)
        lengths = state.item_degrees[kept] ** (0.5 - p.degree_exponent) if p.krylov else None
        drawn = first_basis(spec.seed, tiers_of(widths), kept.size, columns, lengths).astype(np.float32)
        basis = rows_of_all(drawn, kept, p.items)
        return replace(state, basis=basis, singular_values=np.zeros(columns, dtype=np.float32))

    def _deviations(self, state: PriviRecState, spec: RoundSpec, contributions: int) -> Floats:
        """Return the standard deviation of what noise and encoding add to the values of each row of Y, float64 (m,).

        An encoding rounds each contribution to steps, and zeros exactly: a row has the errors of its owners alone, each
        uniform within half a step.
        """
        half = spec.rounding / max(1, contributions)
        owners = state.item_degrees[self.kept(state)] if self.parameters.degrees else contributions
        found = np.sqrt(spec.noise**2 + half**2 / 3.0 * owners)
        return np.broadcast_to(found, self.kept(state).shape)

    def _iterated(self, state: PriviRecState, spec: RoundSpec, product: Floats, contributions: int) -> PriviRecState:
        """Return the state after an iteration; with noise, components below the noise have the singular value 0.

        Their vectors stay in Q for the next iteration, in which they may rise above the noise. After the last one they
        are 0.
        """
        kept = self.kept(state)
        basis = self.basis_before(state, spec)[kept].astype(np.float64)
        require_of_rows(tiers_of(self.widths(state)[0]), basis, product, self._deviations(state, spec, contributions))
        if self.parameters.krylov:
            return self._with_more_directions(state, spec, basis, product)
        found = above_noise(product, spec.noise) if spec.noise else iterate(product)
        share, values = captured(basis, found.vectors), np.sqrt(found.eigenvalues)
        # before a first sum there are no singular values
        change = relative_change(state.singular_values.astype(np.float64), values) if state.sum_index else 1.0
        vectors = found.vectors
        if spec.sum_index == self.last_iteration or self._converged(change):
            if spec.noise:
                vectors = vectors * (values > 0)
            elif self.parameters.rayleigh_ritz:
                found = ritz(basis, product)
                vectors, values = found.vectors, np.sqrt(found.eigenvalues)
        return state.following(
            spec,
            basis=rows_of_all(vectors.astype(np.float32), kept, self.parameters.items),
            singular_values=values.astype(np.float32),
            captured=share,
            change=change,
        )

    def _with_more_directions(
        self, state: PriviRecState, spec: RoundSpec, basis: Floats, product: Floats
    ) -> PriviRecState:
        """Return the state after an iteration in a block Krylov space: the next Q, or the model after the last one."""
        kept, items = self.kept(state), self.parameters.items
        widths, columns = self.widths(state)
        tiers, asked, products = tiers_of(widths), basis, product
        if state.asked.size:
            asked, products = np.hstack([state.asked[kept], basis]), np.hstack([state.products[kept], product])
        asked, products = asked.astype(np.float64), products.astype(np.float64)
        if spec.sum_index == self.last_iteration:
            found = whole_spectrum(tiers, asked, products, columns)
            if fits(*asked.shape):
                found = corrected(tiers, asked, products, columns, found)
            found = self._with_usual_rows(state, found)
            return state.following(
                spec,
                basis=rows_of_all(found.vectors.astype(np.float32), kept, items),
                singular_values=np.sqrt(found.eigenvalues).astype(np.float32),
                captured=captured(basis, found.vectors),
                asked=np.zeros((0, 0), np.float32),
                products=np.zeros((0, 0), np.float32),
            )
        found, following = next_basis(tiers, asked, products, columns)
        values = np.sqrt(found.eigenvalues)
        return state.following(
            spec,
            basis=rows_of_all(following.astype(np.float32), kept, items),
            singular_values=values.astype(np.float32),
            captured=captured(basis, found.vectors),
            change=relative_change(state.singular_values.astype(np.float64), values),
            asked=rows_of_all(asked.astype(np.float32), kept, items),
            products=rows_of_all(products.astype(np.float32), kept, items),
        )

    def _with_usual_rows(self, state: PriviRecState, found: Spectrum) -> Spectrum:
        """Return the spectrum with no row of P longer than `item_limit` allows.

        P_ii = d_i^-2b sum_u d_u^-2a over the item's owners: d_i^(1-2b) times a mean over them, which is much alike for
        all items. A lie in the sums makes it hundreds of times as large for an item that it promotes.
        """
        if self.parameters.item_limit is None or not found.eigenvalues.any():
            return found
        shrink = shrunk_rows(*self._rows_and_limits(state, found.vectors, found.eigenvalues))
        if shrink is None:
            return found
        used = found.eigenvalues > 0.0
        factor = found.vectors[:, used] * np.sqrt(found.eigenvalues[used]) * shrink[:, None]
        return of_factor(factor, found.eigenvalues.size)

    def _rows_and_limits(self, state: PriviRecState, vectors: Floats, eigenvalues: Floats) -> tuple[Floats, Floats]:
        """Return P's diagonal and what `item_limit` allows of it, float64 (m,).

        The latter is the same of the model with shrunk rows: these stay above the median.
        """
        by_degree = state.item_degrees[self.kept(state)] ** (1.0 - 2.0 * self.parameters.degree_exponent)
        own = np.square(vectors) @ eigenvalues
        return own, (self.parameters.item_limit or np.inf) * float(np.median(own / by_degree)) * by_degree

    def _gram_in_noise(self, state: PriviRecState, spec: RoundSpec, upper: Floats) -> PriviRecState:
        """Return the state after the Gram sum with noise: P without what is noise, and its leading vectors as basis."""
        p = self.parameters
        found = symmetric_above_noise(upper, p.items, spec.noise)
        basis, values = np.zeros((p.items, p.columns), np.float32), np.zeros(p.columns, np.float32)
        kept = min(p.columns, found.eigenvalues.size)
        basis[:, :kept], values[:kept] = found.vectors[:, :kept], np.sqrt(found.eigenvalues[:kept])
        whole = (found.vectors * found.eigenvalues) @ found.vectors.T
        gram = whole[np.triu_indices(p.items)].astype(np.float32)
        return state.following(spec, basis=basis, singular_values=values, gram=gram)

    def same_state(self, own: ModelState, other: ModelState) -> bool:
        """See `Recipe.same_state`.

        More vectors than the members' rows span are not determined by the sum: what rounding leaves of it decides them.
        They must be orthogonal to the others and among themselves, so that the sums over them are of nothing.
        """
        mine, theirs = state_as(own, PriviRecState), state_as(other, PriviRecState)
        values = mine.singular_values.astype(np.float64) ** 2
        free = np.flatnonzero(values <= _UNDETERMINED * values.max(initial=0.0)) if mine.sum_index else values[:0]
        vectors = theirs.basis.astype(np.float64)
        if not free.size or not values.any() or vectors.shape != mine.basis.shape:
            return super().same_state(own, other)
        basis = np.array(mine.basis)
        basis[:, free] = theirs.basis[:, free]
        products = vectors.T @ vectors[:, free]
        if self.parameters.krylov and mine.sum_index < self.last_iteration:  # tiers are not orthogonal to each other
            kept, widths = self.kept(mine), self.widths(mine)[0]
            tier = np.searchsorted(np.unique(widths), np.arange(len(products)), side="right")
            products *= tier[:, None] == tier[free]
            if vectors[kept][:, free][np.arange(len(products))[free] >= widths[:, None]].any():
                return False
        lengths = products[free, np.arange(free.size)].copy()
        products[free, np.arange(free.size)] = 0.0
        is_orthogonal = float(np.abs(products).max()) <= STATE_TOLERANCE
        # a vector that noise hides is 0 after the last iteration
        is_unit = bool(((np.abs(lengths - 1.0) <= STATE_TOLERANCE) | (lengths == 0.0)).all())
        return (
            is_orthogonal
            and is_unit
            and super().same_state(replace(mine, basis=basis, captured=theirs.captured), other)
        )

    def _converged(self, change: float) -> bool:
        return self.parameters.tolerance is not None and change <= self.parameters.tolerance

    def report(self, state: ModelState) -> dict[str, float]:
        """Return the rows and columns of the sums after the degrees, how many counted pairs are above a degree and how
        many items at `item_limit`, convergence figures after an iteration: `captured`, `change`, extreme singular
        values; and what the sum of validation chose."""
        own = state_as(state, PriviRecState)
        size = dict(zip(("items_kept", "columns"), map(float, self.size_after(own)), strict=False))
        if own.pairs.size:
            size["pairs_above_degree"] = float(np.count_nonzero(own.pairs > self.pairs_within(own)))
        if own.sum_index < self.first_vectors or not own.singular_values.size:
            return size | self._validated(own)
        if self.parameters.item_limit is not None and own.sum_index >= self.last_iteration:
            rows, limits = self._rows_and_limits(
                own, own.basis[self.kept(own)].astype(np.float64), np.square(own.singular_values.astype(np.float64))
            )
            size["items_at_limit"] = float(np.count_nonzero(rows > limits * _AT_LIMIT))
        return {
            **size,
            "captured": own.captured,
            "change": own.change,
            "largest_singular_value": float(own.singular_values.max()),
            "smallest_singular_value": float(own.singular_values.min()),
            **self._validated(own),
        }

    def _validated(self, state: PriviRecState) -> dict[str, float]:
        """Return the chosen setting, how many members measured, and NDCG@20 of the first and of the chosen one."""
        if not state.measured.size:
            return {}
        members, setting = float(state.measured[0]), state.setting
        first, chosen = (state.measured[1 + index] / max(1.0, members) for index in (0, setting))
        found = {"validated_members": members, "setting": float(setting)}
        return found | {"first_setting_ndcg20": float(first), "setting_ndcg20": float(chosen)}

    def is_done(self, state: ModelState) -> bool:
        """Return whether all sums are made, the vectors have converged, or no column may be asked for."""
        own = state_as(state, PriviRecState)
        converged = own.sum_index >= self.first_vectors and self._converged(own.change)
        return own.sum_index >= self.steps or converged or 0 in self.size_after(own)


def _used(parameters: PriviRecKParameters) -> int | None:
    """Return how many vectors of the model scores are made of; None for all."""
    return None if parameters.krylov else parameters.components
