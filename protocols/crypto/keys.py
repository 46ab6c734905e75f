"""Keys: what is derived, signed or sealed for one purpose, keys that come from the wire, and the keyring of a task.

*Domain separation* of keys, seeds and digests by purpose. No other module calls a KDF. Signatures are Ed25519 (RFC
8032); messages between two parties are sealed by `protocols.crypto.sealing`. The keyring holds the keys that the
clients of a task share and the server never has, for all mechanisms.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from protocols.codec import Reader, pack
from protocols.errors import CodecError, KeyringError, ParameterError

SEED_BYTES: Final = 32
KEY_BYTES: Final = 32
"""Of Ed25519, X25519 and AES-256 keys."""
DIGEST_BYTES: Final = 32
"""Of SHA-256."""
SIGNATURE_BYTES: Final = 64
"""Of Ed25519."""
_PREFIX: Final = b"hushrec/1"


def domain_tag(purpose: str, *context: str | int | bytes) -> bytes:
    """Return the tag of `purpose` in `context` (task, round, pair): different inputs have different tags.

    Raises `ParameterError` for an empty purpose.
    """
    if not purpose:
        raise ParameterError("a domain tag needs a purpose")
    return _PREFIX + pack(purpose.encode(), *[_part(part) for part in context])


def _part(part: str | int | bytes) -> bytes:
    if isinstance(part, bytes):
        return b"b" + part
    if isinstance(part, int):
        return b"i" + str(part).encode()
    return b"s" + part.encode()


def derive_key(secret: bytes, purpose: str, *context: str | int | bytes, length: int = 32) -> bytes:
    """Return a key of `length` bytes derived from `secret` by HKDF-SHA256 (RFC 5869), bound to purpose and context."""
    return HKDF(hashes.SHA256(), length, salt=None, info=domain_tag(purpose, *context)).derive(secret)


def derive_seed(seed: bytes, purpose: str, *context: str | int | bytes) -> bytes:
    """Return 32 bytes derived from a PUBLIC seed, bound to purpose and context: for broadcasts, not for secrets."""
    return digest(purpose, seed, *context)


def digest(purpose: str, *parts: str | int | bytes) -> bytes:
    """Return the SHA-256 digest (32 bytes) of an injective encoding of purpose and parts."""
    return hashlib.sha256(domain_tag(purpose, *parts)).digest()


def person_of(identity_key: bytes) -> bytes:
    """Return the digest (32 bytes) that stands for an identity key: in a server's guards, and in receipts."""
    return digest("person", identity_key)


def repeatable_place(task_seed: bytes, identity_key: bytes) -> int:
    """Return a client's place, 0 <= place < 2^62, which follows from its Ed25519 `identity_key` (32 bytes).

    Cohorts are drawn in the order of the places. Anyone can compute them, so a client could try keys until it likes its
    place: for experiments only.
    """
    return int.from_bytes(digest("round-robin place", task_seed, identity_key)[:8], "big") >> 2


_KEPT: Final = 8192
"""Parsed keys, of about 500 bytes each: a client sends several requests in a row; parsing takes a tenth of a check."""


def verifies(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether the signature (64 bytes) of `message` is valid; False also for a malformed key of 32 bytes."""
    try:
        _parsed(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=_KEPT)
def _parsed(public_key: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public_key)


_MAGIC: Final = b"hushrec keyring 3\n"
STATE_KEY_BYTES: Final = 32


@dataclass(frozen=True, repr=False)
class Keyring:
    """The HE keys and the state key of one task.

    Raises `KeyringError` for a state key of another length.
    """

    mechanism: str
    """Name of the mechanism of the keys."""
    parameter_id: bytes
    """32 bytes that identify the HE parameters, such as ring degree and modulus."""
    public_key: bytes
    """Serialised, b"" if the mechanism has none."""
    secret_key: bytes
    """Serialised."""
    state_key: bytes
    """32 bytes that seal model snapshots (AES-256-GCM)."""

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
