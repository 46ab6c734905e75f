"""bench/demo.py: medians over whole runs, and a failure where runs with the same seed differ."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from bench.demo import QUICK, demo_figures, measure, measure_help, run
from bench.registry import verdicts


def result(hr: float, seconds: float) -> dict[str, Any]:
    """The figures of one run of the demo: 3 rounds of 10 clients, of 20 users."""
    arm = {"values": {"HR@10": hr}, "seconds": seconds, "contributions": 30, "enrol_seconds": 2 * seconds}
    return {"users": 20, "rounds": 3, "cohort": 10, "arms": [arm, arm, arm, {**arm, "contributions": 0}]}


def test_figures_are_medians_over_the_runs() -> None:
    figures = demo_figures([(10.0, result(0.5, 0.3)), (14.0, result(0.5, 0.6)), (11.0, result(0.5, 0.9))])
    assert (figures["demo.seconds"], figures["demo.seconds_min"], figures["demo.seconds_max"]) == (11.0, 10.0, 14.0)
    assert figures["demo.contribution_ms"] == pytest.approx(20.0)
    assert figures["demo.enrol_ms_per_client"] == pytest.approx(60.0)
    assert figures["demo.hr10.plain"] == 0.5
    assert (figures["demo.clients"], figures["demo.runs"]) == (20, 3)


def test_runs_of_one_seed_must_agree() -> None:
    with pytest.raises(RuntimeError, match="the same seed gave different figures"):
        demo_figures([(10.0, result(0.5, 0.3)), (10.0, result(0.6, 0.3))])


def test_a_command_that_fails_is_named_with_the_end_of_its_output() -> None:
    with pytest.raises(RuntimeError, match="(?s)exit code 3.*no such package"):
        run((sys.executable, "-c", "import sys; print('no such package'); sys.exit(3)"))


def test_help_is_measured_as_a_process() -> None:
    assert measure_help() > 0


def test_a_quick_run_measures_every_target_but_the_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def demo(rounds: int | None) -> tuple[float, dict[str, Any]]:
        asked.append(rounds)
        return 10.0, result(0.5, 0.3)

    monkeypatch.setattr("bench.demo.measure_demo", demo)
    monkeypatch.setattr("bench.demo.measure_help", lambda: 200.0)
    figures = measure(QUICK)
    assert asked == [QUICK.rounds]
    unmeasured = {row.partition(" ")[0] for row, value in verdicts("demo", figures).items() if value == "not measured"}
    assert unmeasured == {"setup.seconds"}
