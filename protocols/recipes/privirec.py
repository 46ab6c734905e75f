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
from protocols.recipes.base import Contribution, Local, ModelState, RoundSpec
from protocols.recipes.counted_pairs import MOST_CHECKED, decomposed, require_few_above, require_of_lists, scaled
from protocols.recipes.next_item import transitions
from protocols.recipes.privirec_defaults import PRIVIREC_DEFAULTS, PRIVIREC_K_DEFAULTS
from protocols.recipes.privirec_model import PriviRecModel
from protocols.recipes.privirec_parameters import GRAM_REVEALS, PriviRecKParameters, PriviRecParameters
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.registry import RecipeEntry
from protocols.recipes.spectrum import Spectrum, triangle_length, triangle_places
from protocols.recipes.staircase import places_of
from protocols.recipes.state import state_as


@dataclass(frozen=True)
class PriviRecK(PriviRecModel):
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
        rows, starts = self.rows_in(own, spec)
        positives = positives[rows[positives] >= 0]
        if not positives.size:
            return Contribution([vector])
        own_rows = rows[positives]
        if kind == "gram" and p.counted:
            start, stop = self.span_in(spec)
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
        if self.parameters.counted and own.sum_index == self.last_gram:
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
