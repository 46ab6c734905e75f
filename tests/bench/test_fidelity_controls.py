"""Controls of the fidelity tables are measured once per data set; every protocol has its exclusions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.experiments.fidelity import SYSTEMS
from bench.experiments.runs import (
    controls_table,
    exclusions,
    flat_controls,
    full_ranking_controls,
    leave_one_out_controls,
    measured,
    rating_mean_controls,
)
from client_sdk.lab.data.published import load_dataset
from client_sdk.lab.evaluation import ControlRow, ControlTable, candidates_of


def test_a_data_set_is_measured_once(tmp_path: Path) -> None:
    asked = []

    def counted(dataset: str, _: Path) -> ControlTable:
        asked.append(dataset)
        return ControlTable(("HR@10",), (ControlRow("popularity", "full ranking", 7, (0.25,)),))

    for _ in range(2):
        found = measured(counted, ["b", "a", "b"], tmp_path / "data", tmp_path / "work")
    assert asked == ["a", "b"]
    assert flat_controls(found) == {f"controls.{name}.popularity.full_ranking.hr10": 0.25 for name in "ab"}
    assert controls_table(found).row_count == 2


def test_the_metrics_of_every_measure(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((40, 150)) < 0.1)
    lines = [f"{user}\t{item}\t{1 + item % 5}\t{user * item}" for user, item in zip(users, items, strict=True)]
    (tmp_path / "u.data").write_text("\n".join(lines) + "\n")
    assert leave_one_out_controls("ml-100k", tmp_path).metrics == ("HR@10", "NDCG@10")
    assert full_ranking_controls("ml-100k", tmp_path).metrics == ("Recall@20", "NDCG@20")
    assert rating_mean_controls("ml-100k", tmp_path).metrics == ("MAE", "RMSE")


def test_the_exclusions_of_every_protocol() -> None:
    data = load_dataset("synthetic")
    candidates = candidates_of(data, np.random.default_rng(0)).negatives
    assert exclusions("clean", data, candidates) is None
    colr, leaky = exclusions("paper", data, candidates), exclusions("paper_protocol", data, candidates)
    assert colr is not None
    assert leaky is not None
    np.testing.assert_array_equal(colr, np.column_stack([data.test_items, candidates]))
    np.testing.assert_array_equal(leaky, data.test_items[:, None])
    with pytest.raises(ValueError, match="leaky"):
        exclusions("leaky", data, candidates)


def test_every_system_has_controls() -> None:
    assert all(callable(system.controls) for system in SYSTEMS.values())
