"""Problem documents (RFC 9457): what the API's errors are made of. They never repeat text from the request.

Commands raise and show `Problem`s too, without FastAPI; `problem_handlers` makes responses of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from protocols.messages import ProblemDocument
from protocols.messages.base import PROBLEM_TYPES, problem_uri

PROBLEM_MEDIA_TYPE: Final = "application/problem+json"


class Problem(Exception):
    """An error response of the API.

    slug: problem type, a key of `PROBLEM_TYPES`. detail: what is wrong and what to do, without text from the request.
    headers: additional response headers. extensions: additional members of the document.
    """

    def __init__(
        self, slug: str, detail: str, *, headers: Mapping[str, str] | None = None, **extensions: int | str
    ) -> None:
        super().__init__(slug)
        self.slug = slug
        self.detail = detail
        self.headers = dict(headers or {})
        self.extensions = extensions


def document(
    slug: str, detail: str, errors: Sequence[Mapping[str, Any]] | None = None, **extensions: int | str
) -> ProblemDocument:
    """Return the problem document of the type `slug`; errors: the faults of single fields."""
    status, title = PROBLEM_TYPES[slug]
    return ProblemDocument(
        type=problem_uri(slug),
        title=title,
        status=status,
        detail=detail,
        fault="server" if status >= 500 else "client",
        errors=[dict(error) for error in errors] if errors else None,
        **extensions,
    )


def responses(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """Return the `responses=` argument of a route: its problem types by status, each with an example.

    The types that every route has are added: a request may be refused for its form or its body before routing.
    """
    found: dict[int | str, dict[str, Any]] = {}
    for slug in ("bad-request", "bad-digest", "body-too-long", "unsupported-media-type", "upload-timeout", *slugs):
        status, title = PROBLEM_TYPES[slug]
        entry = found.setdefault(
            status,
            {
                "description": title,
                "content": {
                    PROBLEM_MEDIA_TYPE: {
                        "schema": {"$ref": "#/components/schemas/ProblemDocument"},
                        "examples": {},
                    }
                },
            },
        )
        if title not in entry["description"]:
            entry["description"] += f"; or: {title}"
        example = document(slug, f"{title}.").model_dump(exclude_none=True)
        entry["content"][PROBLEM_MEDIA_TYPE]["examples"][slug] = {"summary": title, "value": example}
    return found
