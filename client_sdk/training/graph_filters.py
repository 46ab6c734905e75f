"""Graph filters (GF-CF, Turbo-CF, BSPM) and EASE: scores from aggregated components and the user's row, on a device.

A device has one row and the matrix of one task, as numpy arrays: scipy is not needed. Evaluations of many users and of
large matrices pass scipy's sparse arrays instead; every function takes both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import factorial, isclose
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocols.errors import ParameterError
from protocols.recipes.spectrum import chosen_weight, shares_and_diagonal
from protocols.recipes.validation import Setting

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Matrix = NDArray[np.float32] | csr_array[Any, Any]
    """A matrix of float32, dense or sparse."""

# --- the aggregated inputs of a graph filter -------------------------------------------------------------------------
# R is the binary users x items matrix, D_u and D_i hold its row and column sums. R~ = D_u^-a R D_i^-b, and P = R~^T R~
# (PriviRec, eq. 2, has a = b = 1/2; Turbo-CF tunes a, with b = 1 - a). All of them are sums over clients; no row of R
# is needed.


@dataclass(frozen=True, eq=False)
class Components:
    """Aggregated components of m items. Raises `ParameterError` if their shapes do not match."""

    item_degrees: NDArray[np.float64]
    """(m,), the number of users of each item. An item without users has scores of 0."""
    vectors: NDArray[np.float32]
    """(m, K), orthonormal columns: right singular vectors of R~, by descending singular value.

    K may be 0 if `gram` is set.
    """
    singular_values: NDArray[np.float32]
    """(K,), singular values of R~: the square roots of the eigenvalues of P."""
    gram: Matrix | None = None
    """P, float32 (m, m), both triangles. None for PriviRec-k, where P ~ V diag(s^2) V^T (approximation 3.3)."""
    user_exponent: float = 0.5
    """a, the exponent of the users' degrees in R~."""
    item_exponent: float | None = None
    """b, the exponent of the items' degrees in R~; None for 1 - a."""
    krylov: bool = False
    """Whether the vectors are of a whole block Krylov space: see `chosen_weight`."""
    transitions: NDArray[np.float32] | None = None
    """M of `protocols.recipes.next_item`, float32 (n, n); None without a sum of next items."""
    learned: Callable[[Setting], NDArray[np.float32]] | None = None
    """Returns B of SLIM by a setting, float32 (m, m), of P; None without counted pairs."""

    def __post_init__(self) -> None:
        items, columns = self.item_degrees.size, self.singular_values.size
        if self.item_degrees.shape != (items,) or self.vectors.shape != (items, columns):
            raise ParameterError(
                f"degrees of shape {self.item_degrees.shape} and {columns} singular values do not match "
                f"vectors of shape {self.vectors.shape}"
            )
        if self.gram is not None and self.gram.shape != (items, items):
            raise ParameterError(f"the Gram matrix must be that of {items} items, got shape {self.gram.shape}")
        if self.gram is None and not columns:
            raise ParameterError("components need singular vectors or a Gram matrix")

    @property
    def n_items(self) -> int:
        """m, the number of items."""
        return int(self.item_degrees.size)

    @property
    def degree_exponent(self) -> float:
        """b, the exponent of the items' degrees in R~."""
        return 1.0 - self.user_exponent if self.item_exponent is None else self.item_exponent

    def degree_scales(self, exponent: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the diagonals of D_i^-e and D_i^e, e = `exponent`, float32 (m,) each; 0 in both without users."""
        has_users = self.item_degrees > 0
        up = np.power(self.item_degrees, exponent, out=np.zeros_like(self.item_degrees), where=has_users)
        down = np.divide(1.0, up, out=np.zeros_like(up), where=has_users)
        return down.astype(np.float32), up.astype(np.float32)


# --- users' rows of the binary interaction matrix, the input of the filters ------------------------------------------

CHUNK_VALUES: Final = 8_000_000  # values of a chunk's dense scores: 32 MB of float32


def user_row(items: ArrayLike, n_items: int) -> NDArray[np.float32]:
    """Return a user's row, float32 (1, n_items). Raises `ParameterError` for an item outside 0..n_items-1."""
    known = np.unique(np.asarray(items, dtype=np.int64))
    if known.size and not (known[0] >= 0 and known[-1] < n_items):
        raise ParameterError(f"items must lie in 0..{n_items - 1}, got {known[0]}..{known[-1]}")
    row = np.zeros((1, n_items), dtype=np.float32)
    row[0, known] = 1
    return row


def dense(matrix: Matrix) -> NDArray[np.float32]:
    """Return a matrix as a dense array."""
    return np.asarray(matrix if isinstance(matrix, np.ndarray) else matrix.toarray(), dtype=np.float32)


def scaled(rows: Matrix, scales: NDArray[np.float32]) -> Matrix:
    """Return the rows with each column multiplied by its scale, float32 (m,)."""
    if isinstance(rows, np.ndarray):
        return rows * scales
    found = rows.copy()
    found.data = rows.data * scales[rows.indices]
    return found


# --- operations shared by the filters: R P, the ideal low-pass part, and polynomials in P ----------------------------
# P is a matrix, dense or sparse, or given by its factors V diag(s^2) V^T, which are never expanded to a matrix.


def linear(components: Components, rows: Matrix) -> NDArray[np.float32]:
    """Return R P for `rows` R (users, m), float32 (users, m). Reads only the rows of P for the users' items."""
    if components.gram is not None:
        return dense(rows @ components.gram)
    spectrum = (rows @ components.vectors) * components.singular_values**2
    return np.asarray(spectrum @ components.vectors.T, dtype=np.float32)


def ideal(components: Components, rows: Matrix, dims: int) -> NDArray[np.float32]:
    """Return R D_i^-1/2 V V^T D_i^1/2, float32 (users, m), `dims` columns of V (PriviRec, eq. 3 and 4)."""
    inverse, roots = components.degree_scales(0.5)
    vectors = components.vectors[:, :dims]
    return np.asarray(((scaled(rows, inverse) @ vectors) @ vectors.T) * roots, dtype=np.float32)


def polynomial(
    components: Components, signals: NDArray[np.float32], coefficients: Sequence[float]
) -> NDArray[np.float32]:
    """Return Y (c_0 I + c_1 P + c_2 P^2 + ...) for dense `signals` Y (users, m), float32 (users, m).

    With a Gram matrix it uses Horner's rule, with one product with P for each degree. With factors it applies
    V p(diag(s^2)) V^T in one step, and c_0 to the part outside the span of V.
    """
    if components.gram is None:
        values = np.polynomial.polynomial.polyval(components.singular_values.astype(np.float64) ** 2, coefficients)
        change = (values - coefficients[0]).astype(np.float32)
        spectrum = (signals @ components.vectors) * change
        return np.asarray(np.float32(coefficients[0]) * signals + spectrum @ components.vectors.T, dtype=np.float32)
    columns = np.ascontiguousarray(signals.T)  # P is symmetric, so (Y P)^T = P Y^T: a product of sparse and dense
    total = np.float32(coefficients[-1]) * columns
    for coefficient in reversed(coefficients[:-1]):
        total = components.gram @ total
        total += np.float32(coefficient) * columns
    return np.asarray(total.T, dtype=np.float32)


# --- the interface of all filters ------------------------------------------------------------------------------------


class Filter(ABC):
    """Computes the scores of users from aggregated components and the users' rows, without training.

    Every filter raises `ParameterError` for settings out of range.
    """

    user_exponent: float | None = 0.5
    """The exponent a that the components must have, with b = 1 - a; None for any exponents."""

    def scores(self, components: Components, rows: Matrix) -> NDArray[np.float32]:
        """Return the scores of all items for binary `rows` (users, m), float32 (users, m).

        The user's own items have scores too. Raises `ParameterError` if rows or components do not match the filter.
        """
        if rows.ndim != 2 or rows.shape[1] != components.n_items:
            raise ParameterError(f"rows must have {components.n_items} columns, got shape {rows.shape}")
        values = rows[rows != 0] if isinstance(rows, np.ndarray) else rows.data
        if not bool((values == 1).all()):
            raise ParameterError("rows must be binary: each interaction is a 1")
        found, a = (components.user_exponent, components.degree_exponent), self.user_exponent
        if a is not None and not (isclose(found[0], a) and isclose(found[1], 1 - a)):
            raise ParameterError(
                f"this filter needs components with user exponent {a:g} and item exponent {1 - a:g}, but these have "
                f"{found[0]:g} and {found[1]:g}; aggregate them again"
            )
        score, scores = self._scorer(components), np.empty(rows.shape, dtype=np.float32)
        step = max(1, CHUNK_VALUES // max(1, rows.shape[1]))
        for start in range(0, rows.shape[0], step):
            scores[start : start + step] = score(rows[start : start + step])
        return scores

    @abstractmethod
    def _scorer(self, components: Components) -> Callable[[Matrix], NDArray[np.float32]]:
        """Return the function from rows (users, m) to their scores, float32 (users, m)."""


# --- GF-CF (Shen et al., CIKM 2021): the sum of a linear and an ideal low-pass filter, without training --------------


@dataclass(frozen=True)
class GFCF(Filter):
    """S = R P + alpha R D_i^-1/2 V V^T D_i^1/2 (PriviRec, eq. 4). The rows of R are not normalised."""

    alpha: float = 0.3
    """Weight of the ideal part; with 0 it is not computed."""
    ideal_dims: int = 256
    """Number of columns of V in the ideal part, at most all columns of the components."""

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.ideal_dims < 1:
            raise ParameterError(f"alpha must be >= 0 and ideal_dims >= 1, got {self.alpha} and {self.ideal_dims}")

    def _scorer(self, components: Components) -> Callable[[Matrix], NDArray[np.float32]]:
        def score(chunk: Matrix) -> NDArray[np.float32]:
            found = linear(components, chunk)
            if self.alpha:
                found += np.float32(self.alpha) * ideal(components, chunk, self.ideal_dims)
            return found

        return score


# --- turbo-CF (Park et al., SIGIR 2024): a polynomial in the item-item matrix, without a decomposition ---------------

FILTER_COEFFICIENTS: Final[Mapping[int, tuple[float, ...]]] = {
    1: (1.0,),
    2: (2.0, -1.0),
    3: (1.0 - 0.29, 0.1, -0.01),
}
"""Coefficients of powers of P that R P is multiplied by. Filter 1 is P, 2 is 2P - P^2, 3 is
P + 0.01 (-P^3 + 10 P^2 - 29 P)."""


@dataclass(frozen=True)
class TurboCF(Filter):
    """S = R p(P^s), with P = R~^T R~, R~ = D_u^-a R D_i^(a-1), and P^s entry by entry (PriviRec, eq. 5)."""

    user_exponent: float = 0.5
    """a, the exponent that the components must have."""
    power: float = 1.0
    """s, the power of each entry of P. Any value other than 1 needs the Gram matrix."""
    filter: Literal[1, 2, 3] = 1
    """The paper's polynomial: 1 is linear, 2 of second order, 3 of third order."""

    def __post_init__(self) -> None:
        if self.power <= 0 or self.filter not in FILTER_COEFFICIENTS:
            raise ParameterError(f"power must be > 0 and filter 1, 2 or 3, got {self.power} and {self.filter}")

    def _scorer(self, components: Components) -> Callable[[Matrix], NDArray[np.float32]]:
        powered = self._powered(components)
        coefficients = FILTER_COEFFICIENTS[self.filter]
        if len(coefficients) == 1:
            return lambda rows: linear(powered, rows)
        return lambda rows: polynomial(powered, linear(powered, rows), coefficients)

    def _powered(self, components: Components) -> Components:
        if self.power == 1:
            return components
        if components.gram is None:
            raise ParameterError(f"Turbo-CF with power {self.power:g} needs the Gram matrix, not its factors")
        # quantisation can make a very small entry negative
        if isinstance(components.gram, np.ndarray):
            return replace(components, gram=np.maximum(components.gram, 0) ** np.float32(self.power))
        gram = components.gram.copy()
        gram.data = np.maximum(gram.data, 0) ** np.float32(self.power)
        return replace(components, gram=gram)


# --- BSPM (Choi et al., SIGIR 2023): blurs a user's row with the graph, then sharpens it by an ODE -------------------

ORDERS: Final[Mapping[str, int]] = {"euler": 1, "rk4": 4}
"""Order of each solver. On dy/dt = -y P a step h is the Taylor polynomial of exp(-h P) of that order."""


@dataclass(frozen=True)
class BSPM(Filter):
    """Blurring y = R P, ideal part L = R D_i^-1/2 V V^T D_i^1/2, and sharpening dy/dt = -y P for `sharpening_time`.

    Early merge (EM) sharpens y + beta L. Late merge (LM) sharpens y and adds beta L to the result. Blurring and the
    ideal part are one Euler step of length 1, as in the released code.
    """

    early_merge: bool
    """True for EM, False for LM."""
    solver: Literal["euler", "rk4"] = "euler"
    """Solver of the sharpening ODE."""
    sharpening_time: float = 1.0
    """T_s, the time over which the ODE is solved."""
    sharpening_steps: int = 1
    """K_s, the number of equal steps of the solver."""
    beta: float = 0.3
    """Weight of the ideal part; with 0 it is not computed."""
    ideal_dims: int = 256
    """Number of columns of V in the ideal part, at most all columns of the components."""
    average_points: bool = False
    """Whether the result is the mean of the blurred signal and all steps, instead of the last step."""

    def __post_init__(self) -> None:
        if self.solver not in ORDERS:
            raise ParameterError(f"solver must be euler or rk4, got {self.solver!r}")
        if self.sharpening_time <= 0 or self.sharpening_steps < 1 or self.beta < 0 or self.ideal_dims < 1:
            raise ParameterError(
                "sharpening_time must be > 0, sharpening_steps >= 1, beta >= 0 and ideal_dims >= 1, got "
                f"{self.sharpening_time}, {self.sharpening_steps}, {self.beta} and {self.ideal_dims}"
            )

    @property
    def step_coefficients(self) -> list[float]:
        """Coefficients c_k of one step, y <- y sum_k c_k P^k: (-h)^k / k! up to the solver's order."""
        step = self.sharpening_time / self.sharpening_steps
        return [(-step) ** power / factorial(power) for power in range(ORDERS[self.solver] + 1)]

    def _scorer(self, components: Components) -> Callable[[Matrix], NDArray[np.float32]]:
        return lambda rows: self._score(components, rows)

    def _score(self, components: Components, rows: Matrix) -> NDArray[np.float32]:
        blurred = linear(components, rows)
        low_pass = np.float32(self.beta) * ideal(components, rows, self.ideal_dims) if self.beta else np.float32(0)
        signal = blurred + low_pass if self.early_merge else blurred
        total = blurred.copy() if self.average_points else None
        for _ in range(self.sharpening_steps):
            signal = polynomial(components, signal, self.step_coefficients)
            if total is not None:
                total += signal
        if total is not None:
            signal = total / np.float32(self.sharpening_steps + 1)
        return signal if self.early_merge else signal + low_pass


# --- EASE (Steck, WWW 2019), a linear auto-encoder in closed form, from the spectrum of P or from P itself -----------


@dataclass(frozen=True)
class Ease(Filter):
    """S = (X - X G diag(G)^-1) D_i^b with X = R D_i^-b and G = (P + weight I)^-1; for components of any exponents.

    The formulas are in `protocols.recipes.spectrum`. The user's own items have scores as if the user did not have them.
    With a Gram matrix, float64 (m, m) is inverted.
    """

    weight: float | None = None
    """The L2 weight on B; None for `chosen_weight`, times that of the setting."""
    setting: Setting = Setting()
    """How scores are made where there is no Gram matrix, which does not use it."""
    user_exponent = None

    def __post_init__(self) -> None:
        if self.weight is not None and not self.weight > 0:
            raise ParameterError(f"weight must be > 0, got {self.weight}")

    def _scorer(self, components: Components) -> Callable[[Matrix], NDArray[np.float32]]:
        down, up = components.degree_scales(components.degree_exponent)
        if components.gram is not None:
            weight = (
                chosen_weight(components.singular_values, components.krylov) if self.weight is None else self.weight
            )
            whole = _weights(components.gram, weight)
            return lambda chunk: np.asarray((scaled(chunk, down) @ whole) * up, dtype=np.float32)
        _, up = components.degree_scales(components.degree_exponent + self.setting.shift)
        ridge = Ridge.of(components, self.setting.part, self.setting.weight, self.weight)

        def score(chunk: Matrix) -> NDArray[np.float32]:
            x = scaled(chunk, down)
            kept = ridge.kept(x)
            return np.asarray((ridge.zeroed(dense(x), kept) if self.setting.zero else kept) * up, dtype=np.float32)

        return score


def following(components: Components, ends: NDArray[np.float64], setting: Setting) -> NDArray[np.float32]:
    """Return how much each item follows what users had last, float32 (users, m): see `protocols.recipes.next_item`.

    ends: z after each user's last item, (users, n). Raises `ParameterError` without a sum of next items.
    """
    if components.transitions is None:
        raise ParameterError("the model has no sum of next items")
    vectors = components.vectors[:, : ends.shape[1]]
    _, up = components.degree_scales(components.degree_exponent + setting.shift)
    mixed = (ends @ components.transitions)[:, : vectors.shape[1]]
    return np.asarray((mixed @ vectors.T) * up, dtype=np.float32)


def blended(
    components: Components,
    setting: Setting,
    scores: NDArray[np.float32],
    after: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return the scores of a filter and of `following`, both (users, m), with the setting's share of the latter.

    Each is divided by its standard deviation over the items that have users. A user of whom nothing follows, because
    no times are known, has the filter's scores.
    """
    has = components.item_degrees > 0
    first, second = (found[:, has].std(axis=1, keepdims=True) for found in (scores, after))
    share = np.where(second > 0, np.float32(setting.share), np.float32(0.0))
    parts = ((1 - share) / np.where(first > 0, first, 1.0), share / np.where(second > 0, second, 1.0))
    return np.asarray(parts[0] * scores + parts[1] * after, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Ridge:
    """Ridge regression on a part of a spectrum."""

    vectors: NDArray[np.float32]
    """(m, any)."""
    shares: NDArray[np.float32]
    diagonal: NDArray[np.float32]
    """See `shares_and_diagonal`."""

    @classmethod
    def of(cls, components: Components, part: int = 1, times: float = 1.0, weight: float | None = None) -> Ridge:
        """Return that of 1 / `part` of the vectors whose singular value is not 0; of all vectors for 1.

        weight: None for `times` the weight that is chosen for them.
        """
        vectors, values = components.vectors, components.singular_values
        if part > 1:
            count = max(1, int(np.count_nonzero(values)) // part)
            vectors, values = vectors[:, :count], values[:count]
        weight = times * chosen_weight(values, components.krylov) if weight is None else weight
        shares, diagonal = shares_and_diagonal(vectors, values, weight)
        return cls(vectors, shares.astype(np.float32), diagonal.astype(np.float32))

    def kept(self, x: Matrix) -> NDArray[np.floating]:
        """Return X V diag(w) V^T for scaled rows X, (users, m)."""
        return np.asarray(((x @ self.vectors) * self.shares) @ self.vectors.T)

    def zeroed(self, x: NDArray[np.float32], kept: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the scores of EASE, in which an item's own weight is 0, (users, m)."""
        return np.asarray(x - (x - kept) / self.diagonal)


def _weights(gram: Matrix, weight: float) -> NDArray[np.float32]:
    """Return B, float32 (m, m)."""
    regularised = dense(gram).astype(np.float64)
    regularised[np.diag_indices_from(regularised)] += weight
    inverse = np.linalg.inv(regularised)
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    return np.asarray(weights, dtype=np.float32)


# --- the graph filters by name, with settings for data sets ----------------------------------------------------------


FILTERS: Final[Mapping[str, Filter]] = {
    "bspm-em": BSPM(early_merge=True),
    "bspm-lm": BSPM(early_merge=False),
    "ease": Ease(),
    "gf-cf": GFCF(),
    "turbo-cf": TurboCF(),
}
"""All filters by name, with the defaults of the released code; `ease` with `chosen_weight`."""
