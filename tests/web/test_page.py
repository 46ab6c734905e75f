"""The page of `examples/web` in Chromium, beside Python clients: exact sums, closed and opened again."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from client_sdk.organiser import TrialOrganiser
from examples.web.serve import serve_page
from tests.support.browser import (
    CLIENTS,
    MILLISECONDS,
    SIZES,
    RecordedDemo,
    chromium,
    recorded_demo,
    resize,
    screenshot,
)
from tests.vectors import generate

LIKED = ("Orbit of Silence", "The Ninth Moon", "Cargo to Vega", "The Harbour File")
WAIT = 4 * MILLISECONDS
_LISTEN = """
window.reports = [];
document.addEventListener("hushrec:contribution", ({ detail }) => window.reports.push(detail));
"""
_KEY = """async () => {
    const { IndexedStore } = await import("/hushrec/store.js");
    const { signing } = await (await IndexedStore.open("hushrec-films")).get("identity");
    const exported = await crypto.subtle.exportKey("pkcs8", signing).then(() => "exported", (error) => error.name);
    return [signing.extractable, exported];
}"""

_STORED = """async () => {
    const database = await new Promise((resolve) => {
        const request = indexedDB.open("hushrec-films");
        request.onsuccess = () => resolve(request.result);
    });
    const request = database.transaction("values").objectStore("values").count();
    return new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));
}"""
_UNNAMED = """() => {
    const controls = [...document.querySelectorAll("input, select, button")];
    return controls.filter((one) => !(one.labels?.length || one.textContent.trim())).length;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the file; each test has a context of its own."""
    with chromium() as started:
        yield started


@contextmanager
def context_of(browser: Browser, size: str = "wide", scheme: str = "light") -> Iterator[BrowserContext]:
    """Yield a new browser context; errors and warnings in the console of its pages fail the test."""
    messages: list[str] = []
    width, height = SIZES[size]
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
    context.set_default_timeout(MILLISECONDS)
    context.on("console", lambda said: messages.append(said.text) if said.type in ("error", "warning") else None)
    context.on("weberror", lambda failed: messages.append(str(failed.error)))
    yield context
    context.close()
    wanted = ("status of 404", "ERR_FAILED")  # no revocation list, no committee yet; requests that a test aborts
    assert not [text for text in messages if not any(part in text for part in wanted)]


def opened(context: BrowserContext, recorded: RecordedDemo, uploading: Callable[[Route], None] | None = None) -> Page:
    """Open the page and record its contributions. uploading: handles the requests of this page that send them."""
    page = context.new_page()
    if uploading is not None:
        page.route("**/contributions/*", uploading)
    page.add_init_script(_LISTEN)
    page.goto(recorded.demo.page.origin)
    return page


def take_part(page: Page) -> None:
    """Choose films and begin."""
    for title in LIKED:
        page.get_by_label(title).check()
    page.get_by_role("button", name="Take part").click()


def until(page: Page, is_so: Callable[[], bool]) -> None:
    """Wait until `is_so()`. The page's Content-Security-Policy forbids Playwright's `wait_for_function`."""
    end = time.monotonic() + WAIT / 1000
    while not is_so():
        assert time.monotonic() < end, page.get_by_role("status").all_inner_texts()
        page.wait_for_timeout(250)


def report_of(page: Page) -> dict[str, Any]:
    """Wait for the page's next contribution and return its report."""
    until(page, lambda: page.evaluate("window.reports.length") > 0)
    return dict(page.evaluate("window.reports.shift()"))


def complete(recorded: RecordedDemo, page: Page, number: int) -> None:
    """Wait until a round is complete."""
    until(page, lambda: recorded.get(f"/rounds/{number}").json()["state"] in ("complete", "failed"))
    assert recorded.get(f"/rounds/{number}").json()["state"] == "complete"


def test_rounds_with_the_page_are_exact_also_when_it_closes_while_it_sends(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page that is opened again goes on as the same client, and sends the same bytes."""
    bodies: list[bytes | None] = []

    def lost(route: Route) -> None:
        if route.request.method == "PUT":
            bodies.append(route.request.post_data_buffer)
            route.abort()  # the page tries again
        else:
            route.continue_()

    def sent(route: Route) -> None:
        if route.request.method == "PUT":
            bodies.append(route.request.post_data_buffer)
        route.continue_()

    with (
        recorded_demo(tmp_path / "server", monkeypatch, rounds=2, collect_seconds=180.0) as recorded,
        context_of(browser) as context,
    ):
        page = opened(context, recorded, lost)
        expect(page.get_by_role("button", name="Take part")).to_be_disabled()
        take_part(page)
        until(page, lambda: len(bodies) >= 2)
        assert page.evaluate(_KEY) == [False, "InvalidAccessError"]
        page.goto("about:blank")  # ends a request that waits; on closing, Chromium may let one through unaborted
        page.close()

        again = opened(context, recorded, sent)
        assert report_of(again)["resent"]
        complete(recorded, again, 1)
        assert recorded.get("/rounds/1").json()["survivors"] == CLIENTS + 1
        second = report_of(again)
        complete(recorded, again, 2)
        assert bodies[0] and bodies.count(bodies[0]) >= 3 and len(set(bodies)) == 2
        assert recorded.aggregate(2) == recorded.expected(2, second["steps"])
        assert recorded.aggregate(2) != recorded.expected(2, second["steps"][::-1])
        assert recorded.task["members"] == CLIENTS + 1
        print(second["bytes"], second["times"])
        expect(again.get_by_role("status").last).to_contain_text("The task has ended", timeout=WAIT)
        expect(again.locator("#picks li")).to_have_count(8)
        for title in LIKED:
            expect(again.locator("#picks")).not_to_contain_text(title)
        expect(again.locator("#messages tr.own")).to_contain_text("contribution", ignore_case=True)
        screenshot(again, "wide-light", "web")

        requests: list[str] = []
        again.on("request", lambda request: requests.append(request.url))
        again.reload()
        expect(again.locator("#picks li")).to_have_count(8)  # from the model in IndexedDB
        again.get_by_label("The Stone Compass").check()
        expect(again.locator("#picks")).not_to_contain_text("The Stone Compass")
        assert requests and not [url for url in requests if url.startswith(recorded.demo.server)]

        again.on("dialog", lambda dialog: dialog.accept())
        again.get_by_role("button", name="Forget everything").click()
        expect(again.locator("#count")).to_have_text("0 liked; choose at least 3.")
        expect(again.locator("#picks li")).to_have_count(0)
        assert again.evaluate(_STORED) == 0


def test_a_masked_round_is_exact(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        recorded_demo(tmp_path / "server", monkeypatch, mechanism="masked") as recorded,
        context_of(browser, "wide", "dark") as context,
    ):
        page = opened(context, recorded)
        take_part(page)
        sent = report_of(page)
        complete(recorded, page, 1)
        assert recorded.aggregate(1) == recorded.expected(1, sent["steps"])
        assert recorded.aggregate(1) != recorded.expected(1, sent["steps"][::-1])
        expect(page.locator("#messages")).to_contain_text("Shares of masks")
        expect(page.locator("#picks li")).to_have_count(8)
        page.get_by_text("Privacy of this task").click()
        page.get_by_text("Your last contribution").click()
        screenshot(page, "wide-dark-masked", "web")
        print(sent["bytes"], sent["times"])


def test_the_page_fits_and_works_with_the_keyboard(browser: Browser) -> None:
    with serve_page(0, TrialOrganiser()) as server, context_of(browser, "phone", "dark") as context:
        server.settings = {"server": "http://127.0.0.1:9", "task": "t_0", "invitation": "", "organiser": {}}
        page = context.new_page()
        page.goto(server.origin)
        expect(page.locator("#list li")).to_have_count(60)  # what is typed before is not heard
        page.get_by_label("Search").focus()
        page.keyboard.type("moon")
        expect(page.locator("#list li:visible")).to_have_count(1)
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        expect(page.get_by_label("The Ninth Moon")).to_be_checked()
        expect(page.locator("#count")).to_have_text("1 liked; choose at least 3.")
        page.get_by_label("Search").fill("")
        page.get_by_label("Genre").select_option("Crime")
        expect(page.locator("#list li:visible")).to_have_count(10)
        page.get_by_label("Genre").select_option("")
        page.reload()
        expect(page.get_by_label("The Ninth Moon")).to_be_checked()
        assert page.evaluate(_UNNAMED) == 0
        for size, scheme in (("phone", "dark"), ("wide", "light")):
            resize(page, size)
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            screenshot(page, f"{size}-{scheme}-start", "web")


# --- the JSON vectors in Chromium, where browsers differ from Node ----------------------------------------------------


class _Quiet(SimpleHTTPRequestHandler):
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on localhost, which browsers trust with WebCrypto as they do https."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


_RUN = """async (names) => {
    const { run } = await import("/tests/web/vectors.mjs");
    const read = async (name) => (await fetch(`/tests/vectors/${name}`)).json();
    const results = {};
    for (const name of names) {
        try { results[name] = await run(name, read); } catch (error) { results[name] = String(error.stack); }
    }
    return results;
}"""


def test_every_vector_in_chromium(browser: Browser) -> None:
    with served(Path(__file__).parents[2]) as url, closing(browser.new_page()) as page:
        page.goto(f"{url}/examples/web/README.md")
        results = page.evaluate(_RUN, sorted(generate.FILES))
    assert set(results) == set(generate.FILES)
    assert all(isinstance(count, int) and count > 0 for count in results.values()), results
