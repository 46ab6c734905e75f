"""Invitations, enrolment and the keyring mailbox."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from protocols.messages.base import Key32, Message, Signature64

__all__ = [
    "Enrolment",
    "EnrolmentRequest",
    "Invitation",
    "InvitationPage",
    "InvitationRequest",
    "InvitationView",
    "Member",
    "MemberPage",
    "Role",
]

Role = Literal["member", "holder"]


class InvitationRequest(Message):
    """What an operator asks for; a task has at most one key holder."""

    role: Role = "member"
    uses: int = Field(default=1, ge=1, le=1_000_000)
    expires_seconds: float = Field(default=86_400.0, gt=0, le=31_536_000)


class Invitation(Message):
    """Shown once; the server keeps a hash."""

    task_id: str
    invitation_id: str = Field(description="What it is listed and revoked by; no secret.")
    invitation: str = Field(description="Hand it to the clients over a channel they trust.")
    role: Role
    uses: int
    expires_seconds: float


class InvitationView(Message):
    """An invitation that was made earlier: what it allows, never the invitation itself."""

    invitation_id: str
    role: Role
    state: Literal["open", "used up", "expired", "revoked"]
    uses: int = Field(ge=1, description="Clients that it is, or was, good for.")
    used: int = Field(ge=0, description="Clients that have enrolled with it.")
    age_seconds: float = Field(ge=0)
    expires_seconds: float = Field(ge=0, description="Seconds left; 0 once it is over.")


class InvitationPage(Message):
    """Invitations in the order they were made; ask again with `after=next` while it is not null."""

    invitations: list[InvitationView]
    next: str | None = None


class EnrolmentRequest(Message):
    """A client's keys, its proof that it owns them and, for keyed tasks, that it knows the membership secret."""

    invitation: str = Field(min_length=1, max_length=200)
    identity_key: Key32 = Field(description="Ed25519 public key.")
    mailbox_key: Key32 = Field(description="X25519 public key that keyring envelopes are sealed to.")
    signature: Signature64 = Field(
        description="Ed25519 over task-independent domain tag of invitation, both keys and, where stated, the group."
    )
    membership_proof: Key32 | None = Field(
        default=None,
        description="HMAC under the membership secret over both keys; the server stores it, only members check.",
    )
    group: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Group of clients, from 0, for good; must be stated where the recipe has several.",
    )


class Enrolment(Message):
    """Answer to an enrolment. Enrolling again with the same identity key gives the same client id and a new token."""

    task_id: str
    client_id: str
    token: str = Field(description="Bearer token of this client; shown once, stored hashed.")
    role: Role
    group: int = Field(default=0, ge=0, description="Group of clients that it is in; 0 where there is only one.")


class Member(Message):
    """A member as the key holder sees it; the proof tells real members from ones the server invented."""

    client_id: str
    role: Role
    identity_key: Key32
    mailbox_key: Key32
    membership_proof: Key32 | None
    keyed: bool = Field(description="An envelope for this member lies in the mailbox.")
    revoked: bool = Field(default=False, description="An operator took this membership away.")
    group: int = Field(default=0, ge=0, description="Group of clients that it is in.")


class MemberPage(Message):
    """Members in order of enrolment; ask again with `after=next` while it is not null."""

    members: list[Member]
    next: str | None = None
