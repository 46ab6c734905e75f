"""The calls of the HTTP API about tasks, and about who may take part in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from client_sdk.api.answers import checked_bytes, parse_answer
from client_sdk.api.effects import Program
from client_sdk.api.requests import ApiRequests, long_poll, path_of_task, with_query
from client_sdk.api.retry import send
from client_sdk.errors import NotFound
from protocols.catalogue import longest_catalogue
from protocols.crypto.certificates import LONGEST_REVOCATIONS
from protocols.messages import (
    CertificateRequest,
    Enrolment,
    EnrolmentRequest,
    Extension,
    Invitation,
    InvitationPage,
    InvitationRequest,
    InvitationView,
    IssuedCertificate,
    Member,
    MemberPage,
    RoundView,
    TaskPage,
    TaskRequest,
    TaskView,
)

__all__ = ["MemberCalls"]

_LONGEST_ENVELOPE: Final = 1 << 20
"""Longest keyring envelope, in bytes: four times the server's default limit."""
_LONGEST_TASKS: Final = 1 << 24
"""Longest list of tasks, in bytes: the API has no pages of tasks."""


@dataclass(frozen=True, repr=False)
class MemberCalls(ApiRequests):
    """The calls about tasks, invitations, members and certificates. See `ApiRequests` for the errors."""

    # --- tasks ---------------------------------------------------------------------------------------------------

    def create_task(self, request: TaskRequest) -> Program[TaskView]:
        """Create a task (operators); raises `InvalidParameters` when `request` cannot work."""
        return self._post("/v1/tasks", request, TaskView)

    def tasks(self, name: str | None = None) -> Program[TaskPage]:
        """List tasks, newest first; with `name`, only the tasks of that name (operators)."""
        return self._get(with_query("/v1/tasks", name=name), TaskPage, max_bytes=_LONGEST_TASKS)

    def task(self, task_id: str) -> Program[TaskView]:
        """Return one task; `NotFound` when there is none with that id."""
        return self._get(path_of_task(task_id), TaskView)

    def close_task(self, task_id: str) -> Program[TaskView]:
        """Close a task (operators). Closing it again changes nothing."""
        return self._post(path_of_task(task_id, "close"), None, TaskView, idempotent=True)

    def resume_task(self, task_id: str) -> Program[TaskView]:
        """Open a failed task again (operators). Resuming it again changes nothing."""
        return self._post(path_of_task(task_id, "resume"), None, TaskView, idempotent=True)

    def extend_round(self, task_id: str, number: int, seconds: float) -> Program[RoundView]:
        """Extend the deadline of the current stage of a round by `seconds` (operators). Each call extends it again."""
        return self._post(path_of_task(task_id, "rounds", number, "extend"), Extension(seconds=seconds), RoundView)

    def abort_round(self, task_id: str, number: int) -> Program[RoundView]:
        """End a round as failed (operators). Aborting it again changes nothing."""
        return self._post(path_of_task(task_id, "rounds", number, "abort"), None, RoundView, idempotent=True)

    def put_catalogue(self, task_id: str, catalogue: bytes) -> Program[None]:
        """Upload the encoded item catalogue of a task (operators). Uploading the same one again changes nothing."""
        yield from self._put(path_of_task(task_id, "catalogue"), catalogue)

    def catalogue(self, task_id: str, items: int, digest: str) -> Program[bytes | None]:
        """Download the encoded catalogue of `items` items, checked against `digest` (hex); None while there is none."""
        request = self._request("GET", path_of_task(task_id, "catalogue"), max_bytes=longest_catalogue(items))
        try:
            response = yield from send(request, self.retry)
        except NotFound:
            return None
        return checked_bytes(request, response, None, digest)

    # --- members -------------------------------------------------------------------------------------------------

    def invite(self, task_id: str, request: InvitationRequest) -> Program[Invitation]:
        """Create an invitation (operators). Its code is only in this answer."""
        return self._post(path_of_task(task_id, "invitations"), request, Invitation)

    def invitations(self, task_id: str, after: str | None = None) -> Program[InvitationPage]:
        """Return a page of a task's invitations in order of creation; `after` is the last page's `next` (operators)."""
        return self._get(with_query(path_of_task(task_id, "invitations"), after=after), InvitationPage)

    def revoke_invitation(self, task_id: str, invitation_id: str) -> Program[InvitationView]:
        """Revoke an invitation (operators). Revoking it again changes nothing."""
        request = self._request("DELETE", path_of_task(task_id, "invitations", invitation_id))
        response = yield from send(request, self.retry)
        return parse_answer(request, response, InvitationView)

    def invited_task(self, invitation: str) -> Program[TaskView]:
        """Return the task that an invitation is for, without using it; `Gone` when it is revoked or expired."""
        request = self._request("GET", "/v1/enrolments/task", {"authorization": f"Bearer {invitation}"})
        response = yield from send(request, self.retry)
        return parse_answer(request, response, TaskView)

    def enrol(self, request: EnrolmentRequest) -> Program[Enrolment]:
        """Enrol a client. Enrolling again with the same identity key returns the same client id and a new token."""
        return self._post("/v1/enrolments", request, Enrolment, idempotent=True)

    def members(
        self, task_id: str, after: str | None = None, unkeyed: bool = False, wait: float = 0.0
    ) -> Program[MemberPage]:
        """Return a page of members (key holder, operators).

        unkeyed: only members without a keyring envelope. wait: seconds to wait for one.
        """
        path = with_query(
            path_of_task(task_id, "members"), after=after, unkeyed="true" if unkeyed else None, wait=long_poll(wait)
        )
        return self._get(path, MemberPage, wait)

    def revoke_member(self, task_id: str, client_id: str) -> Program[Member]:
        """Revoke a membership permanently (operators). Revoking it again changes nothing."""
        request = self._request("DELETE", path_of_task(task_id, "members", client_id))
        response = yield from send(request, self.retry)
        return parse_answer(request, response, Member)

    def put_public_key(self, task_id: str, public_key: bytes) -> Program[None]:
        """Publish the public key that contributions are folded under, where the mechanism has one (key holder)."""
        yield from self._put(path_of_task(task_id, "public-key"), public_key)

    def put_envelope(self, task_id: str, client_id: str, envelope: bytes) -> Program[None]:
        """Store a member's keyring envelope (key holder); `Conflict` when it has one."""
        yield from self._put(path_of_task(task_id, "keyring", client_id), envelope)

    def envelope(self, task_id: str, wait: float = 0.0) -> Program[bytes | None]:
        """Return this client's keyring envelope; None if there is none within `wait` seconds."""
        return self._bytes_or_none(
            with_query(path_of_task(task_id, "keyring"), wait=long_poll(wait)), wait, _LONGEST_ENVELOPE
        )

    # --- certificates --------------------------------------------------------------------------------------------

    def certificate(self, request: CertificateRequest) -> Program[IssuedCertificate]:
        """Ask an organiser's issuing endpoint, whose address and token these calls have, for a certificate."""
        return self._post("/v1/certificates", request, IssuedCertificate, idempotent=True)

    def renew_certificate(self, task_id: str, certificate: bytes) -> Program[None]:
        """Replace this client's certificate at the aggregator."""
        yield from self._put(path_of_task(task_id, "members", "me", "certificate"), certificate)

    def put_revocations(self, task_id: str, revocations: bytes) -> Program[None]:
        """Publish the organiser's revocation list (operators)."""
        yield from self._put(path_of_task(task_id, "revocations"), revocations)

    def revocations(self, task_id: str) -> Program[bytes | None]:
        """The organiser's newest revocation list; None while there is none."""
        return self._bytes_or_none(path_of_task(task_id, "revocations"), 0.0, LONGEST_REVOCATIONS)
