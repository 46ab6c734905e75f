"""Sealing: one message from one party to another, closed to whoever breaks X25519 alone or ML-KEM-768 alone.

*Keys.* A sealing key is the key pair of X-Wing (draft-connolly-cfrg-xwing-kem, section 5.2): 32 secret bytes are
expanded by SHAKE256 to the seed of an ML-KEM-768 key (FIPS 203) and an X25519 key (RFC 7748); the public key is both
public keys. Where 32 bytes must stand for it (certificates, rosters), its name does: a digest.

*Agreement.* The sender encapsulates to the ML-KEM key, and agrees with its own X25519 key, ephemeral or signed, on a
secret with the other. Both secrets, one after the other, are the input of one HKDF (draft-ietf-tls-hybrid-design,
section 3.3); its info has a digest of the sender's key, the receiver's name and the ciphertext, so that the key is a
secret as long as one of the two is (Giacon, Heuer and Poettering, PKC 2018). X-Wing leaves the ciphertext out, which
needs a property of ML-KEM that this does not. X25519 alone shows who the sender is: that is decided while the round is
on, not later.

Each message has a key of its own, and is encrypted with AES-256-GCM under the zero nonce.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protocols.codec import exact
from protocols.crypto.keys import KEY_BYTES, SEED_BYTES, derive_key, digest, domain_tag
from protocols.errors import CodecError, ParameterError

_KEM_KEY: Final = 1184
SEALING_KEY_BYTES: Final = _KEM_KEY + KEY_BYTES
"""Of a public sealing key: ML-KEM-768, then X25519."""
ENCAPSULATED_BYTES: Final = 1088
"""Of a ciphertext of ML-KEM-768."""
SEALED_OVERHEAD: Final = ENCAPSULATED_BYTES + 16
"""Bytes by which a sealed message is longer: the ciphertext of ML-KEM-768 before it, the tag of AES-GCM after it."""
_NONCE: Final = bytes(12)
_FIXED: Final = X25519PrivateKey.from_private_bytes(digest("masked key check"))
"""A public constant: any private key serves to detect points of low order."""


@dataclass(frozen=True, repr=False, eq=False)
class SealingKey:
    """The secret key that messages are sealed to."""

    seed: bytes
    """32 secret bytes, from which both key pairs follow."""
    _kem: MLKEM768PrivateKey = field(init=False)
    agreement: X25519PrivateKey = field(init=False)
    """Its X25519 key, with which its owner can seal messages of its own, too."""

    def __post_init__(self) -> None:
        if len(self.seed) != SEED_BYTES:
            raise ParameterError(f"the seed of a sealing key has {SEED_BYTES} bytes, got {len(self.seed)}")
        expanded = hashlib.shake_256(self.seed).digest(96)
        try:
            kem = MLKEM768PrivateKey.from_seed_bytes(expanded[:64])
        except UnsupportedAlgorithm as error:
            raise ParameterError(
                "the package cryptography of this Python was built with a library that lacks ML-KEM-768: install its "
                "wheel, pip install --force-reinstall --only-binary cryptography 'cryptography>=48.0.0'"
            ) from error
        object.__setattr__(self, "_kem", kem)
        object.__setattr__(self, "agreement", X25519PrivateKey.from_private_bytes(expanded[64:]))

    @classmethod
    def generate(cls) -> SealingKey:
        """Return a new key from the operating system's random generator."""
        return cls(os.urandom(SEED_BYTES))

    @cached_property
    def public(self) -> bytes:
        """The public key, `SEALING_KEY_BYTES` bytes."""
        return self._kem.public_key().public_bytes_raw() + self.agreement.public_key().public_bytes_raw()

    @cached_property
    def name(self) -> bytes:
        """The digest (32 bytes) of the public key."""
        return key_name(self.public)

    def open(self, sender: bytes, sealed: bytes, purpose: str, *context: str | int | bytes) -> bytes:
        """Inverse of `seal`; sender: the sender's X25519 public key, 32 bytes.

        Raises `CodecError` for anything that this sender did not seal to this key for this purpose and context.
        """
        encapsulated, body = sealed[:ENCAPSULATED_BYTES], sealed[ENCAPSULATED_BYTES:]
        try:
            secrets = self._kem.decapsulate(encapsulated) + _agree(self.agreement, sender)
            transcript = _transcript(sender, self.name, encapsulated)
            key = derive_key(secrets, purpose, transcript, *context)
            return AESGCM(key).decrypt(_NONCE, body, domain_tag(purpose, transcript, *context))
        except (InvalidTag, ValueError) as error:
            raise CodecError("a sealed message does not open with this key") from error


def seal(sender: X25519PrivateKey, receiver: bytes, plain: bytes, purpose: str, *context: str | int | bytes) -> bytes:
    """Return `plain` sealed to the public sealing key `receiver`, `SEALED_OVERHEAD` bytes longer.

    Purpose and context are authenticated with it. Raises `CodecError` for a receiver's key that nothing can be sealed
    to: of another length, not reduced, or of low order.
    """
    kem, agreement = _split(receiver)
    secret, encapsulated = encapsulate(kem)
    transcript = _transcript(sender.public_key().public_bytes_raw(), key_name(receiver), encapsulated)
    key = derive_key(secret + _agree(sender, agreement), purpose, transcript, *context)
    return encapsulated + AESGCM(key).encrypt(_NONCE, plain, domain_tag(purpose, transcript, *context))


def _transcript(sender: bytes, receiver: bytes, encapsulated: bytes) -> bytes:
    return digest("sealed message", sender, receiver, encapsulated)


def encapsulate(key: MLKEM768PublicKey) -> tuple[bytes, bytes]:
    """Return a new shared secret (32 bytes) and its ciphertext: `Encaps` of FIPS 203, with the library's randomness."""
    return key.encapsulate()


def key_name(public: bytes) -> bytes:
    """Return the digest (32 bytes) that stands for a public sealing key where there is no room for it."""
    return digest("sealing key", public)


def agreement_key(public: bytes) -> bytes:
    """Return the X25519 public key (32 bytes) in a public sealing key."""
    return public[_KEM_KEY:]


def check_sealing_key(public: bytes) -> None:
    """Raise `CodecError` for a public sealing key that nothing can be sealed to."""
    check_agreement_key(_split(public)[1])


def check_agreement_key(public: bytes) -> None:
    """Raise `CodecError` for an X25519 public key (32 bytes) of low order."""
    _agree(_FIXED, public)


def _split(public: bytes) -> tuple[MLKEM768PublicKey, bytes]:
    view = bytes(exact(public, SEALING_KEY_BYTES, "a sealing key"))
    try:
        return MLKEM768PublicKey.from_public_bytes(view[:_KEM_KEY]), view[_KEM_KEY:]
    except ValueError as error:
        raise CodecError("a sealing key has no ML-KEM-768 key: a coefficient is not reduced") from error


def _agree(secret: X25519PrivateKey, peer: bytes) -> bytes:
    """Return the X25519 shared secret (32 bytes); `CodecError` if the peer's public key has low order."""
    try:
        return secret.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError as error:
        raise CodecError("an X25519 public key has low order: it is not usable for key agreement") from error
