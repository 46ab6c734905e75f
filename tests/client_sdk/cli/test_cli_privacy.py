"""`hushrec privacy`: the table with the paper's claim, the JSON and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from client_sdk.cli import app
from client_sdk.cli.privacy import PAPER_CLAIMS


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["privacy", *arguments])
    return result.exit_code, result.stdout, result.stderr


def document(*arguments: str) -> dict[str, Any]:
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    return dict(json.loads(out))


def rows(out: str) -> dict[str, list[str]]:
    """First cell of each row -> its other cells."""
    lines = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in out.splitlines() if "│" in line]
    return {first: rest for first, *rest in lines}


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_table_shows_the_costs_and_the_papers_claim() -> None:
    shape = ("--items", "3706", "--dim", "20", "--rounds", "100")
    code, out, _ = run("--recipe", "rfrec", "--clip", "0.2", "--scale", "0.04", *shape)
    assert code == 0
    found = rows(out)
    assert found["one coordinate, one round"] == ["10", "22,026 to 1", "10"]
    assert found["one round, all coordinates"] == ["741,200", "10^321,899 to 1", "nothing"]
    assert found["100 rounds, all coordinates"] == ["74,120,000", "10^32,189,907 to 1", "nothing"]
    assert found["the same, at delta 1e-05"][0] == "66,730,939"
    words = " ".join(out.split())
    assert "0.00073 per coordinate" in words
    assert "adds it to every entry" in words


def test_without_recipe_no_claim_is_shown() -> None:
    code, out, _ = run("--values", "5", "--clip", "0.01", "--scale", "1", "--rounds", "3")
    assert code == 0
    assert rows(out)["3 rounds, all coordinates"] == ["0.3", "1.35 to 1"]
    assert "RFRec" not in out


def test_clip_and_scale_default_to_the_papers() -> None:
    found = document("--recipe", "rfrecf")
    assert (found["clip"], found["scale"], found["coordinates"]) == (0.2, 0.06, 3706 * 20)
    assert found["paper"]["epsilon"] == pytest.approx(6.667, abs=1e-3)
    calibrated = document("--recipe", "pfedclr", "--clip", "1")
    assert (calibrated["scale"], calibrated["coordinates"]) == (0.5, 3706 * 16)
    assert calibrated["paper"]["epsilon"] is None


def test_json_contains_every_figure() -> None:
    found = document("--values", "1000", "--clip", "0.005", "--scale", "1", "--rounds", "10", "--clients", "200")
    assert found["paper"] is None
    assert found["sensitivity"] == pytest.approx(0.01)
    assert found["epsilon"]["coordinate"] == pytest.approx(0.01)
    assert found["epsilon"]["round"] == pytest.approx(10)
    assert found["epsilon"]["total"] == pytest.approx(100)
    assert found["epsilon"]["total_at_delta"] == found["epsilon"]["renyi_composition"] < 10
    assert found["scale_for_epsilon_1"] == pytest.approx(100)
    assert found["noise_of_mean"] == pytest.approx(0.1)


def test_smaller_delta_gives_a_larger_epsilon() -> None:
    arguments = ("--values", "1000", "--clip", "0.005", "--scale", "1")
    loose, strict = (document(*arguments, "--delta", delta)["epsilon"] for delta in ("1e-3", "1e-9"))
    assert loose["total"] == strict["total"]
    assert loose["total_at_delta"] < strict["total_at_delta"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--clip", "1"], "--scale must be given"),
        (["--scale", "1"], "--clip must be given"),
        (["--recipe", "pfedclr"], "--clip must be given: the paper does not state it"),
        (["--recipe", "colr", "--clip", "1", "--scale", "1"], "choose one of pfedclr, rfrec, rfrecf"),
        (["--clip", "0", "--scale", "1"], "clip: must be greater than 0"),
        (["--clip", "1", "--scale", "nan"], "scale: must be a finite number"),
        (["--recipe", "rfrec", "--values", "5", "--dim", "3"], "either --values, or --items and --dim"),
        (["--recipe", "rfrec", "--delta", "0"], "delta must be a probability"),
    ],
)
def test_invalid_parameters_are_reported_in_one_sentence(arguments: list[str], words: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    assert words in err
    assert err.count("\n") == 1


def test_wrong_usage_exits_with_2() -> None:
    assert run("--rounds", "0")[0] == 2


def test_what_the_papers_state() -> None:
    assert PAPER_CLAIMS["rfrec"].epsilon == pytest.approx(10)
    assert PAPER_CLAIMS["rfrecf"].epsilon == pytest.approx(6.667, abs=1e-3)
    assert PAPER_CLAIMS["pfedclr"].epsilon is None
    assert PAPER_CLAIMS["pfedclr"].scale == 0.5
    assert all(claim.objections for claim in PAPER_CLAIMS.values())
