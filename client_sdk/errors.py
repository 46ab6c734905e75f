"""Every error of the SDK, drawn as a tree. What the protocols themselves raise stands in `protocols.errors`.

    HushRecError
    └── ClientSDKError
        ├── ApiError                    the server answered with a problem document (or with nonsense)
        │   ├── ClientFault             the request was at fault
        │   │   ├── BadRequest          400 bad-request
        │   │   ├── BadDigest           400 bad-digest
        │   │   ├── BadContribution     400 bad-contribution
        │   │   ├── BodyTooShort        400 body-too-short
        │   │   ├── Unauthenticated     401 unauthenticated
        │   │   ├── BadSignature        401 bad-signature
        │   │   ├── StaleSignature      401 stale-signature
        │   │   ├── Forbidden           403 forbidden
        │   │   │   └── NotInCohort     403 not-in-cohort
        │   │   ├── NotFound            404 not-found
        │   │   ├── MethodNotAllowed    405 method-not-allowed
        │   │   ├── UploadTimeout       408 upload-timeout
        │   │   ├── Conflict            409 conflict
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
        │       ├── InternalError       500 internal-error
        │       ├── Unavailable         503 unavailable
        │       └── ContractBroken      an answer that the API's contract does not allow
        │           └── DigestMismatch  a download that does not match its digest
        ├── ConnectionFailed            no answer: refused, cut off, timed out
        ├── GaveUp                      still no luck after the last retry; `last` says what the last try met
        ├── PolicyRefused               this client's own policy says no, whatever the server says
        ├── RoundLost                   a masked round went on without this client, or failed
        ├── ModelUnavailable            the newest model is not to be had (yet)
        ├── NotEnrolled                 no membership of that task is kept here
        └── LocalFileError              a key or state file that is missing, damaged or readable by others

`ApiError`s carry method, url, status and the problem document; none of them ever holds a token or a body.
"""

from __future__ import annotations

from typing import Final

from protocols.errors import HushRecError
from protocols.messages import ProblemDocument

__all__ = [
    "PROBLEM_ERRORS",
    "ApiError",
    "BadContribution",
    "BadDigest",
    "BadRequest",
    "BadSignature",
    "BodyTooLong",
    "BodyTooShort",
    "ClientFault",
    "ClientSDKError",
    "Conflict",
    "ConnectionFailed",
    "ContractBroken",
    "ContributionConflict",
    "DigestMismatch",
    "Forbidden",
    "GaveUp",
    "Gone",
    "InternalError",
    "InvalidParameters",
    "LengthRequired",
    "LocalFileError",
    "MethodNotAllowed",
    "ModelUnavailable",
    "NotEnrolled",
    "NotFound",
    "NotInCohort",
    "OffsetMismatch",
    "PolicyRefused",
    "RoundClosed",
    "RoundLost",
    "ServerFault",
    "StaleSignature",
    "TooManyRequests",
    "Unauthenticated",
    "Unavailable",
    "UnsupportedMediaType",
    "UploadTimeout",
    "error_class",
]


class ClientSDKError(HushRecError):
    """Base of every error that the SDK adds to the protocols' own."""


class ApiError(ClientSDKError):
    """The server answered, and not with what was asked for.

    method, url: of the request (urls hold no secrets). status: of the answer. problem: its document; made up from the
    status when the answer was none. retry_after: seconds, when the answer named them.
    """

    def __init__(
        self, method: str, url: str, status: int, problem: ProblemDocument, retry_after: float | None = None
    ) -> None:
        text = problem.detail or problem.title
        super().__init__(f"{method} {url}: {status} {text}")
        self.method, self.url, self.status = method, url, status
        self.problem, self.retry_after = problem, retry_after


class ClientFault(ApiError):
    """The request was at fault; sending it again unchanged will not help."""


class BadRequest(ClientFault):
    """The request is malformed."""


class BadDigest(ClientFault):
    """The body that arrived does not match its digest."""


class BadContribution(ClientFault):
    """The contribution cannot enter the sum."""


class BodyTooShort(ClientFault):
    """The body is shorter than the round's specification."""


class Unauthenticated(ClientFault):
    """The token is missing, wrong or void."""


class BadSignature(ClientFault):
    """The request is not signed with the key that this client enrolled, or was altered on its way."""


class StaleSignature(ClientFault):
    """The request was signed too long ago, or in the future: a clock is off by more than could be made up for."""


class Forbidden(ClientFault):
    """The token does not allow this."""


class NotInCohort(Forbidden):
    """This client is not asked in this round."""


class NotFound(ClientFault):
    """There is no such resource, or it is not there yet."""


class MethodNotAllowed(ClientFault):
    """The resource does not know this method."""


class UploadTimeout(ClientFault):
    """The body stopped arriving."""


class Conflict(ClientFault):
    """The resource is in another state."""


class ContributionConflict(Conflict):
    """Another contribution of this client is already stored."""


class OffsetMismatch(Conflict):
    """The chunk does not start where the upload stands; `offset` is where it does, when the answer says so."""

    offset: int | None = None


class RoundClosed(Conflict):
    """The round no longer takes contributions."""


class Gone(ClientFault):
    """The invitation is used up or expired."""


class LengthRequired(ClientFault):
    """A Content-Length is needed."""


class BodyTooLong(ClientFault):
    """The body is longer than the round's specification."""


class UnsupportedMediaType(ClientFault):
    """The media type is not supported there."""


class InvalidParameters(ClientFault):
    """The parameters cannot work; the text says why."""


class TooManyRequests(ClientFault):
    """The server asks for fewer requests."""


class ServerFault(ApiError):
    """The server was at fault."""


class InternalError(ServerFault):
    """The server failed."""


class Unavailable(ServerFault):
    """The server cannot take this now."""


class ContractBroken(ServerFault):
    """An answer that the API's contract does not allow: a proxy's page, another version, or a server that lies."""

    def __init__(self, method: str, url: str, status: int, detail: str) -> None:
        problem = ProblemDocument(
            type="about:blank", title="Broken contract", status=status, detail=detail, fault="server"
        )
        super().__init__(method, url, status, problem)


class DigestMismatch(ContractBroken):
    """A download that does not match the digest it came with or was announced by."""


class ConnectionFailed(ClientSDKError):
    """No answer came. `sent` is False when the request certainly never left."""

    def __init__(self, method: str, url: str, reason: str, sent: bool) -> None:
        super().__init__(f"{method} {url}: {reason}")
        self.method, self.url, self.sent = method, url, sent


class GaveUp(ClientSDKError):
    """Every retry failed. `last` is what the last try met: `ConnectionFailed` or an `ApiError`."""

    def __init__(self, attempts: int, last: ConnectionFailed | ApiError) -> None:
        super().__init__(f"gave up after {attempts} attempts: {last}")
        self.attempts, self.last = attempts, last


class PolicyRefused(ClientSDKError):
    """This client's own policy does not allow the task or the round."""


class RoundLost(ClientSDKError):
    """A masked round went on without this client, or failed; the next one starts afresh."""


class ModelUnavailable(ClientSDKError):
    """The model after round `round` is not to be had: its snapshot was not published, or is no longer kept."""

    def __init__(self, round_number: int, reason: str) -> None:
        super().__init__(reason)
        self.round = round_number


class NotEnrolled(ClientSDKError):
    """No membership of that task is kept here; join with an invitation first."""


class LocalFileError(ClientSDKError):
    """A key or state file is missing, damaged or readable by others."""


PROBLEM_ERRORS: Final[dict[str, type[ApiError]]] = {
    "bad-request": BadRequest,
    "bad-digest": BadDigest,
    "bad-contribution": BadContribution,
    "body-too-short": BodyTooShort,
    "unauthenticated": Unauthenticated,
    "bad-signature": BadSignature,
    "stale-signature": StaleSignature,
    "forbidden": Forbidden,
    "not-in-cohort": NotInCohort,
    "not-found": NotFound,
    "method-not-allowed": MethodNotAllowed,
    "upload-timeout": UploadTimeout,
    "conflict": Conflict,
    "contribution-conflict": ContributionConflict,
    "offset-mismatch": OffsetMismatch,
    "round-closed": RoundClosed,
    "gone": Gone,
    "length-required": LengthRequired,
    "body-too-long": BodyTooLong,
    "unsupported-media-type": UnsupportedMediaType,
    "invalid-parameters": InvalidParameters,
    "too-many-requests": TooManyRequests,
    "internal-error": InternalError,
    "unavailable": Unavailable,
}
"""Problem slug -> the error it is raised as; a test keeps it equal to `protocols.messages.problem.PROBLEM_TYPES`."""


def error_class(problem: ProblemDocument, status: int) -> type[ApiError]:
    """The error for a problem document: by its type, else by whose fault the status says it is."""
    return PROBLEM_ERRORS.get(problem.slug, ServerFault if status >= 500 else ClientFault)
