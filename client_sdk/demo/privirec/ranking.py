"""Ranking quality of GF-CF: with the scores of the devices, and with all data in one place."""

from __future__ import annotations

import numpy as np

from client_sdk.demo.privirec.central import central_components
from client_sdk.demo.privirec.results import FilterRanking
from client_sdk.demo.privirec.setup import PriviRecSetup
from client_sdk.evaluation.full_ranking import RankingResult, rank_all
from client_sdk.filters import GFCF, Components, interaction_rows
from client_sdk.simulation.fleet import Fleet

__all__ = ["rank_filters"]


def rank_filters(setup: PriviRecSetup, fleet: Fleet) -> list[FilterRanking]:
    """Return Recall and NDCG over the test items for several sources of the filter's components.

    First the scores that each client computes with its own rows, then GF-CF on central data: with the same number of
    exact singular vectors (privirec-k only), and with the whole item-item matrix.
    """
    recipe, train, users = setup.recipe, setup.train, setup.users
    client_scores = np.zeros((train.n_users, train.n_items), dtype=np.float32)
    for user, scores in zip(users, fleet.scores(), strict=True):
        client_scores[user] = scores
    rows = interaction_rows(train)

    def rank(components: Components) -> RankingResult:
        return rank_all(lambda asked: GFCF().scores(components, rows[asked]), train, setup.test, users=users)

    factors, exact = central_components(train, recipe.parameters.components)
    on_devices = rank_all(client_scores.__getitem__, train, setup.test, users=users)
    found = [FilterRanking(f"GF-CF, {recipe.name} {setup.request.mechanism}", on_devices)]
    if recipe.name == "privirec-k":
        found.append(FilterRanking("GF-CF, central, the same vectors exactly", rank(factors)))
    return [*found, FilterRanking("GF-CF, central, the whole matrix", rank(exact))]
