"""Frequent requests that call the function of their route at once, past FastAPI's routing and dependencies.

Matching, solving of dependencies and serialisation cost several times what an upload or a download of a client needs.
`DirectRouter` recognises the plain form of these requests (ids as the server makes them, no query, one bearer token).
`DirectCall` authenticates them as the dependency `authenticate` does, and calls the same function with the same
arguments; exceptions are answered by the handlers of the application. Every other request is passed on.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, get_args

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_service.http.authentication import principal_with
from aggregator_service.http.json_bytes import JsonBytes
from aggregator_service.services import Services
from protocols.messages.stages import StageMessage

__all__ = ["DirectCall", "DirectRoute", "DirectRouter", "DirectRoutes", "direct"]

_PARTS: Final = {
    "task": r"t_[0-9a-f]{20}",
    "client": r"c_[0-9a-f]{20}",
    "number": r"[1-9][0-9]{0,8}",
    "stage": "|".join(get_args(StageMessage)),
}
"""Pattern of each path parameter: what the route's own check accepts, too."""
_PLACES: Final = re.compile(r"\{(\w+)\}")
_BEARER: Final = re.compile(rb"Bearer ([A-Za-z0-9_-]{1,100})")
_TOKEN: Final = "hushrec.token"  # noqa: S105 - the name of a key
"""Scope key: the one bearer token of a request that is called directly."""

Call = Callable[[Services, Request, dict[str, str]], Awaitable[Response | None]]
"""Answers a request with its path parameters; None passes it on to the router, with the body that it has read."""


@dataclass(frozen=True)
class DirectRoute:
    """A route that is called directly. pattern: its paths. call: answers a request with its path parameters."""

    route: APIRoute
    pattern: re.Pattern[str]
    call: Call

    @property
    def methods(self) -> set[str]:
        """The methods of the route."""
        return self.route.methods or set()


def direct(route: APIRoute, call: Call | None = None) -> DirectRoute:
    """Return the direct route of `route`.

    call: answers a request; by default the route's own function, which must return a `Response` or a model, and take
    only `services`, `principal`, `request`, `if_none_match`, path parameters, and parameters of the query with
    defaults; `TypeError` if it needs more.
    """
    pattern = _PLACES.sub(lambda found: f"(?P<{found[1]}>{_PARTS[found[1]]})", route.path_format)
    return DirectRoute(route, re.compile(pattern), call or _caller(route))


def _caller(route: APIRoute) -> Call:
    endpoint = route.endpoint
    parameters = inspect.signature(endpoint).parameters
    given = parameters.keys() & {"services", "principal", "request", "if_none_match"}
    needed = {name for name, one in parameters.items() if one.default is inspect.Parameter.empty}
    if missing := needed - given - set(_PLACES.findall(route.path_format)):
        raise TypeError(f"{endpoint.__name__} cannot be called directly: it also needs {', '.join(sorted(missing))}")
    is_coroutine = inspect.iscoroutinefunction(endpoint)

    async def call(services: Services, request: Request, path: dict[str, str]) -> Response | None:
        arguments: dict[str, Any] = dict(path)
        if "number" in path:
            arguments["number"] = int(path["number"])
        if "services" in given:
            arguments["services"] = services
        if "principal" in given:
            arguments["principal"] = await principal_with(services, request.scope, request.scope[_TOKEN])
        if "request" in given:
            arguments["request"] = request
        if "if_none_match" in given:
            arguments["if_none_match"] = request.headers.get("if-none-match")
        made: Any = await (endpoint(**arguments) if is_coroutine else run_in_threadpool(partial(endpoint, **arguments)))
        if isinstance(made, BaseModel):
            return JsonBytes(made.model_dump_json().encode())
        response: Response = made
        return response

    return call


@dataclass(frozen=True)
class DirectCall:
    """A request of a direct route, and its path parameters."""

    route: DirectRoute
    path: dict[str, str]

    async def response(self, request: Request) -> Response | None:
        """Return the response of the route, or of the handler of its exception; None if the router has to answer.

        Raises exceptions that have no handler.
        """
        scope = request.scope
        scope["route"], scope["path_params"] = self.route.route, self.path
        try:
            return await self.route.call(scope["app"].state.services, request, self.path)
        except Exception as error:
            handler = _handler(scope["app"].exception_handlers, error)
            if handler is None:
                raise
            return handler(request, error)


class DirectRouter:
    """Finds the direct route of a request.

    routes: those that need a bearer token. open_routes: those that need none.
    """

    def __init__(self, routes: Sequence[DirectRoute], open_routes: Sequence[DirectRoute]) -> None:
        self._routes: dict[str, list[tuple[DirectRoute, bool]]] = {}
        for route, is_open in (*((one, True) for one in open_routes), *((one, False) for one in routes)):
            for method in route.methods:
                self._routes.setdefault(method, []).append((route, is_open))

    def find(self, scope: Scope) -> DirectCall | None:
        """Return the call that answers a request; None where the router has to answer."""
        if scope["query_string"]:
            return None
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        for route, is_open in self._routes.get(scope["method"], ()):
            found = route.pattern.fullmatch(path)
            if found is None:
                continue
            if not is_open:
                token = _only_token(scope)
                if token is None:
                    return None
                scope[_TOKEN] = token
            return DirectCall(route, found.groupdict())
        return None


class DirectRoutes:
    """ASGI middleware that calls the routes of `router` directly. It belongs inside `BodyGuard`, next to the router."""

    def __init__(self, app: ASGIApp, *, router: DirectRouter) -> None:
        self._app, self._router = app, router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        found = self._router.find(scope) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        response = await found.response(request)
        if response is None:
            await self._app(scope, await _replaying(request, receive), send)
        else:
            await response(scope, receive, send)


async def _replaying(request: Request, receive: Receive) -> Receive:
    """Return a `receive` that begins with the whole body of `request`, which was read already."""
    first: list[Message] = [{"type": "http.request", "body": await request.body(), "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed


def _only_token(scope: Scope) -> str | None:
    """Return the bearer token of a request; None if it has none or several, or in another form than ours."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    found = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    return None if found is None else found[1].decode("ascii")


def _handler(handlers: Any, error: Exception) -> Callable[[Request, Exception], Response] | None:
    """Return the application's handler of an exception, found as Starlette does: by the classes of the exception."""
    return next((handlers[kind] for kind in type(error).__mro__ if kind in handlers), None)
