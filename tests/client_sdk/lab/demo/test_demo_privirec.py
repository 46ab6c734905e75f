"""The PriviRec demo with a server process: live display, figures, plot and the estimate of the time."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from client_sdk.lab.data.splits import hold_out_share
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.demo import spectrum as estimate
from client_sdk.lab.demo import spectrum as setup
from client_sdk.lab.demo.report import result_table, write_results
from client_sdk.lab.demo.results import DemoRequest
from client_sdk.lab.demo.run import run_demo
from client_sdk.lab.demo.spectrum import central_components


@pytest.mark.parametrize(
    ("recipe", "mechanism", "iterations"), [("privirec-k", "oneshot", 1), ("privirec", "masked", 2)]
)
def test_demo_runs_to_the_end_and_writes_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, mechanism: str, iterations: int
) -> None:
    data = synthetic(SyntheticConfig(users=8, items=40, positives=12))
    monkeypatch.setattr(setup, "load_split", lambda *_: hold_out_share(data))
    console = Console(record=True, width=100, force_terminal=True, file=StringIO())
    request = DemoRequest(recipe=recipe, rank=4, rounds=iterations, mechanism=mechanism, server_dir=tmp_path / "server")
    result = run_demo(request, console)
    kinds = ["degrees", *["iteration"] * iterations, *["gram"] * (recipe == "privirec")]
    assert [(done.sum_index, done.kind, done.survivors) for done in result.sums] == [
        (step, kind, 8) for step, kind in enumerate(kinds, 1)
    ]
    assert [len(done.singular_values) for done in result.sums] == [4 * (kind == "iteration") for kind in kinds]
    console.print(result_table(result))
    shown = console.export_text()
    assert "2 P Q" in shown
    assert ("4 masked sums of 8 clients take about" in shown) is (mechanism == "masked")
    assert "central, the whole matrix" in shown
    figures, report = write_results(result, tmp_path / "out")
    kept = json.loads(figures.read_text())
    assert (kept["mechanism"], kept["arms"][0]["dropouts"], len(kept["sums"])) == (mechanism, 0, len(kinds))
    # Over the same rows EASE differs only by vectors that have not converged; where P itself is summed by its weight.
    ours, *_, central, popular = kept["arms"]
    assert popular["name"] == "popularity"
    assert 0 < ours["values"]["Recall@20"] <= 1
    assert "standard errors" in kept["verdict"]
    if recipe == "privirec":
        assert ours["values"]["NDCG@20"] == pytest.approx(central["values"]["NDCG@20"], abs=0.1)
        assert "77.9 %" in " ".join(kept["warnings"])
    page = report.read_text()
    assert page.count('role="img"') == 1
    assert f"<b>{ours['values']['Recall@20']:.3f}</b>Recall@20 on the devices" in page
    assert page.partition("<h2>Parameters")[0].count("<tr><td>") == len(result.arms) + len(result.sums)
    monkeypatch.setattr("client_sdk.lab.demo.report.plots_available", lambda: False)
    assert "hushrec[plots]" in write_results(result, tmp_path / "bare")[1].read_text()


def test_estimate_grows_with_clients_and_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fixed times of a mask and a pair, so that the test does not depend on the machine."""
    monkeypatch.setattr(estimate, "_seconds_of_a_pair", lambda: 1e-3)
    monkeypatch.setattr(estimate, "_seconds_of_a_mask", lambda plan: plan.layout.length * 1e-9)

    def seconds(users: int, components: int, mechanism: str = "masked") -> float | None:
        data = synthetic(SyntheticConfig(users=users, items=80, positives=12))
        monkeypatch.setattr(setup, "load_split", lambda *_: hold_out_share(data))
        request = DemoRequest(recipe="privirec-k", rank=components, rounds=2, mechanism=mechanism)
        return estimate.estimated_seconds(setup.prepare(request))

    few, many, wide = seconds(10, 4), seconds(40, 4), seconds(10, 60)
    assert few is not None
    assert many is not None
    assert wide is not None
    assert 0 < few < wide
    assert many > 3 * few
    assert seconds(10, 4, "plain") is None


def test_central_components_equal_those_of_the_dense_matrix() -> None:
    train = synthetic(SyntheticConfig(users=30, items=25, positives=8))
    factors, exact = central_components(train, 25)
    assert factors.gram is None
    s, v = factors.singular_values.astype(float), factors.vectors.astype(float)
    np.testing.assert_allclose(v @ np.diag(s**2) @ v.T, exact.gram.toarray(), atol=1e-5)
    assert s[0] == pytest.approx(1.0, abs=1e-6)
