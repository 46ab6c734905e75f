"""Commands that only compute: `hushrec cost` and `hushrec privacy`."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from client_sdk.cli.install import install_command
from protocols.privacy_advice import noisy_recipes
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
    assert found["sums of one client, at most"] == ["5", "4", "4", "4"]
    assert found["epsilon"] == ["4"] * 4
    words = " ".join(out.split())
    assert "also those who know that it took part" in words
    for recipe in noisy_recipes():
        if recipe != "privirec":
            assert f"{recipe} with 1,000,000 users at epsilon 4: " in words
    assert "privirec: recipe 'privirec': the Gram matrix of 50000 items would take" in words
    found = document("privacy", "plan", *MILLION, "--items", "5000", "--delta", "1e-7", "--corrupt", "0.2")
    assert (found["users"], found["items"], found["privacy"]["delta"]) == (1_000_000, 5000, 1e-7)
    assert [one["recipe"] for one in found["recipes"]] == noisy_recipes()
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
        (f"{PLAN} --recipe rfrec", "choose one of privirec, privirec-k, colr, arrays, fedmf"),
        (f"{PLAN} --cohort 2000000 --recipe colr", "is larger than the 1,000,000 users"),
        (f"{PLAN} --min-clients 90000 --recipe colr", "no round could complete"),
        (f"{PLAN} --corrupt 0.9 --recipe colr", "lower corrupt"),
        (f"{PLAN} --delta 0.5", "delta: must be less than 0.01"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_one_sentence(command: str, words: str) -> None:
    code, out, err = hushrec(*command.split())
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert words in err
