"""The dashboard in a real Chromium: actions, updates without a reload, layout, contrast, screen readers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from aggregator_service.rounds.interventions import ABORTED
from tests.support.api import Api, TestTask, contribute
from tests.support.browser import MILLISECONDS, chromium, resize, screenshot
from tests.support.dashboard import furnish, page_of
from tests.support.server import AggregatorProcess

SERVER = {"operator_rate": 0}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def context(browser: Browser, server: AggregatorProcess) -> Iterator[BrowserContext]:
    """Pages on which an operator is signed in."""
    with closing(
        browser.new_context(base_url=server.url, color_scheme="light", reduced_motion="reduce", timezone_id="UTC")
    ) as made:
        made.set_default_timeout(MILLISECONDS)
        page = made.new_page()
        page.goto("/dashboard")
        page.get_by_label("Operator token").fill(server.operator_token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/dashboard")
        page.close()
        yield made


@contextmanager
def watched(context: BrowserContext) -> Iterator[Page]:
    """A new page. Errors and warnings in its console fail the test."""
    made, messages = context.new_page(), list[str]()
    resize(made, "wide")
    made.on("console", lambda said: messages.append(said.text) if said.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: messages.append(str(error)))
    yield made
    made.close()
    wanted = ("status of 404", "status of 422")  # requested on purpose
    assert not [text for text in messages if not any(status in text for status in wanted)]


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    with watched(context) as made:
        yield made


@pytest.fixture(scope="module")
def places(live_api: Api) -> dict[str, str]:
    return furnish(live_api)


def started(live_api: Api, name: str) -> TestTask:
    return live_api.create_task(name, cohort=3, rounds=5)


def test_a_round_page_updates_without_a_reload(page: Page, live_api: Api) -> None:
    task = started(live_api, "before-eyes")
    members = task.begin(3)
    page.goto(page_of(task))
    expect(page.locator("#live-state")).to_have_text("Live")
    page.evaluate("window.notReloaded = true")
    delivered = page.get_by_label("Delivered in this state")
    expect(delivered).to_have_attribute("value", "0")
    abort = page.get_by_role("link", name="Abort…")
    abort.focus()
    members[0].put(1, members[0].contribution(1, 1.0))
    expect(delivered).to_have_attribute("value", "1")
    expect(abort).to_be_focused()  # the fragment that contains it was replaced
    screenshot(page, "live-one-delivered")
    contribute(members[1:], 1, 1.0)
    expect(page.locator("main .sub .state")).to_have_text("complete")
    expect(page.get_by_role("status")).to_have_text("Round 1 is complete.")
    expect(page.get_by_role("link", name="Round 2 →")).to_be_visible()
    expect(page.locator("main")).to_be_focused()  # the focused link was removed
    assert page.evaluate("window.notReloaded") is True
    screenshot(page, "live-complete")


def test_a_click_during_an_update_is_not_lost(page: Page, live_api: Api) -> None:
    task = started(live_api, "pressed")
    members = task.begin(3)
    page.goto(page_of(task))
    delivered, updates = page.get_by_label("Delivered in this state"), page.locator("body")
    expect(delivered).to_have_attribute("value", "0")
    page.get_by_role("link", name="Abort…").hover()
    page.mouse.down()
    before = int(updates.get_attribute("data-updates") or 0)
    members[0].put(1, members[0].contribution(1, 1.0))
    page.wait_for_function("before => Number(document.body.dataset.updates) > before", arg=before)
    expect(delivered).to_have_attribute("value", "0")
    page.mouse.up()
    expect(page.get_by_role("heading", level=1)).to_have_text("Abort round 1?")
    page.go_back()
    expect(delivered).to_have_attribute("value", "1")


def test_remaining_time_is_updated_and_times_can_be_shown_as_dates_without_a_pointer(page: Page, live_api: Api) -> None:
    task = started(live_api, "counted")
    task.begin(3)
    stamp = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$")
    resize(page, "phone")
    page.goto(page_of(task))
    left = page.locator(".figures .wide time").first
    seen = left.inner_text()
    expect(left).not_to_have_text(seen)
    assert re.fullmatch(r"in (10|[0-9]) min( \d+ s)?", left.inner_text())
    assert stamp.match(left.get_attribute("title") or "")
    page.get_by_role("button", name="Show dates").click()
    expect(left).to_have_text(stamp)
    page.get_by_role("button", name="Show ages").click()
    expect(left).to_have_text(re.compile("^in "))
    page.goto("/dashboard/nowhere")
    assert page.locator("#show-dates").count() == 0  # a page without times


def test_the_keyboard_alone_signs_in_and_aborts_and_a_window_shows_that_it_is_signed_out(
    browser: Browser, server: AggregatorProcess, live_api: Api
) -> None:
    task = started(live_api, "by-keyboard")
    task.begin(3)
    context = browser.new_context(base_url=server.url)
    context.set_default_timeout(MILLISECONDS)
    page = context.new_page()
    page.goto(page_of(task))
    field = page.get_by_label("Operator token")
    expect(field).to_be_focused()
    page.keyboard.type("hro_no-such-token")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Invalid token")
    expect(page.locator(f"#{field.get_attribute('aria-describedby')}")).to_contain_text("Invalid token")
    assert field.input_value() == ""
    field.focus()
    page.keyboard.type(server.operator_token)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{page_of(task)}")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, "Abort…")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("**/abort")
    tab_to(page, "Abort round 1")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{page_of(task)}")
    expect(page.locator("main")).to_contain_text(ABORTED)
    assert task.round(1)["failure"] == ABORTED
    with watched(context) as other:
        other.goto("/dashboard")
        expect(other.locator("#live-state")).to_have_text("Live")
        page.get_by_role("button", name="Sign out").click()
        expect(other.locator("#live-state")).to_contain_text("signed out")
        other.reload()
        expect(other.get_by_role("heading", name="Sign in")).to_be_visible()
    context.close()


def tab_to(page: Page, text: str) -> None:
    """Press Tab until the focused element has this text."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText") == text:
            return
    raise AssertionError(f"the keyboard does not reach {text!r}")


_PALETTE = """() => {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => {
    const probe = document.createElement("i");
    document.body.append(probe);
    probe.style.setProperty("color", style.getPropertyValue(name));
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
  };
  const names = ["paper", "sheet", "ink", "muted", "accent", "on-accent", "good", "warn", "bad", "bad-sheet",
                 "warn-sheet", "rail", "focus"];
  return Object.fromEntries(names.map((name) => [name, value(`--${name}`)]));
}"""

TEXT = [
    *((ink, paper) for ink in ("ink", "muted", "accent", "good", "warn", "bad") for paper in ("paper", "sheet")),
    ("on-accent", "accent"),
    ("paper", "bad"),
    ("ink", "bad-sheet"),
    ("ink", "warn-sheet"),
    ("ink", "rail"),
]
SHAPES = [("accent", "rail"), ("focus", "paper"), ("warn", "rail"), ("muted", "sheet"), ("bad", "paper")]


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2."""
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_states_differ_by_shape_and_word_and_contrast_is_aa_in_both_schemes(page: Page, places: dict[str, str]) -> None:
    page.goto(places["task"])
    badges = page.locator("tbody .state").all()
    shapes = {badge.inner_text().split()[0]: badge.locator("svg").inner_html() for badge in badges}
    assert {"collecting", "complete", "failed"} <= set(shapes)
    assert len({shapes["collecting"], shapes["complete"], shapes["failed"]}) == 3
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        palette: dict[str, str] = page.evaluate(_PALETTE)
        for least, pairs in ((4.5, TEXT), (3.0, SHAPES)):
            for one, other in pairs:
                found = contrast(palette[one], palette[other])
                assert found >= least, f"{one} on {other} in {scheme}: {found:.2f}"
        assert (luminance(palette["paper"]) < 0.2) == (scheme == "dark")


_AUDIT = """() => {
  const all = (query) => [...document.querySelectorAll(query)];
  const named = (one) => one.getAttribute("aria-label") || one.getAttribute("aria-labelledby") || one.labels?.length
    || one.innerText?.trim() || one.querySelector("img[alt]:not([alt=''])");
  const levels = all("h1, h2, h3, h4").map((one) => Number(one.tagName[1]));
  const ids = all("[id]").map((one) => one.id);
  return {
    headings: all("h1").length,
    skipped: levels.filter((level, index) => index && level > levels[index - 1] + 1).length,
    unnamed: all("a, button, input:not([type=hidden]), progress, nav, select, textarea, [role=region]")
      .filter((one) => !named(one)).map((one) => one.outerHTML),
    loose: all("th:not([scope])").length,
    captionless: all("table").filter((one) => !one.caption).length,
    pictures: all("svg:not([aria-hidden=true])").filter((one) => one.getAttribute("role") !== "img"
      || !one.getAttribute("aria-label")).length + all("img:not([alt])").length,
    twice: ids.filter((id, index) => ids.indexOf(id) !== index),
    broken: all("[aria-labelledby], [aria-describedby]").filter((one) => !document.getElementById(
      one.getAttribute("aria-labelledby") || one.getAttribute("aria-describedby"))).length,
    landmarks: ["header", "main", "footer"].filter((name) => all(name).length !== 1),
    small: all("button, a.button, input:not([type=hidden])").filter((one) => one.getBoundingClientRect().height < 24)
      .map((one) => one.outerHTML),
    spilt: all(".cards td, .terms dd").filter((one) => one.scrollWidth > one.clientWidth + 1)
      .map((one) => one.outerHTML),
    language: document.documentElement.lang,
    title: document.title,
  };
}"""


def test_every_page_has_names_and_roles_and_fits_its_window(page: Page, places: dict[str, str]) -> None:
    titles, good = set(), {"headings": 1, "skipped": 0, "loose": 0, "captionless": 0, "pictures": 0, "broken": 0}
    for name, place in {**places, "sign-in": "/dashboard/sign-in"}.items():
        page.goto(place)
        for size, scheme in (("wide", "dark"), ("phone", "light")):
            resize(page, size)
            page.emulate_media(color_scheme=scheme)
            sideways = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert sideways <= 0, f"{name} is wider than its window"
            screenshot(page, f"{name}-{scheme}-{size}")
        found = page.evaluate(_AUDIT)
        titles.add(found.pop("title"))
        assert found.pop("language") == "en"
        assert found == good | dict.fromkeys(("unnamed", "twice", "landmarks", "small", "spilt"), []), name
    assert len(titles) >= 11
    assert all(title.endswith("· HushRec") for title in titles)
