"""Running the benchmarks, their results, tables and pages; and what they say about encryption and quality."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import bench.run_all as run_all
from bench import figures as registry
from bench.doc_tables import KB, ROWS, Row, recipes_table, seeds_table, with_tables
from bench.doc_tables import main as write_tables
from bench.experiments.quality import ARMS, RANKING_SETS
from bench.figures import Entry, absent, entries, markdown, read_results, rows
from bench.overhead import Costs, measure_mechanism
from bench.run_all import COMMITTED, jobs, main, run
from protocols.advice import OF_CENTRAL, WHOLE

FIGURES = {"ml100k.difference": 2.0, "machine.cores": 2}
WRITES = f"import json, sys; print('measuring'); json.dump({FIGURES}, open(sys.argv[-1], 'w'))"
FAILS = "import sys; print('half way'); sys.exit('no such processor')"
SCRIPTS = list(jobs(Path("data"), quick=True))


def job(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_job_returns_its_figures_and_keeps_its_output(tmp_path: Path) -> None:
    assert run("privirec_service", job(WRITES), tmp_path) == (FIGURES, "")
    assert (tmp_path / "privirec_service.log").read_text() == "measuring\n"


def test_a_job_fails_without_a_registered_figure(tmp_path: Path) -> None:
    _, failure = run("privirec_service", job(WRITES.replace("difference", "other")), tmp_path)
    assert failure == "figure ml100k.difference is absent"


def test_a_failed_job_keeps_the_end_of_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    figures, failure = run("broken", job(FAILS), tmp_path)
    assert not figures
    assert failure.splitlines() == ["half way", "no such processor", "exit code 1"]
    assert run("silent", job("pass"), tmp_path) == ({}, "the script wrote no results")


def test_a_job_that_needs_data_sets_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--full", "--only", "fidelity-colr", "--output", str(tmp_path)]) == 0
    assert "fidelity-colr: skipped, needs data sets" in capsys.readouterr().out
    assert not (tmp_path / "fidelity-colr.log").exists()


@pytest.mark.parametrize(("broken", "code"), [(False, 0), (True, 1)])
def test_results_table_and_page_are_written_even_if_a_script_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: bool, code: int
) -> None:
    chosen = {"privirec_service": job(WRITES)} | ({"ckks": job(FAILS)} if broken else {})
    monkeypatch.setattr(run_all, "jobs", lambda *_: chosen)
    assert main(["--output", str(tmp_path)]) == code
    assert json.loads((tmp_path / "results.json").read_text()) == {"privirec_service": FIGURES}
    assert "| privirec_service | `ml100k.difference` | 2 |" in (tmp_path / "results.md").read_text()
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert ("no such processor" in page) == broken
    assert "ml100k.difference" in page
    assert str(tmp_path) in capsys.readouterr().out.replace("\n", "")


def test_a_quick_run_of_the_chosen_script(tmp_path: Path) -> None:
    assert main(["--output", str(tmp_path), "--only", "another"]) == 2
    assert main(["--output", str(tmp_path), "--only", "oneshot"]) == 0
    (figures,) = read_results(tmp_path).values()
    assert absent("oneshot", figures) == []
    assert figures["exact"] is True


def test_the_committed_table_is_that_of_the_committed_results() -> None:
    assert (run_all.COMMITTED / "results.md").read_text(encoding="utf-8") == markdown(read_results(run_all.COMMITTED))


@pytest.mark.parametrize("script", [name for name in SCRIPTS if not name.startswith("fidelity")])
def test_every_registered_figure_has_a_committed_value(script: str) -> None:
    figures = read_results(run_all.COMMITTED)[script]
    assert entries(script)
    assert absent(script, figures) == []


def test_targets_are_met_or_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._ENTRIES, "made", [Entry("made", key, "", "<= 1.5", "") for key in "abc"])
    found = rows({"made": {"a": 1.5, "b": 2.0}})
    assert found == [("made", "a", "1.5", "<= 1.5", ""), ("made", "b", "2", "<= 1.5, missed", "")]


def test_scripts_exist_get_quick_unless_the_run_is_full_and_need_data_or_peers(tmp_path: Path) -> None:
    quick, full = jobs(tmp_path, quick=True, peer_python=Path("peers/python")), jobs(None, quick=False)
    assert all("--quick" in command and find_spec(command[2]) for command in quick.values())
    assert not any("--quick" in command for command in full.values())
    assert {name for name, command in full.items() if not command} >= {"fidelity-colr", "quality"}
    assert {name for name, command in full.items() if command} >= {"ckks", "memory", "overhead"}
    assert {name for name, command in quick.items() if "peers/python" in command} == {"arrays", "masked"}


# --- what encryption costs: rows, measurements of five mechanisms, tables of the documentation ------------------------


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


@pytest.mark.parametrize("mechanism", ["plain", "masked", "oneshot"])
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


def test_the_committed_pages_are_those_of_the_committed_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert write_tables(["--check"]) == 0, capsys.readouterr().out


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


def test_the_table_of_seeds_shows_what_was_not_measured_and_what_is_of_an_earlier_draw() -> None:
    figures = {
        "ml-100k.slim.seeds": 3,
        "ml-100k.slim.ndcg20": 0.09,
        "gowalla.colr.seeds": 2,
        "gowalla.colr.earlier_draw": 1,
        "gowalla.privirec-k-16.seeds": 3,
    }
    lines = seeds_table({"quality": figures}).splitlines()
    assert lines[0] == "| row | gowalla | ml-100k |"
    assert lines[2:] == ["| `colr` | 2* | - |", "| `slim` | - | 3 |"]


# --- what the advice says about vectors is what was measured ----------------------------------------------------------


@pytest.mark.parametrize("vectors", OF_CENTRAL)
def test_the_worth_of_vectors_is_the_measured_one(vectors: int | str) -> None:
    figures = read_results(COMMITTED)["quality"]
    arm = "privirec" if vectors == WHOLE else f"privirec-k-{vectors}"
    shares = [figures[f"{name}.{arm}.ndcg20_over_central"] for name in RANKING_SETS]
    assert OF_CENTRAL[vectors] == pytest.approx((min(shares), max(shares)), abs=0.006)


@pytest.mark.parametrize("name", RANKING_SETS)
def test_advice_and_verdicts_say_of_the_six_sets_what_was_measured(name: str) -> None:
    figures = read_results(COMMITTED)["quality"]
    levels = {arm: figures[f"{name}.{arm}.ndcg20"] for arm in ARMS if not arm.endswith("-started")}
    for arm in ("colr", "fedmf", "pfedclr"):
        assert levels["privirec-k"] > levels[arm]
    assert levels["privirec-k-4"] > 0.91 * levels["colr"]  # 3 x 4 vectors, the fewest that are advised
