"""The benchmark of liars: what it measures is what the rule and the check let through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench import degrees
from bench.liars import Defence, Liars, Lie
from bench.robust import case_of, counted, figures_of, trained
from client_sdk.lab.federation import Federation
from protocols.sums.groups import TAU, use_groups
from protocols.sums.possible import require_possible


def test_one_liar_owns_a_ranking_by_counts_and_groups_hold_it_back() -> None:
    found = figures_of("counts", case_of("small", None, 0), 0, True, {})
    shares = {key.removesuffix(".share"): float(value or 0) for key, value in found.items() if key.endswith("share")}
    assert shares["counts.open.none.0"] < 0.5
    assert shares["counts.open.aimed.1"] == shares["counts.checked.aimed.1"] == 1.0
    assert shares["counts.groups10.aimed.1"] < 1.0
    assert found["counts.checked.none.0.ndcg20"] == found["counts.open.none.0.ndcg20"]


def test_lies_are_as_large_as_the_defence_lets_through() -> None:
    case = case_of("small", None, 0)
    made = Federation(case.train, "fedmf", {"items": 80, "dim": 2, "item_bias": "counts"}, cohort_size=150)
    plan = made._plan(made.recipe.round_spec(made.task_seed, 1))
    rng, direction = np.random.default_rng(0), np.eye(80)[case.target]
    sums = [rng.binomial(15, 0.2, 80).astype(float) for _ in range(10)]
    honest, reached = use_groups(sums, [15] * 10, TAU, 1).total, {}
    for lie in (Lie("aimed", 1), Lie("aimed", 4)):
        liars, moved = Liars(Defence("groups", groups=10), lie, 0), [np.array(one) for one in sums]
        liars._add(plan, moved, [15] * 10, direction, range(lie.liars))
        changed = [
            group for group, (before, after) in enumerate(zip(sums, moved, strict=True)) if (before != after).any()
        ]
        assert changed == list(range(lie.liars))
        assert set(changed) <= set(use_groups(moved, [15] * 10, TAU, 80).groups.kept)
        for one in moved:
            require_possible(plan, np.rint(one), 15)
        reached[lie.liars] = use_groups(moved, [15] * 10, TAU, 1).total[case.target] - honest[case.target]
    assert 2 <= reached[1] <= 15 and reached[1] < reached[4]


def test_rows_that_are_known_are_not_measured_again_and_each_is_kept() -> None:
    case, steps = case_of("small", None, 0), list[int]()
    whole = figures_of("counts", case, 0, True, {}, lambda found: steps.append(len(found)))
    rows = [key for key in whole if key.endswith(".share")]
    assert len(steps) == len(rows) and steps == sorted(set(steps))
    known = {key: value for key, value in whole.items() if "groups10" not in key}
    assert figures_of("counts", case, 0, True, known) == whole
    assert figures_of("counts", case, 0, True, whole, lambda _: steps.append(0)) == whole and 0 not in steps


def test_a_model_of_ones_own_is_trained_and_one_liar_in_every_sum_moves_it() -> None:
    case = case_of("small", None, 0)
    quick: dict[str, Any] = {"seed": 0, "quick": True, "defence": Defence("checked")}
    honest = trained("arrays", case, lie=Lie("none", 0), **quick)
    lied = trained("arrays", case, lie=Lie("aimed", 1, always=True), **quick)
    assert lied[0] > 2 * honest[0] > 0


def test_without_a_defence_counts_are_what_clients_have() -> None:
    case = case_of("small", None, 0)
    share, of_users, kept = counted("counts", case, Defence("open", checked=False), Lie("none", 0), 0, True)
    assert (share, kept) == (0.0, 1.0) and of_users.shape == (case.split.data.tested_users.size,)


def test_degrees_of_small_groups_say_more_of_who_has_what_and_of_large_ones_next_to_nothing() -> None:
    has = np.random.default_rng(3).random((600, 40)) < np.linspace(0.02, 0.5, 40)
    gains = [degrees.measured(some, 3, 0)[0] for some in (has[:12], has[:60], has)]
    assert gains[0] > gains[1] > gains[2] > -0.001 and gains[0] > 0.05 > 0.01 > gains[2]
    assert degrees.measured(has, 3, 0)[1] == pytest.approx(has.sum() / 120)
