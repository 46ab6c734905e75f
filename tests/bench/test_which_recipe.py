"""The measured table of docs/which-recipe.md is generated from bench/results/quality.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.experiments import which_recipe
from bench.experiments.which_recipe import main, section, with_section


def test_the_page_is_up_to_date() -> None:
    assert main(["--check"]) == 0


def test_table_of_recipes_by_data_sets() -> None:
    figures = {
        "ml-1m.colr.ndcg20_over_central": 1.066,
        "ml-100k.privirec-k.ndcg20_over_central": 1.2,
        "ml-100k.privirec-k-64.ndcg20_over_central": 1.1,
        "ml-100k.colr.hr10": 0.5,
        "ml-100k.best_over_central": 0.97,
    }
    lines = section(figures).splitlines()[-4:]
    assert lines == [
        "| recipe | ml-100k | ml-1m |",
        "| --- | --- | --- |",
        "| `colr` | - | 1.07 |",
        "| `privirec-k` | 1.20 | - |",
    ]
    assert "|" not in section({})


def test_rewriting_and_checking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, results = tmp_path / "page.md", tmp_path / "quality.json"
    monkeypatch.setattr(which_recipe, "PAGE", page)
    monkeypatch.setattr(which_recipe, "RESULTS", results)
    page.write_text("before\n<!-- quality -->\nold\n<!-- end -->\nafter\n")
    results.write_text(json.dumps({"a.colr.ndcg20_over_central": 2}))
    assert main(["--check"]) == 1
    assert main([]) == main(["--check"]) == 0
    assert page.read_text().startswith("before\n<!-- quality -->\nNDCG@20")
    assert "| `colr` | 2.00 |\n<!-- end -->\nafter\n" in page.read_text()
    with pytest.raises(ValueError, match="one section"):
        with_section("no marks", {})
