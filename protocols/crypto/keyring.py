"""The keyring: the keys that the clients of a task share and the server never has, for all mechanisms."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

from protocols.codec import Reader, pack
from protocols.crypto.domain import digest
from protocols.errors import CodecError, KeyringError

__all__ = ["Keyring", "decode_keyring", "encode_keyring"]

_MAGIC: Final = b"hushrec keyring 3\n"
STATE_KEY_BYTES: Final = 32


@dataclass(frozen=True, repr=False)
class Keyring:
    """The HE keys and the state key of one task.

    mechanism: name of the mechanism of the keys. parameter_id: 32 bytes that identify the HE parameters, such as ring
    degree and modulus. public_key: serialised, b"" if the mechanism has none. secret_key: serialised. state_key: 32
    bytes that seal model snapshots (AES-256-GCM). Raises `KeyringError` for a state key of another length.
    """

    mechanism: str
    parameter_id: bytes
    public_key: bytes
    secret_key: bytes
    state_key: bytes

    def __post_init__(self) -> None:
        if len(self.state_key) != STATE_KEY_BYTES:
            raise KeyringError(f"a state key must have {STATE_KEY_BYTES} bytes, got {len(self.state_key)}")

    def __repr__(self) -> str:
        return f"<Keyring {self.mechanism} {self.fingerprint}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Keyring):
            return NotImplemented
        return hmac.compare_digest(encode_keyring(self), encode_keyring(other))

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def fingerprint(self) -> str:
        """32 hex digits (128 bits) that members can compare.

        A digest of mechanism, parameter id, public key, and the digests of the secret key and the state key.
        """
        secret, state = digest("keyring secret key", self.secret_key), digest("keyring state key", self.state_key)
        parts = (self.mechanism, self.parameter_id, self.public_key, secret, state)
        return digest("keyring fingerprint", *parts).hex()[:32]


def encode_keyring(keyring: Keyring) -> bytes:
    """Return the keyring's canonical bytes, which envelopes and keyring files contain."""
    return _MAGIC + pack(
        keyring.mechanism.encode(),
        keyring.parameter_id,
        keyring.public_key,
        keyring.secret_key,
        keyring.state_key,
    )


def decode_keyring(body: bytes) -> Keyring:
    """Decode the bytes of `encode_keyring`; `CodecError` for anything else, including trailing bytes."""
    if not body.startswith(_MAGIC):
        raise CodecError("not a keyring, or a keyring of an unknown version")
    reader = Reader(memoryview(body)[len(_MAGIC) :])
    name, parameter_id, public_key, secret_key, state_key = (reader.chunk(1 << 24) for _ in range(5))
    reader.finish()
    try:
        mechanism = name.decode("ascii")
    except UnicodeDecodeError as error:
        raise CodecError("the mechanism's name in a keyring must be ASCII") from error
    return Keyring(mechanism, parameter_id, public_key, secret_key, state_key)
