"""Every Python block of the SDK's guides runs, in the order of a task's life, against a real server."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from client_sdk import Client, Identity, MemoryStore, Operator, task_request
from tests.support.server import running_aggregator
from tests.support.tasks import interactions

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = ("sdk.md", "configuration.md", "oneshot.md", "reference/api.md")
BLOCK = re.compile(r"<!-- run: (\w+) -->\n```python\n(.*?)```", re.DOTALL)
ITEMS = 60


def blocks() -> dict[str, str]:
    """Name -> code of every block; each Python block of the guides has a name of its own."""
    texts = [(DOCS / guide).read_text(encoding="utf-8") for guide in GUIDES]
    found = [block for text in texts for block in BLOCK.findall(text)]
    assert len(found) == len(dict(found)) == sum(text.count("```python") for text in texts), "a block is not run"
    return dict(found)


def test_the_guides_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    unused = blocks()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    chosen = [[f"film-{number}" for number in numbers] for numbers in interactions(3)]
    with running_aggregator(tmp_path / "data") as server:
        names: dict[str, Any] = {"url": server.url, "operator_token": server.operator_token, "items": chosen[0]}
        names["ids"] = tuple(f"film-{number}" for number in range(ITEMS))
        names["titles"] = tuple(f"Film {number}" for number in range(ITEMS))

        def run(name: str, scope: dict[str, Any]) -> None:
            exec(compile(unused.pop(name), f"docs: {name}", "exec"), scope)  # noqa: S102 - the project's own pages

        run("operator", names)
        names["certificate"] = names["organiser"].source()
        with Client(server.url, Identity.generate(), MemoryStore()) as third, ThreadPoolExecutor(2) as pool:
            holding = pool.submit(run, "holder", {**names, "items": chosen[1]})
            part = third.join(invitation=names["invitation"], certificate=names["certificate"])
            waiting = pool.submit(part.take_part, chosen[2])
            run("member", names)
            holding.result(timeout=60)
            assert len(waiting.result(timeout=60)) == 3
        assert [report.round for report in names["reports"]] == [1, 2, 3]
        assert names["item"] in set(names["ids"]) - set(chosen[0])
        run("titles", names)
        assert [f"film-{title.split()[1]}" for title in names["found"].titles] == list(names["found"].ids)
        for name in ("background", "later", "async", "policy", "errors"):
            run(name, names)
        names["interactions"] = interactions(1)[0]
        with Operator(server.url, server.operator_token) as operator:
            pin = names["organiser"].pin
            phones = operator.create_task(
                task_request("phones", "colr", "oneshot", None, names["parameters"], organiser=pin)
            )
            names["committee_invitation"] = operator.invite(phones.task_id, role="committee").invitation
        for name in ("committee", "fleet"):
            run(name, names)
    assert not unused
    assert "403 forbidden" in capsys.readouterr().out
    assert names["user_factors"].shape == (8, 8)
