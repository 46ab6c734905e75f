"""The page of all results: figures, targets, and scripts that failed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench._report import Figure
from bench.page import read_results, render, write_page
from bench.page_plots import common_prefix
from bench.sections import (
    QUESTIONS,
    Outcome,
    fidelity_rows,
    fidelity_table,
    in_order,
    section_of,
    shown_value,
)
from bench.targets import TARGETS, Target, verdicts

MACHINE: dict[str, Figure] = {
    "machine.processor": "Sample CPU",
    "machine.cores": 2,
    "machine.load_1m": 1.04,
    "version.python": "3.11.7",
    "version.numpy": "2.0",
    "version.phe": None,
}
MEMORY: dict[str, Figure] = {
    "peak_rss_ratio": 1.25,
    **{f"peak_rss_{part}_mib_{size}": 100.0 for part in ("api", "workers") for size in (50, 500)},
    **MACHINE,
}
COLR: dict[str, Figure] = {
    "ml1m.scolr.rank16.plain.hr10": 0.6333,
    "ml1m.scolr.rank16.plain.paper.hr10": 0.6206,
    "ml1m.scolr.rank2.plain.hr10": 0.5805,
    "ml1m.scolr.rank2.plain.bytes_up": 36_000.0,
    **MACHINE,
}


def test_a_page_has_every_script_its_verdicts_and_its_machine() -> None:
    page = render({"memory": MEMORY, "fidelity-colr": COLR}, subtitle="A sample.")
    assert page.index("Server memory") < page.index("Fidelity: CoLR")
    assert "A sample." in page
    assert '<td class="missed">missed</td>' in page
    assert "Sample CPU, 2 cores, load 1.0, Python 3.11.7, numpy 2.0." in page
    assert "+0.0127" in page


def test_a_page_is_self_contained() -> None:
    page = render({"memory": MEMORY, "fidelity-colr": COLR})
    references = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')>\s]+)""", page)
    assert references
    assert all(reference.startswith("#") for reference in references)
    assert "<script" not in page
    assert "prefers-color-scheme: dark" in page
    identifiers = re.findall(r'<section id="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers)) == 2


def test_the_same_results_make_the_same_page() -> None:
    assert render({"memory": MEMORY}) == render({"memory": MEMORY})


def test_a_script_that_failed_or_was_skipped_has_a_section_with_the_reason() -> None:
    ended = [
        Outcome("ckks", "failed", 3.4, "Traceback: <no such file>\nexit code 1"),
        Outcome("fidelity-colr", "skipped", note="no data"),
        Outcome("memory", "done", 9.0),
    ]
    page = render({"memory": MEMORY}, ended)
    assert "failed after 3 seconds" in page
    assert "Traceback: &lt;no such file&gt;" in page
    assert "Skipped: no data" in page
    assert "</b>script failed" in page
    assert page.index('id="ckks"') < page.index('id="memory"') < page.index('id="fidelity-colr"')


def test_ratios_to_a_peer_are_drawn_if_they_were_measured() -> None:
    page = render({"masked": {"share_speedup_vs_flower": 12.5}, "paillier": {"bits3072.fold_speedup": 96.7}})
    assert 'aria-label="Times faster than Flower (log scale)"' in page
    assert 'aria-label="Times better than phe, 3072-bit key (log scale)"' in page
    assert "2048-bit key" in page
    assert 'aria-label="Times better than phe, 2048-bit key (log scale)"' not in page


def test_figures_of_an_unknown_script_are_shown() -> None:
    page = render({"something-new": {"speed<up>": 12.0, **MACHINE}})
    assert "speed&lt;up&gt;" in page
    assert "something-new" in page


def test_verdicts_are_met_missed_or_not_measured() -> None:
    section = section_of("ckks", {"upload_ratio_compact": 1.0, "fold_speedup_seeded": 2.9})
    words = {verdict.target.key: verdict.status for verdict in section.verdicts}
    assert words["upload_ratio_compact"] == "met"
    assert words["fold_speedup_seeded"] == "missed"
    assert words["encrypt_speedup_seeded"] == "not measured"
    assert all(0 <= verdict.gauge_percent <= 100 for verdict in section.verdicts)
    printed = verdicts("ckks", {"upload_ratio_compact": 1.0, "fold_speedup_seeded": 2.9})
    assert printed["upload_ratio_compact (<= 1.1)"] == "1"
    assert printed["fold_speedup_seeded (>= 3)"] == "2.9   MISSED"


@pytest.mark.parametrize(
    ("target", "value", "met", "margin"),
    [
        (Target("a", ">=", 40, ""), 80.0, True, 2.0),
        (Target("a", ">=", 40, ""), 40.0, True, 1.0),
        (Target("a", "<=", 4, ""), 8.0, False, 0.5),
        (Target("a", "<=", 4, ""), 0.0, True, float("inf")),
    ],
)
def test_targets(target: Target, value: float, met: bool, margin: float) -> None:
    assert (target.met(value), target.margin(value)) == (met, margin)


def test_fidelity_rows_pair_with_the_papers_and_sort_by_number() -> None:
    rows = fidelity_rows(COLR)
    assert [(row.run, row.metric) for row in rows] == [
        ("ml1m.scolr.rank2.plain", "hr10"),
        ("ml1m.scolr.rank16.plain", "hr10"),
    ]
    assert rows[0].difference is None
    assert rows[1].difference == pytest.approx(0.0127)
    assert rows[1].metric_words == "HR@10"
    assert common_prefix([row.run for row in rows]) == "ml1m.scolr."
    assert common_prefix(["ml1m.a", "gowalla.a"]) == ""


def test_results_must_be_flat(tmp_path: Path) -> None:
    (tmp_path / "ckks.json").write_text(json.dumps({"a": 1, "b": None, "c": "x"}))
    assert read_results(tmp_path) == {"ckks": {"a": 1, "b": None, "c": "x"}}
    (tmp_path / "bad.json").write_text(json.dumps({"a": [1]}))
    with pytest.raises(ValueError, match=r"bad\.json"):
        read_results(tmp_path)


@pytest.fixture(scope="module")
def committed() -> tuple[dict[str, dict[str, Figure]], str]:
    """The committed results and their page, which takes seconds to draw."""
    results = read_results(Path(__file__).parents[2] / "bench" / "results")
    return results, render(results)


def test_the_committed_results_make_a_page_of_less_than_two_megabytes(
    committed: tuple[dict[str, dict[str, Figure]], str], tmp_path: Path
) -> None:
    results, page = committed
    assert "ckks" in results
    write_page(tmp_path / "a" / "index.html", page)
    assert 10_000 < (tmp_path / "a" / "index.html").stat().st_size < 2_000_000


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1234567, "1,234,567"),
        (True, "True"),
        (3.14159, "3.142"),
        (12345.6, "12,346"),
        (1.76e-7, "1.76e-07"),
        (0.0, "0"),
    ],
)
def test_shown_values(value: Figure, words: str) -> None:
    assert shown_value(value) == words


def test_the_order_of_scripts_and_the_keys_of_targets() -> None:
    assert in_order(["zebra", "memory", "ckks", "fidelity-colr"]) == ["ckks", "memory", "fidelity-colr", "zebra"]
    assert all(len({target.key for target in targets}) == len(targets) for targets in TARGETS.values())


def test_points_of_a_curve_are_not_rows() -> None:
    rows = fidelity_rows({"a.round10.hr10": 0.1, "a.hr10": 0.2, "a.paper.hr10": 0.3, "b.round10s.hr10": 0.4})
    assert [(row.run, row.ours, row.paper) for row in rows] == [("a", 0.2, 0.3), ("b.round10s", 0.4, None)]


def test_sections_are_grouped_by_question_and_folded() -> None:
    results = {"memory": MEMORY, "ckks": {"upload_ratio_compact": 1.0}, "demo": {"demo.seconds": 80.0}}
    page = render(results | {"fidelity-colr": COLR, "new": {"a": 1}})
    questions = re.findall(r"<h2>(.*?)</h2>", page)
    assert questions == [*QUESTIONS, "Other results"]
    assert page.count('<details class="part">') == page.count("<section id=") == 5


def test_a_missed_target_is_linked_and_figures_have_names() -> None:
    page = render({"memory": {**MEMORY, "peak_rss_ratio": 1.5}})
    (link,) = re.findall(r'<li><a href="#(memory\.[^"]+)">', page)
    assert f'<tr id="{link}">' in page
    assert "<small><code>peak_rss_ratio</code></small>" in page
    assert not re.findall(r'<li><a href="#', render({"memory": {**MEMORY, "peak_rss_ratio": 0.1}}))


def test_a_run_has_one_row_with_all_its_metrics() -> None:
    rows = fidelity_rows({"ml1m.colr.rank4.ckks.hr10": 0.5, "ml1m.colr.rank4.ckks.ndcg10": 0.3, "ml1m.x.hr10": 0.1})
    metrics, runs = fidelity_table(rows)
    assert metrics == ["HR@10", "NDCG@10"]
    assert [(run, [cell and cell.ours for cell in cells]) for run, cells in runs] == [
        ("ML-1M, CoLR, rank 4, CKKS", [0.5, 0.3]),
        ("ML-1M, x", [0.1, None]),
    ]


def test_every_committed_result_answers_one_of_the_questions(
    committed: tuple[dict[str, dict[str, Figure]], str],
) -> None:
    assert "Other results" not in committed[1]
