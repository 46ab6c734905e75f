"""The programs in examples/ run against a real server."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from client_sdk import Operator, Policy
from tests.support.server import running_aggregator
from tests.support.tasks import ITEMS, small_task

ROOT = Path(__file__).parents[2]


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    app, federation = import_module("background_app"), import_module("masked_federation")
    monkeypatch.setattr(federation, "ROUNDS", 1)
    with running_aggregator(tmp_path / "data") as server:
        best = federation.main(server.url, server.operator_token)
        assert len(best) == 5
        assert not set(best) & set(federation.made_up_users()[0].tolist())
        with Operator(server.url, server.operator_token) as operator:
            task = small_task(operator, "background", users=3, mechanism="plain", rounds=1)
            policy = Policy(mechanisms=frozenset({"plain"}))
            apps = [
                app.App(server.url, task.invitation, [user, user + 10], tmp_path / f"app-{user}", policy=policy)
                for user in range(3)
            ]
        assert apps[0].recommend(3) is None  # before the first round
        for one in apps:
            one.start()
        for one in apps:
            assert one.wait(60)
            assert one.error is None
        found = apps[0].recommend(3)
        assert len(found.items) == 3
        assert set(found.items.tolist()) <= set(range(ITEMS)) - {0, 10}
        for one in apps:
            one.stop()
    assert "round 1: 20 survivors" in capsys.readouterr().out


def test_every_example_says_how_to_run_it_and_is_in_the_list() -> None:
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    paths = sorted((ROOT / "examples").glob("*.py"))
    assert len(paths) >= 2
    for path in paths:
        assert f"({path.name})" in listed
        assert f"python examples/{path.name} " in path.read_text(encoding="utf-8")
