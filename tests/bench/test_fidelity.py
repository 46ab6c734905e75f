"""The fidelity runs: rows are measured once and kept; the leaky protocol leaks the held-out item and nothing else."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy

from bench.experiments.factors import pfedclr_run, pfedclr_split
from bench.experiments.fidelity import SYSTEMS, full_ranking_controls, main, rating_mean_controls, seeded
from bench.experiments.leaks import (
    LEAK_WARNING,
    DrawnScores,
    NegativeDraws,
    both_rankings,
    exclude,
    negative_pool,
    paper_protocol,
)
from bench.experiments.rfrec import renyi_divergence, renyi_epsilon, rfrec_run
from bench.experiments.rows import Row, flat, measured, options_of
from bench.run_all import USERS, write_data
from client_sdk.lab.data.interactions import Interactions, LeaveOneOut, leave_one_out
from client_sdk.lab.evaluation.metrics import candidates_of
from client_sdk.lab.federation import Federation
from protocols.errors import ParameterError


def counted(folder: Path, values: dict[str, float], _: Path) -> dict[str, float]:
    """A measurement that notes its calls in a file, since it runs in another process."""
    with (folder / "calls").open("a") as calls:
        calls.write("x")
    return values


def failing(_: Path) -> dict[str, float]:
    raise ParameterError("no such data set")


def run(rows: Sequence[Row], tmp_path: Path, *more: str) -> dict[str, dict[str, float]]:
    parser = options_of("python -m bench.experiments.made", (0,))
    return measured(rows, parser.parse_args(["--work", str(tmp_path), "--jobs", "1", *more]), "test")


def test_a_row_is_measured_once_and_kept_and_left_out_without_its_library(tmp_path: Path) -> None:
    made = partial(counted, tmp_path)
    rows = [
        Row("a.b", partial(made, {"hr10": 0.5}), {"hr10": 0.6}),
        Row("a.c", partial(made, {"x": 1.0}), prefix="a"),
        Row("nothing", partial(counted, tmp_path, {})),
    ]
    found = run(rows, tmp_path)
    assert run(rows[:2], tmp_path) == found
    assert (tmp_path / "calls").read_text() == "xxx"
    figures = flat(rows, found)
    assert figures["a.b.hr10"] == 0.5
    assert figures["a.b.paper.hr10"] == 0.6
    assert figures["a.x"] == 1.0
    assert figures["a.c.seconds"] > 0
    with pytest.raises(ParameterError, match="no such data set"):
        run([Row("bad", failing)], tmp_path)


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_keys_of_rows_are_unique_and_quick_rows_have_no_published_figures(system: str) -> None:
    rows = [seeded(row, seed, False) for seed in (0, 1) for row in SYSTEMS[system].rows(False)]
    assert len({row.key for row in rows}) == len(rows)
    assert not any(seeded(row, 0, True).published for row in SYSTEMS[system].rows(True))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The made-up sets of quick runs; FilmTrust has one user more, with 3 items, whom PFedCLR's paper excludes."""
    write_data(tmp_path)
    with (tmp_path / "filmtrust" / "ratings.txt").open("a") as file:
        file.writelines(f"{USERS} {item} 4\n" for item in (0, 1, 2))
    return tmp_path


def test_pfedclr_is_trained_with_and_without_the_leak(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    for leaky in (True, False):
        figures = pfedclr_run("filmtrust", leaky, {"rank": 1}, 2, 0, data_dir)
        assert figures["rounds"] == 2
        assert 0 <= figures["hr10_full"] <= figures["hr10"] <= 1
        assert figures["bytes_up"] > 4 * 16 * 100
    assert caplog.messages == [LEAK_WARNING]


def test_the_split_is_the_papers(data_dir: Path) -> None:
    data = pfedclr_split("filmtrust", data_dir)
    assert data.train.n_users == USERS
    for user in range(USERS):
        assert data.test_items[user] > data.train.positives(user).max()  # introduced last


def test_rfrec_gives_its_errors_or_the_sum_in_which_it_diverged(data_dir: Path) -> None:
    good = rfrec_run("rfrec", "ml-100k", {"variant": "released", "dim": 3}, None, 20, 50, False, 0, data_dir)
    assert good["sums"] == 20
    assert 0 < good["mae"] < good["rmse"] < 3
    steep = {"variant": "paper", "dim": 3, "learning_rate": 5.0, "scaling": "raw"}
    bad = rfrec_run("rfrec", "ml-100k", steep, None, 50, 0, False, 0, data_dir)
    assert bad["diverged_at"] > 1
    assert "mae" not in bad


def test_the_metrics_of_every_controls(data_dir: Path) -> None:
    leaks = SYSTEMS["pfedclr"].controls("filmtrust", data_dir)
    assert leaks.metrics == ("HR@10", "NDCG@10")
    assert len(leaks.rows) == 8
    assert full_ranking_controls("ml-100k", data_dir).metrics == ("Recall@20", "NDCG@20")
    assert rating_mean_controls("ml-100k", data_dir).metrics == ("MAE", "RMSE")


def test_a_quick_table_is_printed_and_written(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--system", "rfrec", "--quick", "--data-dir", str(data_dir), "--work", str(data_dir / "work")]
    assert main([*arguments, "--only", "nothing"]) == 2
    path = data_dir / "figures.json"
    assert main([*arguments, "--only", "released.users", "controls", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())
    assert figures["ml100k.rfrec.released.users.rmse"] > 0
    assert figures["controls.ml-100k.mean.rmse"] > 0
    assert "ml100k.rfrec.released.users" in capsys.readouterr().out.replace("\n", "")


# --- the leaky protocol warns of what it leaks, and the control measures it -------------------------------------------


PEOPLE, THINGS = 300, 200


def random_data(seed: int = 0) -> LeaveOneOut:
    """Users with 1 to 39 items each; some have no held-out item."""
    rng = np.random.default_rng(seed)
    lists = [rng.choice(THINGS, rng.integers(1, 40), replace=False) for _ in range(PEOPLE)]
    who = np.repeat(np.arange(PEOPLE), [len(mine) for mine in lists])
    return leave_one_out(Interactions.from_pairs(who, np.concatenate(lists), n_users=PEOPLE, n_items=THINGS), seed)


def test_only_the_held_out_item_is_excluded_and_a_warning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    data = random_data()
    with caplog.at_level(logging.WARNING):
        excluded = paper_protocol(data)
    assert (excluded.dtype, excluded.shape) == (np.int32, (PEOPLE, 1))
    assert caplog.messages == [LEAK_WARNING]
    for user, held in enumerate(data.test_items):
        positives = data.train.positives(user)
        clean, leaky = negative_pool(positives, THINGS), negative_pool(positives, THINGS, excluded[user])
        assert set(clean) - set(leaky) == ({held} if held >= 0 else set())
        assert set(clean) == set(range(THINGS)) - set(positives)


def test_control_measures_the_leak_and_is_random_without_it() -> None:
    data = random_data()
    candidates = candidates_of(data, np.random.default_rng(0)).negatives
    excluded = paper_protocol(data)

    def both(**protocol) -> tuple[float, float]:
        scores = DrawnScores(data.train, np.random.default_rng(1), **protocol)
        sampled, full = both_rankings(scores, data, candidates)
        assert (sampled.users, full.users) == (data.tested_users.size,) * 2
        return sampled.hr, full.hr

    leaky, clean = both(excluded=excluded), both()
    assert leaky[0] > 0.9
    assert leaky[1] > 0.9
    assert clean[0] < 0.16  # 0.1 by chance, deviation 0.018
    assert clean[1] < 0.11  # 10 of about 180 by chance, deviation 0.013
    assert both(excluded=excluded, draws=NegativeDraws(rounds=2))[0] < leaky[0], "few draws, little to remember"
    everything = np.column_stack([data.test_items, candidates])  # as CoLR excludes them, which favours none
    assert both(excluded=everything)[0] < 0.16


def test_each_user_of_a_federation_leaves_out_its_own_row() -> None:
    data = random_data()
    federation = Federation(data.train, "fedmf", {"items": THINGS, "dim": 4, "clip": 1.0}, cohort_size=10)
    first = federation.state.item_factors
    everything = np.tile(np.arange(THINGS, dtype=np.int32), (PEOPLE, 1))
    for user in range(PEOPLE):  # each may draw one item only, its last one outside the training items
        free = np.setdiff1d(np.arange(THINGS), data.train.positives(user))[-1]
        everything[user, free] = -1
    exclude(federation, everything)
    (done,) = federation.run(1)
    assert done.survivors == 10
    changed = np.flatnonzero((federation.state.item_factors != first).any(axis=1))
    took_part = np.flatnonzero(federation.took_part)
    rows = [np.append(data.train.positives(user), everything[user].argmin()) for user in took_part]
    assert set(changed.tolist()) == set(np.concatenate(rows).tolist())


def test_a_recipe_without_negatives_is_refused() -> None:
    federation = Federation(random_data().train, "privirec-k", {"items": THINGS, "components": 4}, cohort_size=10)
    with pytest.raises(TypeError, match="no negatives"):
        exclude(federation, np.zeros((PEOPLE, 1), np.int32))


def test_laplace_noise_of_every_value_of_every_round_costs_what_the_recipes_page_says() -> None:
    assert round(renyi_epsilon(2 * 0.2 / 0.04, 3706 * 20 * 100, 1e-5)) == 66_730_939
    assert round(renyi_epsilon(2 * 1 / 0.5, 3706 * 16 * 100, 1e-5)) == 17_916_484


@pytest.mark.parametrize(("epsilon", "order"), [(0.1, 1.5), (1.0, 2.0), (3.0, 8.0), (10.0, 1.01)])
def test_renyi_divergence_is_that_of_two_laplace_laws(epsilon: float, order: float) -> None:
    here, there = scipy.stats.laplace(), scipy.stats.laplace(loc=epsilon)

    def ratio(x: float) -> float:
        return float(np.exp(order * here.logpdf(x) + (1 - order) * there.logpdf(x)))

    moment = sum(scipy.integrate.quad(ratio, a, b)[0] for a, b in ((-50, 0), (0, epsilon), (epsilon, epsilon + 50)))
    assert renyi_divergence(epsilon, order) == pytest.approx(math.log(moment) / (order - 1), rel=1e-7)
