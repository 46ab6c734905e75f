"""Ranking quality of the task's filter: with the scores of the devices, and with all data in one place."""

from __future__ import annotations

import numpy as np

from client_sdk.demo.privirec.central import central_components
from client_sdk.demo.privirec.results import FilterRanking
from client_sdk.demo.privirec.setup import PriviRecSetup
from client_sdk.evaluation.full_ranking import RankingResult, rank_all
from client_sdk.filters import Components, interaction_rows
from client_sdk.simulation.fleet import Fleet
from client_sdk.training.privirec import matching_filter

__all__ = ["rank_filters"]


def rank_filters(setup: PriviRecSetup, fleet: Fleet) -> list[FilterRanking]:
    """Return Recall and NDCG over the test items for several sources of the filter's components.

    First the scores that each client computes with its own rows, then the filter on central data: with the same number
    of exact singular vectors (privirec-k only), and with the whole item-item matrix. Popularity is the last.
    """
    recipe, train, users = setup.recipe, setup.train, setup.users
    client_scores = np.zeros((train.n_users, train.n_items), dtype=np.float32)
    for user, scores in zip(users, fleet.scores(), strict=True):
        client_scores[user] = scores
    rows, graph_filter = interaction_rows(train), matching_filter(recipe)
    degrees = train.item_degrees().astype(np.float64)

    def rank(components: Components) -> RankingResult:
        return rank_all(lambda asked: graph_filter.scores(components, rows[asked]), train, setup.test, users=users)

    p = recipe.parameters
    factors, exact = central_components(train, p.components, exponents=(p.user_exponent, p.degree_exponent))
    on_devices = rank_all(client_scores.__getitem__, train, setup.test, users=users)
    popular = rank_all(lambda asked: np.tile(degrees, (asked.size, 1)), train, setup.test, users=users)
    found = [FilterRanking(f"EASE, {recipe.name} {setup.request.mechanism}", on_devices)]
    if recipe.name == "privirec-k":
        found.append(FilterRanking("EASE, central, the same vectors exactly", rank(factors)))
    whole = FilterRanking("EASE, central, the whole matrix", rank(exact))
    return [*found, whole, FilterRanking("popularity", popular)]
