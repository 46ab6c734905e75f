"""The demo's own settings end with a trained model: above popularity, and with a curve that has become flat."""

from __future__ import annotations

import pytest

from client_sdk.lab.demo.arms import leave_one_out
from client_sdk.lab.demo.results import DemoRequest
from client_sdk.lab.demo.run import arms_of, chosen_settings, shared_setup
from client_sdk.lab.evaluation.controls import popularity_control
from client_sdk.lab.federation import Federation


@pytest.mark.parametrize("place", [0, 2], ids=["colr", "fedmf"])
def test_the_default_rounds_end_above_popularity_on_a_flat_curve(place: int) -> None:
    """The sums are added in this process without encryption, which changes them by less than a millionth."""
    request = DemoRequest()
    settings = chosen_settings(request)
    shared, _ = shared_setup(request, settings)
    arm = arms_of(request, settings)[place]
    parameters = {"items": shared.data.train.n_items, **arm.recipe_parameters}
    federation = Federation(
        shared.data.train, arm.recipe, parameters, "plain", {}, settings.training, shared.cohort, request.seed
    )
    hr: dict[int, float] = {}
    for done in federation.run(settings.rounds):
        if done.number in (settings.rounds // 2, settings.rounds * 4 // 5, settings.rounds):
            scores = federation.scores(shared.trainable)
            hr[done.number] = leave_one_out(shared, shared.trainable, scores).hr
    half, late, last = hr.values()
    popularity = popularity_control(shared.data, shared.candidates).hr
    assert half > popularity
    assert last > popularity + 0.25
    assert abs(last - late) < 0.05
