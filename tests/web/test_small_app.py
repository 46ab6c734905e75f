"""The app of `examples/web_app`, with the client as `npm pack` makes it: takes part in Chromium, and recommends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.browser import CLIENTS, chromium, recorded_demo, screenshot

EXAMPLES = Path(__file__).parents[2] / "examples"
LINES = 35
"""Most lines of the app: apps should not need more to begin."""


@pytest.mark.parametrize("mechanism", ["masked", "oneshot"])
def test_an_app_of_few_lines_takes_part(
    mechanism: str, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "page"
    shutil.copytree(EXAMPLES / "web_app", folder, ignore=shutil.ignore_patterns("node_modules", "films.json"))
    shutil.copytree(packed / "node_modules", folder / "node_modules")
    shutil.copy(EXAMPLES / "web" / "films.json", folder)
    assert len((folder / "app.js").read_text(encoding="utf-8").splitlines()) <= LINES
    messages: list[str] = []
    with (
        recorded_demo(tmp_path / "server", monkeypatch, rounds=2, mechanism=mechanism, page_folder=folder) as recorded,
        chromium() as browser,
    ):
        page = browser.new_page()
        page.on("pageerror", lambda failed: messages.append(str(failed)))
        page.goto(recorded.demo.page.origin)
        for title in ("Orbit of Silence", "The Ninth Moon", "Cargo to Vega"):
            page.get_by_label(title).check()
        page.get_by_role("button", name="Take part").click()
        expect(page.get_by_role("status")).to_have_text("The task is complete", timeout=120_000)
        picks = page.get_by_role("listitem").all_inner_texts()
        screenshot(page, f"small-app-{mechanism}", "web")
        ledger = recorded.get("/ledger").json()["entries"]
    assert messages == []
    assert [entry["survivors"] for entry in ledger] == [CLIENTS + 1] * 2
    assert len(set(picks)) == 5
    assert "Orbit of Silence" not in picks
