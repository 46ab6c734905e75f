"""Frequent requests that call the function of their route at once, past FastAPI's routing and dependencies.

Matching, solving of dependencies and serialisation cost several times what an upload or a download of a client needs.
`DirectRoutes` recognises the plain form of these requests (ids as the server makes them, no query, one bearer token),
authenticates them as the dependency `authenticate` does, and calls the same function with the same arguments.
Exceptions are answered by the handlers of the application. Every other request is passed on.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast, get_args

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_service.http.authentication import principal_with
from aggregator_service.services import Services
from protocols.messages.stages import StageMessage

__all__ = ["DirectRoute", "DirectRoutes", "direct"]

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

    call: answers a request; by default the route's own function, which must return a `Response` and take only
    `services`, `principal`, `request`, `if_none_match`, path parameters, and parameters of the query with defaults;
    `TypeError` if it needs more.
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
        made = endpoint(**arguments) if is_coroutine else run_in_threadpool(partial(endpoint, **arguments))
        return cast(Response, await made)

    return call


class DirectRoutes:
    """ASGI middleware that calls `routes` directly. It belongs inside `BodyGuard`, next to the router."""

    def __init__(self, app: ASGIApp, *, routes: Sequence[DirectRoute], open_routes: Sequence[DirectRoute]) -> None:
        """routes: those that need a bearer token. open_routes: those that need none."""
        self._app = app
        self._routes = _by_method(routes)
        self._open = _by_method(open_routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] != "http" or scope["query_string"]:
            await self._app(scope, receive, send)
            return
        found = self._find(scope)
        if found is None:
            await self._app(scope, receive, send)
            return
        chosen, path = found
        scope["route"], scope["path_params"] = chosen.route, path
        request = Request(scope, receive, send)
        try:
            response = await chosen.call(scope["app"].state.services, request, path)
        except Exception as error:
            handler = _handler(scope["app"].exception_handlers, error)
            if handler is None:
                raise
            response = handler(request, error)
        if response is None:
            await self._app(scope, await _replaying(request, receive), send)
        else:
            await response(scope, receive, send)

    def _find(self, scope: Scope) -> tuple[DirectRoute, dict[str, str]] | None:
        """Return the route of a request and its path parameters; None where the router has to find it."""
        method, path = scope["method"], scope["path"].removeprefix(scope.get("root_path", ""))
        for route in self._open.get(method, ()):
            if (found := route.pattern.fullmatch(path)) is not None:
                return route, found.groupdict()
        for route in self._routes.get(method, ()):
            if (found := route.pattern.fullmatch(path)) is not None:
                token = _only_token(scope)
                if token is None:
                    return None
                scope[_TOKEN] = token
                return route, found.groupdict()
        return None


async def _replaying(request: Request, receive: Receive) -> Receive:
    """Return a `receive` that begins with the whole body of `request`, which was read already."""
    first: list[Message] = [{"type": "http.request", "body": await request.body(), "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed


def _by_method(routes: Sequence[DirectRoute]) -> dict[str, list[DirectRoute]]:
    found: dict[str, list[DirectRoute]] = {}
    for route in routes:
        for method in route.methods:
            found.setdefault(method, []).append(route)
    return found


def _only_token(scope: Scope) -> str | None:
    """Return the bearer token of a request; None if it has none or several, or in another form than ours."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    found = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    return None if found is None else found[1].decode("ascii")


def _handler(handlers: Any, error: Exception) -> Callable[[Request, Exception], Response] | None:
    """Return the application's handler of an exception, found as Starlette does: by the classes of the exception."""
    return next((handlers[kind] for kind in type(error).__mro__ if kind in handlers), None)
