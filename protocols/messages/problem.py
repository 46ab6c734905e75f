"""Problem documents (RFC 9457): one type per kind of fault, shared so that the SDK raises by type, not by text."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["PROBLEM_TYPES", "ProblemDocument", "problem_uri"]

_PREFIX: Final = "urn:hushrec:problem:"

PROBLEM_TYPES: Final[dict[str, tuple[int, str]]] = {
    "bad-request": (400, "The request is malformed"),
    "bad-digest": (400, "The body does not match its digest"),
    "bad-contribution": (400, "The contribution cannot enter the sum"),
    "body-too-short": (400, "The body is shorter than the round's specification"),
    "unauthenticated": (401, "A valid token is needed"),
    "bad-signature": (401, "The request is not signed as it should be"),
    "stale-signature": (401, "The request was not signed just now"),
    "forbidden": (403, "The token does not allow this"),
    "not-in-cohort": (403, "The client is not in this round's cohort"),
    "not-found": (404, "There is no such resource"),
    "method-not-allowed": (405, "The resource does not know this method"),
    "upload-timeout": (408, "The body stopped arriving"),
    "conflict": (409, "The resource is in another state"),
    "contribution-conflict": (409, "Another contribution is already stored"),
    "offset-mismatch": (409, "The chunk does not start where the upload stands"),
    "round-closed": (409, "The round no longer takes contributions"),
    "gone": (410, "The invitation is used up or expired"),
    "length-required": (411, "A Content-Length is needed"),
    "body-too-long": (413, "The body is longer than the round's specification"),
    "unsupported-media-type": (415, "The media type is not supported here"),
    "invalid-parameters": (422, "The parameters cannot work"),
    "too-many-requests": (429, "Too many requests"),
    "internal-error": (500, "The server failed; the fault is its own"),
    "unavailable": (503, "The server cannot take this now"),
}
"""slug -> (HTTP status, title). `docs/problems.md` explains each."""


def problem_uri(slug: str) -> str:
    """The `type` member of a problem document."""
    return _PREFIX + slug


class ProblemDocument(BaseModel):
    """RFC 9457 problem document. `detail` never echoes the request's content."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str = Field(description="urn:hushrec:problem:<slug>")
    title: str
    status: int = Field(ge=100, le=599)
    detail: str = ""
    fault: str = Field(default="client", description="Whose fault it is: client or server.")
    errors: list[dict[str, Any]] | None = Field(default=None, description="Field errors of a malformed JSON body.")

    @property
    def slug(self) -> str:
        """The short name of the type, or the whole type when it is not HushRec's."""
        return self.type.removeprefix(_PREFIX)
