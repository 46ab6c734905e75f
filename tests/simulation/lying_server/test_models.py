"""Lies about models: those that no sums can make are refused, and what remains possible is what the docs say."""

from __future__ import annotations

import pytest

from tests.simulation.lying_server.models import LIES, World


@pytest.mark.parametrize("recipe", ["colr", "fedmf"])
@pytest.mark.parametrize("lie", ["blow up", "overflow", "trap"])
def test_a_model_that_no_sums_make_is_refused_by_all(recipe: str, lie: str) -> None:
    """Whoever refuses it does so for what the model is, and not for what it has."""
    world = World(recipe, members=12, items=150)
    LIES[lie](world, 0)
    assert (world.reading.refused, world.reading.failed, world.reading.exact) == (1, 0, 0)


def test_within_the_bounds_only_noise_hides_a_member() -> None:
    """Without a privacy block a model that sums could have made still makes clients send what they have."""
    shown, hidden = World("fedmf", members=12, items=150), World("fedmf", members=12, items=150, epsilon=8.0)
    for world in (shown, hidden):
        LIES["within bounds"](world, 0)
        assert (world.reading.refused, world.reading.failed) == (0, 0)
    assert shown.reading.auc > 0.9 > 0.7 > hidden.reading.auc
