"""Answers polls of the current round from memory, before routing.

Clients send `GET /v1/tasks/{task}/rounds/current` far more often than any other request. The route
(`routes.rounds.current`) can answer all of them. `poll_finder` finds the same answer at about a quarter of the cost, if
the client and the round are cached and the answer need not wait.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from fastapi.routing import APIRoute
from starlette.types import Scope

from aggregator_service.access.principals import Enrolled
from aggregator_service.access.tokens import hash_token
from aggregator_service.http.authentication import REFUSAL, verify_request
from aggregator_service.http.etags import not_modified
from aggregator_service.http.fast_responses import FastResponse, Finder
from aggregator_service.http.json_bytes import json_headers
from aggregator_service.http.queries import LONGEST_WAIT
from aggregator_service.polling.cached_round import CachedRound, ClientRoundStatus
from aggregator_service.problems import Problem
from aggregator_service.services import Services

__all__ = ["BEARER", "plain_headers", "poll_finder", "reliable_status"]

_LOG = logging.getLogger(__name__)
_PATH: Final = re.compile(r"/v1/tasks/(t_[0-9a-f]{20})/rounds/current")
_QUERY: Final = re.compile(rb"(?:wait=([0-9]{1,2}(?:\.[0-9]{1,6})?))?")
BEARER: Final = b"Bearer "
_USED_HEADERS: Final = frozenset((b"authorization", b"if-none-match"))
_BODY_HEADERS: Final = frozenset((b"content-length", b"transfer-encoding"))


def reliable_status(services: Services, cached_round: CachedRound, client: Enrolled) -> ClientRoundStatus | None:
    """Return the client's status in the cached round, or None where the database must be asked.

    Another server on the same database may just have stored what the round still expects from this client here. So an
    awaited client's status is reliable only if this process is the only server. A delivery in the cache is final.
    """
    status = cached_round.status(client.client_id)
    return status if services.alone or not status.is_awaited else None


def poll_finder(route: APIRoute) -> Finder:
    """Return the finder of responses to polls. route: the polls' route, for the record of the request."""

    def find(scope: Scope) -> FastResponse | None:
        path = _PATH.fullmatch(scope["path"].removeprefix(scope.get("root_path", "")))
        answer = None if path is None else _answer(scope["app"].state.services, scope, path[1])
        if path is None or answer is None:
            return None
        etag, body = answer
        return FastResponse(route, {"task": path[1]}, ((b"etag", etag.encode()), *json_headers(body)), body)

    return find


def _answer(services: Services, scope: Scope, task_id: str) -> tuple[str, bytes] | None:
    """Return the ETag and the body of the answer (b"" for 304), or None if the route has to answer."""
    try:
        return _cached_answer(services, scope, task_id)
    except Problem as refusal:
        scope[REFUSAL] = refusal
    except Exception:  # no response has been started, so the route can still answer
        _LOG.exception("cannot answer a poll from the cache; its route answers it")
    return None


def _cached_answer(services: Services, scope: Scope, task_id: str) -> tuple[str, bytes] | None:
    query, headers = _QUERY.fullmatch(scope["query_string"]), plain_headers(scope)
    if query is None or headers is None or (query[1] is not None and float(query[1]) > LONGEST_WAIT):
        return None
    token_hash = hash_token(headers[b"authorization"].removeprefix(BEARER).decode("latin-1"))
    client, cached_round = services.task_cache.client(token_hash), services.task_cache.cached_round(task_id)
    if client is None or client.task_id != task_id or cached_round is None or not cached_round.has_round:
        return None
    status = reliable_status(services, cached_round, client)
    if status is None:
        return None
    etag, known = cached_round.etag(status), headers.get(b"if-none-match")
    unchanged = known is not None and not_modified(known.decode("latin-1"), etag)
    if unchanged and query[1] is not None and float(query[1]) > 0:
        return None  # the client asks to wait for a change
    verify_request(services, scope, client, token_hash)
    if unchanged:
        return etag, b""
    return etag, cached_round.view(status, services.clock.now()).model_dump_json().encode()


def plain_headers(scope: Scope) -> dict[bytes, bytes] | None:
    """Return the headers used here, or None if one comes twice, there is no bearer token, or a body is announced."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _USED_HEADERS:
            if name in found:
                return None
            found[name] = value
        elif name in _BODY_HEADERS:
            return None
    return found if found.get(b"authorization", b"").startswith(BEARER) else None
