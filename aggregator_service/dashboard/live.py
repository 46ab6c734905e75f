"""Live updates: a stream of server-sent events with the fragments of a page that have changed.

A stream checks for changes once a second at most, and at once when its task changes. It ends when the sign-in ends, the
operator's token becomes invalid or the server stops. The number of streams is limited per sign-in and in total.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakSet

from fastapi import Request
from fastapi.responses import Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event

from aggregator_service.dashboard.access import Visitor, find_visitor, secret_of
from aggregator_service.dashboard.screens import Screen
from aggregator_service.dashboard.words import shown, steady
from aggregator_service.problems import Problem
from aggregator_service.services import Services
from aggregator_service.storage.database import DATABASE_GONE

__all__ = ["Streams", "live"]

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
        """Return a slot for one more stream. Raises: `Problem` too-many-requests if there are too many."""
        with self._lock:
            mine = sum(slot.owner == visitor.secret_hash for slot in self._slots)
            if mine >= _MAX_PER_SIGN_IN or len(self._slots) >= _MAX_STREAMS:
                again = {"Retry-After": "15"}
                raise Problem(
                    "too-many-requests", "too many pages with live updates are open; close some", headers=again
                )
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
        now = self.services.clock.now()
        found = self.screen.load(self.services)
        fresh = self.screen.render(self.request, visitor, now, found)
        changed = {name: html for name, html in fresh.items() if self.sent.get(name) != steady(html)}
        events = [_event("part", {"name": name, "html": shown(html)}) for name, html in changed.items()]
        if self.announced not in (None, found.announcement):
            events.append(_event("say", {"text": found.announcement}))
        self.sent |= {name: steady(html) for name, html in changed.items()}
        self.announced = found.announcement
        return [*events, _event("now", {"now": now})] if events else None


def live(request: Request, services: Services, streams: Streams, visitor: Visitor, screen: Screen) -> Response:
    """Return the event stream of a screen.

    It first sends every fragment, so that the page shows changes made while it loaded. Raises: `Problem` not-found or
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
                    state.screen.task_id, "round", _PING_SECONDS, state.changed_events, _CHECK_SECONDS
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
