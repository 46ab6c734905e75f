"""Every call of the HTTP API, as a program that returns a typed message or raises the error of the problem document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeVar
from urllib.parse import quote, urlencode

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel

from client_sdk.api.address import base_url, require_encryption
from client_sdk.api.answers import checked_bytes, parse_answer
from client_sdk.api.effects import LONGEST_JSON, Method, Program, Request, Response, Sink, content_digest
from client_sdk.api.retry import RetryPolicy, send
from client_sdk.api.signing import ServerTime, Signer
from client_sdk.api.upload import DEFAULT_CHUNK_BYTES, upload
from client_sdk.errors import NotFound
from protocols.crypto.certificates import LONGEST_REVOCATIONS
from protocols.errors import ParameterError
from protocols.messages import (
    AttestationPage,
    CertificateRequest,
    CohortView,
    Enrolment,
    EnrolmentRequest,
    Extension,
    Invitation,
    InvitationPage,
    InvitationRequest,
    InvitationView,
    IssuedCertificate,
    LedgerPage,
    Member,
    MemberPage,
    RefusalNotice,
    RefusalReason,
    RoundPage,
    RoundView,
    SnapshotView,
    SumRefusal,
    TaskPage,
    TaskRequest,
    TaskView,
    UploadReceipt,
)
from protocols.messages.attestations import LARGEST_ATTESTATION_PAGE, LONGEST_ATTESTATION
from protocols.messages.media_types import OCTETS, STAGE_TYPES
from protocols.messages.stages import StageMessage

__all__ = ["LONGEST_WAIT", "ApiCalls", "CurrentRound", "Handout"]

Handout = Literal["roster", "inbox", "survivors", "committee", "confirmations"]
M = TypeVar("M", bound=BaseModel)
LONGEST_WAIT: Final = 30.0
"""Longest `wait` of a long poll that the API accepts, in seconds."""
_LONGEST_ID: Final = 72
"""Longest client id in a JSON list with its quotes and comma, in bytes."""
_LONGEST_ENTRY: Final = 4096
"""Longest entry of a page (a round, a sum, a member, an invitation), in bytes."""
_LONGEST_ENVELOPE: Final = 1 << 20
"""Longest keyring envelope, in bytes: four times the server's default limit."""
_LONGEST_TASKS: Final = 1 << 24
"""Longest list of tasks, in bytes: the API has no pages of tasks."""


@dataclass(frozen=True)
class CurrentRound:
    """The newest round and the ETag that identifies this version of it."""

    round: RoundView
    etag: str | None


@dataclass(frozen=True, repr=False)
class ApiCalls:
    """The calls of one client or operator. Each method returns a program; see `client_sdk.api.effects`.

    url: address of the server. token: bearer token; None before enrolment. retry: when a failed request is repeated.
    chunk_bytes: contributions longer than this are uploaded in chunks. signer: signs the requests of an enrolled
    client; None for operators. time: the server's clock, shared with every `signer` made by `enrolled`. allow_http:
    whether `url` may begin with http:// when its host is not this machine; `ParameterError` otherwise.

    Calls raise the `ApiError` of the problem document, `ContractBroken` for an answer that the API does not allow,
    `ConnectionFailed` without an answer, and `GaveUp` after the last retry.
    """

    url: str
    token: str | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    signer: Signer | None = None
    time: ServerTime = field(default_factory=ServerTime)
    allow_http: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", base_url(self.url))
        if not self.allow_http:
            require_encryption(self.url)
        if self.chunk_bytes < 1:
            raise ParameterError(f"chunk_bytes must be at least 1, got {self.chunk_bytes}")

    def __repr__(self) -> str:
        return f"<ApiCalls {self.url}>"

    def enrolled(self, client_id: str, token: str, key: Ed25519PrivateKey) -> ApiCalls:
        """Return the calls of an enrolled client, with its `token` and signed with its Ed25519 `key`."""
        return replace(self, token=token, signer=Signer(client_id, key, self.time))

    # --- tasks ---------------------------------------------------------------------------------------------------

    def create_task(self, request: TaskRequest) -> Program[TaskView]:
        """Create a task (operators); raises `InvalidParameters` when `request` cannot work."""
        return self._post("/v1/tasks", request, TaskView)

    def tasks(self, name: str | None = None) -> Program[TaskPage]:
        """List tasks, newest first; with `name`, only the tasks of that name (operators)."""
        return self._get(_path("/v1/tasks", name=name), TaskPage, max_bytes=_LONGEST_TASKS)

    def task(self, task_id: str) -> Program[TaskView]:
        """Return one task; `NotFound` when there is none with that id."""
        return self._get(_task(task_id), TaskView)

    def close_task(self, task_id: str) -> Program[TaskView]:
        """Close a task (operators). Closing it again changes nothing."""
        return self._post(_task(task_id, "close"), None, TaskView, idempotent=True)

    def extend_round(self, task_id: str, number: int, seconds: float) -> Program[RoundView]:
        """Extend the deadline of the current stage of a round by `seconds` (operators). Each call extends it again."""
        return self._post(_task(task_id, "rounds", number, "extend"), Extension(seconds=seconds), RoundView)

    def abort_round(self, task_id: str, number: int) -> Program[RoundView]:
        """End a round as failed (operators). Aborting it again changes nothing."""
        return self._post(_task(task_id, "rounds", number, "abort"), None, RoundView, idempotent=True)

    # --- members -------------------------------------------------------------------------------------------------

    def invite(self, task_id: str, request: InvitationRequest) -> Program[Invitation]:
        """Create an invitation (operators). Its code is only in this answer."""
        return self._post(_task(task_id, "invitations"), request, Invitation)

    def invitations(self, task_id: str, after: str | None = None) -> Program[InvitationPage]:
        """Return a page of a task's invitations in order of creation; `after` is the last page's `next` (operators)."""
        return self._get(_path(_task(task_id, "invitations"), after=after), InvitationPage)

    def revoke_invitation(self, task_id: str, invitation_id: str) -> Program[InvitationView]:
        """Revoke an invitation (operators). Revoking it again changes nothing."""
        request = self._request("DELETE", _task(task_id, "invitations", invitation_id))
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
        path = _path(_task(task_id, "members"), after=after, unkeyed="true" if unkeyed else None, wait=_wait(wait))
        return self._get(path, MemberPage, wait)

    def revoke_member(self, task_id: str, client_id: str) -> Program[Member]:
        """Revoke a membership permanently (operators). Revoking it again changes nothing."""
        request = self._request("DELETE", _task(task_id, "members", client_id))
        response = yield from send(request, self.retry)
        return parse_answer(request, response, Member)

    def put_public_key(self, task_id: str, public_key: bytes) -> Program[None]:
        """Publish the public key that contributions are folded under, where the mechanism has one (key holder)."""
        yield from self._put(_task(task_id, "public-key"), public_key)

    def put_envelope(self, task_id: str, client_id: str, envelope: bytes) -> Program[None]:
        """Store a member's keyring envelope (key holder); `Conflict` when it has one."""
        yield from self._put(_task(task_id, "keyring", client_id), envelope)

    def envelope(self, task_id: str, wait: float = 0.0) -> Program[bytes | None]:
        """Return this client's keyring envelope; None if there is none within `wait` seconds."""
        return self._bytes_or_none(_path(_task(task_id, "keyring"), wait=_wait(wait)), wait, _LONGEST_ENVELOPE)

    # --- certificates --------------------------------------------------------------------------------------------

    def certificate(self, request: CertificateRequest) -> Program[IssuedCertificate]:
        """Ask an organiser's issuing endpoint, whose address and token these calls have, for a certificate."""
        return self._post("/v1/certificates", request, IssuedCertificate, idempotent=True)

    def renew_certificate(self, task_id: str, certificate: bytes) -> Program[None]:
        """Replace this client's certificate at the aggregator."""
        yield from self._put(_task(task_id, "members", "me", "certificate"), certificate)

    def put_revocations(self, task_id: str, revocations: bytes) -> Program[None]:
        """Publish the organiser's revocation list (operators)."""
        yield from self._put(_task(task_id, "revocations"), revocations)

    def revocations(self, task_id: str) -> Program[bytes | None]:
        """The organiser's newest revocation list; None while there is none."""
        return self._bytes_or_none(_task(task_id, "revocations"), 0.0, LONGEST_REVOCATIONS)

    # --- rounds --------------------------------------------------------------------------------------------------

    def current_round(self, task_id: str, etag: str | None = None, wait: float = 0.0) -> Program[CurrentRound | None]:
        """Return the newest round; None if it is unchanged since `etag`, or there is none, within `wait` seconds."""
        headers = {"if-none-match": etag} if etag else {}
        request = self._request("GET", _path(_task(task_id, "rounds", "current"), wait=_wait(wait)), headers, wait=wait)
        try:
            response = yield from send(request, self.retry)
        except NotFound:  # the answer of earlier servers before the first round
            return None
        if response.status in (204, 304):
            return None
        return CurrentRound(parse_answer(request, response, RoundView), response.headers.get("etag"))

    def rounds(self, task_id: str, after: int = 0, limit: int = 100, state: str | None = None) -> Program[RoundPage]:
        """Return a page of at most `limit` rounds after number `after`, in order; with `state`, only those in it."""
        path = _path(_task(task_id, "rounds"), after=after, limit=limit, state=state)
        return self._get(path, RoundPage, max_bytes=max(LONGEST_JSON, limit * _LONGEST_ENTRY))

    def round(self, task_id: str, number: int) -> Program[RoundView]:
        """Return one round; `NotFound` before it has opened."""
        return self._get(_task(task_id, "rounds", number), RoundView)

    def cohort(self, task_id: str, number: int, cohort_size: int) -> Program[CohortView]:
        """Return the ids of the clients in a round's cohort, at most `cohort_size` (the task's)."""
        path = _task(task_id, "rounds", number, "cohort")
        return self._get(path, CohortView, max_bytes=max(LONGEST_JSON, cohort_size * _LONGEST_ID))

    def contribute(
        self, task_id: str, number: int, client_id: str, body: bytes, statements: Mapping[str, str] | None = None
    ) -> Program[UploadReceipt]:
        """Upload a contribution, resumed after a broken connection; see `client_sdk.api.upload.upload`.

        statements: header fields by lower-case name that are signed: "round-key", the SHA-256 (hex) of the document of
        the round's key, and "aggregate-chain" (`protocols.crypto.aggregate_chain`), where the round needs them.
        """
        url = self.url + _task(task_id, "rounds", number, "contributions", client_id)
        headers = self._authorization() | dict(statements or {})
        return upload(url, headers, body, self.retry, self.chunk_bytes, self.signer)

    def attestations(self, task_id: str, number: int, after: str, limit: int) -> Program[AttestationPage]:
        """Return at most `limit` (up to 100) attestations of a completed round, of clients with ids after `after`."""
        path = _path(_task(task_id, "rounds", number, "attestations"), after=after, limit=limit)
        return self._get(path, AttestationPage, max_bytes=LARGEST_ATTESTATION_PAGE * LONGEST_ATTESTATION)

    def put_round_key(self, task_id: str, number: int, document: bytes) -> Program[None]:
        """Publish the signed public key of a round that has not opened (key holder); `Conflict` when it has another."""
        yield from self._put(_task(task_id, "rounds", number, "key"), document)

    def round_key(self, task_id: str, number: int, length: int, digest: str | None) -> Program[bytes]:
        """Download the signed public key of a round, of `length` bytes, checked against `digest` (hex)."""
        request = self._request("GET", _task(task_id, "rounds", number, "key"), max_bytes=length)
        response = yield from send(request, self.retry)
        return checked_bytes(request, response, length, digest)

    def refuse_sum(self, task_id: str, number: int, reason: str) -> Program[RoundView]:
        """Refuse to publish what was opened, so that the round fails (key holder). Refusing again changes nothing."""
        path = _task(task_id, "rounds", number, "sum-refusal")
        return self._post(path, SumRefusal(reason=reason), RoundView, idempotent=True)

    def ledger(self, task_id: str, after: int = 0) -> Program[LedgerPage]:
        """Return a page of a task's released sums after round `after` (operators)."""
        return self._get(_path(_task(task_id, "ledger"), after=after), LedgerPage)

    def own_ledger(self, task_id: str, after: int = 0) -> Program[LedgerPage]:
        """Return a page of the released sums after round `after` that contain this client's contributions."""
        return self._get(_path(_task(task_id, "members", "me", "ledger"), after=after), LedgerPage)

    # --- masked rounds -------------------------------------------------------------------------------------------

    def put_stage(self, task_id: str, number: int, stage: StageMessage, client_id: str, body: bytes) -> Program[None]:
        """Store this client's message of one stage of a masked round. Sending the same bytes again is allowed."""
        yield from self._put(_task(task_id, "rounds", number, "stages", stage, client_id), body, STAGE_TYPES[stage])

    def stage_body(
        self, task_id: str, number: int, what: Handout, max_bytes: int, length: int | None = None
    ) -> Program[bytes]:
        """Download at most `max_bytes` of what the server provides for a stage of a masked round.

        length: the exact length, where it is known; `ContractBroken` for another.
        """
        request = self._request("GET", _task(task_id, "rounds", number, what), max_bytes=max_bytes)
        response = yield from send(request, self.retry)
        return checked_bytes(request, response, length, None)

    def refuse(self, task_id: str, number: int, reason: RefusalReason) -> Program[RoundView]:
        """Tell the server that this client leaves a round on its own decision."""
        path = _task(task_id, "rounds", number, "refusals")
        return self._post(path, RefusalNotice(reason=reason), RoundView, idempotent=True)

    def aggregate(self, task_id: str, number: int, length: int, digest: str | None) -> Program[bytes]:
        """Download a released aggregate of `length` bytes, checked against its Content-Digest and `digest` (hex)."""
        request = self._request("GET", _task(task_id, "rounds", number, "aggregate"), max_bytes=length)
        response = yield from send(request, self.retry)
        return checked_bytes(request, response, length, digest)

    # --- snapshots -----------------------------------------------------------------------------------------------

    def latest_snapshot(
        self, task_id: str, at_least: int = 0, wait: float = 0.0, group: int | None = None
    ) -> Program[SnapshotView | None]:
        """Return the newest snapshot of round `at_least` or later; None if there is none within `wait` seconds.

        group: the device group whose view of it is meant, where the caller is in none (operators, the committee).
        """
        path = _path(_task(task_id, "snapshots", "latest"), at_least=at_least or None, group=group, wait=_wait(wait))
        request = self._request("GET", path, wait=wait)
        try:
            response = yield from send(request, self.retry)
        except NotFound:
            return None
        return parse_answer(request, response, SnapshotView)

    def best_snapshot(self, task_id: str) -> Program[SnapshotView | None]:
        """Return the snapshot of the best measured model; None if the server keeps none."""
        request = self._request("GET", _task(task_id, "snapshots", "best"))
        try:
            response = yield from send(request, self.retry)
        except NotFound:
            return None
        return parse_answer(request, response, SnapshotView)

    def snapshot(self, task_id: str, view: SnapshotView, max_bytes: int) -> Program[bytes | None]:
        """Download the snapshot that `view` announces, at most `max_bytes`; None when it is no longer kept."""
        request = self._request("GET", _task(task_id, "snapshots", view.round), max_bytes=max_bytes)
        try:
            response = yield from send(request, self.retry)
        except NotFound:
            return None
        return checked_bytes(request, response, view.bytes, view.digest)

    def put_snapshot(self, task_id: str, number: int, sealed: bytes) -> Program[None]:
        """Publish the sealed snapshot of round `number`; `Conflict` when that round has one."""
        yield from self._put(_task(task_id, "snapshots", number), sealed)

    # --- helpers -------------------------------------------------------------------------------------------------

    @staticmethod
    def _at(task_id: str, *rest: str | int) -> str:
        return _task(task_id, *rest)

    def _authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    def _request(
        self,
        method: Method,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        wait: float = 0.0,
        max_bytes: int = LONGEST_JSON,
        sink: Sink | None = None,
    ) -> Request:
        all_headers = {**self._authorization(), **(headers or {})}
        return Request(method, self.url + path, all_headers, body, wait, self.signer, max_bytes, sink)

    def _get(self, path: str, model: type[M], wait: float = 0.0, max_bytes: int = LONGEST_JSON) -> Program[M]:
        request = self._request("GET", path, wait=wait, max_bytes=max_bytes)
        response = yield from send(request, self.retry)
        return parse_answer(request, response, model)

    def _post(self, path: str, body: BaseModel | None, model: type[M], idempotent: bool = False) -> Program[M]:
        encoded = b"" if body is None else body.model_dump_json().encode()
        headers = {}
        if body is not None:
            headers = {"content-type": "application/json", "content-digest": content_digest(encoded)}
        request = self._request("POST", path, headers, encoded)
        response = yield from send(request, self.retry, idempotent)
        return parse_answer(request, response, model)

    def _put(self, path: str, body: bytes, media_type: str = OCTETS) -> Program[Response]:
        headers = {"content-type": media_type, "content-digest": content_digest(body)}
        return send(self._request("PUT", path, headers, body), self.retry)

    def _bytes_or_none(self, path: str, wait: float, max_bytes: int) -> Program[bytes | None]:
        request = self._request("GET", path, wait=wait, max_bytes=max_bytes)
        try:
            response = yield from send(request, self.retry)
        except NotFound:
            return None
        return checked_bytes(request, response, None, None)


def _task(task_id: str, *rest: str | int) -> str:
    return "/".join(["/v1/tasks", quote(task_id, safe=""), *(quote(str(part), safe="") for part in rest)])


def _path(path: str, **query: str | int | float | None) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _wait(seconds: float) -> float | None:
    if not 0.0 <= seconds <= LONGEST_WAIT:
        raise ParameterError(f"a long poll must wait 0 to {LONGEST_WAIT:g} seconds, got {seconds}")
    return seconds or None
