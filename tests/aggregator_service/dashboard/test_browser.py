"""The dashboard in a real Chromium: actions by mouse and by keyboard, updates without a reload."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, Page, expect

from aggregator_service.rounds.interventions import ABORTED
from tests.support.api import Api, TestTask
from tests.support.browser import MILLISECONDS, artifacts, visiting
from tests.support.dashboard import page_of
from tests.support.server import AggregatorProcess


def started(live_api: Api, name: str) -> TestTask:
    return live_api.create_task(name, cohort=3, rounds=5)


# --- live -------------------------------------------------------------------------------------------------------------


def test_a_round_page_updates_without_a_reload(browser: Browser, server: AggregatorProcess, live_api: Api) -> None:
    task = started(live_api, "before-eyes")
    members = task.enrol(3)
    task.wait_round(1, "collecting")
    with visiting(browser, server) as page:
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
        page.screenshot(path=artifacts() / "live-one-delivered.png", full_page=True)
        for member in members[1:]:
            member.put(1, member.contribution(1, 1.0))
        expect(page.locator("main .sub .state")).to_have_text("complete")
        expect(page.get_by_role("status")).to_have_text("Round 1 is complete.")
        expect(page.get_by_role("link", name="Round 2 →")).to_be_visible()
        expect(page.locator("main")).to_be_focused()  # the focused link was removed
        assert page.evaluate("window.notReloaded") is True
        page.screenshot(path=artifacts() / "live-complete.png", full_page=True)


def test_the_page_updates_remaining_time(browser: Browser, server: AggregatorProcess, live_api: Api) -> None:
    task = started(live_api, "counted")
    task.enrol(3)
    task.wait_round(1, "collecting")
    with visiting(browser, server) as page:
        page.goto(page_of(task))
        left = page.locator(".figures .wide time").first
        seen = left.inner_text()
        expect(left).not_to_have_text(seen)
        assert re.fullmatch(r"in (10|[0-9]) min( \d+ s)?", left.inner_text())
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", left.get_attribute("title") or "")


def test_pages_work_without_a_script(browser: Browser, server: AggregatorProcess, live_api: Api) -> None:
    task = started(live_api, "scriptless")
    members = task.enrol(3)
    task.wait_round(1, "collecting")
    with visiting(browser, server, script=False) as page:
        page.goto(page_of(task))
        members[0].put(1, members[0].contribution(1, 1.0))
        page.reload()
        expect(page.locator("main")).to_contain_text("of 3 clients")
        expect(page.get_by_label("Delivered in this state")).to_have_attribute("value", "1")
        page.get_by_role("link", name="Abort…").click()
        page.get_by_role("button", name="Abort round 1").click()
        expect(page.locator("main")).to_contain_text(ABORTED)
    assert task.round(1)["failure"] == ABORTED


def test_a_window_shows_that_it_is_signed_out(browser: Browser, server: AggregatorProcess) -> None:
    with visiting(browser, server) as page:
        other = page.context.new_page()
        other.goto("/dashboard")
        page.bring_to_front()
        expect(page.locator("#live-state")).to_have_text("Live")
        other.get_by_role("button", name="Sign out").click()
        expect(page.locator("#live-state")).to_contain_text("signed out")
        page.reload()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


# --- actions ----------------------------------------------------------------------------------------------------------


def test_extend_and_abort_after_confirmation(browser: Browser, server: AggregatorProcess, live_api: Api) -> None:
    task = started(live_api, "clicked")
    task.enrol(3)
    before = task.wait_round(1, "collecting")["seconds_left"]
    with visiting(browser, server) as page:
        page.goto("/dashboard")
        page.get_by_role("link", name="clicked").click()
        page.get_by_role("link", name="Round 1").click()
        page.get_by_role("link", name="Extend…").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Extend round 1?")
        page.get_by_role("link", name="Cancel").click()
        assert task.round(1)["seconds_left"] <= before
        page.get_by_role("link", name="Extend…").click()
        page.get_by_label("Minutes to add").fill("30")
        page.get_by_role("button", name="Extend the deadline").click()
        expect(page.locator("main")).to_contain_text("in 39 min")
        assert task.round(1)["seconds_left"] > before + 1700
        page.get_by_role("link", name="Abort…").click()
        expect(page.locator("main")).to_contain_text("Nothing is released, now or later.")
        page.get_by_role("link", name="Cancel").click()
        assert task.round(1)["state"] == "collecting"
        page.get_by_role("link", name="Abort…").click()
        page.get_by_role("button", name="Abort round 1").click()
        expect(page.locator("main .sub .state")).to_have_text("failed")
        expect(page.locator("main")).to_contain_text(f"The round failed: {ABORTED}.")
    assert task.round(1)["failure"] == ABORTED
    task.wait_round(2, "collecting")


def test_the_keyboard_alone_signs_in_and_aborts(browser: Browser, server: AggregatorProcess, live_api: Api) -> None:
    task = started(live_api, "by-keyboard")
    task.enrol(3)
    task.wait_round(1, "collecting")
    context = browser.new_context(base_url=server.url)
    context.set_default_timeout(MILLISECONDS)
    page = context.new_page()
    page.goto(page_of(task))
    expect(page.get_by_label("Operator token")).to_be_focused()
    page.keyboard.type(server.operator_token)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{page_of(task)}")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, "Abort…")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("**/abort")
    tab_to(page, "Abort round 1")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{page_of(task)}")
    expect(page.locator("main")).to_contain_text(ABORTED)
    assert task.round(1)["failure"] == ABORTED
    context.close()


def tab_to(page: Page, text: str) -> None:
    """Press Tab until the focused element has this text."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText") == text:
            return
    raise AssertionError(f"the keyboard does not reach {text!r}")


def test_a_wrong_token_shows_an_error_at_the_field(browser: Browser, server: AggregatorProcess) -> None:
    context = browser.new_context(base_url=server.url)
    page = context.new_page()
    page.goto("/dashboard")
    page.get_by_label("Operator token").fill("hro_no-such-token")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Invalid token")
    field = page.get_by_label("Operator token")
    assert field.input_value() == ""
    described = field.get_attribute("aria-describedby")
    assert described is not None
    expect(page.locator(f"#{described}")).to_contain_text("Invalid token")
    context.close()
