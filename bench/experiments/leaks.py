"""Training negatives as the papers draw them, and the control that measures what this leaks.

The control ranks items by how seldom training would draw them as a negative.

If negatives are drawn from all items outside the training items, the held-out item is drawn as often as any other,
and the control is no better than random. If the held-out item is never drawn (`paper_protocol`), the control ranks it
first. A model whose figure is below that of the control there may have learned nothing but the leak.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.lab.data.interactions import DataError, Interactions, LeaveOneOut, leave_one_out
from client_sdk.lab.data.splits import only_users
from client_sdk.lab.evaluation.controls import ControlTable, control_row, controls
from client_sdk.lab.evaluation.metrics import EvaluationResult, FullScorer, evaluate_full_scores, evaluate_scores
from client_sdk.lab.federation import Federation
from client_sdk.store.states import ClientState
from client_sdk.training.base import ClientSide, LocalResult
from client_sdk.training.factors import FactorSide
from client_sdk.training.fair import FairSide
from client_sdk.training.mf import NegativeSampler, draw_negatives
from client_sdk.training.pfedclr import PFedCLRSide
from protocols.errors import ParameterError
from protocols.recipes.base import ModelState, RoundSpec

# --- Splits as in the papers' code: users with enough interactions, and hold-out of the item introduced last


def users_with_at_least(interactions: Interactions, count: int) -> Interactions:
    """Return the interactions of users with at least `count` interactions, renumbered as by `only_users`.

    Raises `DataError` if no user remains.
    """
    active = np.flatnonzero(interactions.user_degrees() >= count)
    if not active.size:
        raise DataError(f"no user has {count} interactions or more")
    return only_users(interactions, active)


def hold_out_introduced_last(interactions: Interactions) -> LeaveOneOut:
    """Hold out each user's item with the highest number. The result has no timestamps.

    FilmTrust has no timestamps, but its public file numbers items in order of first appearance; the released code of
    FedEM, by PFedCLR's authors, uses this order as the time.
    """
    held = leave_one_out(replace(interactions, timestamps=interactions.items.astype(np.int64)))
    return replace(held, train=replace(held.train, timestamps=None))


# ---


@dataclass(frozen=True)
class NegativeDraws:
    """How training draws negatives. The defaults are PFedCLR's."""

    rounds: int = 100
    participation: float = 0.6
    """Share of the users in each round, in (0, 1], drawn anew in each."""
    negatives: int = 4
    """Drawn for each positive in each round that a user takes part in."""


_PFEDCLR: Final = NegativeDraws()


class DrawnScores:
    """A scorer: minus the number of times that a user draws an item, plus a random value below 1 to break ties.

    All draws are simulated. In each round a random share of the users draws, uniformly and with repetition, from the
    same pool as training. The draws of a user depend only on the state of `rng` and the user, not on the order of
    calls. excluded: int32 (n_users, k), items that are never drawn besides the training items, as in `exclude`; None is
    the clean protocol.
    """

    def __init__(
        self,
        train: Interactions,
        rng: np.random.Generator,
        excluded: NDArray[np.int32] | None = None,
        draws: NegativeDraws = _PFEDCLR,
    ) -> None:
        self.train, self.draws, self.excluded = train, draws, excluded
        self.seed = int(rng.integers(2**63))
        asked = round(draws.participation * train.n_users)
        self.participations = np.zeros(train.n_users, dtype=np.int64)
        for _ in range(draws.rounds):
            self.participations[rng.permutation(train.n_users)[:asked]] += 1

    def __call__(self, users: NDArray[np.intp]) -> NDArray[np.floating]:
        """Return the scores of all items for `users` (u,), float64 (u, n_items)."""
        return np.stack([self._of_user(int(user)) for user in users])

    def _of_user(self, user: int) -> NDArray[np.float64]:
        rng, positives = np.random.default_rng([self.seed, user]), self.train.positives(user)
        pool = negative_pool(positives, self.train.n_items, None if self.excluded is None else self.excluded[user])
        count = int(self.participations[user]) * self.draws.negatives * positives.size
        scores = rng.random(self.train.n_items)
        scores[pool] -= np.bincount(rng.integers(0, pool.size, count, dtype=np.int32), minlength=pool.size)
        return scores


def both_rankings(
    scores: FullScorer, data: LeaveOneOut, candidates: NDArray[np.int32]
) -> tuple[EvaluationResult, EvaluationResult]:
    """Evaluate scores of all items by the first ten: against candidates, int32 (n_users, n), and among all items."""

    def listed(users: NDArray[np.intp], items: NDArray[np.int64]) -> NDArray[np.floating]:
        return np.take_along_axis(scores(users), items, axis=1)

    return evaluate_scores(listed, data, candidates, 10), evaluate_full_scores(scores, data, 10)


def leak_controls(data: LeaveOneOut, candidates: NDArray[np.int32], rng: np.random.Generator) -> ControlTable:
    """Return the rows of `controls` and the controls drawn as a negative, under the clean and the leaky protocol.

    candidates: int32 (n_users, n), from `candidates_of`.
    """
    found = controls(data, candidates, rng)
    drawn = {"drawn as a negative": None, "drawn as a negative in paper_protocol": data.test_items[:, None]}
    rows = [
        control_row(name, result)
        for name, excluded in drawn.items()
        for result in both_rankings(DrawnScores(data.train, rng, excluded), data, candidates)
    ]
    return ControlTable(found.metrics, (*found.rows, *rows))


# --- the evaluation protocol of PFedCLR and related code. It leaks the held-out items; use it only for comparison ----
# The released code of PFedRec and of FedEM (by PFedCLR's authors) draws training negatives from the items that a user
# never interacted with. The user did interact with the held-out item, so it is never drawn, while the 99 items that it
# is ranked against are drawn many times. A model that memorises its negatives therefore ranks the held-out item first.
# Ranking items by how seldom they are drawn, without a model, reaches an HR@10 above 0.99 on MovieLens-100K
# (`DrawnScores`). The original NCF code excludes only the training items, as this project does elsewhere.
#
# The released CoLR code is different: it excludes the held-out item AND the 99 items that it is ranked against. None of
# the hundred is favoured, so it does not leak.

LEAK_WARNING: Final = (
    "paper_protocol LEAKS the held-out items: they are never drawn as training negatives, so a model that only "
    "memorises its negatives ranks them first. Use its figures only for comparison with papers that do the same; they "
    "do not show how well a model recommends. Report the figures of the clean protocol and of the controls next to "
    "them."
)
"""The warning to show next to every figure under `paper_protocol`."""

_log = logging.getLogger(__name__)


def paper_protocol(data: LeaveOneOut) -> NDArray[np.int32]:
    """Return the held-out items as exclusions for `exclude`, int32 (n_users, 1), and log `LEAK_WARNING` as a warning.

    Training items are always excluded, so with these no item that a user interacted with is drawn as a negative. A user
    without a held-out item has -1.
    """
    _log.warning(LEAK_WARNING)
    return data.test_items[:, None].copy()


# --- training whose negatives leave out more items than the user's own -----------------------------------------------


def draws_without(excluded: NDArray[np.int32]) -> NegativeSampler:
    """Return `draw_negatives` without the items of `excluded`, int32 (k,); entries below 0 are ignored."""

    def draw(positives: NDArray[np.int32], n_items: int, count: int, rng: np.random.Generator) -> NDArray[np.int32]:
        return draw_negatives(np.concatenate([positives, excluded[excluded >= 0]]), n_items, count, rng)

    return draw


def negative_pool(
    positives: NDArray[np.int32], n_items: int, excluded: NDArray[np.int32] | None = None
) -> NDArray[np.intp]:
    """Return the items of 0..n_items-1 outside `positives` and `excluded`, ascending.

    excluded: int32 (k,); entries below 0 are ignored. Raises `ParameterError` if no item remains.
    """
    allowed = np.ones(n_items, dtype=bool)
    allowed[positives] = False
    if excluded is not None:
        allowed[excluded[excluded >= 0]] = False
    if not allowed.any():
        raise ParameterError(f"no item is left as a negative: the client has all {n_items} items")
    return np.flatnonzero(allowed)


@dataclass(frozen=True)
class _Excluding:
    """`inner`, with negatives drawn outside the user's row of `excluded` in every contribution."""

    inner: FactorSide | PFedCLRSide | FairSide
    excluded: NDArray[np.int32]

    def __getattr__(self, name: str) -> Any:
        """Everything else is that of `inner`."""
        return getattr(self.inner, name)

    def contribute(
        self,
        spec: RoundSpec,
        client_id: str,
        state: ModelState,
        history: History,
        client_state: ClientState,
        rng: np.random.Generator,
    ) -> LocalResult:
        """Train as user int(client_id), which is how `Federation` names its users."""
        own: ClientSide = replace(self.inner, draw=draws_without(self.excluded[int(client_id)]))
        return own.contribute(spec, client_id, state, history, client_state, rng)


def exclude(federation: Federation, excluded: NDArray[np.int32]) -> None:
    """Make the users of `federation` never draw their row of `excluded` as a training negative.

    excluded: int32 (users, k), padded with -1. Raises `TypeError` for a recipe that draws no negatives.
    """
    side = federation.client_side
    if not isinstance(side, FactorSide | PFedCLRSide | FairSide):
        raise TypeError(f"recipe {federation.recipe.name!r} draws no negatives")
    federation.client_side = _Excluding(side, excluded)
