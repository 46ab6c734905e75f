"""The parameters of Paillier sums: two key sizes, no free choice of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from protocols.codec import b64decode, b64encode
from protocols.errors import CodecError, ParameterError
from protocols.parameter_text import first_fault
from protocols.sums.base import refuse_public_mode

__all__ = ["SECURITY_BITS", "PaillierParameters", "checked_parameters", "name_public_key"]

SECURITY_BITS: Final = {2048: 112, 3072: 128}
"""Bits of the modulus -> classical security bits (NIST SP 800-57 part 1, table 2)."""


class PaillierParameters(BaseModel):
    """A task's parameters for Paillier sums; everything else follows from the layout and the cohort."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key_bits: Literal[2048, 3072] = Field(
        default=3072, description="Bits of the modulus n: 3072 for 128 bits of security, 2048 for 112."
    )
    value_bits: int = Field(
        default=32,
        ge=8,
        le=48,
        description="Bits of one value with its sign, before the headroom for the sum. Counts use as many as needed.",
    )
    public_key: str | None = Field(
        default=None,
        description="The modulus n, big-endian base64url, once the key holder has made it; others are then refused.",
    )

    @field_validator("public_key")
    @classmethod
    def _is_base64url(cls, text: str | None) -> str | None:
        try:
            b64decode(text or "")
        except CodecError:
            raise ValueError("a public key must be base64url without padding") from None
        return text

    @model_validator(mode="after")
    def _check_consistency(self) -> PaillierParameters:
        if self.modulus is not None and (self.modulus.bit_length() != self.key_bits or self.modulus % 2 == 0):
            raise ValueError(f"the public key is not an odd number of {self.key_bits} bits")
        return self

    @property
    def modulus(self) -> int | None:
        """n if the task names it, else None; 0 for a key of another length."""
        if self.public_key is None:
            return None
        body = b64decode(self.public_key)
        return int.from_bytes(body, "big") if len(body) == self.key_bits // 8 else 0


def checked_parameters(parameters: Mapping[str, Any]) -> PaillierParameters:
    """Return the validated parameters of a task; `ParameterError` names the first invalid one."""
    refuse_public_mode(parameters)
    try:
        return PaillierParameters.model_validate(dict(parameters))
    except ValidationError as error:
        raise ParameterError(f"paillier parameters: {first_fault(error, PaillierParameters.model_fields)}") from None


def name_public_key(parameters: Mapping[str, Any], public_key: bytes) -> dict[str, Any]:
    """Return `parameters` with n added, from its big-endian bytes.

    Raises `ParameterError` unless the bytes are an odd number of `key_bits` bits at full width, or if the parameters
    name another n already.
    """
    named = {**parameters, "public_key": b64encode(public_key)}
    if checked_parameters(parameters).public_key not in (None, checked_parameters(named).public_key):
        raise ParameterError("the task already names another public key, which cannot be replaced")
    return named
