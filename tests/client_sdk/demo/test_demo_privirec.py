"""The PriviRec demo with a server process: live display, figures and plot; errors before anything is written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from client_sdk.cli import app
from client_sdk.data.holdout import hold_out_share
from client_sdk.data.synthetic import SyntheticConfig, synthetic
from client_sdk.demo.privirec import setup
from client_sdk.demo.privirec.central import central_components
from client_sdk.demo.privirec.files import write_results
from client_sdk.demo.privirec.run import run_privirec_demo
from client_sdk.demo.privirec.setup import PriviRecRequest
from client_sdk.demo.privirec.table import ranking_table


@pytest.mark.parametrize(("recipe", "mechanism", "iterations"), [("privirec-k", "masked", 1), ("privirec", "plain", 2)])
def test_demo_runs_to_the_end_and_writes_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, mechanism: str, iterations: int
) -> None:
    data = synthetic(SyntheticConfig(users=8, items=40, positives=12))
    monkeypatch.setattr(setup, "load_split", lambda _: hold_out_share(data))
    console = Console(record=True, width=100)
    request = PriviRecRequest(
        recipe=recipe, components=4, iterations=iterations, mechanism=mechanism, server_dir=tmp_path / "server"
    )
    result = run_privirec_demo(request, console)
    kinds = ["degrees", *["iteration"] * iterations, *["gram"] * (recipe == "privirec")]
    assert [(done.sum_index, done.kind, done.survivors) for done in result.sums] == [
        (step, kind, 8) for step, kind in enumerate(kinds, 1)
    ]
    assert [len(done.singular_values) for done in result.sums] == [4 * (kind == "iteration") for kind in kinds]
    console.print(ranking_table(result))
    shown = console.export_text()
    assert "2 P Q" in shown
    assert "central, the whole matrix" in shown
    figures, plot = write_results(result, tmp_path / "out")
    kept = json.loads(figures.read_text())
    assert (kept["mechanism"], kept["dropped"], len(kept["sums"])) == (mechanism, 0, len(kinds))
    # Over the same rows GF-CF differs only by vectors that have not converged; by nothing where P itself is summed.
    ours, *_, central = kept["ranked"]
    assert 0 < ours["ranking"]["recall"] <= 1
    if recipe == "privirec":
        assert ours["ranking"]["ndcg"] == pytest.approx(central["ranking"]["ndcg"], abs=0.1)
        assert "77.9 %" in " ".join(kept["warnings"])
    assert plot.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset", "gowalla"], "unknown data set 'gowalla'; the privirec-k demo has synthetic, ml-100k"),
        (["--cohort", "9"], "privirec-k sums over all clients"),
        (["--rank", "400"], "240 items have at most 240 vectors"),
    ],
)
def test_invalid_options_fail_before_anything_is_written(tmp_path: Path, arguments: list[str], words: str) -> None:
    output = tmp_path / "out"
    command = ["demo", "--recipe", "privirec-k", "--output", str(output), *arguments]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert words in done.stderr
    assert not output.exists()


def test_central_components_equal_those_of_the_dense_matrix() -> None:
    train = synthetic(SyntheticConfig(users=30, items=25, positives=8))
    factors, exact = central_components(train, 25)
    assert factors.gram is None
    s, v = factors.singular_values.astype(float), factors.vectors.astype(float)
    np.testing.assert_allclose(v @ np.diag(s**2) @ v.T, exact.gram.toarray(), atol=1e-5)
    assert s[0] == pytest.approx(1.0, abs=1e-6)
