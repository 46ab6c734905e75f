"""A round of 20 Python clients and one client in Node, exact to the last bit; stopped and started again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.needs import required
from tests.support.web_round import RecordedDemo, recorded_demo

ROOT = Path(__file__).parents[2]
LIKED = [0, 6, 12, 18]


def take_part(node: str, recorded: RecordedDemo, folder: Path, *more: str) -> list[Any]:
    """Run `take-part.mjs` and return its events; the last one is the line of recommendations."""
    settings = recorded.demo.settings
    options = {
        "folder": folder, "server": settings["server"], "invitation": settings["invitation"],
        "organiser": settings["organiser"]["key"], "scope": settings["organiser"]["scope"],
        "issuer": recorded.demo.page.origin, "items": ",".join(map(str, LIKED)),
    }  # fmt: skip
    given = [f"--{name}={value}" for name, value in options.items()]  # a key may begin with a dash
    command = [node, "examples/web/take-part.mjs", "--events", *given, *more]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    lines = ran.stdout.splitlines()
    return [*map(json.loads, lines[:-1]), lines[-1]]


@pytest.mark.parametrize("mechanism", ["oneshot", "masked"])
def test_rounds_with_node_are_exact(mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of item counts, then two of changes; the program ends after two rounds and goes on when it is run again."""
    node = required("node")
    changes = {"parameters": {"item_bias": "counts", "count_sums": 1}, "mechanism": mechanism}
    with recorded_demo(tmp_path / "server", monkeypatch, rounds=3, **changes) as recorded:
        *first, _ = take_part(node, recorded, tmp_path / "client", "--rounds", "2")
        *second, recommended = take_part(node, recorded, tmp_path / "client")
        sent = [event for event in first + second if event["kind"] == "contributed"]
        assert [event["round"] for event in sent] == [1, 2, 3]
        for event in sent:
            number = event["round"]
            assert recorded.aggregate(number) == recorded.expected(number, event["steps"])
            assert recorded.aggregate(number) != recorded.expected(number, event["steps"][::-1])
        assert recorded.task["members"] == 21
    assert [item for item, count in enumerate(sent[0]["steps"]) if count] == LIKED
    assert (tmp_path / "client" / "client.json").stat().st_mode & 0o777 == 0o600
    items = [int(item) for item in recommended.removeprefix("recommended: ").split(", ")]
    assert len(items) == 5 and not set(items) & set(LIKED)
