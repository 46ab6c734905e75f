"""What encryption costs: the rows, their measurement in five mechanisms, and the tables of the documentation."""

from __future__ import annotations

import pytest

from bench.doc_tables import KB, MECHANISMS, ROWS, Row, main, recipes_table, with_tables
from bench.overhead import Costs, measure_mechanism, measure_tenseal

BY_KEY = {row.key: row for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_the_published_ratio_is_ciphertext_size_by_plaintext_size(row: Row) -> None:
    plaintext = row.plaintext_bytes / KB
    assert row.plaintext_kb == pytest.approx(plaintext, abs=1.0)
    # the paper's own plaintext files are up to 450 bytes longer than their values
    assert row.ciphertext_kb / row.ratio == pytest.approx(plaintext, abs=0.7)


def test_the_rows_are_the_papers() -> None:
    assert [row.label for row in ROWS[:2]] == ["FedMF", "Top-K@1/64"]
    assert [row.share for row in ROWS if row.family == "topk"] == [1, 2, 4, 8, 16]
    assert [row.share for row in ROWS if row.family == "colr"] == [1, 2, 4, 8, 16, 32]
    assert BY_KEY["fedmf"].values == BY_KEY["colr32"].values * 2 == 237_184


@pytest.mark.parametrize("mechanism", [name for name in MECHANISMS if name != "paillier"])
def test_every_mechanism_is_measured(mechanism: str) -> None:
    costs = measure_mechanism(mechanism, 100, 10, 1)
    assert min(costs.seal, costs.open, costs.server) > 0
    assert costs.sent >= 400, "four bytes for each value"
    assert (costs.member is not None) == (mechanism == "oneshot")


def test_figures_of_a_row() -> None:
    figures = Costs(0.04, 0.02, 0.006, 1_186_000, member=(0.001, 200)).figures(BY_KEY["fedmf"], "oneshot")
    assert figures["fedmf.oneshot.client_ms"] == pytest.approx(60)
    assert figures["fedmf.oneshot.ratio"] == pytest.approx(1.25, abs=0.01)
    assert figures["fedmf.oneshot.member_bytes"] == 200
    assert measure_tenseal(100, 1).sent > 100_000


def test_the_committed_pages_are_those_of_the_committed_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_a_table_of_recipes_by_data_sets() -> None:
    figures = {
        "ml-1m.colr.ndcg20_over_central": 1.066,
        "ml-100k.privirec-k.ndcg20_over_central": 1.2,
        "ml-100k.privirec-k-64.ndcg20_over_central": 1.1,
        "ml-100k.colr.hr10": 0.5,
        "ml-100k.best_over_central": 0.97,
    }
    rows = ["| `colr` | - | 1.07 |", "| `privirec-k` | 1.20 | - |"]
    assert recipes_table({"quality": figures}).splitlines()[2:] == rows
    page = with_tables("before\n<!-- table:recipes -->\nold\n<!-- end -->\nafter\n", {"quality": figures})
    assert page.startswith("before\n<!-- table:recipes -->\n| recipe |")
    assert page.endswith("| 1.20 | - |\n<!-- end -->\nafter\n")
    with pytest.raises(ValueError, match="no <!-- table"):
        with_tables("no marks", {})
