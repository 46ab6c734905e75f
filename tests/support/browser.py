"""Chromium, and pages of it that are signed in to the dashboard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.needs import required
from tests.support.server import AggregatorProcess

ROOT = Path(__file__).parents[2]
SIZES = {"phone": (390, 844), "wide": (1600, 1000)}
MILLISECONDS = 40_000
expect.set_options(timeout=MILLISECONDS)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the installed Chromium, headless; nothing is downloaded."""
    executable = required("chromium")
    with sync_playwright() as play_:
        browser = play_.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def signed_in(browser: Browser, server: AggregatorProcess) -> Iterator[BrowserContext]:
    """Yield a new context in which an operator is signed in."""
    with closing(
        browser.new_context(base_url=server.url, color_scheme="light", reduced_motion="reduce", timezone_id="UTC")
    ) as context:
        context.set_default_timeout(MILLISECONDS)
        page = context.new_page()
        page.goto("/dashboard")
        page.get_by_label("Operator token").fill(server.operator_token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/dashboard")
        page.close()
        yield context


@contextmanager
def watched(context: BrowserContext, size: str = "wide") -> Iterator[Page]:
    """Yield a new page. Errors and warnings in its console fail the test."""
    page, messages = context.new_page(), list[str]()
    resize(page, size)
    page.on("console", lambda said: messages.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: messages.append(str(error)))
    yield page
    page.close()
    wanted = ("status of 404", "status of 422")  # requested on purpose
    assert not [text for text in messages if not any(status in text for status in wanted)]


def resize(page: Page, size: str) -> None:
    """Give the page a window of a size of `SIZES`."""
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})


def screenshot(page: Page, name: str) -> None:
    """Keep a picture of the whole page below HUSHREC_ARTIFACTS, if that is set."""
    if folder := os.environ.get("HUSHREC_ARTIFACTS"):
        page.screenshot(path=Path(folder) / "dashboard" / f"{name}.png", full_page=True)
