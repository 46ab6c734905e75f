"""An attacker that recorded everything and broke X25519 or ML-KEM-768 later: it knows those secrets of everybody."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protocols.crypto.keys import derive_key, digest, domain_tag
from protocols.crypto.sealing import ENCAPSULATED_BYTES, SealingKey
from protocols.errors import CodecError

X25519, ML_KEM = "X25519", "ML-KEM-768"


@dataclass(frozen=True)
class SealingBreaker:
    """Stands in for a `SealingKey` of which the attacker knows some of the secrets; it puts zeros for the others."""

    key: SealingKey
    knows: tuple[str, ...] = (X25519, ML_KEM)

    @property
    def name(self) -> bytes:
        return self.key.name

    def agreed(self, sender: bytes) -> bytes:
        """The X25519 secret with a sender's public key."""
        expanded = hashlib.shake_256(self.key.seed).digest(96)
        return X25519PrivateKey.from_private_bytes(expanded[64:]).exchange(X25519PublicKey.from_public_bytes(sender))

    def decapsulated(self, body: bytes) -> bytes:
        """The secret of a ciphertext of ML-KEM-768."""
        return MLKEM768PrivateKey.from_seed_bytes(hashlib.shake_256(self.key.seed).digest(64)).decapsulate(body)

    def open(self, sender: bytes, sealed: bytes, purpose: str, *context: str | int | bytes) -> bytes:
        """What `SealingKey.open` does, with what is known."""
        encapsulated, body = sealed[:ENCAPSULATED_BYTES], sealed[ENCAPSULATED_BYTES:]
        lattice = self.decapsulated(encapsulated) if ML_KEM in self.knows else bytes(32)
        classical = self.agreed(sender) if X25519 in self.knows else bytes(32)
        transcript = digest("sealed message", sender, self.name, encapsulated)
        key = derive_key(lattice + classical, purpose, transcript, *context)
        try:
            return AESGCM(key).decrypt(bytes(12), body, domain_tag(purpose, transcript, *context))
        except InvalidTag as error:
            raise CodecError("does not open") from error
