"""The base class of every message (frozen, no unknown fields) and the types of fields that several messages share."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from protocols.codec import b64decode

NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9._-]{0,62}$"


class Message(BaseModel):
    """A JSON body. An unknown field is a validation error, so that a misspelt parameter is never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


def _bytes_of(length: int) -> AfterValidator:
    def check(text: str) -> str:
        b64decode(text, length)
        return text

    return AfterValidator(check)


Name = Annotated[str, Field(pattern=NAME_PATTERN, description="Lower case letters, digits, '.', '_' and '-'.")]
Key32 = Annotated[str, Field(min_length=43, max_length=43, description="32 bytes, base64url."), _bytes_of(32)]
Signature64 = Annotated[str, Field(min_length=86, max_length=86, description="64 bytes, base64url."), _bytes_of(64)]
HexDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256, hex.")]
"""The one form of digests in JSON bodies."""
