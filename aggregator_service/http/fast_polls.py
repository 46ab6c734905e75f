"""Polls of the current round, answered before they are routed where memory alone can answer them.

Clients ask this far more often than anything else: is there a round for me, has it changed? The route
(`routes.rounds.current`) can answer everything. `QuickPolls` stands before everything and gives the same answer, at a
quarter of its cost, to a client that is remembered, for a round that is, when the answer need not wait. In any other
case, a wrong signature among them, it does nothing, and the route decides.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from fastapi.routing import APIRoute
from starlette.types import Scope, Send

from aggregator_service import request_ids
from aggregator_service.access.principals import Enrolled
from aggregator_service.access.request_signatures import check_fresh, check_signature
from aggregator_service.access.tokens import hash_token
from aggregator_service.http.authentication import count_request
from aggregator_service.http.etags import not_modified
from aggregator_service.observability.metrics import Metrics
from aggregator_service.observability.request_record import Seen
from aggregator_service.observability.requests import tell
from aggregator_service.polling.cached_round import CachedRound, ClientRoundStatus
from aggregator_service.problems import Problem
from aggregator_service.services import Services

__all__ = ["QuickPolls", "trusted_status"]

_LOG = logging.getLogger(__name__)
_PATH: Final = re.compile(r"/v1/tasks/(t_[0-9a-f]{20})/rounds/current")
_QUERY: Final = re.compile(rb"(?:wait=([0-9]{1,2}(?:\.[0-9]{1,6})?))?")
_BEARER: Final = b"Bearer "
_ONCE: Final = frozenset((b"authorization", b"if-none-match"))
_BODY: Final = frozenset((b"content-length", b"transfer-encoding"))


def trusted_status(services: Services, cached_round: CachedRound, client: Enrolled) -> ClientRoundStatus | None:
    """How the client stands, or None where only the database can tell.

    With other servers on the same database a delivery may have gone to one of them a moment ago: whether a client is
    still awaited is then worth a question. What the board knows to be delivered, is.
    """
    status = cached_round.status(client.client_id)
    return status if services.alone or not status.is_awaited else None


@dataclass(frozen=True)
class _Poll:
    """A poll that memory can answer: unchanged, or with the round."""

    task_id: str
    client: Enrolled
    token_hash: str
    etag: bytes
    body: bytes | None


class QuickPolls:
    """Stands before everything else. route: that of the polls, for the figures and logs of what is answered here;
    headers: those that every answer has."""

    def __init__(self, metrics: Metrics, route: APIRoute, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._metrics, self._route, self._headers = metrics, route.path_format, tuple(headers)

    async def answered(self, services: Services, scope: Scope, send: Send) -> bool:
        """Answer a GET request, if that is possible here."""
        started = perf_counter()
        try:
            poll = _poll(services, scope)
            if poll is None or not _is_good(services, scope, poll):
                return False
        except Exception:  # whatever it is: nothing is answered yet
            _LOG.exception("a poll is left to its route")
            return False
        request_id = request_ids.choose(_first(scope, request_ids.HEADER))
        headers = [(b"etag", poll.etag), *self._headers, (request_ids.HEADER, request_id.encode())]
        status, body = (304, b"") if poll.body is None else (200, poll.body)
        if body:
            headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self._tell(poll, status, perf_counter() - started, scope, request_id)
        return True

    def _tell(self, poll: _Poll, status: int, seconds: float, scope: Scope, request_id: str) -> None:
        seen = Seen("GET", self._route, status, 0, len(poll.body or b""), seconds, bool(scope["query_string"]))
        seen.task = poll.task_id
        token = request_ids.current.set(request_id)
        tell(self._metrics, seen)
        request_ids.current.reset(token)


def _poll(services: Services, scope: Scope) -> _Poll | None:
    path, query = _PATH.fullmatch(_own_path(scope)), _QUERY.fullmatch(scope["query_string"])
    headers = _headers(scope) if path is not None and query is not None else None
    if path is None or query is None or headers is None:
        return None
    token_hash = hash_token(headers[b"authorization"].removeprefix(_BEARER).decode("latin-1"))
    client, cached_round = services.task_cache.client(token_hash), services.task_cache.cached_round(path[1])
    if client is None or client.task_id != path[1] or cached_round is None or not cached_round.has_round:
        return None
    status = trusted_status(services, cached_round, client)
    if status is None:
        return None
    etag, known = cached_round.etag(status), headers.get(b"if-none-match")
    if known is None or not not_modified(known.decode("latin-1"), etag):
        body = cached_round.view(status, services.clock.now()).model_dump_json().encode()
        return _Poll(path[1], client, token_hash, etag.encode(), body)
    if query[1] is not None and float(query[1]) > 0:
        return None  # the client would rather wait
    return _Poll(path[1], client, token_hash, etag.encode(), None)


def _own_path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _first(scope: Scope, wanted: bytes) -> bytes | None:
    return next((value for name, value in scope["headers"] if name == wanted), None)


def _headers(scope: Scope) -> dict[bytes, bytes] | None:
    """The headers that matter here; None when there is anything that is not plain about them."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _ONCE:
            if name in found:
                return None
            found[name] = value
        elif name in _BODY:
            return None
    return found if found.get(b"authorization", b"").startswith(_BEARER) else None


def _is_good(services: Services, scope: Scope, poll: _Poll) -> bool:
    """Whether the request is the client's own, fresh and within its rate; it is counted then, and only then."""
    try:
        if services.settings.signatures != "off":
            signed = check_signature(scope, poll.client.client_id, poll.client.identity_key)
            check_fresh(signed, services.clock.now(), services.settings.signature_window)
        count_request(services, poll.client, poll.token_hash)
    except Problem:
        return False
    return True
