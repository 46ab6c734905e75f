"""Solvers of what the sums of a `privirec-k` task say: Y = P Q with known Q. Figures of `bench.exposure`.

For each item, those with the fewest entries for each equation first, the row of P follows from least squares under
x >= 0 (Lawson and Hanson), has the least sum among all x >= 0 (linear programming). Where these find nothing, it is the
mean of what is likely (expectation propagation, `propagated`), for 200 rows together: P is symmetric, and a row that is
found is put into the others. A row that is right everywhere holds the lists of the item's owners. The sums are the same
for all clients, so nothing in them says whose a list is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import linprog, nnls

from bench._report import Figure
from bench.known import has_of
from bench.privacy_attacks import watched
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.federation import Federation
from protocols.advice import parameters_for
from protocols.privacy import equations
from protocols.privacy.equations import most_equations
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.staircase import places_of
from protocols.recipes.state import state_as

Floats = NDArray[np.float64]
_ROWS: Final = 60
"""Rows that are solved for, of those with the fewest entries for each equation: the first that can be found."""
_TOGETHER: Final = 200
"""Rows that expectation propagation solves for together."""
_SWEEPS: Final = 24
_KNOWN: Final = 1e8  # precision of an entry that is known
_STILL: Final = 0.01
"""Share of what a value may be off, by which a row that moves less in a sweep is solved."""
_SECONDS: Final = 20.0  # for one linear programme, which takes less than one where it finds a row


def spectral(train: Interactions, times: int = 0, margin: int = 1) -> dict[str, Figure]:
    """Return the figures of a `privirec-k` task; times: 0 for the advised one, else so many times the safe vectors.

    margin: how many times the equations that both bounds allow the advised task has.
    """
    allowed = {"EQUATIONS": equations.EQUATIONS // margin, "ENTRIES": equations.ENTRIES // margin}
    with mock.patch.multiple(equations, **allowed):
        return _spectral(train, times)


def _spectral(train: Interactions, times: int) -> dict[str, Figure]:
    clients, items = train.active_users.size, train.n_items
    given: dict[str, Any] = {"items": items, "validation": 0.0}  # a sum of validation is no equation
    if times:
        most = times * most_equations(items, clients) // 3
        given |= {"components": max(1, min(most, items // 3)), "reveal_gram": True}
    parameters = parameters_for("privirec-k", given, clients=clients, mean_items=train.size / clients)
    made = Federation(train, "privirec-k", parameters, cohort_size=clients, masks=False)
    recipe, totals, states = made.recipe, list[Floats](), [state_as(made.state, PriviRecState)]
    assert isinstance(recipe, PriviRecK)
    made.recipe = watched(recipe, totals)
    for _ in made.run(recipe.steps):
        states.append(state_as(made.state, PriviRecState))
    has, after = has_of(train), states[-1]
    kept = recipe.kept(after)
    widths, columns = recipe.widths(after) if len(totals) >= recipe.first_vectors else (np.zeros(kept.size, int), 0)
    figures: dict[str, Figure] = {"equations": 3 * columns, "safe": most_equations(kept.size, clients)}
    if not columns:  # the task ended before the iterations
        return figures | {"read": 0.0}
    first = recipe.first_vectors - 1
    asked = [state.basis[kept].astype(np.float64) for state in states[first:-1]]
    places, seen = places_of(widths)[0], np.zeros((3, kept.size, columns))
    for product, total in zip(seen, totals[first:], strict=True):
        product[places] = total
    vectors = after.basis[kept] * after.singular_values
    model = np.asarray(vectors @ vectors.T, np.float64)
    rows = Seen(has[:, kept], after.item_degrees[kept], np.array(asked), seen, widths, model, recipe)
    return figures | {"read": read(rows)}


@dataclass(frozen=True, eq=False)
class Seen:
    """What the sums of a task say, and what is true."""

    has: NDArray[np.bool_]
    """bool (clients, m)."""
    degrees: Floats
    """(m,)."""
    asked: Floats
    """Q of all sums, float64 (sums, m, K)."""
    seen: Floats
    """Y = P Q of all sums (sums, m, K), of whose row i the first `widths[i]` columns are known."""
    widths: NDArray[np.int64]
    """int64 (m,)."""
    model: Floats
    """P by the task's model."""
    recipe: PriviRecK


def read(rows: Seen) -> float:
    """Return the share of the clients of whom a solver finds a row."""
    has, widths, p = rows.has, rows.widths, rows.recipe.parameters
    sizes = has.sum(1)
    weights = np.maximum(sizes, 1.0) ** (-2 * p.user_exponent)
    scales = rows.degrees**-p.degree_exponent
    true = (has * weights[:, None]).T @ has.astype(float)  # P without the scales of the items
    system = rows.asked * scales[:, None]
    entries = (true > 0).sum(1)
    solvable = np.argsort(np.where(widths > 0, entries / np.maximum(widths, 1), np.inf), kind="stable")
    items = solvable[: min(_TOGETHER, int((widths > 0).sum()))]
    least = np.array([0.3 * weights[has[:, item]].min() for item in items])

    @lru_cache(maxsize=8)
    def asked_of(width: int) -> tuple[Floats, Floats]:
        return independent(system[:, :, :width].transpose(0, 2, 1).reshape(-1, rows.degrees.size))

    def equations_of(item: int) -> tuple[Floats, Floats]:
        asked, answer = asked_of(int(widths[item]))
        return asked, answer @ (rows.seen[:, item, : widths[item]].ravel() / scales[item])

    right = np.zeros(items.size, bool)
    for place, item in enumerate(items[:_ROWS]):
        present = true[item] > 0
        right[place] = any(np.array_equal(row > least[place], present) for row in rows_of(*equations_of(item)))
    if not right.any():
        model = (rows.model / np.outer(scales, scales))[items]
        likely = likely_entries(true[items], model, np.outer(rows.degrees[items], rows.degrees))
        right = propagated(items, [equations_of(item) for item in items], likely, true[items], least)
    found = set[int]()
    for item, is_right in zip(items, right, strict=True):
        owners = np.flatnonzero(has[:, item])
        same = (sizes[owners][:, None] == sizes[owners]).sum(1)
        found |= set(owners[same == 1].tolist()) if is_right else set()
    return len(found) / len(has)


def independent(system: Floats) -> tuple[Floats, Floats]:
    """Return A and B, float64 (rank, m) and (rank, M): A has orthonormal rows, and A x = B y are the equations of
    `system` x = y, float64 (M, m), without those that follow from others."""
    left, values, right = np.linalg.svd(system, full_matrices=False)
    known = values > 1e-9 * values[0]
    return right[known], left[:, known].T / values[known][:, None]


def rows_of(system: Floats, seen: Floats) -> Iterator[Floats]:
    """Return rows x >= 0 with `system` x = `seen`: by least squares, then that of least sum."""
    yield nnls(system, seen, maxiter=30 * system.shape[1])[0]
    found = linprog(np.ones(system.shape[1]), A_eq=system, b_eq=seen, options={"time_limit": _SECONDS}).x
    if found is not None:
        yield found


@dataclass(frozen=True, eq=False)
class Likely:
    """What an entry of a row is before the equations: not 0 with the probability `present`, float64 (rows, m), and then
    of a mixture of normals of the `means` and `deviations`, float64 (parts,)."""

    present: Floats
    means: Floats
    deviations: Floats

    def after(self, mean: Floats, variance: Floats) -> tuple[Floats, Floats]:
        """Return mean and variance of entries that are seen as normal, float64 (rows, m) each."""
        parts = [(np.log1p(-self.present), 0.0, 1e-7)]
        share = np.log(self.present / self.means.size)
        parts += [(share, at, spread**2) for at, spread in zip(self.means, self.deviations, strict=True)]
        logs = [one - np.log(variance + own) / 2 - (mean - at) ** 2 / (variance + own) / 2 for one, at, own in parts]
        highest = np.maximum.reduce(logs)
        whole, first, second = (np.zeros_like(mean) for _ in range(3))
        for one, (_, at, own) in zip(logs, parts, strict=True):
            weight, centre = np.exp(one - highest), (mean * own + at * variance) / (variance + own)
            whole += weight
            first += weight * centre
            second += weight * (variance * own / (variance + own) + centre**2)
        return first / whole, np.maximum(second / whole - (first / whole) ** 2, 1e-10)


def likely_entries(true: Floats, model: Floats, counts: Floats) -> Likely:
    """Return what entries are likely to be. true, model, counts: of the same rows, float64 (rows, m).

    The solver is given more than the sums say: how often entries with such a value in the model, and of items of such
    degrees, are not 0, and of what size, as it is in truth.
    """
    cells = []
    for value, count in ((np.log(np.maximum(model, 0.0) + 0.02), 20), (np.log(np.maximum(counts, 1.0)), 10)):
        edges = np.quantile(value, np.linspace(0.0, 1.0, count + 1)[1:-1])
        cells.append(np.searchsorted(edges, value))
    cell = cells[0] * 10 + cells[1]
    shown = np.bincount(cell.ravel(), (true > 0).ravel().astype(float), 200)
    present = (shown + 0.02) / (np.bincount(cell.ravel(), minlength=200) + 2.0)
    values = true[true > 0]
    spread = 0.5 * np.diff(np.quantile(values, np.linspace(0.0, 1.0, 13))).clip(1e-3)
    return Likely(
        np.clip(present[cell], 1e-5, 0.999), np.quantile(values, np.linspace(0.02, 0.98, spread.size)), spread
    )


def propagated(
    items: NDArray[np.int64], systems: list[tuple[Floats, Floats]], likely: Likely, true: Floats, least: Floats
) -> NDArray[np.bool_]:
    """Return which rows are found by expectation propagation (Minka, UAI 2001), bool (rows,).

    Each row's equations, and what its entries are likely to be, are factors of one distribution, which is approximated
    by independent normals. An entry of two of the rows is one unknown, with the equations of both. Rows that are right
    are known to the others from then on, and it ends where no mean moves any more. items: which rows, int64 (rows,).
    systems: their equations. true: (rows, m); least: how far a value may be off, float64 (rows,).
    """
    start = likely.present * likely.means.mean()
    precision = 1.0 / (likely.present * np.square(likely.means).mean() - start**2 + 1e-4)
    shift, right = start * precision, np.zeros(items.size, bool)
    seen, moved, last = np.full_like(start, 1e-6), np.zeros_like(start), start
    for _ in range(_SWEEPS):
        precision[right], precision[:, items[right]] = _KNOWN, _KNOWN
        shift[right], shift[:, items[right]] = true[right] * _KNOWN, true[:, items[right]] * _KNOWN
        if right.all():
            break
        for row in np.flatnonzero(~right):
            seen[row], moved[row] = _answered(*systems[row], precision[row], shift[row])
        seen[right], moved[right] = 1e-6, 0.0
        both, together = seen.copy(), moved.copy()
        for whole, part in ((both, seen), (together, moved)):
            shared = part[:, items].T.copy()
            np.fill_diagonal(shared, 0.0)
            whole[:, items] += shared
        mean, variance = likely.after(together / both, 1.0 / both)
        left = np.clip(1.0 / variance - seen, 1e-4, 1e9)
        towards = np.where(left <= 1e-4, mean * 1e-4, mean / variance - moved)
        precision, shift = (precision + left) / 2, (shift + towards) / 2
        found = right | (np.abs(mean - true) < least[:, None]).all(axis=1)
        if (found == right).all() and (np.abs(mean - last) < _STILL * least[:, None]).all():
            break
        right, last = found, mean
    return right


def _answered(system: Floats, seen: Floats, precision: Floats, shift: Floats) -> tuple[Floats, Floats]:
    """Return what a row's equations say about each entry: precision, and precision times mean, float64 (m,) each."""
    spread = 1.0 / precision
    scaled = system * spread
    inner = scaled @ system.T
    inner[np.diag_indices_from(inner)] += 1e-9 * np.trace(inner) / len(inner) + 1e-12
    lower = cholesky(inner, lower=True, check_finite=False)
    left = np.column_stack([scaled, seen - system @ (spread * shift)])
    solved = solve_triangular(lower, left, lower=True, overwrite_b=True, check_finite=False)
    part = solved[:, :-1]
    mean = spread * shift + part.T @ solved[:, -1]
    variance = np.maximum(spread - np.square(part).sum(axis=0), 1e-12 * spread + 1e-14)
    return np.maximum(1.0 / variance - precision, 1e-6), mean / variance - shift
