"""Every call of the HTTP API: of members, of operators, and of the committee of one-shot sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from client_sdk.api.requests import (
    LONGEST_ENTRY,
    ApiRequests,
    or_none,
    parse_answer,
    path_of_task,
)
from client_sdk.api.retry import send
from client_sdk.api.upload import Upload
from client_sdk.api.wire import LONGEST_JSON, Program, Sink
from protocols.catalogue import longest_catalogue
from protocols.crypto.certificates import LONGEST_REVOCATIONS
from protocols.messages import (
    AttestationPage,
    BadShares,
    CertificateRequest,
    CohortView,
    CommitteeView,
    DeletedTask,
    Enrolment,
    EnrolmentRequest,
    Erasure,
    Extension,
    Invitation,
    InvitationPage,
    InvitationRequest,
    InvitationView,
    IssuedCertificate,
    LedgerPage,
    Member,
    MemberExport,
    MemberPage,
    RefusalNotice,
    RefusalReason,
    RoundPage,
    RoundView,
    SnapshotView,
    TaskPage,
    TaskRequest,
    TaskView,
    UploadReceipt,
)
from protocols.messages.privacy import PrivacyView
from protocols.messages.rounds import LARGEST_ATTESTATION_PAGE, LONGEST_ATTESTATION
from protocols.messages.stages import STAGE_TYPES, StageMessage

if TYPE_CHECKING:
    from protocols.messages.receipts import RoundReceipt

_LONGEST_ENVELOPE: Final = 1 << 20
"""Longest keyring envelope, in bytes: four times the server's default limit."""
_LONGEST_ROUND: Final = 1 << 24
"""Longest view of a round, in bytes: with the signatures of 190,000 members."""
_LONGEST_TASKS: Final = 1 << 24
"""Longest list of tasks, or of the rounds of one member, in bytes: the API has no pages of them."""

Handout = Literal["roster", "inbox"]


@dataclass(frozen=True)
class RoundChanged:
    """`view` is the newest round, and it differs from what was seen last. `etag` identifies it in the next poll."""

    view: RoundView
    etag: str | None


@dataclass(frozen=True, repr=False)
class ApiCalls(ApiRequests):
    """Every call of clients and operators, as a program. See `ApiRequests` for the fields and the errors.

    Each returns a typed message, or raises the error of the problem document.
    """

    # --- tasks ---------------------------------------------------------------------------------------------------

    def create_task(self, request: TaskRequest) -> Program[TaskView]:
        """Create a task (operators); raises `InvalidParameters` when `request` cannot work."""
        return self._post("/v1/tasks", request, TaskView)

    def tasks(self, name: str | None = None) -> Program[TaskPage]:
        """List tasks, newest first; with `name`, only the tasks of that name (operators)."""
        return self._get("/v1/tasks", TaskPage, max_bytes=_LONGEST_TASKS, name=name)

    def task(self, task_id: str) -> Program[TaskView]:
        """Return one task; `NotFound` when there is none with that id."""
        return self._get(path_of_task(task_id), TaskView)

    def successor(self, task_id: str) -> Program[TaskView | None]:
        """Return the last task that follows this one; None while there is none."""
        return or_none(self._get(path_of_task(task_id, "successor"), TaskView))

    def privacy(self, task_id: str) -> Program[PrivacyView]:
        """Return the promise of a task's privacy block, and what is spent of it; `NotFound` for a task without one."""
        return self._get(path_of_task(task_id, "privacy"), PrivacyView)

    def close_task(self, task_id: str) -> Program[TaskView]:
        """Close a task (operators). Closing it again changes nothing."""
        return self._post(path_of_task(task_id, "close"), None, TaskView, idempotent=True)

    def delete_task(self, task_id: str) -> Program[DeletedTask]:
        """Delete a task that has ended (operators); `Conflict` while it is open."""
        return self._delete(path_of_task(task_id), DeletedTask)

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
        return or_none(self._bytes(path_of_task(task_id, "catalogue"), longest_catalogue(items), digest=digest))

    # --- members -------------------------------------------------------------------------------------------------

    def invite(self, task_id: str, request: InvitationRequest) -> Program[Invitation]:
        """Create an invitation (operators). Its code is only in this answer."""
        return self._post(path_of_task(task_id, "invitations"), request, Invitation)

    def invitations(self, task_id: str, after: str | None = None) -> Program[InvitationPage]:
        """Return a page of a task's invitations in order of creation; `after` is the last page's `next` (operators)."""
        return self._get(path_of_task(task_id, "invitations"), InvitationPage, after=after)

    def revoke_invitation(self, task_id: str, invitation_id: str) -> Program[InvitationView]:
        """Revoke an invitation (operators). Revoking it again changes nothing."""
        return self._delete(path_of_task(task_id, "invitations", invitation_id), InvitationView)

    def invited_task(self, invitation: str) -> Program[TaskView]:
        """Return the task that an invitation is for, without using it; `Gone` when it is revoked or expired."""
        headers = {"authorization": f"Bearer {invitation}"}
        return self._answer(self._request("GET", "/v1/enrolments/task", headers), TaskView)

    def enrol(self, request: EnrolmentRequest) -> Program[Enrolment]:
        """Enrol a client. Enrolling again with the same identity key returns the same client id and a new token."""
        return self._post("/v1/enrolments", request, Enrolment, idempotent=True)

    def members(
        self, task_id: str, after: str | None = None, unkeyed: bool = False, wait: float = 0.0
    ) -> Program[MemberPage]:
        """Return a page of members (key holder, operators).

        unkeyed: only members without a keyring envelope. wait: seconds to wait for one.
        """
        only = "true" if unkeyed else None
        return self._get(path_of_task(task_id, "members"), MemberPage, wait, after=after, unkeyed=only)

    def revoke_member(self, task_id: str, client_id: str) -> Program[Member]:
        """Revoke a membership permanently (operators). Revoking it again changes nothing."""
        return self._delete(path_of_task(task_id, "members", client_id), Member)

    def leave(self, task_id: str, *, erase: bool = False) -> Program[Erasure]:
        """End this client's membership for good; with `erase`, the server also deletes what names it (members)."""
        query = "?erase=true" if erase else ""
        return self._delete(path_of_task(task_id, "members", "me") + query, Erasure)

    def erase_member(self, task_id: str, client_id: str) -> Program[Erasure]:
        """Revoke a membership and erase the member (operators)."""
        path = path_of_task(task_id, "members", client_id, "erasure")
        return self._post(path, None, Erasure, idempotent=True)

    def member_data(self, task_id: str, client_id: str) -> Program[MemberExport]:
        """Return what the server stores about a member (the member itself, and operators)."""
        return self._get(path_of_task(task_id, "members", client_id, "data"), MemberExport, max_bytes=_LONGEST_TASKS)

    def put_public_key(self, task_id: str, public_key: bytes) -> Program[None]:
        """Publish the public key that contributions are folded under, where the mechanism has one (key holder)."""
        yield from self._put(path_of_task(task_id, "public-key"), public_key)

    def put_envelope(self, task_id: str, client_id: str, envelope: bytes) -> Program[None]:
        """Store a member's keyring envelope (key holder); `Conflict` when it has one."""
        yield from self._put(path_of_task(task_id, "keyring", client_id), envelope)

    def envelope(self, task_id: str, wait: float = 0.0) -> Program[bytes | None]:
        """Return this client's keyring envelope; None if there is none within `wait` seconds."""
        return or_none(self._bytes(path_of_task(task_id, "keyring"), _LONGEST_ENVELOPE, wait=wait))

    # --- certificates --------------------------------------------------------------------------------------------

    def certificate(self, request: CertificateRequest) -> Program[IssuedCertificate]:
        """Ask an organiser's issuing endpoint, whose address and token these calls have, for a certificate."""
        return self._post("/v1/certificates", request, IssuedCertificate, idempotent=True)

    def renew_certificate(self, task_id: str, certificate: bytes) -> Program[None]:
        """Replace this client's certificate at the aggregator."""
        yield from self._put(path_of_task(task_id, "members", "me", "certificate"), certificate)

    def revocations(self, task_id: str) -> Program[bytes | None]:
        """The organiser's newest revocation list; None while there is none."""
        return or_none(self._bytes(path_of_task(task_id, "revocations"), LONGEST_REVOCATIONS))

    # --- rounds --------------------------------------------------------------------------------------------------

    def current_round(self, task_id: str, etag: str | None = None, wait: float = 0.0) -> Program[RoundChanged | None]:
        """Return the newest round; None if it is unchanged since `etag`, or there is none, within `wait` seconds."""
        headers = {"if-none-match": etag} if etag else {}
        path = path_of_task(task_id, "rounds", "current")
        request = self._request("GET", path, headers, wait=wait, max_bytes=_LONGEST_ROUND)
        response = yield from send(request, self.retry)
        if response.status in (204, 304):
            return None
        return RoundChanged(parse_answer(request, response, RoundView), response.headers.get("etag"))

    def rounds(self, task_id: str, after: int = 0, limit: int = 100, state: str | None = None) -> Program[RoundPage]:
        """Return a page of at most `limit` rounds after number `after`, in order; with `state`, only those in it."""
        most = max(LONGEST_JSON, limit * LONGEST_ENTRY)
        path = path_of_task(task_id, "rounds")
        return self._get(path, RoundPage, max_bytes=most, after=after, limit=limit, state=state)

    def round(self, task_id: str, number: int) -> Program[RoundView]:
        """Return one round; `NotFound` before it has opened."""
        return self._get(path_of_task(task_id, "rounds", number), RoundView, max_bytes=_LONGEST_ROUND)

    def cohort(self, task_id: str, number: int) -> Program[CohortView]:
        """Return the ids of the clients in a round's cohort (operators)."""
        return self._get(path_of_task(task_id, "rounds", number, "cohort"), CohortView)

    def contribute(
        self, task_id: str, number: int, client_id: str, body: bytes, statements: Mapping[str, str] | None = None
    ) -> Program[UploadReceipt]:
        """Upload a contribution, resumed after a broken connection; see `client_sdk.api.upload.Upload`.

        statements: header fields by lower-case name that are signed, where the round needs them: "aggregate-chain"
        (`protocols.crypto.aggregate_chain`).
        """
        url = self.url + path_of_task(task_id, "rounds", number, "contributions", client_id)
        headers = self._authorization() | dict(statements or {})
        return Upload(url, headers, body, self.retry, self.chunk_bytes, self.signer).run()

    def attestations(self, task_id: str, number: int, after: str, limit: int) -> Program[AttestationPage]:
        """Return at most `limit` (up to 100) attestations of a completed round, of clients with ids after `after`."""
        path, most = path_of_task(task_id, "rounds", number, "attestations"), LARGEST_ATTESTATION_PAGE
        return self._get(path, AttestationPage, max_bytes=most * LONGEST_ATTESTATION, after=after, limit=limit)

    def ledger(self, task_id: str, after: int = 0) -> Program[LedgerPage]:
        """Return a page of a task's released sums after round `after` (operators)."""
        return self._get(path_of_task(task_id, "ledger"), LedgerPage, after=after)

    def own_ledger(self, task_id: str, after: int = 0) -> Program[LedgerPage]:
        """Return a page of the released sums after round `after` that contain this client's contributions."""
        return self._get(path_of_task(task_id, "members", "me", "ledger"), LedgerPage, after=after)

    def round_receipt(self, task_id: str, number: int) -> Program[RoundReceipt]:
        """Return what the server signs of the end of a round, and this client's place among the survivors."""
        from protocols.messages import receipts  # which a device seldom needs

        path = path_of_task(task_id, "rounds", number, "receipt")
        return self._get(path, receipts.RoundReceipt, max_bytes=receipts.LONGEST_RECEIPT)

    # --- masked rounds -------------------------------------------------------------------------------------------

    def put_stage(self, task_id: str, number: int, stage: StageMessage, client_id: str, body: bytes) -> Program[None]:
        """Store this client's message of one stage of a masked round. Sending the same bytes again is allowed."""
        yield from self._put(
            path_of_task(task_id, "rounds", number, "stages", stage, client_id), body, STAGE_TYPES[stage]
        )

    def name_bad_shares(self, task_id: str, number: int, named: BadShares) -> Program[RoundView]:
        """Report clients whose sealed shares do not open. Naming them again changes nothing."""
        return self._post(path_of_task(task_id, "rounds", number, "bad-shares"), named, RoundView, idempotent=True)

    def stage_body(
        self, task_id: str, number: int, what: Handout, max_bytes: int, length: int | None = None
    ) -> Program[bytes]:
        """Download at most `max_bytes` of what the server makes for each client of a masked round.

        length: the exact length, where it is known; `ContractBroken` for another.
        """
        return self._bytes(path_of_task(task_id, "rounds", number, what), max_bytes, length)

    def refuse(self, task_id: str, number: int, reason: RefusalReason) -> Program[RoundView]:
        """Tell the server that this client leaves a round on its own decision."""
        path = path_of_task(task_id, "rounds", number, "refusals")
        return self._post(path, RefusalNotice(reason=reason), RoundView, idempotent=True)

    def aggregate(self, task_id: str, number: int, length: int, digest: str | None) -> Program[bytes]:
        """Download a released aggregate of `length` bytes, checked against its Content-Digest and `digest` (hex)."""
        return self._bytes(path_of_task(task_id, "rounds", number, "aggregate"), length, length, digest)

    # --- snapshots -----------------------------------------------------------------------------------------------

    def latest_snapshot(
        self,
        task_id: str,
        at_least: int = 0,
        wait: float = 0.0,
        group: int | None = None,
        before: int | None = None,
    ) -> Program[SnapshotView | None]:
        """Return the newest snapshot of round `at_least` or later; None if there is none within `wait` seconds.

        before: only snapshots of earlier rounds than this. group: the device group whose view of it is meant, where the
        caller is in none (operators, the committee).
        """
        path = path_of_task(task_id, "snapshots", "latest")
        return or_none(self._get(path, SnapshotView, wait, at_least=at_least or None, before=before, group=group))

    def best_snapshot(self, task_id: str) -> Program[SnapshotView | None]:
        """Return the snapshot of the best measured model; None if the server keeps none."""
        return or_none(self._get(path_of_task(task_id, "snapshots", "best"), SnapshotView))

    def snapshot(self, task_id: str, view: SnapshotView, max_bytes: int) -> Program[bytes | None]:
        """Download the snapshot that `view` announces, at most `max_bytes`; None when it is no longer kept."""
        return or_none(self._bytes(path_of_task(task_id, "snapshots", view.round), max_bytes, view.bytes, view.digest))

    def put_snapshot(self, task_id: str, number: int, sealed: bytes) -> Program[None]:
        """Publish the sealed snapshot of round `number`; `Conflict` when that round has one."""
        yield from self._put(path_of_task(task_id, "snapshots", number), sealed)

    # --- the committee of one-shot sums --------------------------------------------------------------------------

    def committee(self, task_id: str) -> Program[CommitteeView]:
        """Return who is in the committee, and of which rounds each member has published its key."""
        return self._get(path_of_task(task_id, "committee"), CommitteeView)

    def put_committee_key(self, task_id: str, number: int, client_id: str, key: bytes) -> Program[None]:
        """Publish this member's key of a round that has not opened; `Conflict` when it has another, or is open."""
        yield from self._put(path_of_task(task_id, "committee", client_id, "keys", number), key)

    def statements(self, task_id: str, number: int, max_bytes: int) -> Program[bytes]:
        """Download what the proposed survivors signed, at most `max_bytes`. The answer has no digest: it is signed."""
        request = self._request("GET", path_of_task(task_id, "rounds", number, "statements"), max_bytes=max_bytes)
        return (yield from send(request, self.retry)).body

    def sealed_shares(
        self, task_id: str, number: int, client_id: str, length: int, sink: Sink, piece: Mapping[str, str | int]
    ) -> Program[None]:
        """Download the survivors' shares sealed for this member, at most `length` bytes, into `sink`.

        piece: empty for all; else `count`, how many, and `after`, the id of the client before the first of them. The
        answer has no digest: the client signed the digest of each share.
        """
        path = path_of_task(task_id, "rounds", number, "shares", client_id)
        yield from send(self._request("GET", path, max_bytes=length, sink=sink, query=piece), self.retry)
