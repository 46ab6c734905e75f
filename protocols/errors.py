"""The errors that HushRec raises deliberately, as a tree.

    HushRecError
    ├── ParameterError           a parameter is invalid, or parameters are inconsistent
    │   ├── BudgetError          the numbers do not fit the ring, modulus or precision
    │   ├── CombinationError     this recipe and this mechanism cannot be combined
    │   └── RoutingError         a route has more blocks than the sum, or any where contributions name theirs
    ├── CodecError               bytes that do not have the exact form that their parameters imply
    │   ├── ContributionError    a contribution that must not enter a sum (the sender's fault)
    │   └── SignatureError       a request's signature is malformed or does not match
    ├── KeyringError             a key is missing, belongs to another task, or does not decrypt the data
    │   ├── CertificateError     a membership certificate has expired, is revoked or was not signed by the organiser
    │   └── EnvelopeError        a sealed envelope does not open or was not made by a member of the group
    ├── ReceiptError             a receipt is malformed, altered, or proves nothing
    ├── RefusalError             a client leaves a round: the server breaks a rule or the client's own policy
    │   └── AlreadySummed        the client took part in this sum before, and does not repeat it over other clients
    ├── AtFaultError             clients sent what proves them at fault: the round fails, and they must leave
    └── ThresholdError           too few clients reached a stage of a round: nothing is opened

The service maps them to problem documents (`aggregator_service.problems`); the SDK raises its own errors for the
server's answers (`client_sdk.errors`).
"""

from __future__ import annotations

__all__ = [
    "AlreadySummed",
    "AtFaultError",
    "BudgetError",
    "CertificateError",
    "CodecError",
    "CombinationError",
    "ContributionError",
    "EnvelopeError",
    "HushRecError",
    "KeyringError",
    "ParameterError",
    "ReceiptError",
    "RefusalError",
    "RoutingError",
    "SignatureError",
    "ThresholdError",
    "missing_extra",
    "to_accept",
]


class HushRecError(Exception):
    """Base of every error that HushRec raises deliberately. The text is safe to show: it never contains a secret."""

    remedy: str | None = None
    """What the reader can do about it, in one or two sentences, or None.

    It belongs to the class; an argument of that name replaces it for one error, and "" leaves it out. It is no part of
    `str(error)`, which stays one sentence for logs: it is a note of the exception (`__notes__`): tracebacks show it,
    commands print it on its own line.
    """

    def __init__(self, *args: object, remedy: str | None = None) -> None:
        super().__init__(*args)
        if remedy is not None:
            self.remedy = remedy or None
        if self.remedy is not None:
            self.add_note(self.remedy)


def to_accept(fields: str, option: str = "") -> str:
    """Return the remedy of what a client's policy refuses: `fields` of `client_sdk.Policy`, `option` of `hushrec`."""
    return f"To accept it, give the client another policy: Policy({fields}){f', or {option}' if option else ''}."


class ParameterError(HushRecError, ValueError):
    """A parameter is invalid, or parameters are inconsistent; the text says which and why."""

    extra: str | None = None
    """The extra of HushRec that is not installed, and that the parameter needs; None for other faults."""


def missing_extra(what: str, extra: str) -> ParameterError:
    """Return the error for what needs an extra that is not installed; what: a subject and its verb.

    It names no `pip install`: what that installs depends on where HushRec came from, which `hushrec doctor` looks up.
    """
    text = f"{what} the extra `{extra}`, which is not installed: hushrec doctor prints how to install it"
    made = ParameterError(text)
    made.extra = extra
    return made


class BudgetError(ParameterError):
    """Values, cohort and precision do not fit the ring, modulus or scale that was asked for."""


class CombinationError(ParameterError):
    """The recipe and the mechanism cannot be combined; the text says why."""


class CodecError(HushRecError, ValueError):
    """Bytes that do not have the exact form that their parameters imply."""


class ContributionError(CodecError):
    """A contribution that must not enter a sum: wrong length, residues out of range. The sender's fault."""


class SignatureError(CodecError):
    """A request's signature is malformed, covers other components than required, or does not match the key."""


class KeyringError(HushRecError):
    """A key is missing, belongs to another task, or does not decrypt the data."""

    remedy = "The key holder makes keys with: hushrec keyring create, and seals them with: hushrec keyring serve."


class CertificateError(KeyringError):
    """A membership certificate has expired, is revoked, or was not signed by the organiser for these keys."""

    remedy = (
        "Ask the task's organiser for a certificate for this identity: certificate=Issuer(url, scope, code), or "
        "--issuer with --scope and --code; or a file made from hushrec certificate request."
    )


class EnvelopeError(KeyringError):
    """A sealed envelope does not open: wrong recipient, wrong signer, or altered on the way."""

    remedy = "Ask the key holder to run hushrec keyring serve; check that this is the identity that enrolled."


class ReceiptError(HushRecError, ValueError):
    """A receipt of a contribution is malformed, altered, or proves nothing: the fault of whoever made the file."""


class RoutingError(ParameterError):
    """A route has more blocks than the sum, or any where contributions name theirs."""


class RefusalError(HushRecError):
    """A client leaves a round: the server's message breaks a rule of the protocol or the client's own policy."""

    stage: str = ""
    """State of the round in which the client left it; "" while it is not known."""


class AlreadySummed(RefusalError):
    """The server repeats a sum that this client took part in, after it has taken part in others.

    The client does not remember over which clients the sum was. sum_index: of the sum.
    """

    def __init__(self, sum_index: int) -> None:
        super().__init__(
            f"the server repeats sum {sum_index}, and this client took part in it before: the difference of the two "
            "results could reveal one client's data"
        )
        self.sum_index = sum_index


class ThresholdError(HushRecError):
    """Too few clients reached a stage, so the sum cannot be opened. The round fails; it need not be anyone's fault.
    stage: name of the stage, such as "sharing". needed, present: numbers of clients. whose: the id of the client whose
    neighbours are counted, or None if the clients of the whole round are.
    """

    def __init__(self, stage: str, needed: int, present: int, whose: str | None = None) -> None:
        super().__init__(stage, needed, present, whose)  # all of it, so that the error passes between processes
        self.stage, self.needed, self.present, self.whose = stage, needed, present, whose

    def __str__(self) -> str:
        around = "in the round" if self.whose is None else f"among the neighbours of {self.whose}"
        return f"{self.stage}: {self.needed} clients are needed {around}, {self.present} are present"


class AtFaultError(HushRecError):
    """Clients sent shares that do not match their commitments, so that the sum cannot be opened. clients: their ids.

    Nobody else can have caused it (`protocols.sums.masked.shares`).
    """

    def __init__(self, clients: tuple[str, ...]) -> None:
        super().__init__(clients)  # all of it, so that the error passes between processes
        self.clients = clients

    def __str__(self) -> str:
        return f"unmasking: wrong shares or commitments of {', '.join(self.clients)}"
