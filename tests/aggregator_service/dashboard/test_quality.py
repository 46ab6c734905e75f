"""Model metrics that a recipe reports, as plots and tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator_service.dashboard.words import Series, figures, quality
from aggregator_service.migrations.migrate import migrate
from aggregator_service.storage.database import Database
from tests.support.rows import round_row, task_row


def test_reported_metrics_become_plots_and_tables(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'test.db'}", connections=2)
    migrate(database)
    with database.write() as session:
        session.add(task_row())
        session.flush()
        for number, value in enumerate((0.25, 0.5, float("inf"), 1.0), 1):
            session.add(round_row(number=number, state="complete", report={"recall": value, "loss": 1 - value}))
        session.add(round_row(number=5, state="failed", report={}))
    with database.read() as session:
        loss, recall = quality(session, "t_1")
    assert recall.points == [(1, 0.25), (2, 0.5), (4, 1.0)]
    assert (loss.low, loss.high, loss.last) == (0.0, 0.75, 0.0)
    xs, ys = zip(*recall.places(), strict=True)
    assert xs == (8.0, 216.0, 632.0)
    assert ys == pytest.approx((152.0, 104.0, 8.0))
    assert figures([loss, recall])[0] == (4, {"loss": 0.0, "recall": 1.0})
    assert Series("flat", [(3, 1.0)]).places() == [(8.0, 80.0)]
    database.close()


def test_a_metric_is_drawn_beside_the_same_metric_of_popularity(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'test.db'}", connections=2)
    migrate(database)
    with database.write() as session:
        session.add(task_row())
        session.flush()
        for number, value in ((1, 0.25), (3, 0.75)):
            report = {"hr@10": value, "popularity hr@10": 0.5 - value / 2}
            session.add(round_row(number=number, state="complete", report=report))
    with database.read() as session:
        (ratio,) = quality(session, "t_1")
    assert ratio.popularity == [(1, 0.375), (3, 0.125)]
    assert (ratio.low, ratio.high, ratio.last) == (0.125, 0.75, 0.75)
    assert ratio.path(ratio.popularity) == "M8.0 94.4 L632.0 152.0"
    assert figures([ratio])[0] == (3, {"hr@10": 0.75, "popularity hr@10": 0.125})
    database.close()
