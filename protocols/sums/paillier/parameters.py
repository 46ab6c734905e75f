"""What a task says about its Paillier sum: two key sizes, no free-form ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from protocols.codec import b64decode, b64encode
from protocols.errors import CodecError, ParameterError
from protocols.parameter_text.first_fault import first_fault

__all__ = ["SECURITY_BITS", "PaillierParameters", "checked_parameters", "name_public_key"]

SECURITY_BITS: Final = {2048: 112, 3072: 128}
"""Classical security of factoring a modulus of so many bits (NIST SP 800-57 part 1, table 2)."""


class PaillierParameters(BaseModel):
    """Parameters of a Paillier sum; everything else follows from the layout and the cohort."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key_bits: Literal[2048, 3072] = Field(
        default=3072, description="Bits of the modulus n: 3072 for 128 bits of security, 2048 for 112."
    )
    mode: Literal["shared", "public"] = Field(
        default="shared",
        description="shared: all clients hold the secret key. public: clients encrypt under a key holder's public key.",
    )
    value_bits: int = Field(
        default=32,
        ge=8,
        le=48,
        description="Bits of one value with its sign, before the headroom for the sum. Counts take what they need.",
    )
    randomiser: Literal["short", "strict"] = Field(
        default="short",
        description="short: who has the public key alone blinds with short exponents of one base "
        "(Damgard, Jurik and Nielsen 2010). strict: with r^n for a fresh uniform r, always.",
    )
    public_key: str | None = Field(
        default=None,
        description="The modulus n, big-endian base64url, once the key holder has made it: other ones are refused.",
    )

    @field_validator("public_key")
    @classmethod
    def _is_base64url(cls, text: str | None) -> str | None:
        try:
            b64decode(text or "")
        except CodecError:
            raise ValueError("a public key is base64url without padding") from None
        return text

    @model_validator(mode="after")
    def _fit_together(self) -> PaillierParameters:
        if self.modulus is not None and (self.modulus.bit_length() != self.key_bits or self.modulus % 2 == 0):
            raise ValueError(f"the public key is not an odd number of {self.key_bits} bits")
        return self

    @property
    def modulus(self) -> int | None:
        """n where the task names it."""
        if self.public_key is None:
            return None
        body = b64decode(self.public_key)
        return int.from_bytes(body, "big") if len(body) == self.key_bits // 8 else 0


def checked_parameters(parameters: Mapping[str, Any]) -> PaillierParameters:
    """`parameters` of a task; `ParameterError` says what is wrong with them."""
    try:
        return PaillierParameters.model_validate(dict(parameters))
    except ValidationError as error:
        raise ParameterError(f"paillier parameters: {first_fault(error, PaillierParameters.model_fields)}") from None


def name_public_key(parameters: Mapping[str, Any], public_key: bytes) -> dict[str, Any]:
    """`parameters` with n in them, from its big-endian bytes.

    `ParameterError` for bytes that are not an odd number of `key_bits` bits at full width, or when they name another n.
    """
    named = {**parameters, "public_key": b64encode(public_key)}
    if checked_parameters(parameters).public_key not in (None, checked_parameters(named).public_key):
        raise ParameterError("the task names another public key already, and keeps it")
    return named
