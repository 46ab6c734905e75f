"""What all messages have in common: their base class, fields that several share, and problem documents, the error form.

Messages are frozen and have no unknown fields. Problem documents (RFC 9457) have one type per kind of error; the SDK
chooses its exception by the type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from protocols.codec import b64decode

NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9._-]{0,62}$"


class Message(BaseModel):
    """A JSON body. An unknown field is a validation error, so that a misspelt parameter is never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class SparseMessage(Message):
    """A message that leaves fields out that say nothing: clients that do not know a field refuse it.

    And digests of terms are what they were before there was the field.
    """

    left_out: ClassVar[Mapping[str, Any]]
    """Name -> value that says nothing."""

    @model_serializer(mode="wrap")
    def _without_left_out(self, handler: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        """A return type would replace the schema of the fields."""
        written = handler(self)
        for field, value in self.left_out.items():
            if field in written and written[field] == value:
                del written[field]
        return written


def bytes_of(length: int) -> AfterValidator:
    """Return the check that a text is base64url of so many bytes."""

    def check(text: str) -> str:
        b64decode(text, length)
        return text

    return AfterValidator(check)


Name = Annotated[str, Field(pattern=NAME_PATTERN, description="Lower case letters, digits, '.', '_' and '-'.")]
Key32 = Annotated[str, Field(min_length=43, max_length=43, description="32 bytes, base64url."), bytes_of(32)]
Signature64 = Annotated[str, Field(min_length=86, max_length=86, description="64 bytes, base64url."), bytes_of(64)]
HexDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256, hex.")]
"""The one form of digests in JSON bodies."""


_PREFIX: Final = "urn:hushrec:problem:"

PROBLEM_TYPES: Final[dict[str, tuple[int, str]]] = {
    "bad-request": (400, "The request is malformed"),
    "bad-digest": (400, "The body does not match its digest"),
    "bad-contribution": (400, "The contribution is not valid"),
    "body-too-short": (400, "The body is shorter than the round's specification"),
    "inconsistent-length": (400, "The upload has another length"),
    "unauthenticated": (401, "A valid token is required"),
    "bad-signature": (401, "The request signature is missing or not valid"),
    "stale-signature": (401, "The request signature is not recent"),
    "forbidden": (403, "The token does not allow this"),
    "not-in-cohort": (403, "The client is not in this round's cohort"),
    "not-found": (404, "The resource does not exist"),
    "method-not-allowed": (405, "The resource does not support this method"),
    "upload-timeout": (408, "The upload timed out"),
    "aggregate-mismatch": (409, "The client has absorbed other aggregates than the server released"),
    "conflict": (409, "The state of the resource does not allow this"),
    "contribution-conflict": (409, "Another contribution is already stored"),
    "offset-mismatch": (409, "The chunk does not start at the upload's offset"),
    "round-closed": (409, "The round no longer accepts contributions"),
    "gone": (410, "The invitation is used up or expired"),
    "length-required": (411, "A Content-Length is required"),
    "body-too-long": (413, "The body is longer than the round's specification"),
    "unsupported-media-type": (415, "The media type is not supported here"),
    "invalid-parameters": (422, "The parameters are not valid"),
    "too-many-requests": (429, "Too many requests"),
    "internal-error": (500, "The server failed"),
    "unavailable": (503, "The server cannot handle the request now"),
}
"""Slug -> (HTTP status, title). docs/http-api.md explains the types."""


_REGISTERED: Final = {
    "inconsistent-length": "https://iana.org/assignments/http-problem-types#inconsistent-upload-length",
    "offset-mismatch": "https://iana.org/assignments/http-problem-types#mismatching-upload-offset",
}
"""Types that another document defines (draft-ietf-httpbis-resumable-upload)."""


def problem_uri(slug: str) -> str:
    """Return the `type` member of a problem document: the URI of the type with this slug."""
    return _REGISTERED.get(slug, _PREFIX + slug)


class ProblemDocument(BaseModel):
    """An RFC 9457 problem document. `detail` never repeats content of the request."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str = Field(description="urn:hushrec:problem:<slug>, or the URI of a registered type.")
    title: str
    status: int = Field(ge=100, le=599)
    detail: str = ""
    fault: str = Field(default="client", description="Whose fault it is: client or server.")
    errors: list[dict[str, Any]] | None = Field(default=None, description="Field errors of a malformed JSON body.")

    @property
    def is_hushrec(self) -> bool:
        """Whether the type is one of HushRec's, known to this version or not, or a registered one that it uses."""
        return self.type.startswith(_PREFIX) or self.type in _REGISTERED.values()

    @property
    def slug(self) -> str:
        """The slug of the type, or the whole type if it is not one of HushRec's."""
        return next((slug for slug, uri in _REGISTERED.items() if uri == self.type), self.type.removeprefix(_PREFIX))
