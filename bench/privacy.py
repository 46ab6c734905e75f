"""How well recipes rank when a privacy block bounds what each client spends: against epsilon, and against users.

    python -m bench.privacy --quick                              one small run of each kind
    python -m bench.privacy --data-dir DATA                      all rows; finished ones are kept, so it can be resumed
    python -m bench.privacy --data-dir DATA --only users privirec-k
    python -m bench.privacy --audit                              the audit of `bench.privacy_audit`

A row is `<set>.<method>.eps<epsilon>` or `<set>.users<n>.<method>.eps<epsilon>`; `epsnone` has no noise. delta is
n^-1.1, and a tenth of the clients is not counted on. In rows of `users` the clients are resampled from the set's users,
each with a random 70 % of its rows. Ranked is the held-out item of the set's own users, from all their training rows.

The recipes absorb noisy sums as in a task (`protocols.recipes.private`). PriviRec's sums over a population are
P Q, or P, and one draw of the noise of all clients, of the same distribution as the sum of their shares.
What rounding to steps adds, below 2 % of the noise's variance, is left out. `colr` and `arrays` run client by client,
each of which takes part in two sums.

`later`: a task of one iteration that starts from the vectors of a task of other clients, with the same epsilon.
`local`: each client's noise alone gives the guarantee, so that no sum need hide it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bench import privacy_audit
from bench._report import Figure
from bench.experiments.quality import Found, means, measure_seeds, values_of
from bench.experiments.quality_models import Split, split_of
from bench.experiments.rows import Values
from bench.privacy_models import train_arrays, train_colr
from client_sdk.lab.data.interactions import interaction_rows
from client_sdk.lab.evaluation.leave_one_out import FullScorer
from client_sdk.lab.whole import noise_of_all
from client_sdk.training.graph_filters import FILTERS
from client_sdk.training.privirec import components_of
from protocols.advice import parameters_for
from protocols.messages.privacy import Privacy
from protocols.recipes.base import Recipe, RoundSpec
from protocols.recipes.factors import CountedFactors
from protocols.recipes.private import NoiseTerms, Private, with_privacy
from protocols.recipes.privirec import PriviRecK, PriviRecState
from protocols.recipes.registry import recipe as make_recipe
from protocols.recipes.state import state_as

__all__ = ["Population", "figures_of", "main"]

_SETS: Final = ("ml-1m", "gowalla")
_EPSILONS: Final = ("0.5", "1", "2", "4", "8", "16", "none")
_USERS: Final = (10_000, 30_000, 100_000, 400_000, 1_000_000)
_METHODS: Final = ("popularity", "popularity-local", "privirec", "privirec-k", "privirec-k-local", "arrays", "colr")
_WITHOUT_NOISE: Final = {"iterations": 5}
"""Of tasks without noise, in which more iterations cost nothing."""
_LOCAL_COMPONENTS: Final = 16
"""With more, a client's steps would be so fine that its noise alone could not be drawn; no component is above it."""
_KEPT: Final = 0.7
_CORRUPT: Final = 0.1
_CHUNK: Final = 2000


@dataclass(frozen=True)
class Population:
    """n clients, resampled from `users` or all of them, and what their sums follow from."""

    users: csr_array[Any, Any]
    n: int | None
    seed: int

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.users.shape[0] if self.n is None else self.n

    @cached_property
    def rows(self) -> csr_array[Any, Any]:
        """The clients' binary rows, float32 CSR (clients, items), without clients that have none."""
        if self.n is None:
            found = self.users
        else:
            rng = np.random.default_rng([self.seed, 7])
            found = self.users[rng.integers(0, self.users.shape[0], self.n)]
            found.data *= rng.random(found.nnz) < _KEPT
            found.eliminate_zeros()
        return csr_array(found[np.diff(found.indptr) > 0])

    @cached_property
    def _scaled(self) -> csr_array[Any, Any]:
        """The rows with length 1: of d items each is d^-1/2."""
        counts = np.diff(self.rows.indptr)
        scaled = self.rows.copy()
        scaled.data = np.repeat(counts**-0.5, counts).astype(np.float32)
        return scaled

    @cached_property
    def degrees(self) -> NDArray[np.float64]:
        """Users of each item, (items,), with at most `most_items` items of a client, in expectation."""
        counts = np.diff(self.rows.indptr)
        shares = np.minimum(1.0, Privacy.model_fields["most_items"].default / counts)
        return np.bincount(self.rows.indices, np.repeat(shares, counts), self.rows.shape[1])

    def product(self, basis: NDArray[np.float32]) -> NDArray[np.float64]:
        """P Q of rows of length 1, (items x K,)."""
        if self.n is not None:  # of so many clients P is quicker
            return (self._exact @ basis.astype(np.float64)).ravel()
        total = np.zeros(basis.shape)
        for chunk in range(0, self._scaled.shape[0], _CHUNK):
            part = self._scaled[chunk : chunk + _CHUNK]
            total += part.T @ (part @ basis)
        return total.ravel()

    def gram(self, bounded: bool) -> NDArray[np.float64]:
        """The upper triangle of P, (items (items + 1) / 2,). bounded: with each client's part within 2^-1/2."""
        return np.asarray((self._bounded if bounded else self._exact)[np.triu_indices(self.rows.shape[1])])

    @cached_property
    def _exact(self) -> NDArray[np.float64]:
        return self._sum_of_squares(np.ones(self.rows.shape[0]))

    @cached_property
    def _bounded(self) -> NDArray[np.float64]:
        """Parts of rows of d items have the norm ((1 + 1/d) / 2)^1/2 before."""
        return self._sum_of_squares((1 + 1 / np.diff(self.rows.indptr)) ** -0.25)

    def _sum_of_squares(self, factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """X^T X of the rows of length 1, times a factor each, (items, items)."""
        total = np.zeros((self.rows.shape[1],) * 2)
        for chunk in range(0, factors.size, _CHUNK):
            part = self._scaled[chunk : chunk + _CHUNK].toarray()
            part *= factors[chunk : chunk + _CHUNK, None].astype(np.float32)
            total += part.T @ part
        return total


def train_spectrum(
    population: Population,
    name: str,
    epsilon: float | None,
    seed: int,
    local: bool = False,
    earlier: Population | None = None,
) -> FullScorer:
    """Run a task of `privirec-k` or `privirec` over the population; the result scores its `users`.

    earlier: clients of a task before, with the same epsilon, from whose vectors this one starts.
    """
    items = population.users.shape[1]
    given: dict[str, Any] = {"items": items} | ({"components": min(_LOCAL_COMPONENTS, items)} if local else {})
    given |= _WITHOUT_NOISE if epsilon is None else {}
    start = None
    if earlier is not None:
        before = _spectrum_recipe(name, given)
        vectors = _spectrum(earlier, before, epsilon, seed + 1, local, before.initial_state(bytes(32))).basis
        given = parameters_for(name, given, noisy=True, started=True)
        start, _ = _spectrum_recipe(name, given).starting_from(vectors)
    inner = _spectrum_recipe(name, given)
    state = _spectrum(population, inner, epsilon, seed, local, start or inner.initial_state(bytes(32)))
    scores = FILTERS["ease"].scores(components_of(inner, state), population.users)
    return lambda users: scores[users]


def _spectrum_recipe(name: str, given: dict[str, Any]) -> PriviRecK:
    made = make_recipe(name, parameters_for(name, given, noisy=True), noisy=True)
    assert isinstance(made, PriviRecK)
    return made


def _spectrum(
    population: Population, inner: PriviRecK, epsilon: float | None, seed: int, local: bool, start: PriviRecState
) -> PriviRecState:
    """Return the state after the task's last sum. start: of round 0."""
    made = privately(inner, epsilon, inner.steps, population.clients, local)
    rng = np.random.default_rng([seed, 8])
    state = made.starting(start) if isinstance(made, Private) else start
    for number in range(1, inner.steps + 1):
        spec = made.round_spec(bytes(32), number)
        if inner.sum_of(number) == "iteration":
            exact = population.product(inner.basis_before(state, spec))
        else:
            exact = population.gram(isinstance(made, Private))
        total = noisy(made, spec, state, exact, population.clients, rng)
        state = state_as(made.absorb(state, spec, total, population.clients), PriviRecState)
    return state


def train_popularity(population: Population, epsilon: float | None, seed: int, local: bool) -> FullScorer:
    """Sum the item counts once; all users have the same scores."""
    inner = make_recipe("fedmf", {"items": population.users.shape[1], "dim": 1, "item_bias": "counts"})
    made = privately(inner, epsilon, 1, population.clients, local)
    state, spec, rng = made.initial_state(bytes(32)), made.round_spec(bytes(32), 1), np.random.default_rng([seed, 8])
    total = noisy(made, spec, state, np.rint(population.degrees), population.clients, rng)
    biases = state_as(made.absorb(state, spec, total, population.clients), CountedFactors).biases
    return lambda users: np.broadcast_to(biases, (users.size, biases.size))


def privately(inner: Recipe, epsilon: float | None, sums: int, clients: int, local: bool = False) -> Recipe:
    """Return the recipe under a privacy block of which all clients are in all `sums`; without one for no epsilon."""
    if epsilon is None:
        return inner
    privacy = Privacy(epsilon=epsilon, delta=clients**-1.1, corrupt=_CORRUPT)
    if local:
        return Private(inner, privacy, NoiseTerms(epsilon, privacy.delta, sums, honest=1))
    return with_privacy(inner, privacy, sums, clients, clients)


def noisy(
    made: Recipe,
    spec: RoundSpec,
    state: Any,
    exact: NDArray[np.float64],
    clients: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Return the opened sum: `exact` in steps with the noise of all clients, of Skellam's distribution."""
    if not isinstance(made, Private):
        return exact
    units, _ = made.in_own_units(state, spec, np.ones(exact.size), clients)
    return np.asarray(np.rint(exact / units) + noise_of_all(made, spec, exact.size, clients, rng))


# --- rows


def _rows() -> Iterator[str]:
    for dataset in _SETS:
        for method in _METHODS:
            yield from (f"{dataset}.{method}.eps{epsilon}" for epsilon in _EPSILONS if _has(method, epsilon))
    for users in _USERS:
        for epsilon in ("2", "4", "none"):
            for method in ("popularity", "privirec", "privirec-k", "privirec-k-later"):
                if _has(method, epsilon):
                    yield f"ml-1m.users{users}.{method}.eps{epsilon}"


def _has(method: str, epsilon: str) -> bool:
    return epsilon != "none" or not method.endswith(("local", "later"))


_populations: dict[tuple[str, int, int | None], tuple[Split, Population]] = {}
"""The newest one: its matrices are large, and the rows that need them follow each other."""


def _population(
    dataset: str, seed: int, users: int | None, validation: bool, data_dir: Path
) -> tuple[Split, Population]:
    if (dataset, seed, users) not in _populations:
        _populations.clear()
        split = split_of(dataset, data_dir, seed, validation)
        rows = csr_array(interaction_rows(split.data.train)).astype(np.float32)
        _populations[dataset, seed, users] = split, Population(rows, users, seed)
    return _populations[dataset, seed, users]


def _measured(dataset: str, name: str, seed: int, validation: bool, quick: bool, data_dir: Path) -> Values:
    *between, method, last = name.replace("eps0.5", "eps1/2").split(".")
    epsilon = None if last == "epsnone" else 0.5 if last == "eps1/2" else float(last.removeprefix("eps"))
    users = int(between[0].removeprefix("users")) if between else None
    if quick and ((users or 0) > _USERS[0] or epsilon not in (None, 4.0)):
        return {}
    split, population = _population(dataset, seed, users, validation, data_dir)
    local, kind = method.endswith("-local"), method.removesuffix("-local").removesuffix("-later")
    earlier = replace(population, seed=seed + 100) if method.endswith("-later") else None
    match kind:
        case "popularity":
            scorer = train_popularity(population, epsilon, seed, local)
        case "colr" | "arrays":
            train = train_colr if kind == "colr" else train_arrays
            scorer = train(split.data.train, _block(population, epsilon), seed, quick)
        case _:
            scorer = train_spectrum(population, kind, epsilon, seed, local, earlier)
    return values_of(scorer, split)


def _block(population: Population, epsilon: float | None) -> Privacy | None:
    if epsilon is None:
        return None
    return Privacy(epsilon=epsilon, delta=population.clients**-1.1, corrupt=_CORRUPT, clip=0.5)


def figures_of(found: Found) -> dict[str, Figure]:
    """Return means over the seeds, and NDCG@20 divided by that without noise and by that of exact popularity."""
    figures = means(found)
    for row in found:
        base = row.partition(".eps")[0]
        exact, popular = f"{base.removesuffix('-later')}.epsnone", f"{base.rpartition('.')[0]}.popularity.epsnone"
        for name, other in (("kept", exact), ("over_popularity", popular)):
            if other in found and other != row:
                ratio = float(figures[f"{row}.ndcg20"] or 0) / float(figures[f"{other}.ndcg20"] or 1)  # type: ignore[arg-type]
                figures[f"{row}.{name}"] = ratio
    return figures


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked and print the figures; see `measure_seeds`. With `--audit`: `bench.privacy_audit`."""
    given = sys.argv[1:] if arguments is None else arguments
    if "--audit" in given:
        privacy_audit.main([each for each in given if each != "--audit"])
        return 0
    names = [(row.partition(".")[0], row.partition(".")[2]) for row in _rows()]
    return measure_seeds(arguments, __doc__ or "", names, _measured, figures_of)


if __name__ == "__main__":
    sys.exit(main())
