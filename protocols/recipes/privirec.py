"""PriviRec: the components of graph filters, computed from sums over clients; nothing is trained.

"Secure Federated Graph-Filtering for Recommender Systems". R is the binary users x items matrix, D_u and D_i hold its
row and column sums, R~ = D_u^-a R D_i^-b, and P = R~^T R~ (eq. 2 has a = b = 1/2; Turbo-CF has b = 1 - a). The sums of
a task, by index:

    1               item degrees d_i = sum_u R_ui                             (eq. 6)       m counts
    2 .. q+1        Y = P Q = sum_u r_u^T (r_u Q), r_u a row of R~; Q <- QR   (theorem 3.2) m x K values
    q+2 (privirec)  the upper triangle of P = sum_u r_u^T r_u                 (theorem 3.1) m (m+1) / 2 values

privirec-k has no Gram sum: P ~ Q diag(|diag R|) Q^T of the last QR (approximation 3.3, eq. 17). With `krylov` each
iteration asks for directions that are orthogonal to all before, and P ~ Y (Q^T Y)^+ Y^T of all Q and Y side by side
(Nystroem's approximation in a block Krylov space: Musco and Musco, NIPS 2015; Halko et al. 2011, section 5.5).

A client scales its own row: it knows d_u, and d_i from the first sum. With b = 0 nobody needs d_i: `degrees` false
leaves that sum out, the others have an index one lower, and Q_0 is drawn from the seed of the first round. Or Q_0 are
the vectors of an earlier task (`start_from`), after which one iteration is enough: docs/results.md.

**Items with few owners.** A row of Y is a sum over the item's owners alone. So items with fewer than `min_owners` of
them, by the first sum, leave R and all later sums: their rows of the vector do not exist, d_u counts the others, and m
is their number. Nobody needs to be told: everybody computes it from the degrees.

**Few columns.** The sums give K equations each for every row of P. K is at most `components`, and so small that all
iterations together stay within `protocols.privacy.equations`, unless the task has `reveal_gram`. With K = 0 the task
ends after the degrees: sums over so few clients hide nobody.

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

**The sensitivity.** The L2 norm of a client's part is at most 1 for a >= 1/2. ||r_u|| <= d_u^(1/2-a) <= 1, as above. An
iteration adds the outer product of r_u and r_u Q, of norm ||r_u|| ||r_u Q|| <= ||r_u||^2 ||Q|| <= 1, as Q has
orthonormal columns. The Gram sum adds the upper triangle of r_u^T r_u, of squared norm (||r_u||^4 + sum_i r_ui^4) / 2:
1 for a client with one item, nearly 1/2 for most. Its bound is 2^-1/2, to which the few longer parts are clipped.

A client's part r_u^T (r_u Q) has non-zero rows for its own items only, so sending it in the clear or in sparse form
would reveal them. Both mechanisms send it dense, and only `masked` hides its values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from protocols.errors import CodecError, ParameterError
from protocols.layout import CLIP_SLACK, REPEATED_ROWS, Block, Floats, Segment, VectorLayout
from protocols.privacy.equations import most_equations
from protocols.recipes.base import (
    Contribution,
    Local,
    ModelState,
    Reach,
    Recipe,
    RoundSpec,
    Sensitivity,
    check_follows,
    noise_level,
    require_within,
)
from protocols.recipes.privirec_parameters import (
    GRAM_CONSENT,
    GRAM_REVEALS,
    PriviRecKParameters,
    PriviRecParameters,
)
from protocols.recipes.registry import RecipeEntry
from protocols.recipes.spectrum import (
    above_noise,
    captured,
    completed,
    iterate,
    nystroem,
    outside,
    relative_change,
    ritz,
    start_basis,
    symmetric_above_noise,
    triangle_length,
    triangle_places,
)
from protocols.recipes.state import (
    STATE_TOLERANCE,
    SUM_INDEX,
    StateField,
    StateFields,
    as_counts,
    count_fields,
    decode,
    encode,
    fields_bytes,
    state_as,
    sum_index_of,
)


def _empty_array(*shape: int) -> Any:
    return field(default_factory=lambda: np.zeros(shape, dtype=np.float32))


@dataclass(frozen=True, eq=False)
class PriviRecState(ModelState):
    """The results of `sum_index` sums; arrays are empty before their sum, and degrees in tasks that do not sum them.

    item_degrees: float64 (m,), whole numbers. clients: how many clients they were summed over. basis: Q, float32
    (m, K), orthonormal columns; 0 for items with few owners, whose rows are not encoded. singular_values: float32
    (K,), of R~, zeros before the first iteration. captured: ||Q_old^T Q_new||_F^2 / K of the last iteration. change:
    relative change of the singular values in it. gram: float32 (m (m+1) / 2,), P's upper triangle. asked, products:
    with `krylov` and before the last iteration, the Q and the Y of all iterations so far, float32 (m, t K).
    """

    sum_index: int = 0
    item_degrees: Floats = field(default_factory=lambda: np.zeros(0))
    clients: int = 0
    basis: NDArray[np.float32] = _empty_array(0, 0)
    singular_values: NDArray[np.float32] = _empty_array(0)
    captured: float = 0.0
    change: float = 1.0
    gram: NDArray[np.float32] = _empty_array(0)
    asked: NDArray[np.float32] = _empty_array(0, 0)
    products: NDArray[np.float32] = _empty_array(0, 0)

    def following(self, spec: RoundSpec, **changes: Any) -> PriviRecState:
        """Return the state after the sum of `spec`, with these fields changed."""
        return replace(self, round_number=spec.number, sum_index=spec.sum_index, **changes)


def _rows(found: NDArray[np.float32], kept: NDArray[np.int64], items: int) -> NDArray[np.float32]:
    """Return the rows of the `kept` items, (m, any), among those of all `items`, which are 0."""
    if kept.size == items:
        return found
    whole = np.zeros((items, found.shape[1]), np.float32)
    whole[kept] = found
    return whole


def _triangle(found: NDArray[np.float32], kept: NDArray[np.int64], items: int) -> NDArray[np.float32]:
    """Return P's upper triangle over all `items`, from that over the `kept` ones; the other items' entries are 0."""
    if kept.size == items:
        return found
    whole = np.zeros(triangle_length(items), np.float32)
    whole[triangle_places(kept, items)[0]] = found
    return whole


_BY_ITEM: Final = ("basis", "asked", "products")
Sum = Literal["degrees", "iteration", "gram"]

_MOST_CLIENTS: Final = 1_000_000  # upper limit on the number of clients, n in the bound for b < 1/2
_UNIT: Final = 1.0 + 1e-3
"""Largest norm of a column of Q, with room for float32 rounding. A longer column would break the bound on the sums."""
_UNDETERMINED: Final = 1e-8  # share of the largest eigenvalue below which rounding decides a vector
_ROUNDED: Final = 1.0 + 2.0**-20  # factor by which rounding to float32 may lengthen a column of Q


@dataclass(frozen=True)
class PriviRecK(Recipe):
    """PriviRec-k: item degrees and power iterations; m counts in the first sum, then m x K values per sum."""

    parameters: PriviRecKParameters
    name: str = "privirec-k"

    state_class = PriviRecState
    by_snapshot = True  # the last bits of a QR differ between machines, so all clients use the server's Q

    @property
    def first_vectors(self) -> int:
        """The index of the first sum whose state has vectors."""
        return 1 + self.parameters.degrees

    @property
    def last_iteration(self) -> int:
        """The index of the last power iteration."""
        return self.parameters.degrees + self.parameters.iterations

    @property
    def steps(self) -> int:
        """Largest number of sums of a task."""
        return self.last_iteration

    @property
    def ends_after(self) -> int | None:
        return self.steps

    def sum_of(self, sum_index: int) -> Sum:
        """Return what sum `sum_index` is of; `ParameterError` if the task has no such sum."""
        if not 1 <= sum_index <= self.steps:
            raise ParameterError(f"a task of this recipe has {self.steps} sums, there is no sum {sum_index}")
        if sum_index < self.first_vectors:
            return "degrees"
        return "iteration" if sum_index <= self.last_iteration else "gram"

    def layout(self, sum_index: int = 1, size: tuple[int, ...] = ()) -> VectorLayout:
        """Return one block of one segment, with the bounds proven in the module's docstring.

        size: rows m and columns K; () for all items and `components` vectors. Raises `ParameterError` for more.
        """
        p = self.parameters
        kind = self.sum_of(sum_index)
        if kind == "degrees":
            segment = Segment(kind, p.items, 1.0, integral=True)
        else:
            rows, columns = self._within(size)
            length = triangle_length(rows) if kind == "gram" else rows * columns
            part = 1.0 if kind == "gram" else float(p.items ** max(0.0, 0.5 - 2 * p.user_exponent))
            of_users = p.items ** max(0.0, 1 - 2 * p.user_exponent)
            bound = float(_MOST_CLIENTS ** (1 - 2 * p.degree_exponent) * of_users) * _ROUNDED
            segment = Segment(kind, length, part, sum_bound=bound)
        return VectorLayout((Block(kind, (segment,)),), sum_class=REPEATED_ROWS)

    def _within(self, size: tuple[int, ...]) -> tuple[int, int]:
        """Return the rows and columns of `size`, the largest for (); `ParameterError` for a size that no sum has."""
        p = self.parameters
        if not size:
            return p.items, p.columns
        if not p.shrinks or len(size) != 2 or not (0 < size[0] <= p.items and 0 < size[1] <= min(p.columns, size[0])):
            raise ParameterError(f"a sum of size {size} cannot be one of {p.items} items and {p.columns} vectors")
        return size[0], size[1]

    def kept(self, state: PriviRecState) -> NDArray[np.int64]:
        """Return the items that have rows in the sums after `state`, int64 (m,), ascending."""
        p = self.parameters
        if not p.shrinks:
            return np.arange(p.items)
        return np.flatnonzero(state.item_degrees >= p.min_owners)

    def size_after(self, state: ModelState) -> tuple[int, ...]:
        """Return m and K, which follow from the degrees; () before them. K is 0 where the task ends."""
        own = state_as(state, PriviRecState)
        if not (self.parameters.shrinks and own.sum_index):
            return ()
        kept = self.kept(own)
        lists = float(own.item_degrees[kept].sum()) / max(1, own.clients)
        return kept.size, self.columns_of(kept.size, own.clients, self.parameters.min_owners * lists)

    @property
    def equations(self) -> int:
        """How many equations all iterations together may be for each row of P."""
        return self.parameters.iterations * self.parameters.columns

    def columns_of(self, rows: int, clients: int, entries: float | None = None) -> int:
        """Return K for sums over so many rows and clients: see the module's docstring. entries: of a row, the fewest
        owners times the mean list; None before the degrees."""
        p = self.parameters
        most = rows // p.iterations if p.krylov else rows
        if not p.reveal_gram:
            most = min(most, most_equations(rows, clients, entries) // p.iterations)
        return min(p.columns, most)

    def state_fields(self, sum_index: int, size: tuple[int, ...] = ()) -> StateFields:
        """Return the sum index, what is known from the first sum on, and after a Gram sum the triangle of P.

        Before the first sum: the basis, in a task that starts from one. size: rows and columns, () for the largest.
        `ParameterError` if the task has no such sum.
        """
        p = self.parameters
        rows, columns = size or (p.items, p.columns)
        if not sum_index:
            return (SUM_INDEX,) if p.start_from is None else (SUM_INDEX, StateField("basis", "<f4", (rows, columns)))
        more: tuple[StateField, ...] = ()
        vectors, made = columns, sum_index - p.degrees
        if self.sum_of(sum_index) == "gram":
            more = (StateField("gram", "<f4", (triangle_length(rows),)),)
        elif p.krylov and sum_index == self.last_iteration:
            vectors = columns * p.iterations
        elif p.krylov and made:
            more = tuple(StateField(name, "<f4", (rows, made * columns)) for name in ("asked", "products"))
        return (
            SUM_INDEX,
            *(count_fields(p.items, "item_degrees") if p.degrees else ()),
            StateField("basis", "<f4", (rows, vectors)),
            StateField("singular_values", "<f4", (vectors,)),
            StateField("captured", "<f8"),
            StateField("change", "<f8"),
            *more,
        )

    def encode_state(self, state: ModelState) -> bytes:
        """Return the state without the rows of items that have too few owners."""
        own = state_as(state, PriviRecState)
        size, values = self.size_after(own), dict(vars(own))
        if size:
            kept = self.kept(own)
            values |= {name: values[name][kept] for name in _BY_ITEM if len(values[name])}
            if own.gram.size:
                values["gram"] = own.gram[triangle_places(kept, self.parameters.items)[0]]
        return encode(self.state_fields(own.sum_index, size), values)

    def sensitivity(self, sum_index: int) -> Sensitivity:
        """Return counts for the degrees, bounds for the other sums; `ParameterError` for a < 1/2."""
        if self.parameters.user_exponent < 0.5:
            raise ParameterError(
                f"a privacy block needs rows of length 1 at most: choose user_exponent >= 0.5, not "
                f"{self.parameters.user_exponent:g}"
            )
        kind = self.sum_of(sum_index)
        if kind == "degrees":
            return Sensitivity(counts=True)
        if kind == "gram":
            return Sensitivity(l2=sqrt(0.5))
        return Sensitivity(l2=1.0, per_item=self.parameters.columns)

    def sum_kinds(self) -> tuple[int, ...]:
        """Return the sum of the degrees, the first iteration, and the last sum, as far as the task has them."""
        return tuple(sorted({1, min(2, self.steps), self.steps}))

    def state_bytes(self, sum_index: int, size: tuple[int, ...] = ()) -> int:
        return fields_bytes(self.state_fields(sum_index, size))

    def longest_state_bytes(self) -> int:
        return max(self.state_bytes(sum_index) for sum_index in (self.steps, max(1, self.steps - 1)))

    def initial_state(self, task_seed: bytes) -> PriviRecState:
        """Return the empty state before the first sum. Q_0 is part of the state after the sum of the degrees."""
        return PriviRecState(0)

    def starting_from(self, vectors: NDArray[np.float32]) -> tuple[PriviRecState, bytes]:
        """Return the state of round 0 with Q_0 of `vectors`, float32 (m, any), and its encoding, whose digest
        `start_from` has.

        Columns of 0, which noise hid, and missing ones become random directions. Raises `ParameterError` for vectors of
        another number of items.
        """
        p = self.parameters
        if len(vectors) != p.items:
            raise ParameterError(f"the task has {p.items} items, the task that it starts from has {len(vectors)}")
        state = PriviRecState(0, basis=completed(vectors, p.columns).astype(np.float32))
        return state, encode((SUM_INDEX, StateField("basis", "<f4", (p.items, p.columns))), vars(state))

    def decode_state(self, round_number: int, body: bytes) -> ModelState:
        """Raise `CodecError` also for a sum index that the task does not have."""
        if (claimed := sum_index_of(body, round_number)) > self.steps:
            raise CodecError(f"a model state of round {round_number} claims {claimed} of {self.steps} sums")
        if not (claimed and self.parameters.shrinks):
            return self.state_from(round_number, decode(self.state_fields(claimed), body))
        items = self.parameters.items
        first = (SUM_INDEX, *count_fields(items, "item_degrees"))  # which tell the lengths of what follows
        start = self.state_from(round_number, decode(first, memoryview(body)[: fields_bytes(first)]))
        kept = self.kept(start)
        values = decode(self.state_fields(claimed, self.size_after(start)), body)
        for name in _BY_ITEM:
            if name in values:
                values[name] = _rows(values[name], kept, items)
        if "gram" in values:
            values["gram"] = _triangle(values["gram"], kept, items)
        return self.state_from(round_number, values)

    def state_from(self, round_number: int, values: dict[str, Any]) -> PriviRecState:
        """Return the state; `CodecError` for degrees above the number of clients, negative singular values, or a column
        of Q with a norm over 1, which clients would multiply with their rows.
        """
        if "item_degrees" in values:
            values["item_degrees"] = as_counts(values["item_degrees"], values["clients"])
        if "singular_values" in values and (values["singular_values"] < 0).any():
            raise CodecError("a model state holds negative singular values")
        for name in ("basis", "asked"):
            with np.errstate(over="ignore"):  # becomes infinite, which is refused
                norms = np.linalg.norm(values[name], axis=0) if name in values else np.zeros(1)
            if not (norms <= _UNIT).all():
                raise CodecError(f"a model state's {name} has a column with a norm over 1")
        return PriviRecState(round_number, **values)

    def require_reachable(self, state: ModelState, reach: Reach) -> None:
        """Check how many clients can have been counted, and the values of P and of its singular values."""
        own = state_as(state, PriviRecState)
        if own.item_degrees.size and not reach.fewest <= own.clients <= reach.most:
            raise CodecError(
                f"a model state has the degrees of {own.clients:,} clients, and a sum has {reach.fewest:,} to "
                f"{reach.most:,}"
            )
        if own.singular_values.size:  # roots of eigenvalues of P, which are at most the norm of a sum
            farthest = max(self._largest_singular_value(index, reach) for index in {self.first_vectors, self.steps})
            require_within(own.singular_values, farthest, "singular values")
            require_within(own.products.ravel(), self._largest_value(self.steps, reach), "products")
        if own.gram.size:  # of a sum with noise, its part above the noise, whose entries are at most its norm
            farthest = self._largest_value(self.steps, reach)
            if reach.largest is not None:
                farthest = self._largest_singular_value(self.steps, reach) ** 2
            require_within(own.gram, farthest, "entries of the Gram matrix")

    def _largest_value(self, sum_index: int, reach: Reach) -> float:
        """Return the largest size of a value of a sum."""
        largest = self.layout(sum_index).blocks[0].segments[0].clip if reach.largest is None else reach.largest
        return reach.most * largest * CLIP_SLACK

    def _largest_singular_value(self, sum_index: int, reach: Reach) -> float:
        """Return the root of the largest norm that a sum of vectors can have: m x K values, or P from its triangle."""
        is_gram = self.sum_of(sum_index) == "gram"
        values = self.parameters.items**2 if is_gram else self.layout(sum_index).length
        return sqrt(self._largest_value(sum_index, reach) * CLIP_SLACK * sqrt(values))

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return the client's part of the sum, dense: r_u^T (r_u Q) is nonzero only in the rows of its own items.

        local: its positives, int (k,); those of items with few owners count in the degrees only, and a client that has
        no others sends zeros. Nothing is clipped, unless the server sent a wrong model. Raises `ParameterError` for a
        client without positives, if `state` is not the model before this sum, and for a sum of another size.
        """
        own, p, positives = state_as(state, PriviRecState), self.parameters, local.update
        if not positives.size:
            raise ParameterError("a client without interactions has no row to contribute")
        if own.sum_index != spec.sum_index - 1:
            raise ParameterError(
                f"sum {spec.sum_index} follows the model of sum {spec.sum_index - 1}, not that of {own.sum_index}"
            )
        layout, kind = self.layout(spec.sum_index, spec.size), self.sum_of(spec.sum_index)
        vector, bound = np.zeros(layout.length), layout.blocks[0].segments[0].clip
        if kind == "degrees":
            vector[positives] = 1.0
            return Contribution([vector])
        places, (rows, columns) = self._places(own, spec), self._within(spec.size)
        positives = positives[places[positives] >= 0]
        if not positives.size:
            return Contribution([vector])
        own_rows = places[positives]
        row = self.item_scales(own)[positives] * float(positives.size) ** -p.user_exponent  # of R~ at the positives
        if kind == "iteration":
            basis = self.basis_before(own, spec)
            values = np.outer(row, row @ basis[positives].astype(np.float64))
            vector.reshape(rows, columns)[own_rows, : basis.shape[1]] = np.clip(values, -bound, bound)
        else:
            places, (first, second) = triangle_places(own_rows, rows)
            values = row[first] * row[second]
            vector[places] = np.clip(values, -bound, bound)
        return Contribution([vector], int(np.count_nonzero(np.abs(values) > bound)))

    def _places(self, state: PriviRecState, spec: RoundSpec) -> NDArray[np.int64]:
        """Return in which row of the sum of `spec` each item is, int64 (items,); -1 for items that have none.

        A sum of the largest size has rows for all items, which stay 0 where an item has too few owners. Raises
        `ParameterError` for any other size than the state tells.
        """
        p, kept, size = self.parameters, self.kept(state), self.size_after(state)
        if spec.size and spec.size != size:
            raise ParameterError(f"the round has a sum of size {spec.size}, but the model before it says {size}")
        places = np.full(p.items, -1)
        places[kept] = np.arange(kept.size) if spec.size else kept
        return places

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
            case "iteration":
                rows = self._places(own, spec)[self.kept(own)]
                return self._iterated(own, spec, total.reshape(self._within(spec.size))[rows])
            case "gram" if spec.noise:
                return self._gram_in_noise(own, spec, total)
            case "gram":
                rows = self.kept(own) if spec.size else np.arange(self.parameters.items)
                return own.following(spec, gram=_triangle(total.astype(np.float32), rows, self.parameters.items))

    def _begun(self, state: PriviRecState, spec: RoundSpec) -> PriviRecState:
        """Return the state after the degrees with Q_0, drawn from the round's seed.

        With `krylov` the rows of the Gaussian are as long as the columns of R~, whose squares are the diagonal of P, so
        that fewer directions find what is frequent.
        """
        p, kept = self.parameters, self.kept(state)
        rows, columns = self.size_after(state) or (p.items, p.columns)
        lengths = state.item_degrees[kept] ** (0.5 - p.degree_exponent) if p.krylov else None
        basis = _rows(start_basis(spec.seed, rows, columns, lengths).astype(np.float32), kept, p.items)
        return replace(state, basis=basis, singular_values=np.zeros(columns, dtype=np.float32))

    def _iterated(self, state: PriviRecState, spec: RoundSpec, product: Floats) -> PriviRecState:
        """Return the state after an iteration; with noise, components below the noise have the singular value 0.

        Their vectors stay in Q for the next iteration, in which they may rise above the noise. After the last one they
        are 0.
        """
        kept = self.kept(state)
        basis = self.basis_before(state, spec)[kept].astype(np.float64)
        product = product[:, : basis.shape[1]]
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
            basis=_rows(vectors.astype(np.float32), kept, self.parameters.items),
            singular_values=values.astype(np.float32),
            captured=share,
            change=change,
        )

    def _with_more_directions(
        self, state: PriviRecState, spec: RoundSpec, basis: Floats, product: Floats
    ) -> PriviRecState:
        """Return the state after an iteration in a block Krylov space: the next Q, or the model after the last one."""
        kept, items = self.kept(state), self.parameters.items
        asked, products = basis, product
        if state.asked.size:
            asked, products = np.hstack([state.asked[kept], basis]), np.hstack([state.products[kept], product])
        if spec.sum_index == self.last_iteration:
            found = nystroem(asked, products)
            return state.following(
                spec,
                basis=_rows(found.vectors.astype(np.float32), kept, items),
                singular_values=np.sqrt(found.eigenvalues).astype(np.float32),
                captured=captured(basis, found.vectors),
                asked=np.zeros((0, 0), np.float32),
                products=np.zeros((0, 0), np.float32),
            )
        found = iterate(product)
        values = np.sqrt(found.eigenvalues)
        return state.following(
            spec,
            basis=_rows(outside(asked, found.vectors).astype(np.float32), kept, items),
            singular_values=values.astype(np.float32),
            captured=captured(basis, found.vectors),
            change=relative_change(state.singular_values.astype(np.float64), values),
            asked=_rows(asked.astype(np.float32), kept, items),
            products=_rows(products.astype(np.float32), kept, items),
        )

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
        """Return the rows and columns of the sums after the degrees, and convergence figures after an iteration:
        `captured`, `change`, extreme singular values."""
        own = state_as(state, PriviRecState)
        size = dict(zip(("items_kept", "columns"), map(float, self.size_after(own)), strict=False))
        if own.sum_index < self.first_vectors or not own.singular_values.size:
            return size
        return {
            **size,
            "captured": own.captured,
            "change": own.change,
            "largest_singular_value": float(own.singular_values.max()),
            "smallest_singular_value": float(own.singular_values.min()),
        }

    def is_done(self, state: ModelState) -> bool:
        """Return whether all sums are made, the vectors have converged, or no column may be asked for."""
        own = state_as(state, PriviRecState)
        converged = own.sum_index >= self.first_vectors and self._converged(own.change)
        return own.sum_index >= self.steps or converged or 0 in self.size_after(own)

    def warnings(self) -> tuple[str, ...]:
        p = self.parameters
        sums = f"{'the item degrees and ' if p.degrees else ''}{p.iterations} x {p.items * p.columns:,}"
        shown = f"The server and all members see {sums} sums of the power iteration"
        if p.reveal_gram:
            return (f"{shown}. {GRAM_CONSENT}",)
        owners = f"items with fewer than {p.min_owners} owners are in none of them but the degrees"
        return (f"{shown}; {owners}.",)


@dataclass(frozen=True)
class PriviRec(PriviRecK):
    """PriviRec: the Gram matrix is the last sum. Its parameters need `reveal_gram=True`."""

    parameters: PriviRecParameters
    name: str = "privirec"

    @property
    def equations(self) -> int:
        """One for each entry of a row of P, which is summed itself."""
        return self.parameters.items

    @property
    def steps(self) -> int:
        """One sum more than PriviRec-k. The Gram sum is the last, so that only the last snapshot contains it."""
        return super().steps + 1

    def warnings(self) -> tuple[str, ...]:
        return (f"{GRAM_REVEALS[0].upper()}{GRAM_REVEALS[1:]}.", *super().warnings())


PRIVIREC: Final = RecipeEntry(
    name="privirec",
    parameters=PriviRecParameters,
    make=PriviRec,
    half="client_sdk.training.privirec:half",
    needs=frozenset({"dense", "frozen cohort"}),
    source='"Secure Federated Graph-Filtering for Recommender Systems". Guide: [PriviRec](recipes.md#privirec)',
)
PRIVIREC_K: Final = replace(PRIVIREC, name="privirec-k", parameters=PriviRecKParameters, make=PriviRecK)
