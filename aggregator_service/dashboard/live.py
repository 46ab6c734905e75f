"""Live updates: a stream of server-sent events that sends again those fragments of a page that have changed.

A stream looks once a second at most, and again at once when its task changes. It ends with the sign-in, with the
operator's token and with the server; how many there are is bounded, by sign-in and altogether.
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

from aggregator_service.dashboard import sign_ins
from aggregator_service.dashboard.access import secret_of
from aggregator_service.dashboard.screens import Screen
from aggregator_service.dashboard.sign_ins import Visitor
from aggregator_service.dashboard.words import shown, steady
from aggregator_service.problems import Problem
from aggregator_service.services import Services
from aggregator_service.storage.database import DATABASE_GONE

__all__ = ["Streams", "live"]

_LOOK_SECONDS: Final = 1.0
_PING_SECONDS: Final = 15.0
_EACH: Final = 6
"""Streams of one sign-in: as many as a browser opens to one server over HTTP/1.1."""
_ALL: Final = 200
_RETRY_MILLISECONDS: Final = 3000


@dataclass(frozen=True, eq=False)
class _Place:
    """One stream's, for as long as the stream holds it."""

    owner: str


class Streams:
    """How many streams are open, by sign-in. A place that nobody holds any more is free, however its stream ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: WeakSet[_Place] = WeakSet()

    def enter(self, visitor: Visitor) -> _Place:
        """A place for one more; 429 too-many-requests when there are too many."""
        with self._lock:
            mine = sum(place.owner == visitor.secret_hash for place in self._places)
            if mine >= _EACH or len(self._places) >= _ALL:
                again = {"Retry-After": "15"}
                raise Problem("too-many-requests", "too many pages are open for live updates", headers=again)
            place = _Place(visitor.secret_hash)
            self._places.add(place)
            return place

    def leave(self, place: _Place) -> None:
        """Give it back."""
        with self._lock:
            self._places.discard(place)


@dataclass
class _Watcher:
    """What one browser has been sent of one screen."""

    request: Request
    services: Services
    screen: Screen
    secret: str
    sent: dict[str, str] = field(default_factory=dict)
    said: str | None = None

    def news(self) -> list[bytes] | None:
        """Events to send now; None when nothing has changed. Called in a thread."""
        visitor = sign_ins.find(self.services, self.secret)
        if visitor is None:
            return [_event("end", {"why": "You are signed out. Sign in again to go on."})]
        now = self.services.clock.now()
        found = self.screen.look(self.services)
        fresh = self.screen.render(self.request, visitor, now, found)
        changed = {name: html for name, html in fresh.items() if self.sent.get(name) != steady(html)}
        events = [_event("part", {"name": name, "html": shown(html)}) for name, html in changed.items()]
        if self.said not in (None, found.said):
            events.append(_event("say", {"text": found.said}))
        self.sent |= {name: steady(html) for name, html in changed.items()}
        self.said = found.said
        return [*events, _event("now", {"now": now})] if events else None


def live(request: Request, services: Services, streams: Streams, visitor: Visitor, screen: Screen) -> Response:
    """The stream of a screen. The first event of each fragment brings the page up to what has happened meanwhile."""
    screen.look(services)  # what is not there is refused before the stream begins
    place = streams.enter(visitor)
    watcher = _Watcher(request, services, screen, secret_of(request) or "")
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventSourceResponse(_stream(watcher, streams, place), headers=headers)


async def _stream(watcher: _Watcher, streams: Streams, place: _Place) -> AsyncIterator[bytes]:
    notifier = watcher.services.notifier
    try:
        yield format_sse_event(retry=_RETRY_MILLISECONDS)
        while not notifier.closed:
            try:
                events = await notifier.poll(
                    watcher.screen.task_id, "round", _PING_SECONDS, watcher.news, _LOOK_SECONDS
                )
            except Problem:
                return  # the task or round is not there any more
            except DATABASE_GONE:
                events = None
            yield b"".join(events) if events else KEEPALIVE_COMMENT
            if events and events[0].startswith(b"event: end"):
                return
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        streams.leave(place)


def _event(name: str, data: dict[str, object]) -> bytes:
    return format_sse_event(event=name, data_str=json.dumps(data))
