"""Polls of the current round, answered before they are routed where memory alone can answer them.

Clients ask this far more often than anything else: is there a round for me, has it changed? The route
(`routes.rounds.current`) can answer everything. `QuickPolls` stands before it and gives the same answer, at a third of
its cost, to a client that is remembered, for a round that is, when the answer need not wait. In any other case, a wrong
signature among them, it does nothing, and the route decides.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from fastapi import Request
from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from aggregator_service.auth import Enrolled, count_request
from aggregator_service.problems import Problem
from aggregator_service.rounds.board import Board, Standing
from aggregator_service.routes.common import not_modified
from aggregator_service.services import Services
from aggregator_service.signatures import check_fresh, check_signature
from aggregator_service.tokens import hash_token
from protocols.messages import RoundView

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

__all__ = ["QuickPolls", "round_response", "trusted_standing"]

_PATH: Final = re.compile(r"/v1/tasks/(t_[0-9a-f]{20})/rounds/current")
_QUERY: Final = re.compile(rb"(?:wait=([0-9]{1,2}(?:\.[0-9]{1,6})?))?")
_BEARER: Final = b"Bearer "
_ONCE: Final = frozenset((b"authorization", b"if-none-match"))
_BODY: Final = frozenset((b"content-length", b"transfer-encoding"))


def trusted_standing(services: Services, board: Board, client: Enrolled) -> Standing | None:
    """How the client stands, or None where only the database can tell.

    With other servers on the same database a delivery may have gone to one of them a moment ago: whether a client is
    still awaited is then worth a question. What the board knows to be delivered, is.
    """
    standing = board.standing(client.client_id)
    return standing if services.alone or not standing.is_awaited else None


def round_response(view: RoundView, etag: str) -> Response:
    """A round as JSON."""
    return Response(view.model_dump_json(), media_type="application/json", headers={"ETag": etag})


class QuickPolls:
    """ASGI middleware. route: that of the polls, for the figures and logs of what is answered here."""

    def __init__(self, app: ASGIApp, *, route: BaseRoute) -> None:
        self._app, self._route = app, route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass the request on."""
        answer = self._answer(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        await (answer or self._app)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response | None:
        path, query = _PATH.fullmatch(_own_path(scope)), _QUERY.fullmatch(scope["query_string"])
        headers = _headers(scope)
        if path is None or query is None or headers is None:
            return None
        services: Services = scope["app"].state.services
        token_hash = hash_token(headers[b"authorization"].removeprefix(_BEARER).decode("latin-1"))
        client, board = services.memory.client(token_hash), services.memory.board(path[1])
        if client is None or client.task_id != path[1] or board is None or not board.has_round:
            return None
        standing = trusted_standing(services, board, client)
        if standing is None:
            return None
        etag, known = board.etag(standing), headers.get(b"if-none-match")
        same = known is not None and not_modified(known.decode("latin-1"), etag)
        if same and query[1] is not None and float(query[1]) > 0:
            return None  # the client would rather wait
        if not _is_good(services, scope, client, token_hash):
            return None
        scope["route"], scope["path_params"] = self._route, {"task": path[1]}
        if same:
            return Response(status_code=304, headers={"ETag": etag})
        return round_response(board.view(standing, services.clock.now()), etag)


def _own_path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


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


def _is_good(services: Services, scope: Any, client: Enrolled, token_hash: str) -> bool:
    """Whether the request is the client's own, fresh and within its rate; it is counted then, and only then."""
    try:
        if services.settings.signatures != "off":
            signed = check_signature(Request(scope), client.client_id, client.identity_key)
            check_fresh(signed, services.clock.now(), services.settings.signature_window)
        count_request(services, client, token_hash)
    except Problem:
        return False
    return True
