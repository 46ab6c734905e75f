"""Every call of the HTTP API as a program that returns a typed message, or raises the error its problem has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ValidationError

from client_sdk.api.effects import Method, Program, Request, Response, content_digest, digest_matches
from client_sdk.api.retry import RetryPolicy, send
from client_sdk.api.signing import ServerTime, Signer
from client_sdk.api.upload import DEFAULT_CHUNK_BYTES, upload
from client_sdk.errors import ContractBroken, DigestMismatch, NotFound
from protocols.crypto.digest_fields import parse_digest
from protocols.errors import CodecError, ParameterError
from protocols.messages import (
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
    RoundPage,
    RoundView,
    SnapshotView,
    TaskPage,
    TaskRequest,
    TaskView,
    UploadReceipt,
)
from protocols.messages.stages import StageMessage

__all__ = ["ApiCalls", "Fresh", "Handout", "base_url"]

Handout = Literal["roster", "inbox", "survivors", "confirmations"]
M = TypeVar("M", bound=BaseModel)
LONGEST_WAIT: Final = 30.0
"""The longest `wait` that the API takes, in seconds."""


@dataclass(frozen=True)
class Fresh:
    """The answer to a conditional GET: a round and the ETag it had."""

    round: RoundView
    etag: str | None


def base_url(url: str) -> str:
    """`url` without a trailing slash; `ParameterError` unless it is http(s) and holds neither credentials nor query."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ParameterError("the server's address must look like https://host[:port][/path]")
    if parts.username is not None or parts.password is not None:
        raise ParameterError("the server's address must hold no credentials: tokens are passed apart from it")
    if parts.query or parts.fragment:
        raise ParameterError("the server's address must hold no query and no fragment")
    return url.rstrip("/")


@dataclass(frozen=True, repr=False)
class ApiCalls:
    """The API as one bearer of a token sees it; `token` is None before enrolment.

    signer: signs the requests of enrolled clients; operators have none.
    """

    url: str
    token: str | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    signer: Signer | None = None
    time: ServerTime = field(default_factory=ServerTime)

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", base_url(self.url))
        if self.chunk_bytes < 1:
            raise ParameterError(f"chunk_bytes must be at least 1, got {self.chunk_bytes}")

    def __repr__(self) -> str:
        return f"<ApiCalls {self.url}>"

    def enrolled(self, client_id: str, token: str, key: Ed25519PrivateKey) -> ApiCalls:
        """The same API as this enrolled client sees it: its requests carry its token and its signature."""
        return replace(self, token=token, signer=Signer(client_id, key, self.time))

    # --- tasks ---------------------------------------------------------------------------------------------------

    def create_task(self, request: TaskRequest) -> Program[TaskView]:
        """Create a task (operators)."""
        return self._post("/v1/tasks", request, TaskView)

    def tasks(self, name: str | None = None) -> Program[TaskPage]:
        """Tasks, newest first, those called `name` only when given (operators)."""
        return self._get(_path("/v1/tasks", name=name), TaskPage)

    def task(self, task_id: str) -> Program[TaskView]:
        """One task."""
        return self._get(_task(task_id), TaskView)

    def close_task(self, task_id: str) -> Program[TaskView]:
        """Close a task; closing twice does nothing more (operators)."""
        return self._post(_task(task_id, "close"), None, TaskView, idempotent=True)

    def extend_round(self, task_id: str, number: int, seconds: float) -> Program[RoundView]:
        """Move the deadline of a round's stage; each call moves it again (operators)."""
        return self._post(_task(task_id, "rounds", number, "extend"), Extension(seconds=seconds), RoundView)

    def abort_round(self, task_id: str, number: int) -> Program[RoundView]:
        """End a round under way; doing so twice does nothing more (operators)."""
        return self._post(_task(task_id, "rounds", number, "abort"), None, RoundView, idempotent=True)

    # --- members -------------------------------------------------------------------------------------------------

    def invite(self, task_id: str, request: InvitationRequest) -> Program[Invitation]:
        """Make an invitation (operators)."""
        return self._post(_task(task_id, "invitations"), request, Invitation)

    def invitations(self, task_id: str, after: str | None = None) -> Program[InvitationPage]:
        """A page of a task's invitations, in the order they were made (operators)."""
        return self._get(_path(_task(task_id, "invitations"), after=after), InvitationPage)

    def revoke_invitation(self, task_id: str, invitation_id: str) -> Program[InvitationView]:
        """Take an invitation back; doing so twice does nothing more (operators)."""
        request = self._request("DELETE", _task(task_id, "invitations", invitation_id))
        response = yield from send(request, self.retry)
        return _parse(request, response, InvitationView)

    def enrol(self, request: EnrolmentRequest) -> Program[Enrolment]:
        """Enrol; doing so again with the same identity key is safe, and gives a new token."""
        return self._post("/v1/enrolments", request, Enrolment, idempotent=True)

    def members(
        self, task_id: str, after: str | None = None, unkeyed: bool = False, wait: float = 0.0
    ) -> Program[MemberPage]:
        """A page of members; with `unkeyed` those without an envelope only, waiting for one (holder, operators)."""
        path = _path(_task(task_id, "members"), after=after, unkeyed="true" if unkeyed else None, wait=_wait(wait))
        return self._get(path, MemberPage, wait)

    def revoke_member(self, task_id: str, client_id: str) -> Program[Member]:
        """Void a membership for good; doing so twice does nothing more (operators)."""
        request = self._request("DELETE", _task(task_id, "members", client_id))
        response = yield from send(request, self.retry)
        return _parse(request, response, Member)

    def put_public_key(self, task_id: str, public_key: bytes) -> Program[None]:
        """Publish what contributions are folded under, where the mechanism folds under a public key (holder)."""
        yield from self._put(_task(task_id, "public-key"), public_key)

    def put_envelope(self, task_id: str, client_id: str, envelope: bytes) -> Program[None]:
        """Put a member's keyring envelope into its mailbox (holder)."""
        yield from self._put(_task(task_id, "keyring", client_id), envelope)

    def envelope(self, task_id: str, wait: float = 0.0) -> Program[bytes | None]:
        """One's own keyring envelope; None while there is none."""
        return self._bytes_or_none(_path(_task(task_id, "keyring"), wait=_wait(wait)), wait)

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
        return self._bytes_or_none(_task(task_id, "revocations"), 0.0)

    # --- rounds --------------------------------------------------------------------------------------------------

    def current_round(self, task_id: str, etag: str | None = None, wait: float = 0.0) -> Program[Fresh | None]:
        """The newest round; None when nothing changed since `etag`, or when there is no round, within `wait`."""
        headers = {"if-none-match": etag} if etag else {}
        request = self._request("GET", _path(_task(task_id, "rounds", "current"), wait=_wait(wait)), headers, wait=wait)
        try:
            response = yield from send(request, self.retry)
        except NotFound:
            return None
        if response.status == 304:
            return None
        return Fresh(_parse(request, response, RoundView), response.headers.get("etag"))

    def rounds(self, task_id: str, after: int = 0, limit: int = 100, state: str | None = None) -> Program[RoundPage]:
        """Rounds after number `after`, in order, in one `state` only when given."""
        return self._get(_path(_task(task_id, "rounds"), after=after, limit=limit, state=state), RoundPage)

    def round(self, task_id: str, number: int) -> Program[RoundView]:
        """One round."""
        return self._get(_task(task_id, "rounds", number), RoundView)

    def cohort(self, task_id: str, number: int) -> Program[CohortView]:
        """Who is asked in a round."""
        return self._get(_task(task_id, "rounds", number, "cohort"), CohortView)

    def contribute(self, task_id: str, number: int, client_id: str, body: bytes) -> Program[UploadReceipt]:
        """Upload a contribution, resumed where a connection broke."""
        url = self.url + _task(task_id, "rounds", number, "contributions", client_id)
        return upload(url, self._authorization(), body, self.retry, self.chunk_bytes, self.signer)

    def ledger(self, task_id: str, after: int = 0) -> Program[LedgerPage]:
        """A page of a task's released sums (operators)."""
        return self._get(_path(_task(task_id, "ledger"), after=after), LedgerPage)

    def own_ledger(self, task_id: str, after: int = 0) -> Program[LedgerPage]:
        """A page of the released sums that this client's contributions are in."""
        return self._get(_path(_task(task_id, "members", "me", "ledger"), after=after), LedgerPage)

    # --- masked rounds -------------------------------------------------------------------------------------------

    def put_stage(self, task_id: str, number: int, stage: StageMessage, client_id: str, body: bytes) -> Program[None]:
        """Store this client's message of one stage; the same bytes again are as good."""
        yield from self._put(_task(task_id, "rounds", number, "stages", stage, client_id), body)

    def stage_body(self, task_id: str, number: int, what: Handout, length: int | None = None) -> Program[bytes]:
        """What the server hands out for a stage, of exactly `length` bytes where that is known."""
        request = self._request("GET", _task(task_id, "rounds", number, what))
        response = yield from send(request, self.retry)
        return _checked(request, response, length, None)

    def aggregate(self, task_id: str, number: int, length: int, digest: str | None) -> Program[bytes]:
        """A released aggregate of exactly `length` bytes, checked against `digest` (hex) and its Content-Digest."""
        request = self._request("GET", _task(task_id, "rounds", number, "aggregate"))
        response = yield from send(request, self.retry)
        return _checked(request, response, length, digest)

    # --- snapshots -----------------------------------------------------------------------------------------------

    def latest_snapshot(self, task_id: str, at_least: int = 0, wait: float = 0.0) -> Program[SnapshotView | None]:
        """The newest snapshot of round `at_least` or later; None while there is none."""
        path = _path(_task(task_id, "snapshots", "latest"), at_least=at_least or None, wait=_wait(wait))
        request = self._request("GET", path, wait=wait)
        try:
            response = yield from send(request, self.retry)
        except NotFound:
            return None
        return _parse(request, response, SnapshotView)

    def snapshot(self, task_id: str, view: SnapshotView) -> Program[bytes | None]:
        """The body of a snapshot; None when it is no longer kept."""
        request = self._request("GET", _task(task_id, "snapshots", view.round))
        try:
            response = yield from send(request, self.retry)
        except NotFound:
            return None
        return _checked(request, response, view.bytes, view.digest)

    def put_snapshot(self, task_id: str, number: int, sealed: bytes) -> Program[None]:
        """Publish a sealed snapshot; `Conflict` when somebody was first."""
        yield from self._put(_task(task_id, "snapshots", number), sealed)

    # --- plumbing ------------------------------------------------------------------------------------------------

    def _authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    def _request(
        self,
        method: Method,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        wait: float = 0.0,
    ) -> Request:
        every = {**self._authorization(), **(headers or {})}
        return Request(method, self.url + path, every, body, wait, self.signer)

    def _get(self, path: str, model: type[M], wait: float = 0.0) -> Program[M]:
        request = self._request("GET", path, wait=wait)
        response = yield from send(request, self.retry)
        return _parse(request, response, model)

    def _post(self, path: str, body: BaseModel | None, model: type[M], idempotent: bool = False) -> Program[M]:
        encoded = b"" if body is None else body.model_dump_json().encode()
        headers = {}
        if body is not None:
            headers = {"content-type": "application/json", "content-digest": content_digest(encoded)}
        request = self._request("POST", path, headers, encoded)
        response = yield from send(request, self.retry, idempotent)
        return _parse(request, response, model)

    def _put(self, path: str, body: bytes) -> Program[Response]:
        headers = {"content-type": "application/octet-stream", "content-digest": content_digest(body)}
        return send(self._request("PUT", path, headers, body), self.retry)

    def _bytes_or_none(self, path: str, wait: float) -> Program[bytes | None]:
        request = self._request("GET", path, wait=wait)
        try:
            response = yield from send(request, self.retry)
        except NotFound:
            return None
        return _checked(request, response, None, None)


def _task(task_id: str, *rest: str | int) -> str:
    return "/".join(["/v1/tasks", quote(task_id, safe=""), *(quote(str(part), safe="") for part in rest)])


def _path(path: str, **query: str | int | float | None) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _wait(seconds: float) -> float | None:
    if not 0.0 <= seconds <= LONGEST_WAIT:
        raise ParameterError(f"a long poll waits 0 to {LONGEST_WAIT:g} seconds, not {seconds}")
    return seconds or None


def _parse(request: Request, response: Response, model: type[M]) -> M:
    try:
        return model.model_validate_json(response.body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        detail = f"the answer is no {model.__name__} ({where}: {first['msg']}): is this server of the same version?"
        raise ContractBroken(request.method, request.url, response.status, detail) from None


def _checked(request: Request, response: Response, length: int | None, digest: str | None) -> bytes:
    """The body, after its length, its Content-Digest and the digest it was announced by were compared."""
    where = (request.method, request.url, response.status)
    if length is not None and len(response.body) != length:
        raise ContractBroken(*where, f"{length} bytes were expected, {len(response.body)} came")
    try:
        carried = parse_digest(response.headers.get("content-digest", ""))
    except CodecError as error:
        raise ContractBroken(*where, str(error)) from error
    if carried is None and digest is None:
        raise ContractBroken(*where, "the download came without a sha-256 digest")
    if carried is not None and not digest_matches(response.body, carried):
        raise DigestMismatch(*where, "the body does not match its Content-Digest")
    if digest is not None and not _announced(response.body, digest):
        raise DigestMismatch(*where, "the body does not match the digest it was announced by")
    return response.body


def _announced(body: bytes, digest: str) -> bool:
    try:
        return digest_matches(body, bytes.fromhex(digest))
    except ValueError:
        return False
