"""Every error of the SDK, as a tree. The errors of the protocols are in `protocols.errors`.

    HushRecError
    └── ClientSDKError
        ├── ApiError                    the server answered with an error
        │   ├── ClientFault             the request was at fault
        │   │   ├── BadRequest          400 bad-request
        │   │   ├── BadDigest           400 bad-digest
        │   │   ├── BadContribution     400 bad-contribution
        │   │   ├── BodyTooShort        400 body-too-short
        │   │   ├── InconsistentLength  400 inconsistent-length
        │   │   ├── Unauthenticated     401 unauthenticated
        │   │   ├── BadSignature        401 bad-signature
        │   │   ├── StaleSignature      401 stale-signature
        │   │   ├── Forbidden           403 forbidden
        │   │   │   └── NotInCohort     403 not-in-cohort
        │   │   ├── NotFound            404 not-found
        │   │   ├── MethodNotAllowed    405 method-not-allowed
        │   │   ├── UploadTimeout       408 upload-timeout
        │   │   ├── Conflict            409 conflict
        │   │   │   ├── AggregateMismatch       409 aggregate-mismatch
        │   │   │   ├── ContributionConflict    409 contribution-conflict
        │   │   │   ├── OffsetMismatch          409 offset-mismatch
        │   │   │   └── RoundClosed             409 round-closed
        │   │   ├── Gone                410 gone
        │   │   ├── LengthRequired      411 length-required
        │   │   ├── BodyTooLong         413 body-too-long
        │   │   ├── UnsupportedMediaType    415 unsupported-media-type
        │   │   ├── InvalidParameters   422 invalid-parameters
        │   │   └── TooManyRequests     429 too-many-requests
        │   └── ServerFault             the server was at fault
        │       ├── ClocksDiffer        401 stale-signature, again, to a signature with the server's own time
        │       ├── InternalError       500 internal-error
        │       ├── Unavailable         503 unavailable
        │       ├── ForeignAnswer       a proxy, a filter or another server answered
        │       └── ContractBroken      the answer is not allowed by the API
        │           └── DigestMismatch  the download does not match its digest
        ├── ConnectionFailed            no answer: refused, cut off or timed out
        │   └── UntrustedServer         the server's TLS certificate is not valid for this client
        ├── GaveUp                      the last retry failed; `last` is its error
        ├── PolicyRefused               this client's policy does not allow the task or round
        ├── RoundLost                   a masked round continued without this client, or failed
        ├── TaskFailed                  the task ended because too many of its rounds failed
        ├── Abstained                   this client has nothing to add to the round's sum, and sent nothing
        ├── ModelUnavailable            no snapshot of the model is published or kept
        ├── NotAttested                 too few members have stated that they hold this client's aggregates
        ├── Equivocation                the server gave members different aggregates; `proof` shows it
        ├── FalseModel                  the server's model does not follow from the sums that it released
        ├── NotEnrolled                 no membership of that task is stored on this device
        └── LocalFileError              a key or state file is missing, damaged or readable by others

An `ApiError` has the method, URL and status of the request and the problem document. No error holds a token or a body.

`error.remedy` says what the reader can do, None where there is nothing to say. `str(error)` does not contain it;
tracebacks show it as a note, and `hushrec` prints it on a second line (`protocols.errors.HushRecError`).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from protocols.errors import HushRecError
from protocols.messages import ProblemDocument
from protocols.messages.base import PROBLEM_TYPES


class ClientSDKError(HushRecError):
    """Base class of the SDK's errors."""


class ApiError(ClientSDKError):
    """The server answered with an error.

    method, url: of the request (URLs hold no secrets). status: of the answer. problem: the problem document, made here
    for answers that have none. retry_after: seconds of the Retry-After field, None without one.
    """

    def __init__(
        self,
        method: str,
        url: str,
        status: int,
        problem: ProblemDocument,
        retry_after: float | None = None,
        remedy: str | None = None,
    ) -> None:
        text = problem.detail or problem.title
        super().__init__(f"{method} {url}: {status} {text}", remedy=remedy)
        self.method, self.url, self.status = method, url, status
        self.problem, self.retry_after = problem, retry_after


class ClientFault(ApiError):
    """The request was at fault; repeating it unchanged cannot succeed."""


class BadRequest(ClientFault):
    """The request is malformed."""


class BadDigest(ClientFault):
    """The body that arrived does not match its digest."""


class BadContribution(ClientFault):
    """The contribution cannot enter the sum."""


class BodyTooShort(ClientFault):
    """The body is shorter than the round's specification."""


class InconsistentLength(ClientFault):
    """The stated length of the upload is not that of the contribution."""


class Unauthenticated(ClientFault):
    """The token is missing, wrong or void."""

    remedy = (
        "If this identity enrolled again elsewhere, join again with an invitation (client.join(invitation=...)). If "
        "its membership was revoked, ask the task's operator: a revoked identity cannot join again."
    )


class BadSignature(ClientFault):
    """The request is not signed with the key that this client enrolled, or was altered on its way."""

    remedy = (
        "Check that this is the identity that enrolled (--identity names its file), and that the server knows this "
        "address as its own (HUSHREC_PUBLIC_ORIGINS). A proxy that rewrites paths breaks signatures."
    )


class StaleSignature(ClientFault):
    """The request was signed too long ago, or in the future: a clock is off by more than can be corrected."""

    remedy = "Set this machine's clock: it differs too much from the server's."


class Forbidden(ClientFault):
    """The token does not allow this."""

    remedy = (
        "Check that the invitation is copied in full and is for this server, and that the membership certificate is "
        "from the task's organiser (certificate=Issuer(url, scope, code); --issuer with --scope and --code, or "
        "--certificate)."
    )


class NotInCohort(Forbidden):
    """This client is not asked in this round."""


class NotFound(ClientFault):
    """The resource does not exist, or does not exist yet."""


class MethodNotAllowed(ClientFault):
    """The resource does not support this method."""


class UploadTimeout(ClientFault):
    """The request body did not arrive in time."""


class Conflict(ClientFault):
    """The state of the resource does not allow the request."""


class AggregateMismatch(Conflict):
    """This client has absorbed other aggregates than those that the server has released."""


class ContributionConflict(Conflict):
    """Another contribution of this client is already stored."""


class OffsetMismatch(Conflict):
    """The chunk does not start at the server's offset. `offset` is that offset in bytes, if the answer has it."""

    offset: int | None = None


class RoundClosed(Conflict):
    """The round no longer accepts contributions."""


class Gone(ClientFault):
    """The invitation has been used up or has expired."""

    remedy = "Ask the operator for a new invitation: hushrec-server invite TASK"


class LengthRequired(ClientFault):
    """The request needs a Content-Length field."""


class BodyTooLong(ClientFault):
    """The body is longer than the round allows."""


class UnsupportedMediaType(ClientFault):
    """The resource does not support this media type."""


class InvalidParameters(ClientFault):
    """The parameters cannot work; the text gives the reason."""


class TooManyRequests(ClientFault):
    """The client sent too many requests; `retry_after` is the time to wait in seconds."""


class ServerFault(ApiError):
    """The server was at fault; the same request may succeed later."""

    remedy = "The error is in the server: its operator finds the details in the server's log."


class ClocksDiffer(ServerFault):
    """A request that was signed with the server's own time is stale for it: several servers with different clocks."""

    remedy = "The operator sets the clocks of all servers (NTP); /readyz of a server says by how much its clock is off."


class InternalError(ServerFault):
    """The server failed to process the request."""


class Unavailable(ServerFault):
    """The server cannot process the request at the moment."""


class ForeignAnswer(ServerFault):
    """The answer is not the aggregator's: a page of a proxy, of a filter or of another server, or a redirect.

    It says nothing about the task. Except for 413, the request is repeated, and waited for, as without any answer.
    """

    remedy = (
        "A proxy, a filter or another server answered in the aggregator's place. Check the address, and that the "
        "aggregator is running: hushrec doctor --url URL"
    )

    def __init__(
        self, method: str, url: str, status: int, media_type: str, location: str, retry_after: float | None = None
    ) -> None:
        detail = f"answered by something else than the aggregator ({media_type or 'without a media type'})"
        if location:
            detail = f"redirected to {location}, which is not followed"
        problem = ProblemDocument(
            type="about:blank", title="Foreign answer", status=status, detail=detail, fault="server"
        )
        too_long = (
            "What stands before the aggregator does not let a body of this length through: its operator raises the "
            "limit (nginx: client_max_body_size)."
        )
        is_too_long = status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        super().__init__(method, url, status, problem, retry_after, too_long if is_too_long else None)


class ContractBroken(ServerFault):
    """The API does not allow this answer: it is of another version, or contradicts the task's terms."""

    def __init__(self, method: str, url: str, status: int, detail: str) -> None:
        problem = ProblemDocument(
            type="about:blank", title="Broken contract", status=status, detail=detail, fault="server"
        )
        super().__init__(method, url, status, problem)


class DigestMismatch(ContractBroken):
    """A download does not match its Content-Digest or its announced digest."""


class ConnectionFailed(ClientSDKError):
    """The request got no answer. `sent` is False if it was certainly not sent; `reason` says why, in plain words."""

    remedy = "Check the address and that the server is running: hushrec doctor --url URL"

    def __init__(self, method: str, url: str, reason: str, sent: bool, remedy: str | None = None) -> None:
        super().__init__(f"{method} {url}: {reason}", remedy=remedy)
        self.method, self.url, self.reason, self.sent = method, url, reason, sent


class UntrustedServer(ConnectionFailed):
    """The server's TLS certificate is not valid: unknown authority, other host name, or expired. It is not retried."""

    remedy = (
        "Set SSL_CERT_FILE to the PEM file of the authority that issued the server's certificate. If you did not "
        "expect this, do not go on: another server may be answering."
    )


class GaveUp(ClientSDKError):
    """Every attempt failed. `attempts` is their number, `last` the error of the last one, with its remedy."""

    def __init__(self, attempts: int, last: ConnectionFailed | ApiError) -> None:
        tried = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        if isinstance(last, ConnectionFailed):
            where = urlsplit(last.url)
            asked = "" if last.sent else "; is the server running, is the address right?"
            text = f"no answer from {where.scheme}://{where.netloc} after {tried}: {last.reason}{asked}"
        else:
            text = f"gave up after {tried}: {last}"
        super().__init__(text, remedy=last.remedy)
        self.attempts, self.last = attempts, last


class PolicyRefused(ClientSDKError):
    """This client's policy does not allow the task or the round. `remedy` names the field of `Policy` that decides."""


class RoundLost(ClientSDKError):
    """A masked round continued without this client, or failed. The client can take part in the next one."""


class Abstained(ClientSDKError):
    """This client has nothing to add to the round's sum, or another sum has its data. It sent nothing.

    A contribution of zeros would count towards the task's `min_clients`. The client can take part in the next round.
    """


class ModelUnavailable(ClientSDKError):
    """The model after round `round` is not available: its snapshot was not published, or is no longer kept."""

    def __init__(self, round_number: int, reason: str) -> None:
        super().__init__(reason, remedy="Try again when the next round has ended.")
        self.round = round_number


class NotAttested(ClientSDKError):
    """Fewer members than the task's `min_clients` have stated that they hold the aggregates that this client holds."""


class Equivocation(ClientSDKError):
    """The server gave members different aggregates of one task. This client takes no part in the task any more.

    proof: a JSON document with both members' signed statements; the client's store keeps it.
    """

    def __init__(self, task_id: str, proof: bytes) -> None:
        super().__init__(
            f"the server gave members of task {task_id} different aggregates: members have signed that they hold "
            "others than this client does. This client takes no part in the task any more; the proof is stored with "
            "its other files of this task, as equivocation.json"
        )
        self.proof = proof


class FalseModel(ClientSDKError):
    """The server lies or is broken: its model does not follow from the sums that it released.

    The client computed the model after round `round` from its own model before it and the released sum. It takes no
    part in a round with another one, and does not tell the server why.
    """

    def __init__(self, round_number: int, fault: str) -> None:
        super().__init__(
            f"the server lies about the model or is broken: {fault}. This client sent nothing",
            remedy="Tell the task's operator and organiser, and take no part until they have explained it.",
        )
        self.round = round_number


class TaskFailed(ClientSDKError):
    """The task ended because too many of its rounds failed. The model of its last completed round can still be used.

    task: its name. reason: why its newest round failed, None if the server does not say. reports: this client's
    contributions (`RoundReport`) in this call of `take_part`.
    """

    def __init__(self, task: str, reason: str | None, reports: tuple[object, ...]) -> None:
        because = "" if reason is None else f": its newest round failed because of: {reason}"
        super().__init__(
            f"task {task!r} failed, too many of its rounds did not complete{because}. Its operator can continue it "
            "(hushrec-server task resume)"
        )
        self.task, self.reason, self.reports = task, reason, reports


class NotEnrolled(ClientSDKError):
    """No membership of that task is stored on this device; join with an invitation first."""

    remedy = (
        "Join the task first, with an invitation from its operator: client.join(invitation=...), or hushrec join URL "
        "--invitation INVITATION --interactions FILE"
    )


class LocalFileError(ClientSDKError):
    """A key or state file is missing, damaged or readable by others."""

    remedy = (
        "Restore the file from a backup. Without one, start anew in another place: a client with a new identity "
        "(--identity) and a new invitation, an organiser with a new folder (--folder)."
    )


PROBLEM_ERRORS: Final[dict[str, type[ApiError]]] = {
    slug: globals()[slug.title().replace("-", "")] for slug in PROBLEM_TYPES
}
"""Error class by problem slug: bad-request -> `BadRequest`, and so on."""


def error_class(problem: ProblemDocument, status: int) -> type[ApiError]:
    """Return the error class for a problem document, by its type, or by the status when the type is unknown."""
    return PROBLEM_ERRORS.get(problem.slug, ServerFault if status >= 500 else ClientFault)
