"""The verdict names the best round, says by how many standard errors it differs, and suggests what can help."""

from __future__ import annotations

import numpy as np
import pytest

from client_sdk.lab.measures import Advised, Measured, Verdict, verdict

USERS = 400
BASE = np.random.default_rng(0).random(USERS)


def curve(*shifts: float, noise: float = 0.1) -> list[Measured]:
    """Points whose users have the control's values plus a shift and noise of mean 0."""
    found = []
    for place, shift in enumerate(shifts):
        drawn = noise * np.random.default_rng(place + 1).standard_normal(USERS)
        values = BASE + shift + drawn - drawn.mean()
        found.append(Measured({"NDCG@20": float(values.mean())}, values))
    return found


def judged(*shifts: float, advised: Advised | None = None, higher: bool = True) -> Verdict:
    points = curve(*shifts)
    control = Measured({"NDCG@20": float(BASE.mean())}, BASE)
    rounds = [5 * (place + 1) for place in range(len(points))]
    return verdict(
        rounds, points, {"popularity": control}, advised or Advised(), recipe="colr", higher_is_better=higher
    )


@pytest.mark.parametrize(
    ("shift", "word"), [(0.1, "is better than"), (-0.1, "is worse than"), (0.001, "cannot be told")]
)
def test_the_difference_is_in_its_own_standard_errors(shift: float, word: str) -> None:
    found = judged(shift)
    points = curve(shift)
    difference = points[0].of_users - BASE
    assert found.standard_errors == pytest.approx(shift / (difference.std(ddof=1) / np.sqrt(USERS)))
    assert word in found.text
    assert f"{abs(found.standard_errors):.1f} standard errors" in found.text


def test_lower_errors_are_better_ratings() -> None:
    found = judged(-0.1, 0.2, higher=False)
    assert found.round == 5
    assert found.standard_errors > 2
    assert "is better than" in found.text


def test_the_next_step_follows_from_the_curve() -> None:
    assert "stop at round 5" in judged(0.3, 0.1).text
    assert "still rises" in judged(0.1, 0.3).text
    flat = judged(0.3, 0.3)
    assert "rises" not in flat.text
    assert "stop at" not in flat.text
    assert "No setting is known" in flat.text
    assert "--recipe privirec-k" in judged(-0.1, advised=Advised(recipe="privirec-k", start=True)).text
    assert "--start-from-privirec" in judged(0.1, advised=Advised(start=True)).text
    assert "--budget" in judged(0.1, advised=Advised(budget=True, trains=False)).text


def test_an_untrained_model_is_judged_after_its_last_sum() -> None:
    found = judged(0.3, 0.1, advised=Advised(trains=False))
    assert found.round == 10
    assert "stop at" not in found.text


def test_equal_rankings_differ_by_no_standard_error() -> None:
    same = Measured({"HR": 0.5}, np.full(3, 0.5))
    found = verdict([1], [same], {"popularity": same}, Advised(), recipe="colr", higher_is_better=True)
    assert found.standard_errors == 0
    assert "cannot be told" in found.text
