"""Messages about people: invitations and members, operators' tokens, organisers' certificates."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from protocols.codec import b64decode
from protocols.crypto.certificates import CERTIFICATE_BYTES, LONGEST_SCOPE, CertifiedRole
from protocols.crypto.sealing import SEALING_KEY_BYTES, key_name
from protocols.messages.audit import AuditEntry
from protocols.messages.base import Key32, Message, Name, Signature64, bytes_of

Role = Literal["member", "holder", "committee"]
SealingKeyText = Annotated[
    str,
    Field(min_length=1622, max_length=1622, description="ML-KEM-768, then X25519: 1,216 bytes, base64url."),
    bytes_of(SEALING_KEY_BYTES),
]
"""A public sealing key as text (`protocols.crypto.sealing`)."""


class InvitationRequest(Message):
    """An operator's request for an invitation.

    A task has at most one key holder. `committee` is for tasks with one-shot sums; such a client does not contribute.
    """

    role: Role = "member"
    uses: int = Field(default=1, ge=1, le=1_000_000, description="Number of clients that may enrol with it.")
    expires_seconds: float = Field(
        default=86_400.0, gt=0, le=31_536_000, description="Seconds that the invitation is valid."
    )


class Invitation(Message):
    """A new invitation. It is shown once: the server stores only its hash."""

    task_id: str
    invitation_id: str = Field(description="Identifies the invitation in lists and for revocation; not a secret.")
    invitation: str = Field(description="The secret invitation; send it to the clients over a trusted channel.")
    role: Role
    uses: int = Field(description="Number of clients that may enrol with it.")
    expires_seconds: float = Field(description="Seconds that the invitation is valid.")


class InvitationView(Message):
    """What operators see of an invitation; the invitation itself is not included."""

    invitation_id: str
    role: Role
    state: Literal["open", "used up", "expired", "revoked"]
    uses: int = Field(ge=1, description="Number of clients that may enrol with it.")
    used: int = Field(ge=0, description="Number of clients that have enrolled with it.")
    age_seconds: float = Field(ge=0, description="Seconds since the invitation was made.")
    expires_seconds: float = Field(
        ge=0, description="Seconds until the invitation expires; 0 if it is no longer valid."
    )


class InvitationPage(Message):
    """Invitations in order of creation. While `next` is not null, request the next page with `after` set to it."""

    invitations: list[InvitationView]
    next: str | None = None


class EnrolmentRequest(Message):
    """A client's public keys, a signature that proves possession, and its membership certificate."""

    invitation: str = Field(
        min_length=1,
        max_length=200,
        description="The invitation as the operator gave it; or the id of a "
        "task that follows one of which this identity is a member.",
    )
    identity_key: Key32 = Field(description="Ed25519 public key.")
    sealing_key: SealingKeyText = Field(description="Public key of the mailbox, which keyring envelopes are sealed to.")
    signature: Signature64 = Field(
        description="Ed25519 signature under the identity key over a domain tag of `renewal` if it is not 0, the "
        "invitation, the identity key, the mailbox key, and `group` and `certificate` if they are given."
    )
    certificate: CertificateText | None = Field(
        default=None,
        description="Membership certificate of the task's organiser over both keys, where the task has one.",
    )
    group: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Device group of the client, from 0. It cannot be changed later. Required if the recipe has "
        "several device groups.",
    )
    renewal: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="0 for the first enrolment. To replace the token of an enrolled client, a number greater than in "
        "all its enrolments before; the signature covers it. A problem `conflict` tells the last one in `renewal`.",
    )

    @cached_property
    def keys(self) -> tuple[bytes, bytes]:
        """The identity key and the mailbox key, which is the name of the sealing key: 32 bytes each."""
        return b64decode(self.identity_key, 32), key_name(b64decode(self.sealing_key, SEALING_KEY_BYTES))

    @cached_property
    def certificate_bytes(self) -> bytes | None:
        """The membership certificate, encoded; None if the request has none."""
        return None if self.certificate is None else b64decode(self.certificate)


class Enrolment(Message):
    """The answer to an enrolment: the client id and its token.

    Enrolling again with the same keys and a higher `renewal` gives the same client id and a new token.
    """

    task_id: str
    client_id: str
    token: str = Field(description="Bearer token of this client. It is shown once: the server stores only its hash.")
    role: Role
    group: int = Field(default=0, ge=0, description="Device group of the client; 0 if the recipe has only one.")


class Member(Message):
    """A member as the key holder sees it. Its certificate tells it from a client that the server made up."""

    client_id: str
    role: Role
    identity_key: Key32
    mailbox_key: Key32 = Field(description="Name of the sealing key, which the certificate covers.")
    sealing_key: SealingKeyText | None = Field(
        description="Public key of the mailbox; null if it enrolled without one."
    )
    certificate: CertificateText | None
    keyed: bool = Field(description="Whether the mailbox holds a keyring envelope for this member.")
    revoked: bool = Field(default=False, description="Whether an operator revoked this membership.")
    group: int = Field(default=0, ge=0, description="Device group of the member.")


class MemberPage(Message):
    """Members in order of enrolment. While `next` is not null, request the next page with `after` set to it."""

    members: list[Member]
    next: str | None = None


class Erasure(Message):
    """What became of the request to erase a member."""

    erased: bool = Field(description="Whether no row of the server names the member any more.")
    waits_for_round: int | None = Field(
        description="Number of the active round that the member is in: its membership has ended, and it is erased when "
        "the round is over. Null: it waits for nothing."
    )


class MemberRound(Message):
    """What the server stores about a member in one round. Times are in seconds since the epoch."""

    round: int
    asked: bool = Field(description="Whether the member was in the cohort.")
    in_committee: bool = Field(description="Whether the member was in the committee.")
    contribution_bytes: int | None = Field(description="Length of its contribution; null: it did not contribute.")
    contribution_digest: str | None = Field(description="SHA-256 of its contribution, hex.")
    contributed_at: float | None
    messages: dict[str, int] = Field(description="Bytes of its messages of the stages, by stage.")
    refused: str | None = Field(description="Why the member left the round on its own decision; null: it did not.")


class MemberExport(Message):
    """Everything that the server stores about one member, for the person that it belongs to."""

    task_id: str
    task_name: str
    member: Member
    enrolled_at: float = Field(description="Seconds since the epoch.")
    revoked_at: float | None
    certificate_serial: str | None = Field(description="What stands for the organiser's subject; hex.")
    times_asked: int
    times_contributed: int = Field(description="Contributions that a privacy block pays for; 0 without one.")
    envelope_bytes: int | None = Field(description="Length of its keyring envelope; null: there is none.")
    rounds: list[MemberRound]
    snapshots: list[int] = Field(description="Rounds whose model states this member uploaded.")
    acted_on: list[AuditEntry] = Field(description="What operators did to this member.")


OperatorRole = Literal["admin", "operator", "read-only"]
"""`read-only` may view everything; `operator` may also create and end tasks; `admin` may also issue tokens."""


class OperatorRequest(Message):
    """An admin's request for a token."""

    name: Name = Field(description="Name of the operator; each name has one token.")
    role: OperatorRole = "operator"
    expires_seconds: float | None = Field(
        default=None, gt=0, le=315_360_000, description="Seconds that the token is valid; null: until it is revoked."
    )


class OperatorView(Message):
    """What admins see of a token; the token itself is not included."""

    name: str
    role: OperatorRole
    age_seconds: float = Field(description="Seconds since the token was made or last rotated.")
    expires_seconds: float | None = Field(
        description="Seconds until the token expires, 0 if it has expired; null: it does not expire."
    )


class OperatorPage(Message):
    """All operators' tokens, sorted by name."""

    operators: list[OperatorView]


class OperatorToken(OperatorView):
    """A new token. It is shown once: the server stores only its hash."""

    token: str = Field(description="Bearer token.")


CertificateText = Annotated[
    str, Field(min_length=108, max_length=108, description="81 bytes, base64url."), bytes_of(CERTIFICATE_BYTES)
]
"""A membership certificate as text."""


class CertificateRequest(Message):
    """A client's keys, signed with the identity key over `certificate_request`."""

    scope: str = Field(min_length=1, max_length=LONGEST_SCOPE, description="Name of the task or group of tasks.")
    role: CertifiedRole = "member"
    identity_key: Key32 = Field(description="Ed25519 public key.")
    mailbox_key: Key32 = Field(description="Name of the public sealing key of its mailbox.")
    signature: Signature64 = Field(description="Ed25519 over the domain tag of scope, role and both keys.")


class IssuedCertificate(Message):
    """A membership certificate with the scope and the organiser's key to verify it."""

    scope: str
    certificate: CertificateText
    organiser_key: Key32 = Field(description="Ed25519 public key of the organiser; clients compare it with their pin.")
    not_after: int = Field(description="Last second of validity, since the epoch.")


class OrganiserView(Message):
    """The organiser's key and the scopes that its endpoint issues certificates for."""

    organiser_key: Key32
    scopes: list[str]
    lifetime_seconds: int = Field(description="Validity of a certificate from its issue, in seconds.")
