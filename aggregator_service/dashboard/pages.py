"""Templates become pages, and refusals become pages that say the same as the problem document would."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache, partial
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.exceptions import HTTPException

from aggregator_service.dashboard import words
from aggregator_service.dashboard.access import HOME, NotSignedInError
from aggregator_service.dashboard.sign_ins import Visitor
from aggregator_service.problems import Problem
from aggregator_service.storage.database import DATABASE_GONE
from protocols.messages.problem import PROBLEM_TYPES

__all__ = ["PageRoute", "asset", "fragment", "home", "page", "redirect"]

_LOG = logging.getLogger(__name__)
_ASSETS: Final = {"dashboard.css": "text/css", "live.js": "text/javascript", "mark.svg": "image/svg+xml"}


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("aggregator_service.dashboard"),
        autoescape=True,  # every template: names of tasks are what somebody typed
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "absolute": words.absolute,
        "bytes": words.byte_count,
        "figure": words.figure,
        "plain": words.plain_name,
        "rounded": lambda value: f"{value:.4g}",
        "span": words.span,
        "volatile": words.volatile,
    }
    made.globals |= {"state_text": words.ROUND_STATES, "task_state": words.task_state, "asset": _asset_name}
    return made


@lru_cache(maxsize=8)
def asset(name: str) -> tuple[bytes, str, str]:
    """A file of the pages: body, media type, version. `KeyError` when there is none of this name."""
    kind = _ASSETS[name]
    body = resources.files("aggregator_service.dashboard").joinpath("static", name).read_bytes()
    return body, kind, hashlib.sha256(body).hexdigest()[:16]


def _asset_name(name: str) -> str:
    return f"{name}?v={asset(name)[2]}"


def home(request: Request) -> str:
    """Where the dashboard is for this browser."""
    return str(request.scope.get("root_path", "")) + HOME


def _context(request: Request, now: float, visitor: Visitor | None) -> dict[str, Any]:
    return {"home": home(request), "now": now, "visitor": visitor, "when": partial(words.when, now=now)}


def fragment(request: Request, name: str, now: float, visitor: Visitor, facts: Mapping[str, Any]) -> str:
    """A part of a page as it is now, what is volatile in it still marked."""
    template = _environment().get_template(f"fragments/{name}.html.j2")
    return template.render({**_context(request, now, visitor), **facts})


def page(
    request: Request,
    template: str,
    now: float,
    visitor: Visitor | None = None,
    status: int = 200,
    **facts: Any,
) -> HTMLResponse:
    """A whole page."""
    made = _environment().get_template(f"{template}.html.j2").render({**_context(request, now, visitor), **facts})
    return HTMLResponse(words.shown(made), status)


def redirect(request: Request, path: str) -> Response:
    """See another page of the dashboard."""
    return RedirectResponse(home(request) + path, 303)


class PageRoute(APIRoute):
    """A route whose refusals are pages: who is not signed in is asked to, and comes back afterwards."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Any]]:  # type: ignore[override]
        """Wrap what FastAPI makes of the route."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Any:
            try:
                return await handle(request)
            except NotSignedInError:
                return _sign_in_first(request)
            except Problem as problem:
                request.scope["hushrec.problem"] = problem.slug
                return refusal(request, problem.slug, problem.detail, problem.headers)
            except RequestValidationError:
                detail = "The address or the form holds a value that is missing, unknown or out of range."
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
    asked = request.url.path.removeprefix(home(request)) if request.method == "GET" else ""
    return redirect(request, "/sign-in" + (f"?next={quote(asked)}" if asked.strip("/") else ""))


def refusal(request: Request, slug: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """A page that says why not."""
    status, title = PROBLEM_TYPES[slug]
    visitor = getattr(request.state, "visitor", None)
    said = {"title": title, "detail": detail, "status_code": status}
    made = page(request, "refusal", 0.0, visitor, status, **said)
    made.headers.update(headers or {})
    return made


def markup(html: str) -> Markup:
    """A rendered fragment, for the page around it."""
    return Markup(html)  # noqa: S704 - rendered with escaping just now
