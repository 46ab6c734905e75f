"""The fidelity runs: each row is measured once and kept; small runs on data in the published formats; controls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bench.experiments.factors import pfedclr_run, pfedclr_split
from bench.experiments.fidelity import SYSTEMS, full_ranking_controls, main, pfedclr_controls, rating_mean_controls
from bench.experiments.leaks import LEAK_WARNING
from bench.experiments.rfrec import rfrec_run
from bench.experiments.rows import Row, flat, measured, options_of
from protocols.errors import ParameterError


def counted(folder: Path, values: dict[str, float], _: Path) -> dict[str, float]:
    """A measurement that notes its calls in a file, since it runs in another process."""
    with (folder / "calls").open("a") as calls:
        calls.write("x")
    return values


def failing(_: Path) -> dict[str, float]:
    raise ParameterError("no such data set")


def run(rows: Sequence[Row], tmp_path: Path, *more: str) -> dict[str, dict[str, float]]:
    parser = options_of("python -m bench.experiments.made", (0,))
    return measured(rows, parser.parse_args(["--work", str(tmp_path), "--jobs", "1", *more]), "test")


def test_a_row_is_measured_once_and_kept(tmp_path: Path) -> None:
    made = partial(counted, tmp_path)
    rows = [Row("a.b", partial(made, {"hr10": 0.5}), {"hr10": 0.6}), Row("a.c", partial(made, {"x": 1.0}), prefix="a")]
    assert list(run(rows, tmp_path, "--only", "b")) == ["a.b"]
    found = run(rows, tmp_path)
    assert run(rows, tmp_path) == found
    assert (tmp_path / "calls").read_text() == "xx"
    figures = flat(rows, found)
    assert figures["a.b.hr10"] == 0.5
    assert figures["a.b.paper.hr10"] == 0.6
    assert figures["a.x"] == 1.0
    assert figures["a.c.seconds"] > 0


def test_rows_without_a_library_are_left_out_and_errors_are_raised(tmp_path: Path) -> None:
    nothing = Row("nothing", partial(counted, tmp_path, {}))
    assert run([nothing], tmp_path) == {}
    with pytest.raises(ParameterError, match="no such data set"):
        run([Row("bad", failing)], tmp_path)


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_keys_of_rows_are_unique_and_quick_rows_have_no_published_figures(system: str) -> None:
    rows = [row for seed in (0, 1) for row in SYSTEMS[system].rows(False, seed) if row.key != "fair.memory"]
    assert len({row.key for row in rows}) == len(rows)
    assert not any(row.published for row in SYSTEMS[system].rows(True, 0))


def test_only_leaky_runs_have_published_figures() -> None:
    rows = {row.key: row for row in SYSTEMS["pfedclr"].rows(False, 0)}
    assert all(bool(row.published) == key.endswith("paper_protocol") for key, row in rows.items())
    assert all(key.replace("clean", "paper_protocol") in rows for key in rows)


USERS, ITEMS, EACH = 30, 160, 14


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """FilmTrust with thirty users of 14 of 160 items, and one with 3 items, whom PFedCLR's paper excludes."""
    rng = np.random.default_rng(0)
    rows = [(user, item) for user in range(USERS) for item in rng.choice(ITEMS, EACH, replace=False)]
    rows += [(USERS, item) for item in (0, 1, 2)]
    (tmp_path / "filmtrust").mkdir()
    text = "".join(f"{user + 1} {item + 1} {1 + item % 5}\n" for user, item in rows)
    (tmp_path / "filmtrust" / "ratings.txt").write_text(text)
    lines = [f"{user}\t{item}\t{1 + item % 5}\t{user * item}" for user, item in rows]
    (tmp_path / "u.data").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_pfedclr_is_trained_with_and_without_the_leak(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    for leaky in (True, False):
        figures = pfedclr_run("filmtrust", leaky, {"rank": 1}, 2, 0, data_dir)
        assert figures["rounds"] == 2
        assert 0 <= figures["hr10_full"] <= figures["hr10"] <= 1
        assert figures["bytes_up"] > 4 * 16 * 100
    assert caplog.messages == [LEAK_WARNING]


def test_the_split_is_the_papers(data_dir: Path) -> None:
    data = pfedclr_split("filmtrust", data_dir)
    assert data.train.n_users == USERS
    for user in range(USERS):
        assert data.test_items[user] > data.train.positives(user).max()  # introduced last


def test_rfrec_gives_its_errors_or_the_sum_in_which_it_diverged(data_dir: Path) -> None:
    good = rfrec_run("rfrec", "ml-100k", {"variant": "released", "dim": 3}, None, 20, 50, False, 0, data_dir)
    assert good["sums"] == 20
    assert 0 < good["mae"] < good["rmse"] < 3
    steep = {"variant": "paper", "dim": 3, "learning_rate": 5.0, "scaling": "raw"}
    bad = rfrec_run("rfrec", "ml-100k", steep, None, 50, 0, False, 0, data_dir)
    assert bad["diverged_at"] > 1
    assert "mae" not in bad


def test_the_metrics_of_every_controls(data_dir: Path) -> None:
    assert pfedclr_controls("filmtrust", data_dir).metrics == ("HR@10", "NDCG@10")
    assert len(pfedclr_controls("filmtrust", data_dir).rows) == 8
    assert full_ranking_controls("ml-100k", data_dir).metrics == ("Recall@20", "NDCG@20")
    assert rating_mean_controls("ml-100k", data_dir).metrics == ("MAE", "RMSE")


def test_a_quick_table_is_printed_and_written(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--system", "rfrec", "--quick", "--data-dir", str(data_dir), "--work", str(data_dir / "work")]
    assert main([*arguments, "--only", "nothing"]) == 2
    path = data_dir / "figures.json"
    assert main([*arguments, "--only", "released.users", "controls", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())
    assert figures["ml100k.rfrec.released.users.rmse"] > 0
    assert figures["controls.ml-100k.mean.rmse"] > 0
    assert "ml100k.rfrec.released.users" in capsys.readouterr().out.replace("\n", "")
    absent = ["--data-dir", str(data_dir / "absent"), "--work", str(data_dir / "other")]
    assert main(["--system", "rfrec", "--quick", *absent]) == 1
