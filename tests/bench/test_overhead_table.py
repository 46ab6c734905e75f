"""The overhead table: published figures, measured steps to flat figures and back, and the rendered table."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench._report import Figure
from bench.overhead_parts.plots import page_plots, write_plots
from bench.overhead_parts.rows import ROWS, Row
from bench.overhead_parts.steps import KB, Steps, figures_of, medians, published_figures, steps_in
from bench.overhead_parts.table import COMPARISONS, comparison, in_detail, markdown, notes
from bench.style import spread

BY_KEY = {row.key: row for row in ROWS}


def measured() -> dict[str, Figure]:
    """Figures of three rows in some of the ways; two are equal."""
    ours = Steps(0.04, 0.02, 0.006, 1_189_696)
    usual = Steps(150.25, 50.0, 0.125, 2_861_032, scaled=True)
    return {
        **published_figures(ROWS),
        **figures_of(BY_KEY["fedmf"], "ours", ours),
        **figures_of(BY_KEY["topk1"], "usual", usual),
        **figures_of(BY_KEY["topk2"], "ours", ours),
        **figures_of(BY_KEY["topk2"], "masked", ours),
        "clients": 60,
        "phe_key_bits": 3072,
        "phe_sample": 32,
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_the_published_ratio_is_ciphertext_size_by_plaintext_size(row: Row) -> None:
    published = row.published
    plaintext = row.plaintext_bytes / KB
    assert published.plaintext_kb == pytest.approx(plaintext, abs=1.0)
    # the paper's own plaintext files are up to 450 bytes longer than their values
    assert published.ciphertext_kb / published.ratio == pytest.approx(plaintext, abs=0.7)


def test_the_rows_are_the_papers() -> None:
    assert [row.label for row in ROWS[:2]] == ["FedMF", "Top-K@1/64"]
    assert [row.share for row in ROWS if row.family == "topk"] == [1, 2, 4, 8, 16]
    assert [row.share for row in ROWS if row.family == "colr"] == [1, 2, 4, 8, 16, 32]
    assert BY_KEY["fedmf"].values == BY_KEY["colr32"].values * 2 == 237_184


def test_steps_come_back_from_flat_figures() -> None:
    figures, steps = measured(), steps_in(measured(), BY_KEY["topk1"], "usual")
    assert steps is not None
    assert figures["topk1.usual.client_seconds"] == steps.client == 200.25
    assert figures["topk1.usual.server_seconds"] == steps.fold == 0.125
    assert (steps.ciphertext_bytes, steps.scaled) == (2_861_032, True)
    assert steps_in(figures, BY_KEY["topk1"], "ours") is None


@pytest.mark.parametrize(("warm", "expected"), [(True, 12), (False, 9)])
def test_steps_take_turns_and_the_warm_up_does_not_count(warm: bool, expected: int) -> None:
    called: list[str] = []
    steps = {name: lambda name=name: called.append(name) for name in ("seal", "open")}
    found = medians(steps, 3, calls=3, warm=warm)
    assert called == (["seal"] * 3 + ["open"] * 3) * (expected // 3)
    assert set(found) == {"seal", "open"}
    assert all(0 <= seconds < 10 for seconds in found.values())


def test_the_comparison_has_a_column_per_measured_way_and_marks_scaled_figures() -> None:
    headings, rows = comparison(measured(), "client")
    assert headings == ["", "paper", "usual", "HushRec", "masked"]
    assert len(rows) == len(ROWS)
    assert rows[0] == ["FedMF", "0.93", "", "0.0600", ""]
    assert rows[1] == ["Top-K@1/64", "88.20", "200*", "", ""]
    assert comparison(measured(), "ratio")[1][0] == ["FedMF", "26.52", "", "1.25", ""]
    assert any("measured on 32 values" in note for note in notes(measured()))
    full = {key: value for key, value in measured().items() if not key.endswith(".scaled")}
    assert not any("measured on" in note for note in notes(full | {"topk1.usual.scaled": False}))


def test_every_measured_row_and_way_has_its_steps() -> None:
    headings, rows = in_detail(measured())
    assert headings[2:5] == ["seal", "open", "fold"]
    assert rows[0][:5] == ["FedMF", "HushRec", "0.0400", "0.0200", "0.00600"]
    assert [row[:2] for row in rows[:2]] == [["FedMF", "HushRec"], ["Top-K@1/64", "usual"]]


def test_the_markdown_page_has_well_formed_tables() -> None:
    page = markdown(measured() | {"machine.cores": 2}, ["overhead-size.png"])
    for title in COMPARISONS.values():
        assert f"## {title}" in page
    assert "](overhead-size.png)" in page
    assert "machine.cores 2" in page
    for block in page.split("\n\n"):
        lines = block.strip().splitlines()
        if lines and lines[0].startswith("|"):
            assert len({line.count("|") for line in lines}) == 1


def test_plots_are_drawn_from_partial_measurements(tmp_path: Path) -> None:
    written = write_plots(measured(), tmp_path / "overhead")
    assert [path.name for path in written] == ["overhead-size.png", "overhead-client.png", "overhead-server.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    plots = page_plots(measured())
    assert len(plots) == 6
    for caption, svg in plots:
        assert svg.startswith(f'<svg role="img" aria-label="{caption}"')
        assert "var(--paper)" in svg


@given(st.lists(st.floats(0, 1), max_size=12).map(sorted), st.floats(0.01, 0.2))
def test_labels_are_spread_and_do_not_move_without_need(places: list[float], gap: float) -> None:
    moved = spread(places, gap)
    assert all(after - before >= gap - 1e-9 for before, after in zip(moved, moved[1:], strict=False))
    assert sum(moved) == pytest.approx(sum(places), abs=1e-6)
    if all(after - before >= gap for before, after in zip(places, places[1:], strict=False)):
        assert moved == pytest.approx(places)
