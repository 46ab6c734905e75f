"""Every Python block of docs/sdk.md runs, in order, against a real server."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from client_sdk import Client, Identity, MemoryStore
from tests.support.server import running_aggregator
from tests.support.tasks import interactions

GUIDE = Path(__file__).parents[2] / "docs" / "sdk.md"
BLOCK = re.compile(r"<!-- run: (\w+) -->\n```python\n(.*?)```", re.DOTALL)


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    blocks = dict(BLOCK.findall(text))
    assert len(blocks) == text.count("```python"), "a block is not run"
    monkeypatch.chdir(tmp_path)
    chosen = interactions(3)
    with running_aggregator(tmp_path / "data") as server:
        names: dict[str, Any] = {"url": server.url, "operator_token": server.operator_token}
        names["interactions"] = chosen[0]

        def run(name: str, scope: dict[str, Any]) -> None:
            exec(compile(blocks[name], f"docs/sdk.md: {name}", "exec"), scope)  # noqa: S102 - the project's own page

        run("operator", names)
        with Client(server.url, Identity.generate(), MemoryStore()) as third, ThreadPoolExecutor(2) as pool:
            holding = pool.submit(run, "holder", dict(names))
            part = third.join(invitation=names["invitation"], certificate=names["organiser"].source())
            waiting = pool.submit(part.take_part, chosen[2])
            run("member", names)
            holding.result(timeout=60)
            assert len(waiting.result(timeout=60)) == 3
        assert [report.round for report in names["reports"]] == [1, 2, 3]
        for name in ("later", "async", "policy", "errors", "committee", "fleet"):
            run(name, names)
    assert "403 forbidden" in capsys.readouterr().out
    assert names["user_factors"].shape == (8, 8)
