"""PriviRec: the components of graph filters, computed from sums over clients; nothing is trained.

"Secure Federated Graph-Filtering for Recommender Systems". R is the binary users x items matrix, D_u and D_i hold its
row and column sums, R~ = D_u^-a R D_i^-b, and P = R~^T R~ (eq. 2 has a = b = 1/2; Turbo-CF has b = 1 - a). The sums of
a task, by index:

    1               item degrees d_i = sum_u R_ui                             (eq. 6)       m counts
    2               entries e_i = sum_u R_ui d_u of the lists of i's owners                 m counts
    3 .. q+2        Y = P Q = sum_u r_u^T (r_u Q), r_u a row of R~; Q <- QR   (theorem 3.2) m x K values at most
    q+2 (privirec)  the upper triangle of P = sum_u r_u^T r_u                 (theorem 3.1) m (m+1) / 2 values; or, with
                    q = 0 and a = 0, of the counts R^T R in `blocks` sums
    q+3             what follows what, in K-space (`next_item`), where members have times   n (n+1) / 2 + n^2
    q+4             NDCG@20 of settings of the filter (`validation`)                        1 + settings

A task with `reveal_gram` or a privacy block has no sum of lists, and later sums have an index one lower; so has that of
validation without a sum of next items.

privirec-k has no Gram sum: P ~ Q diag(|diag R|) Q^T of the last QR (approximation 3.3, eq. 17). With `krylov` each
iteration asks for directions that are orthogonal to all before, and P ~ Y (Q^T Y)^+ Y^T of all Q and Y side by side
(Nystroem's approximation in a block Krylov space: Musco and Musco, NIPS 2015; Halko et al. 2011, section 5.5).

A client scales its own row: it knows d_u, and d_i from the first sum. With b = 0 nobody needs d_i: `degrees` false
leaves that sum out, the others have an index one lower, and Q_0 is drawn from the seed of the first iteration. Or Q_0
are the vectors of an earlier task (`start_from`), after which one iteration is enough: docs/results.md.

**Items with few owners.** A row of Y is a sum over the item's owners alone. So items with fewer than `min_owners` of
them, by the first sum, leave R and all later sums: their rows of the vector do not exist, d_u counts the others, and m
is their number. Nobody needs to be told: everybody computes it from the degrees.

**Few columns.** A sum gives an equation for a row of P with each column that the row has. K is at most `components`,
and so small that all iterations together stay within `protocols.privacy.equations`, unless the task has `reveal_gram`.
With K = 0 the task ends: sums over so few clients, or of so short lists, hide nobody.

A row of P is easier to solve for, the fewer items its owners have. So the sum of lists says how many those are, over
all owners, and a row has only as many of the K columns, in steps of a sixteenth, as that allows (`widths`): K is what
a quarter of the rows may have, and a row that may have none leaves the sums. `protocols.recipes.staircase` has the
model that is made from such sums, and `nonnegative` corrects it. Without `krylov` a row has all columns or none, and
nineteen of twenty have all.

**Counted pairs.** With a = 0 nothing of a user's row needs scaling before it is summed: P = D_i^-b R^T R D_i^-b, and
R^T R are whole numbers of at most n, how many clients have both of two items. Their sums are exact in a ring of 16 bits
up to 32,767 clients. So `privirec` without iterations and noise, and with a = 0, sums these counts, the triangle in
`blocks` sums of equal length, and everybody computes the leading vectors of P from them. All blocks together are the
whole matrix, and say what it says. A count above the smaller of its items' degrees counts as that many, so that no lie
in a block exceeds it. A few such do not refuse a sum: lists of honest members grow between sums, and a liar that leaves
an item out of the degrees would end the task. The state has what was summed, and `report` says how many are above.
`protocols.recipes.counted_pairs` has how P is made of the counts, and which no lists give: these are refused.

**Sums that no rows give.** Q^T Y = Q^T P Q is symmetric and has no negative eigenvalue. A sum of an iteration without
that is refused (`staircase.require_of_rows`): what a member adds without regard to Q.

**With noise** in the sums (a privacy block) this is the private power method of Nicolas et al. (arXiv 2411.01931v3):
the noise in Y does not grow with K, so K is as large as messages allow. Each sum takes its part of the budget, so
recommended tasks leave the degrees out; where they are summed, they have the level of the noise as their lowest value.
Components below the noise are 0 (`spectrum.above_noise`).

**The bound on the sums.** Every value of a sum from index 2 on is at most n^(1-2b) c in size, n the number of clients
and c = m^(1-2a) for a < 1/2, otherwise 1: so 1 for a = b = 1/2. Schur's test with weights d_u^(1-a) and d_i^b:
sum_i R~_ui d_i^b = d_u^-a d_u = d_u^(1-a), and sum_u R~_ui d_u^(1-a) = d_i^-b sum_(u has i) d_u^(1-2a) <= d_i^(1-b) c
= d_i^(1-2b) d_i^b c, as 1 <= d_u <= m. So ||P|| = ||R~||^2 <= max d_i^(1-2b) c <= n^(1-2b) c for b <= 1/2. An entry of
P q is at most ||P|| ||q||, and the columns of Q are unit vectors; an entry of P is at most ||P||. Clients that leave
after step 1 take rows out of R~, which lowers its norm.

**The bound on a client's part** is 1 for a >= 1/4, otherwise m^(1/2-2a): its row has entries d_u^-a d_i^-b <= d_u^-a
and the norm d_u^-a (sum d_i^-2b)^(1/2) <= d_u^(1/2-a), as d_i >= 1 and b >= 0. An entry of r_u^T (r_u q) is at most
the product of both, d_u^(1/2-2a), and an entry of r_u^T r_u is at most d_u^-2a <= 1.

**The norms.** All of a client's part has a norm of at most ||r_u|| ||r_u Q|| <= ||r_u||^2 <= c, as Q has orthonormal
columns; so has its part of the Gram sum. Where rows have different widths they are orthonormal within each of at most
16 tiers only: then it is sqrt(16) c. A sum over all clients has columns P q of a norm of at most ||P||.

**The sensitivity.** The L2 norm of a client's part is at most 1 for a >= 1/2. ||r_u|| <= d_u^(1/2-a) <= 1, as above. An
iteration adds the outer product of r_u and r_u Q, of norm ||r_u|| ||r_u Q|| <= ||r_u||^2 ||Q|| <= 1, as Q has
orthonormal columns. The Gram sum adds the upper triangle of r_u^T r_u, of squared norm (||r_u||^4 + sum_i r_ui^4) / 2:
1 for a client with one item, nearly 1/2 for most. Its bound is 2^-1/2, to which the few longer parts are clipped.

A client's part r_u^T (r_u Q) has non-zero rows for its own items only, so sending it in the clear or in sparse form
would reveal them. Both mechanisms send it dense, and only `masked` hides its values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.layout import Floats
from protocols.recipes.base import Contribution, Local, ModelState, RoundSpec, check_follows
from protocols.recipes.bounds import noise_level
from protocols.recipes.counted_pairs import MOST_CHECKED, decomposed, require_few_above, require_of_lists, scaled
from protocols.recipes.next_item import model_of, places, transitions
from protocols.recipes.nonnegative import corrected, fits
from protocols.recipes.privirec_defaults import PRIVIREC_DEFAULTS, PRIVIREC_K_DEFAULTS
from protocols.recipes.privirec_parameters import GRAM_REVEALS, PriviRecKParameters, PriviRecParameters
from protocols.recipes.privirec_plan import PriviRecPlan
from protocols.recipes.privirec_state import PriviRecState, rows_of_all, triangle_of_all
from protocols.recipes.registry import RecipeEntry
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
    triangle_length,
    triangle_places,
)
from protocols.recipes.staircase import (
    first_basis,
    next_basis,
    places_of,
    require_of_rows,
    tiers_of,
    whole_spectrum,
)
from protocols.recipes.state import STATE_TOLERANCE, state_as
from protocols.recipes.validation import chosen_setting, usual_of

_AT_LIMIT: Final = 1.0 - 1e-5  # the state has 32 bits
_UNDETERMINED: Final = 1e-8  # share of the largest eigenvalue below which rounding decides a vector


@dataclass(frozen=True)
class PriviRecK(PriviRecPlan):
    """PriviRec-k: item degrees and power iterations; m counts in the first sum, then m x K values per sum."""

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return the client's part of the sum, dense: r_u^T (r_u Q) is nonzero only in the rows of its own items.

        local: its positives, int (k,), in the order of their times for the sum of next items, (0,) where it has none;
        or for the sum of validation the values that it measured, float64 (settings,), each in [0, 1], (0,) where it
        kept no item out. Of the positives those of items with few owners count in the degrees only, and a client that
        has no others sends zeros. Nothing is clipped, unless the server sent a wrong model. Raises `ParameterError` for
        a client without positives, if `state` is not the model before this sum, for a sum of another size, and for
        other values.
        """
        own, p, positives = state_as(state, PriviRecState), self.parameters, local.update
        if own.sum_index != spec.sum_index - 1:
            raise ParameterError(
                f"sum {spec.sum_index} follows the model of sum {spec.sum_index - 1}, not that of {own.sum_index}"
            )
        layout, kind = self.layout(spec.sum_index, spec.size), self.sum_of(spec.sum_index)
        if kind == "validation":
            return _measured(local.update, len(self.settings))
        if kind == "next":
            return Contribution([transitions(self.places_of(own, self.with_rows(own, positives)))])
        if not positives.size:
            raise ParameterError("a client without interactions has no row to contribute")
        vector, bound = np.zeros(layout.length), layout.blocks[0].segments[0].clip
        if kind == "degrees":
            vector[positives] = 1.0
            return Contribution([vector])
        rows, starts = self._rows(own, spec)
        positives = positives[rows[positives] >= 0]
        if not positives.size:
            return Contribution([vector])
        own_rows = rows[positives]
        if kind == "gram" and p.counted:
            start, stop = self._span(spec)
            places = triangle_places(starts[own_rows], self._within(spec.size)[0])[0] - start
            vector[places[(places >= 0) & (places < stop - start)]] = 1.0
            return Contribution([vector])
        if kind == "lists":
            vector[starts[own_rows]] = min(float(positives.size), bound)
            return Contribution([vector])
        row = self.item_scales(own)[positives] * float(positives.size) ** -p.user_exponent  # of R~ at the positives
        if kind == "iteration":
            basis = self.basis_before(own, spec)
            values = np.outer(row, row @ basis[positives].astype(np.float64))
            has, places = places_of(self.widths(own)[0][own_rows], starts[own_rows])
            values = values[:, : has.shape[1]][has]
        else:
            places, (first, second) = triangle_places(starts[own_rows], self._within(spec.size)[0])
            values = row[first] * row[second]
        vector[places] = np.clip(values, -bound, bound)
        return Contribution([vector], int(np.count_nonzero(np.abs(values) > bound)))

    def _rows(self, state: PriviRecState, spec: RoundSpec) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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

    def _span(self, spec: RoundSpec) -> tuple[int, int]:
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
                entries = np.clip(np.rint(total[self._rows(own, spec)[1]]), 0.0, contributions * self._longest_list)
                whole = rows_of_all(entries, self.kept(own), self.parameters.items)
                return self._begun(own.following(spec, list_entries=whole), spec)
            case "iteration":
                widths, columns = self.widths(own)
                has, places = places_of(widths, self._rows(own, spec)[1])
                product = np.zeros((widths.size, columns))
                product[:, : has.shape[1]][has] = total[places]
                return self._iterated(own, spec, product)
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

    def _iterated(self, state: PriviRecState, spec: RoundSpec, product: Floats) -> PriviRecState:
        """Return the state after an iteration; with noise, components below the noise have the singular value 0.

        Their vectors stay in Q for the next iteration, in which they may rise above the noise. After the last one they
        are 0.
        """
        kept = self.kept(state)
        basis = self.basis_before(state, spec)[kept].astype(np.float64)
        require_of_rows(tiers_of(self.widths(state)[0]), basis, product, spec.noise)
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


def _measured(values: NDArray[np.floating], settings: int) -> Contribution:
    """Return the contribution to the sum of validation; zeros without values. `ParameterError` for values of others."""
    if not values.size:
        return Contribution([np.zeros(1 + settings)])
    if values.shape != (settings,) or not ((values >= 0) & (values <= 1)).all():
        raise ParameterError(f"a client measures {settings} values in [0, 1], got {values}")
    return Contribution([np.concatenate([[1.0], values])])


@dataclass(frozen=True)
class PriviRec(PriviRecK):
    """PriviRec: the Gram matrix is the last sum. Its parameters need `reveal_gram=True`."""

    parameters: PriviRecParameters
    name: str = "privirec"

    @property
    def equations(self) -> int:
        """One for each entry of a row of P, which is summed itself."""
        return self.parameters.items

    def absorb(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> ModelState:
        after = super().absorb(state, spec, total, contributions)
        own = state_as(after, PriviRecState)
        if self.parameters.counted and own.sum_index == self.last_gram and self.sum_of(own.sum_index) == "gram":
            if own.pairs.size > triangle_length(MOST_CHECKED):
                require_few_above(own.pairs, self.pairs_within(own))
            else:
                whole, absent = self._pairs(own)
                require_of_lists(np.asarray(np.linalg.eigvalsh(whole), np.float64), absent)
        return after

    def spectrum(self, state: PriviRecState) -> Spectrum:
        """Return the leading vectors of P, `components` of them, of the pairs that a task has counted.

        P is that of `protocols.recipes.counted_pairs`, without eigenvalues up to 1e-6 of the largest. Raises
        `CodecError` for counts that lists cannot give.
        """
        return self._model_of_pairs(state)[0]

    def matrix(self, state: PriviRecState) -> Floats:
        """Return P of the items that have rows, float64 (m, m), of counted pairs: see `spectrum`."""
        matrix = self._model_of_pairs(state)[1]
        return decomposed(*self._pairs(state)).matrix if matrix is None else matrix

    def _model_of_pairs(self, state: PriviRecState) -> tuple[Spectrum, Floats | None]:
        for recipe, known, spectrum, matrix in _NEWEST:
            if known is state and recipe == self:
                return spectrum, matrix
        of_pairs = decomposed(*self._pairs(state))
        kept_matrix = of_pairs.matrix if self.parameters.measures_slim else None
        _NEWEST[:] = [(self, state, of_pairs.leading(self.parameters.columns), kept_matrix)]
        return self._model_of_pairs(state)

    def _pairs(self, state: PriviRecState) -> tuple[Floats, float]:
        """Return P as it was summed, float64 (m, m), and the largest share of the clients that were absent."""
        kept, within = self.kept(state), self.pairs_within(state)
        require_few_above(state.pairs, within)
        counts = within / self.clients_of_pairs(state.item_degrees, state.pair_clients) * state.clients
        whole = scaled(counts, state.item_degrees[kept], self.item_scales(state)[kept])
        return whole, 1.0 - float(state.pair_clients.min()) / state.clients

    def warnings(self) -> tuple[str, ...]:
        return (f"{GRAM_REVEALS[0].upper()}{GRAM_REVEALS[1:]}.", *super().warnings())


_NEWEST: Final[list[tuple[PriviRec, PriviRecState, Spectrum, Floats | None]]] = []
"""The last spectrum, and P where SLIM needs it: for the scores of many users. By the state itself, as states of one
round count as equal."""


PRIVIREC: Final = RecipeEntry(
    name="privirec",
    text="graph filters from the item-item matrix (PriviRec)",
    parameters=PriviRecParameters,
    make=PriviRec,
    client_side="client_sdk.training.privirec:client_side",
    needs=frozenset({"dense", "frozen cohort"}),
    source='"Secure Federated Graph-Filtering for Recommender Systems". Guide: [PriviRec](recipes.md#privirec)',
    defaults=PRIVIREC_DEFAULTS,
)
PRIVIREC_K: Final = replace(
    PRIVIREC,
    name="privirec-k",
    text="graph filters from the leading item factors (PriviRec-k)",
    parameters=PriviRecKParameters,
    make=PriviRecK,
    defaults=PRIVIREC_K_DEFAULTS,
)
