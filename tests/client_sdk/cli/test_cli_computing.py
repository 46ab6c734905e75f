"""Commands that only compute: `hushrec cost` and `hushrec privacy`."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from client_sdk.cli.install import install_command
from protocols.privacy_advice import NOISY_RECIPES
from tests.support.pages import cells, hushrec


def rows(out: str) -> dict[str, list[str]]:
    return {first: rest for first, *rest in cells(out)}


def document(*arguments: str) -> dict[str, Any]:
    code, out, err = hushrec(*arguments, "--json")
    assert code == 0, err
    return dict(json.loads(out))


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


# --- cost ------------------------------------------------------------------------------------------------------------


def test_the_cost_is_that_of_the_papers_counting_of_plain_sums_and_of_the_mechanism() -> None:
    code, out, _ = hushrec(
        "cost", "--recipe", "colr", "--rank", "4", "--mechanism", "ckks", "--up", "0.25", "--down", "0.75"
    )
    assert code == 0
    (minutes,) = (rest for first, *rest in cells(out) if "minutes, total" in first)
    assert minutes == ["5.03", "5.03", "8.69"]
    assert "the overhead of the encryption" in " ".join(out.split())
    found = document("cost", "--recipe", "fedmf", "--mechanism", "plain")
    assert found["countings"]["paper"]["minutes"] == pytest.approx(80.43, abs=0.005)
    assert found["mib_per_second"] == {"up": 0.25, "down": 0.75}
    assert set(found["countings"]) == {"paper", "plain"}
    small = document("cost", "-r", "rank=2", "-m", "set=compact")
    assert small["parameters"]["mechanism"] == {"set": "compact"}
    assert small["parameters"]["recipe"].items() >= {"items": 3706, "dim": 64, "clip": 4.0, "rank": 2}.items()
    large = document("cost", "--rank", "2", "-m", "set=precise", "-m", "wire=expanded")
    assert large["countings"]["ckks"]["up_bytes"] > 3 * small["countings"]["ckks"]["up_bytes"]


# --- privacy plan ----------------------------------------------------------------------------------------------------

MILLION = ("--users", "1000000", "--items", "50000", "--epsilon", "4")


def test_a_plan_shows_every_recipe_with_both_costs_in_a_table_and_in_its_document() -> None:
    code, out, err = hushrec("privacy", "plan", *MILLION)
    assert (code, err) == (0, "")
    found = rows(out)
    assert found["sums of one client, at most"] == ["5", "7", "7", "7"]
    assert found["epsilon"] == ["4"] * 4
    words = " ".join(out.split())
    assert "also those who know that it took part" in words
    for recipe in NOISY_RECIPES:
        if recipe != "privirec":
            assert f"{recipe} with 1,000,000 users at epsilon 4: " in words
    assert "privirec: recipe 'privirec': the Gram matrix of 50000 items would take" in words
    found = document("privacy", "plan", *MILLION, "--items", "5000", "--delta", "1e-7", "--corrupt", "0.2")
    assert (found["users"], found["items"], found["privacy"]["delta"]) == (1_000_000, 5000, 1e-7)
    assert [one["recipe"] for one in found["recipes"]] == list(NOISY_RECIPES)
    for one in found["recipes"]:
        epsilon = one["epsilon"]
        assert 3.99 < epsilon["stated"] <= 4
        assert epsilon["gaussian"] < epsilon["stated"], "a distribution is tighter than Renyi orders"


def test_a_recipe_for_which_no_noise_can_be_drawn_is_named_with_the_reason() -> None:
    tiny = ("--users", "40", "--items", "200000", "--epsilon", "1", "--interactions-per-user", "5")
    assert set(document("privacy", "plan", *tiny)["not_planned"]) == {"privirec", "fedmf", "arrays"}
    code, out, err = hushrec("privacy", "plan", *tiny)
    assert (code, err) == (0, "")
    assert "fedmf: privacy: each of 28 clients would have to add noise" in " ".join(out.split())
    code, out, err = hushrec("privacy", "plan", *tiny, "--recipe", "fedmf")
    assert (code, out) == (1, "")
    assert "raise epsilon or min_clients" in err


def test_without_the_extra_a_plan_has_our_bounds_and_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    _, out, err = hushrec("privacy", "plan", *MILLION)
    assert install_command("privacy") in err
    assert "sums of one client, at most" in out
    assert "the same, Gaussian" not in out


# --- privacy laplace -------------------------------------------------------------------------------------------------


def test_table_shows_the_costs_and_the_papers_claim() -> None:
    shape = ("--items", "3706", "--dim", "20", "--rounds", "100")
    code, out, _ = hushrec("privacy", "laplace", "--recipe", "rfrec", "--clip", "0.2", "--scale", "0.04", *shape)
    assert code == 0
    found = rows(out)
    assert found["one coordinate, one round"] == ["10", "22,026 to 1", "10"]
    assert found["one round, all coordinates"] == ["741,200", "10^321,899 to 1", "nothing"]
    assert found["100 rounds, all coordinates"] == ["74,120,000", "10^32,189,907 to 1", "nothing"]
    assert found["the same, at delta 1e-05"][0] == "66,730,939"
    words = " ".join(out.split())
    assert "0.00073 per coordinate" in words
    assert "adds it to every entry" in words
    code, out, _ = hushrec("privacy", "laplace", "--values", "5", "--clip", "0.01", "--scale", "1", "--rounds", "3")
    assert rows(out)["3 rounds, all coordinates"] == ["0.3", "1.35 to 1"]
    assert (code, "RFRec" in out) == (0, False)


def test_clip_and_scale_default_to_the_papers() -> None:
    found = document("privacy", "laplace", "--recipe", "rfrecf")
    assert (found["clip"], found["scale"], found["coordinates"]) == (0.2, 0.06, 3706 * 20)
    assert found["paper"]["epsilon"] == pytest.approx(6.667, abs=1e-3)
    calibrated = document("privacy", "laplace", "--recipe", "pfedclr", "--clip", "1")
    assert (calibrated["scale"], calibrated["coordinates"]) == (0.5, 3706 * 16)
    assert calibrated["paper"]["epsilon"] is None
    options = ("--values", "1000", "--clip", "0.005", "--scale", "1", "--rounds", "10", "--clients", "200")
    found = document("privacy", "laplace", *options)
    assert found["paper"] is None
    assert [found["epsilon"][of] for of in ("coordinate", "round", "total")] == pytest.approx([0.01, 10, 100])
    assert found["epsilon"]["total_at_delta"] == found["epsilon"]["renyi_composition"] < 10
    assert (found["scale_for_epsilon_1"], found["noise_of_mean"]) == pytest.approx((100, 0.1))


# --- refusals --------------------------------------------------------------------------------------------------------

PLAN = "privacy plan " + " ".join(MILLION)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("cost --recipe fedmf --rank 4", "rank"),
        ("cost --mechanism morse", "unknown mechanism: choose one of ckks"),
        ("cost --up 0", "must be positive"),
        ("cost -m compact", "name=value"),
        ("cost --rank 65", "rank 65 is greater than dim 64"),
        (f"{PLAN} --recipe rfrec", "choose one of privirec-k, privirec, colr, fedmf, arrays"),
        (f"{PLAN} --cohort 2000000 --recipe colr", "is larger than the 1,000,000 users"),
        (f"{PLAN} --min-clients 90000 --recipe colr", "no round could complete"),
        (f"{PLAN} --corrupt 0.9 --recipe colr", "lower corrupt"),
        (f"{PLAN} --delta 0.5", "delta: must be less than 0.01"),
        ("privacy laplace --clip 1", "--scale must be given"),
        ("privacy laplace --scale 1", "--clip must be given"),
        ("privacy laplace --recipe pfedclr", "--clip must be given: the paper does not state it"),
        ("privacy laplace --recipe colr --clip 1 --scale 1", "choose one of pfedclr, rfrec, rfrecf"),
        ("privacy laplace --clip 0 --scale 1", "clip: must be greater than 0"),
        ("privacy laplace --clip 1 --scale nan", "scale: must be a finite number"),
        ("privacy laplace --recipe rfrec --values 5 --dim 3", "either --values, or --items and --dim"),
        ("privacy laplace --recipe rfrec --delta 0", "delta must be a probability"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_one_sentence(command: str, words: str) -> None:
    code, out, err = hushrec(*command.split())
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert words in err
