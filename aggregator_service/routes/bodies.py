"""The bodies of requests: JSON is checked before FastAPI parses it, raw bytes are received by their routes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Depends, Request, Response
from fastapi.params import Depends as Dependency
from fastapi.routing import APIRoute
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from aggregator_service.http.fields import content_digest, content_length, digest_in
from aggregator_service.problems import Problem
from aggregator_service.services import Services, ServicesOf
from aggregator_service.settings import Tuning
from aggregator_service.uploads.receive import receive_small_body


class RawBody:
    """The raw bytes that a request sends. A route receives them itself by asking for this dependency."""

    def __init__(self, services: Services, request: Request) -> None:
        self._services, self._request = services, request

    def announced(self, *, exact: int | None = None, most: int | None = None) -> tuple[int, str]:
        """Return the length in bytes and the SHA-256 (hex) that the headers announce.

        exact, most: bytes that the body must have, or may have at most. Raises `Problem`: length-required,
        body-too-long, body-too-short, bad-digest.
        """
        return content_length(self._request, exact=exact, most=most), content_digest(self._request)

    async def receive(self, *, exact: int | None = None, most: int | None = None) -> bytes:
        """Return a body of at most a few hundred KiB with the announced length and digest.

        exact, most: bytes that it must have, or may have at most. Raises `Problem`: length-required, body-too-long,
        body-too-short, bad-digest, upload-timeout.
        """
        length, digest = self.announced(exact=exact, most=most)
        return await receive_small_body(self._services.settings, self._request, length, digest)

    async def store(
        self, write: Callable[[Session, bytes], bool], *, exact: int | None = None, most: int | None = None
    ) -> Response:
        """Receive the body as `receive` does, and give it to `write` in a transaction.

        Returns 201 if `write` stored it, 200 if the same was stored before.
        """
        body = await self.receive(exact=exact, most=most)
        transact = self._services.database.transact
        stored = await run_in_threadpool(lambda: transact(lambda session: write(session, body)))
        return Response(status_code=201 if stored else 200)


async def _raw_body(services: ServicesOf, request: Request) -> RawBody:  # FastAPI would call the class in a thread
    return RawBody(services, request)


RawBodyOf = Annotated[RawBody, Depends(_raw_body)]
"""The raw body of the request, for routes that receive it themselves."""


class CheckedRoute(APIRoute):
    """A route whose JSON body is checked before FastAPI parses it: length, time, digest and media type.

    A route that asks for `RawBody` receives its body itself. Starlette's limit of body sizes is not used: it replaces
    every response to a body that is too long by plain text. takes_json: False where bodies are forms.
    """

    takes_json: ClassVar[bool] = True

    async def longest_body(self, request: Request) -> int:
        """Return the length in bytes of the longest body; called before any of it is read."""
        tuning: Tuning = request.app.state.services.settings.tuning
        return tuning.json_body_limit

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler of the route, after the checks."""
        handle = super().get_route_handler()
        if any(one.call is _raw_body for one in self.dependant.dependencies):
            return handle

        async def checked(request: Request) -> Response:
            if request.headers.get("content-length", "0") != "0":
                await _check_body(request, await self.longest_body(request), takes_json=self.takes_json)
            return await handle(request)

        return checked


def api_router(prefix: str = "", *, tag: str, dependencies: Sequence[Dependency] = ()) -> APIRouter:
    """Return a router of the API. dependencies: of all its routes."""
    return APIRouter(prefix=prefix, tags=[tag], dependencies=dependencies, route_class=CheckedRoute)


async def _check_body(request: Request, longest: int, *, takes_json: bool) -> None:
    """Read the whole body, which the request keeps for FastAPI; raise `Problem` unless it is as it should be."""
    settings = request.app.state.services.settings
    if int(request.headers["content-length"]) > longest:
        what = "JSON body" if takes_json else "form"
        raise Problem("body-too-long", f"the {what} is longer than {longest} bytes")
    try:
        async with asyncio.timeout(settings.tuning.body_idle_seconds):
            body = await request.body()
    except TimeoutError:
        raise Problem("upload-timeout", "the body did not arrive in time") from None
    except ClientDisconnect:
        raise Problem("bad-request", "the connection closed before the end of the body") from None
    announced = request.headers.get("content-digest")
    if announced is not None:
        digest = digest_in(announced, "Content-Digest")
        if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), digest):
            raise Problem("bad-digest", "the SHA-256 of the body does not match the header Content-Digest")
    if takes_json and not _is_json(request.headers.get("content-type", "")):
        text = "the body of this request must be JSON: send Content-Type: application/json"
        raise Problem("unsupported-media-type", text)


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
