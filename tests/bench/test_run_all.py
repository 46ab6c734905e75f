"""Running the benchmarks: scripts that fail or are skipped, and the page that is written in every case."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import bench.run_all as run_all
from bench.run_all import Job, jobs, main, run

FIGURES = {f"{way}.{step}_us": 2.0 for way in ("ed25519", "ours", "library") for step in ("sign", "verify")}
WRITES = f"import json, sys; print('measuring'); json.dump({FIGURES}, open(sys.argv[-1], 'w'))"
FAILS = "import sys; print('half way'); sys.exit('no such processor')"


def job(name: str, code: str, missing: str = "") -> Job:
    return Job(name, (sys.executable, "-c", code), missing=missing)


def test_a_job_writes_its_results_and_its_output(tmp_path: Path) -> None:
    outcome = run(job("signatures", WRITES), tmp_path)
    assert (outcome.state, outcome.note) == ("done", "")
    assert json.loads((tmp_path / "signatures.json").read_text()) == FIGURES
    assert (tmp_path / "signatures.log").read_text() == "measuring\n"


def test_a_job_fails_without_a_key_that_is_committed_and_with_one_that_is_not_described(tmp_path: Path) -> None:
    outcome = run(job("signatures", WRITES.replace("ours.sign_us", "ours.sign_ns")), tmp_path)
    assert outcome.state == "failed"
    assert outcome.note.splitlines() == ["key ours.sign_ns is not described", "key ours.sign_us is absent"]


def test_a_script_without_committed_results_fails(tmp_path: Path) -> None:
    outcome = run(job("newer", WRITES), tmp_path)
    assert outcome.state == "failed"
    assert "results/newer.json is missing" in outcome.note


def test_every_module_that_can_be_run_is_a_benchmark_or_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {Path(command[0]).stem for command in run_all.benchmarks().values()}
    assert found | run_all.TOOLS == {
        path.stem for path in run_all.HERE.glob("*.py") if "\ndef main(" in path.read_text()
    }
    (tmp_path / "newer.py").write_text('if __name__ == "__main__":\n    pass\n')
    (tmp_path / "part.py").write_text("pass\n")
    monkeypatch.setattr(run_all, "HERE", tmp_path)
    assert run_all.benchmarks() == {"newer": (str(tmp_path / "newer.py"),)}


def test_a_failed_job_removes_older_results_and_keeps_the_end_of_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (tmp_path / "broken.json").write_text('{"speed": 1.0}')
    outcome = run(job("broken", FAILS), tmp_path)
    assert outcome.state == "failed"
    assert outcome.note.splitlines() == ["half way", "no such processor", "exit code 1"]
    assert not (tmp_path / "broken.json").exists()
    assert run(job("silent", "pass"), tmp_path).note == "the script wrote no results"


def test_a_job_with_a_missing_requirement_is_skipped_and_removes_older_results(tmp_path: Path) -> None:
    (tmp_path / "fidelity-colr.json").write_text('{"speed": 1.0}')
    outcome = run(job("fidelity-colr", WRITES, "data sets"), tmp_path)
    assert (outcome.state, outcome.note) == ("skipped", "needs data sets")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("broken", "code"), [(False, 0), (True, 1)])
def test_the_page_is_written_even_if_a_script_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: bool, code: int
) -> None:
    chosen = [job("ckks", FAILS) if broken else job("signatures", WRITES), job("signatures", WRITES)]
    monkeypatch.setattr(run_all, "jobs", lambda *_: chosen)
    (tmp_path / "older.json").write_text('{"speed": 1.0}')
    assert main(["--output", str(tmp_path)]) == code
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert ("no such processor" in page) == broken
    assert "Request signatures" in page
    assert "older" not in page, "the page has only results of this run"
    assert str(tmp_path) in capsys.readouterr().out.replace("\n", "")


def test_only_selects_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_all, "jobs", lambda *_: [job("first", FAILS), job("signatures", WRITES)])
    assert main(["--output", str(tmp_path), "--only", "signatures"]) == 0
    assert main(["--output", str(tmp_path), "--only", "third"]) == 2


def test_committed_results_make_a_page_without_a_run(tmp_path: Path) -> None:
    (tmp_path / "memory.json").write_text('{"peak_rss_ratio": 1.04}')
    assert main(["--committed", "--output", str(tmp_path)]) == 0
    assert "1.04" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_every_script_gets_quick_unless_the_run_is_full(tmp_path: Path) -> None:
    quick, full = jobs(tmp_path, quick=True), jobs(tmp_path, quick=False)
    assert {"ckks", "memory", "overhead", "fidelity-colr", "training"} <= {job.name for job in quick}
    assert all("--quick" in job.command for job in quick)
    assert not any("--quick" in job.command for job in full)
    assert all(Path(job.command[1]).exists() for job in quick)


def test_missing_requirements_are_known_before_anything_runs(tmp_path: Path) -> None:
    without = {job.name: job.missing for job in jobs(None, quick=False)}
    assert "DATA_DIR" in without["fidelity-colr"]
    assert "DATA_DIR" in without["training"]
    assert without["ckks"] == ""
    given = {job.name: job for job in jobs(tmp_path, quick=True, peer_python=Path("peers/python"))}
    assert given["fidelity-colr"].missing == ""
    assert given["masked"].command[-2:] == ("--peer-python", "peers/python")
