"""The settings of the graph filters for the papers' data sets."""

from __future__ import annotations

from math import factorial

import pytest

from bench.experiments.ring_sums import PRESETS, preset
from client_sdk.training.graph_filters import BSPM, FILTERS, TurboCF
from protocols.errors import ParameterError


@pytest.mark.parametrize("name", sorted(FILTERS))
@pytest.mark.parametrize("dataset", PRESETS)
def test_every_filter_has_settings_for_every_set(name: str, dataset: str) -> None:
    assert type(preset(name, dataset)) is type(FILTERS[name])


def test_presets_are_the_published_ones() -> None:
    gowalla = preset("bspm-em", "gowalla")
    assert gowalla == BSPM(True, "rk4", 2.5, 1, 0.2, 448)
    h = 2.5
    assert gowalla.step_coefficients == pytest.approx([(-h) ** k / factorial(k) for k in range(5)])
    assert preset("turbo-cf", "gowalla") == TurboCF(0.6, 0.7, 1)
    assert preset("gf-cf", "amazon-book").alpha == 0
    assert preset("gf-cf", "elsewhere") is FILTERS["gf-cf"]
    assert not preset("bspm-lm", "gowalla").early_merge
    with pytest.raises(ParameterError, match="unknown graph filter 'gcn'"):
        preset("gcn", "gowalla")
