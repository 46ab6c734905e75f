"""The identity of a client, and its membership of a task.

An identity is an Ed25519 key that signs, and a mailbox: a sealing key that keyring envelopes are sealed to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import PlainSerializer, PlainValidator

from client_sdk.errors import LocalFileError
from client_sdk.store import Record, read_keys, write_keys
from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import CERTIFICATE_BYTES
from protocols.crypto.envelope import enrolment_message
from protocols.crypto.keys import digest
from protocols.crypto.sealing import SealingKey
from protocols.errors import ParameterError
from protocols.messages import EnrolmentRequest, OrganiserPin, Role

_FILE: Final = ("the identity file", "hushrec identity 2")
_MISSING: Final = (
    "Identity.load_or_create creates it, as hushrec join does with a new identity (--identity names the file)."
)
"""What errors call the file, and its format."""


@dataclass(frozen=True, repr=False, eq=False)
class Identity:
    """Two private keys. The repr shows the `fingerprint` only."""

    signing_key: Ed25519PrivateKey
    mailbox: SealingKey

    def __repr__(self) -> str:
        return f"<Identity {self.fingerprint}>"

    @classmethod
    def generate(cls) -> Self:
        """Return new keys from the operating system's random generator."""
        return cls(Ed25519PrivateKey.generate(), SealingKey.generate())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an identity file; `LocalFileError` when it is missing, damaged or accessible to group or others."""
        signing, mailbox = read_keys(Path(path), *_FILE, "identity_key", "mailbox_key", missing=_MISSING)
        return cls(Ed25519PrivateKey.from_private_bytes(signing), SealingKey(mailbox))

    @classmethod
    def load_or_create(cls, path: str | Path) -> Self:
        """Read an identity file, or create one if `path` does not exist. Raises `LocalFileError` as `load` does."""
        if Path(path).exists():
            return cls.load(path)
        identity = cls.generate()
        identity.save(path)
        return identity

    def save(self, path: str | Path) -> None:
        """Write the keys to `path` atomically with mode 0600; `LocalFileError` when it exists or cannot be written."""
        path = Path(path)
        if path.exists():
            raise LocalFileError(f"{path} exists; an identity is never overwritten", remedy="")
        keys = {"identity_key": self.signing_key.private_bytes_raw(), "mailbox_key": self.mailbox.seed}
        write_keys(path, *_FILE, keys)

    @cached_property
    def public_key(self) -> bytes:
        """Ed25519 public key, 32 bytes."""
        return self.signing_key.public_key().public_bytes_raw()

    @property
    def mailbox_key(self) -> bytes:
        """The name of the mailbox's public sealing key, 32 bytes."""
        return self.mailbox.name

    @cached_property
    def fingerprint(self) -> str:
        """First 16 hex digits of a digest of both public keys."""
        return digest("identity fingerprint", self.public_key, self.mailbox_key).hex()[:16]

    def enrolment(
        self, invitation: str, certificate: bytes | None, device_group: int | None = None, renewal: int = 0
    ) -> EnrolmentRequest:
        """Return the signed request to enrol with `invitation`.

        certificate: the organiser's, 81 bytes, in tasks with an organiser. device_group: the group of clients to join,
        where the task has several. renewal: greater than in any earlier enrolment, to replace the token; 0 at first.
        """
        message = enrolment_message(invitation, self.public_key, self.mailbox_key, device_group, certificate, renewal)
        return EnrolmentRequest(
            invitation=invitation,
            identity_key=b64encode(self.public_key),
            sealing_key=b64encode(self.mailbox.public),
            signature=b64encode(self.signing_key.sign(message)),
            certificate=None if certificate is None else b64encode(certificate),
            group=device_group,
            renewal=renewal,
        )


_Certificate = Annotated[
    bytes, PlainValidator(partial(b64decode, length=CERTIFICATE_BYTES)), PlainSerializer(b64encode)
]


@dataclass(frozen=True, repr=False)
class Membership(Record):
    """One client's membership of one task. Its repr omits the token."""

    url: str
    task_id: str
    task_name: str
    client_id: str
    role: Role
    token: str
    certificate: _Certificate | None = None
    organiser: OrganiserPin | None = None
    device_group: int = 0
    """The recipe's group of clients that it is in; 0 for recipes with one group."""

    def __repr__(self) -> str:
        return f"<Membership {self.client_id} of {self.task_name} ({self.task_id})>"


def membership_of(stored: Sequence[Membership], task: str | None) -> Membership | None:
    """Return the membership in the task with that name or id, None if there is none. task: None for the only one.

    Raises `ParameterError` when several tasks have that name.
    """
    found = [membership for membership in stored if task in (None, membership.task_name, membership.task_id)]
    if len(found) > 1:
        choices = ", ".join(f"{membership.task_name} is {membership.task_id}" for membership in found)
        raise ParameterError(f"several tasks match; pass the id of one, to a command with --task: {choices}")
    return found[0] if found else None
