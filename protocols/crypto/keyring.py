"""The keyring: the keys that the clients of a task share and the server never has, for all mechanisms."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, replace
from typing import Final

from protocols.codec import Reader, pack
from protocols.crypto.domain import digest
from protocols.errors import CodecError, KeyringError

__all__ = ["Keyring", "decode_keyring", "encode_keyring"]

_MAGIC: Final = b"hushrec keyring 2\n"
STATE_KEY_BYTES: Final = 32
_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, repr=False)
class Keyring:
    """The HE keys and the state key of one task.

    mechanism: name of the mechanism of the keys. parameter_id: 32 bytes that identify the HE parameters, such as ring
    degree and modulus. public_key: serialised, b"" if the mode has none. secret_key: serialised, b"" for members of a
    task in public mode. state_key: 32 bytes that seal model snapshots (AES-256-GCM); every member has it, the server
    does not. In a task with round keys, the keyring has neither public nor secret key; `for_round` adds those of a
    round. Raises `KeyringError` for a state key of another length.
    """

    mechanism: str
    parameter_id: bytes
    public_key: bytes
    secret_key: bytes
    state_key: bytes
    secret_digest: bytes = b""

    def __post_init__(self) -> None:
        if len(self.state_key) != STATE_KEY_BYTES:
            raise KeyringError(f"a state key must have {STATE_KEY_BYTES} bytes, got {len(self.state_key)}")
        if len(self.secret_digest) not in (0, _DIGEST_BYTES):
            raise KeyringError(f"the digest of a secret key has {_DIGEST_BYTES} bytes")
        if self.secret_key:
            found = digest("keyring secret key", self.secret_key)
            if self.secret_digest not in (b"", found):
                raise KeyringError("the keyring's secret key is not the one that its digest names")
            object.__setattr__(self, "secret_digest", found)

    def __repr__(self) -> str:
        return f"<Keyring {self.mechanism} {self.fingerprint} {'holder' if self.secret_key else 'public'}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Keyring):
            return NotImplemented
        return hmac.compare_digest(encode_keyring(self), encode_keyring(other))

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def fingerprint(self) -> str:
        """32 hex digits (128 bits) that members can compare: equal for the holder's and the members' copies.

        A digest of mechanism, parameter id, public key, and the digests of the secret key and the state key.
        """
        state = digest("keyring state key", self.state_key)
        parts = (self.mechanism, self.parameter_id, self.public_key, self.secret_digest, state)
        return digest("keyring fingerprint", *parts).hex()[:32]

    def without_secret_key(self) -> Keyring:
        """Return the copy for members of a task in public mode, who can contribute but not open sums."""
        return replace(self, secret_key=b"")

    def without_keys(self) -> Keyring:
        """Return the keyring of a task with round keys: it has a state key only."""
        return replace(self, public_key=b"", secret_key=b"", secret_digest=b"")

    def for_round(self, public_key: bytes, secret_key: bytes = b"") -> Keyring:
        """Return the keyring with the keys of one round; secret_key: b"" for members."""
        return replace(self, public_key=public_key, secret_key=secret_key, secret_digest=b"")


def encode_keyring(keyring: Keyring) -> bytes:
    """Return the keyring's canonical bytes, which envelopes and keyring files contain."""
    return _MAGIC + pack(
        keyring.mechanism.encode(),
        keyring.parameter_id,
        keyring.public_key,
        keyring.secret_key,
        keyring.state_key,
        keyring.secret_digest,
    )


def decode_keyring(body: bytes) -> Keyring:
    """Decode the bytes of `encode_keyring`; `CodecError` for anything else, including trailing bytes."""
    if not body.startswith(_MAGIC):
        raise CodecError("not a keyring, or a keyring of an unknown version")
    reader = Reader(memoryview(body)[len(_MAGIC) :])
    name, parameter_id, public_key, secret_key, state_key, secret_digest = (reader.chunk(1 << 24) for _ in range(6))
    reader.finish()
    try:
        mechanism = name.decode("ascii")
    except UnicodeDecodeError as error:
        raise CodecError("the mechanism's name in a keyring must be ASCII") from error
    return Keyring(mechanism, parameter_id, public_key, secret_key, state_key, secret_digest)
