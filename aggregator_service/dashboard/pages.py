"""Renders templates, and problems as HTML pages with the same status and text as the problem document."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache, partial
from importlib import resources
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from starlette.exceptions import HTTPException

from aggregator_service.dashboard import words
from aggregator_service.dashboard.access import HOME, NotSignedInError, Visitor
from aggregator_service.problems import Problem
from aggregator_service.routes.common import CheckedRoute
from aggregator_service.storage.database import DATABASE_GONE
from protocols.errors import ParameterError
from protocols.messages.base import PROBLEM_TYPES

if TYPE_CHECKING:
    from jinja2 import Environment

_LOG = logging.getLogger(__name__)
_ASSETS: Final = {"dashboard.css": "text/css", "live.js": "text/javascript", "mark.svg": "image/svg+xml"}


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # not before the first page

    made = Environment(
        loader=PackageLoader("aggregator_service.dashboard"),
        autoescape=True,  # in every template: task names are user input
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "anonymous": words.anonymous,
        "bytes": words.byte_count,
        "figure": words.figure,
        "plain": words.plain_name,
        "rounded": lambda value: f"{value:.4g}",
        "span": words.span,
        "volatile": words.volatile,
    }
    made.globals |= {
        "state_text": words.ROUND_STATES,
        "task_text": words.TASK_STATES,
        "asset": lambda name: f"{name}?v={asset(name)[2]}",
    }
    return made


@lru_cache(maxsize=8)
def asset(name: str) -> tuple[bytes, str, str]:
    """Return body, media type and version of a static file. Raises `KeyError` for an unknown name."""
    kind = _ASSETS[name]
    body = resources.files("aggregator_service.dashboard").joinpath("static", name).read_bytes()
    return body, kind, hashlib.sha256(body).hexdigest()[:16]


def home(request: Request) -> str:
    """Return the path of the dashboard as the browser sees it, with the prefix that a proxy strips."""
    return str(request.scope.get("root_path", "")) + HOME


def render(request: Request, template: str, visitor: Visitor | None, **facts: Any) -> str:
    """Render a template with its variables; volatile text in it is still marked (see `words.volatile`)."""
    now = request.app.state.services.clock.now()
    context = {"home": home(request), "now": now, "visitor": visitor, "when": partial(words.when, now=now)}
    return _environment().get_template(f"{template}.html.j2").render(context | facts)


def page(request: Request, template: str, status: int = 200, **facts: Any) -> HTMLResponse:
    """Render a whole page for the visitor who is signed in, if the route asks for one (`access.visitor`)."""
    visitor = getattr(request.state, "visitor", None)
    return HTMLResponse(words.shown(render(request, template, visitor, **facts)), status)


def redirect(request: Request, path: str) -> Response:
    """Return a 303 redirect to a page of the dashboard; `path` is relative to `home`."""
    return RedirectResponse(home(request) + path, 303)


class PageRoute(CheckedRoute):
    """A route that answers errors with pages, and redirects visitors who are not signed in to the sign-in page."""

    takes_json = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler of the route, wrapped in the error handling."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except NotSignedInError:
                return _sign_in_first(request)
            except Problem as problem:
                request.scope["hushrec.problem"] = problem.slug
                return refusal(request, problem.slug, problem.detail, problem.headers)
            except ParameterError as error:
                return refusal(request, "invalid-parameters", str(error))
            except RequestValidationError:
                detail = "A value in the address or the form is missing, unknown or out of range."
                return refusal(request, "invalid-parameters", detail)
            except HTTPException:
                return refusal(request, "bad-request", "The form could not be read.")
            except DATABASE_GONE as error:
                _LOG.error("database unavailable: %s", type(error).__name__)
                return refusal(request, "unavailable", "The database does not answer. Try again in a moment.")

        return handled


def _sign_in_first(request: Request) -> Response:
    if request.url.path.endswith("/live"):
        return PlainTextResponse("signed out", 401)
    target = request.url.path.removeprefix(home(request)) if request.method == "GET" else ""
    return redirect(request, "/sign-in" + (f"?next={quote(target)}" if target.strip("/") else ""))


def refusal(request: Request, slug: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Render the error page of a problem type."""
    status, title = PROBLEM_TYPES[slug]
    made = page(request, "refusal", status, now=0.0, title=title, detail=detail, status_code=status)
    made.headers.update(headers or {})
    return made
