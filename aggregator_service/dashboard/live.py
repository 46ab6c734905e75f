"""The pages with live fragments, and their updates: server-sent events with the fragments that have changed.

A `Screen` loads the facts of a page, for the whole page and for each update. A stream checks for changes once a second
at most, and at once when its task changes. It ends when the sign-in ends, the operator's token becomes invalid or the
server stops. The number of streams is limited per sign-in and in total.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal
from weakref import WeakSet

from fastapi import Query, Request
from fastapi.responses import Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from sqlalchemy.orm import Session

from aggregator_service.dashboard.access import Visitor, find_visitor, secret_of
from aggregator_service.dashboard.facts import health_facts, overview, task_facts
from aggregator_service.dashboard.pages import page, render
from aggregator_service.dashboard.tallies import Tally, tallies
from aggregator_service.dashboard.words import (
    all_parameters,
    figures,
    progress_of,
    security_level,
    security_terms,
    shown,
    steady,
)
from aggregator_service.problems import Problem
from aggregator_service.routes.common import RoundNumber, TaskId
from aggregator_service.services import Services
from aggregator_service.storage.database import DATABASE_GONE
from aggregator_service.storage.round_rows import find_round
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.task_views import ended_early

PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]
Search = Annotated[str, Query(max_length=63)]
TaskStateName = Literal["", "open", "complete", "closed", "failed"]
Before = Annotated[int | None, Query(ge=1, le=2**31 - 1)]


@dataclass(frozen=True)
class ScreenContent:
    """The content of a screen: template variables, and a sentence that screen readers announce when it changes."""

    facts: dict[str, Any]
    announcement: str


@dataclass(frozen=True)
class Screen:
    """A page: its template, the names of its live fragments, and a function that loads its content."""

    template: str
    fragments: tuple[str, ...]
    load: Callable[[Services], ScreenContent]
    task_id: str = ""
    """A change of this task triggers an update at once; other changes are found by polling."""

    def response(self, request: Request, services: Services, visitor: Visitor) -> Response:
        """Render the whole page."""
        facts = self.load(services).facts
        parts = {name: shown(html) for name, html in self.rendered(request, visitor, facts).items()}
        return page(request, self.template, parts=parts, **facts)

    def rendered(self, request: Request, visitor: Visitor, facts: dict[str, Any]) -> dict[str, str]:
        """Render the live fragments; the result maps fragment name to HTML."""
        return {name: render(request, f"fragments/{name}", visitor, **facts) for name in self.fragments}


def tasks_screen(page: PageNumber = 1, search: Search = "", state: TaskStateName = "") -> Screen:
    """Return a page of the overview of all tasks, or of those that match."""

    def load(services: Services) -> ScreenContent:
        with services.database.read() as session:
            found = overview(session, page, search.strip(), state)
        return ScreenContent(
            {"overview": found, "unsigned": services.settings.signatures == "off"},
            f"{found.states.get('open', 0)} tasks are open.",
        )

    return Screen("tasks", ("task_list",), load)


def task_screen(task: TaskId, before: Before = None) -> Screen:
    """Return the page of a task: rounds, metrics, members, parameters. before: only rounds numbered below it."""

    def load(services: Services) -> ScreenContent:
        with services.database.read() as session:
            row, now, signatures = task_of(session, task), services.clock.now(), services.settings.signatures
            facts = task_facts(session, row, now, before, signatures)
        view, ended = facts.view, ended_early(row)
        said = [ended] if facts.privacy is None else [ended, *facts.privacy.against]
        newest = f" Round {facts.strip[-1].number} is {facts.strip[-1].state}." if facts.strip else ""
        shown = {
            "facts": facts,
            "level": security_level(view),
            "security": security_terms(view),
            "parameters": all_parameters(view),
            "ended": ended,
            "warnings": [text for text in view.warnings if text not in said],  # no other part of the page says them
            "figures": figures(facts.quality),
            "progress": progress_of(facts.quality, noisy=row.privacy is not None),
        }
        return ScreenContent(shown, f"The task is {row.state}.{newest}")

    return Screen("task", ("task_status", "quality", "privacy", "rounds"), load, task)


def round_screen(task: TaskId, number: RoundNumber) -> Screen:
    """Return the page of a round: states, funnel, bytes and times."""

    def load(services: Services) -> ScreenContent:
        with services.database.read() as session:
            row = task_of(session, task)
            tally = tally_of(session, task, number)
            later = find_round(session, task, number + 1) is not None
        return ScreenContent({"task": row, "tally": tally, "later": later}, f"Round {number} is {tally.round.state}.")

    return Screen("round", ("round_status", "round_facts"), load, task)


def health_screen() -> Screen:
    """Return the page on the health of the server's components."""

    def load(services: Services) -> ScreenContent:
        facts = health_facts(services)
        failed = any(check.level == "bad" for check in facts.checks)
        return ScreenContent({"facts": facts}, "A component has failed." if failed else "All components work.")

    return Screen("health", ("health",), load)


def task_of(session: Session, task_id: str) -> TaskRow:
    """Return the task. Raises `Problem` not-found."""
    task = session.get(TaskRow, task_id)
    if task is None:
        raise Problem("not-found", "There is no task with this id: it may be on another server.")
    return task


def tally_of(session: Session, task_id: str, number: int) -> Tally:
    """Return the round with its counts. Raises `Problem` not-found."""
    row = find_round(session, task_id, number)
    if row is None:
        raise Problem("not-found", "The task has no round with this number yet.")
    return tallies(session, [row])[0]


_CHECK_SECONDS: Final = 1.0
_PING_SECONDS: Final = 15.0
_MAX_PER_SIGN_IN: Final = 6
"""Maximum number of streams of one sign-in: browsers open six connections to a server over HTTP/1.1."""
_MAX_STREAMS: Final = 200
_RETRY_MILLISECONDS: Final = 3000


@dataclass(frozen=True, eq=False)
class _Slot:
    """The slot of one open stream."""

    owner: str


class Streams:
    """Counts open streams per sign-in. A slot that is no longer referenced is free, even if it was not released."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: WeakSet[_Slot] = WeakSet()

    def acquire(self, visitor: Visitor) -> _Slot:
        """Return a slot for one more stream. Raises `Problem` too-many-requests if there are too many."""
        with self._lock:
            mine = sum(slot.owner == visitor.secret_hash for slot in self._slots)
            if mine >= _MAX_PER_SIGN_IN or len(self._slots) >= _MAX_STREAMS:
                text = "too many pages with live updates are open; close some"
                raise Problem("too-many-requests", text, headers={"Retry-After": "15"})
            slot = _Slot(visitor.secret_hash)
            self._slots.add(slot)
            return slot

    def release(self, slot: _Slot) -> None:
        """Release a slot that `acquire` returned. Releasing it twice has no effect."""
        with self._lock:
            self._slots.discard(slot)


@dataclass
class _StreamState:
    """The state of one stream: which version of each fragment the browser has."""

    request: Request
    services: Services
    screen: Screen
    secret: str
    sent: dict[str, str] = field(default_factory=dict)
    announced: str | None = None

    def changed_events(self) -> list[bytes] | None:
        """Return the events to send now, or None if nothing has changed. Blocks: call it in a thread."""
        visitor = find_visitor(self.services, self.secret)
        if visitor is None:
            return [_event("end", {"why": "You are signed out. Sign in again to continue."})]
        found = self.screen.load(self.services)
        fresh = self.screen.rendered(self.request, visitor, found.facts)
        changed = {name: html for name, html in fresh.items() if self.sent.get(name) != steady(html)}
        events = [_event("part", {"name": name, "html": shown(html)}) for name, html in changed.items()]
        if self.announced not in (None, found.announcement):
            events.append(_event("say", {"text": found.announcement}))
        self.sent |= {name: steady(html) for name, html in changed.items()}
        self.announced = found.announcement
        return [*events, _event("now", {"now": self.services.clock.now()})] if events else None


def live(request: Request, services: Services, streams: Streams, visitor: Visitor, screen: Screen) -> Response:
    """Return the event stream of a screen.

    It first sends every fragment, so that the page shows changes made while it loaded. Raises `Problem` not-found or
    too-many-requests.
    """
    screen.load(services)  # raises 404 before the response begins
    slot = streams.acquire(visitor)
    state = _StreamState(request, services, screen, secret_of(request) or "")
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventSourceResponse(_stream(state, streams, slot), headers=headers)


async def _stream(state: _StreamState, streams: Streams, slot: _Slot) -> AsyncIterator[bytes]:
    notifier = state.services.notifier
    try:
        yield format_sse_event(retry=_RETRY_MILLISECONDS)
        while not notifier.closed:
            try:
                events = await notifier.poll(
                    *(state.screen.task_id, "round", _PING_SECONDS, state.changed_events, _CHECK_SECONDS),
                    asked_by=None,
                    scope=state.request.scope,
                )
            except Problem:
                return  # the task or round no longer exists
            except DATABASE_GONE:
                events = None
            yield b"".join(events) if events else KEEPALIVE_COMMENT
            if events and events[0].startswith(b"event: end"):
                return
            await asyncio.sleep(_CHECK_SECONDS)
    finally:
        streams.release(slot)


def _event(name: str, data: dict[str, object]) -> bytes:
    return format_sse_event(event=name, data_str=json.dumps(data))
