"""Chromium, and browser contexts that are signed in to the dashboard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.dashboard import ROOT
from tests.support.needs import required
from tests.support.server import AggregatorProcess

__all__ = ["MILLISECONDS", "SCHEMES", "SIZES", "artifacts", "chromium", "visiting"]

SIZES = {"phone": (390, 844), "wide": (1600, 1000)}
SCHEMES = ("light", "dark")
MILLISECONDS = 40_000
expect.set_options(timeout=MILLISECONDS)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the installed Chromium, headless; nothing is downloaded."""
    executable = required("chromium")
    with sync_playwright() as play_:
        browser = play_.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visiting(
    browser: Browser, server: AggregatorProcess, *, scheme: str = "light", size: str = "wide"
) -> Iterator[Page]:
    """Yield a signed-in page in a new context. Errors and warnings in its console fail the test."""
    width, height = SIZES[size]
    context = browser.new_context(
        base_url=server.url,
        color_scheme=scheme,  # type: ignore[arg-type]
        viewport={"width": width, "height": height},
        reduced_motion="reduce",
        timezone_id="UTC",
    )
    context.set_default_timeout(MILLISECONDS)
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda said: messages.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto("/dashboard")
    page.get_by_label("Operator token").fill(server.operator_token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/dashboard")
    try:
        yield page
        wanted = ("status of 404", "status of 422")  # requested on purpose
        assert not [text for text in messages if not any(status in text for status in wanted)]
    finally:
        context.close()


def artifacts() -> Path:
    """Return the directory for screenshots: HUSHREC_ARTIFACTS, or test-artifacts in the repository."""
    folder = Path(os.environ.get("HUSHREC_ARTIFACTS") or ROOT / "test-artifacts") / "dashboard"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
