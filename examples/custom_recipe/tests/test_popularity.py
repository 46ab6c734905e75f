"""The recipe passes the public battery of HushRec, and its sum is the clients' counts."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from popularity_recipe.popularity import PopularityState

from client_sdk.testing import RecipeConformance
from protocols.recipes.state import state_as


class TestPopularity(RecipeConformance):
    name = "popularity"
    parameters: ClassVar[Any] = {"items": 30}

    def test_shares_are_those_of_the_clients(self) -> None:
        made = self.make()
        expected = np.zeros(30)
        for client in range(self.clients):
            expected[self.interactions(made, client).items] += 1 / self.clients
        last = state_as(self._states(made)[-1], PopularityState)
        np.testing.assert_allclose(last.shares, expected, atol=1e-6)
