"""Which identity and which membership a command is about."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import platformdirs
import typer

from client_sdk.agreement.policy import Policy
from client_sdk.api.retry import RetryPolicy
from client_sdk.cli.console import stderr
from client_sdk.errors import LocalFileError, NotEnrolled
from client_sdk.local_state.identity import Identity
from client_sdk.local_state.store import ClientStore, Membership, default_store
from client_sdk.participation.certificates import CertificateChoice, Issuer
from client_sdk.participation.enroller import ClientOptions
from protocols.crypto.certificates import CertifiedRole
from protocols.errors import CodecError, ParameterError
from protocols.messages import IssuedCertificate
from protocols.sums.registry import MECHANISMS

__all__ = [
    "PATIENT",
    "READING",
    "Group",
    "IdentityFile",
    "IssuerCode",
    "IssuerScope",
    "IssuerUrl",
    "certificate_choice",
    "TaskName",
    "interactions_file",
    "kept_membership",
    "load_identity",
    "open_identity",
    "remember_interactions",
]

PATIENT: Final = ClientOptions(retry=RetryPolicy(attempts=40))
"""For commands that run for days: a server may be away for minutes, to be restarted or brought up to date."""

READING: Final = Policy(min_cohort=2, mechanisms=frozenset(MECHANISMS), reveal_indices=True)
"""For commands that contribute nothing: they reveal nothing, whatever the task's conditions."""

_INTERACTIONS: Final = "interactions.path"

IdentityFile = Annotated[
    Path | None,
    typer.Option("--identity", envvar="HUSHREC_IDENTITY", help="Identity file; one in the user's data directory."),
]
TaskName = Annotated[str | None, typer.Option("--task", help="Name or id of the task; not needed when there is one.")]
CertificateFile = Annotated[
    Path | None,
    typer.Option(
        "--certificate",
        envvar="HUSHREC_CERTIFICATE",
        help="File with the membership certificate that the task's organiser issued.",
    ),
]
IssuerUrl = Annotated[
    str | None,
    typer.Option("--issuer", envvar="HUSHREC_ISSUER", help="Address of the organiser's issuing endpoint."),
]
IssuerScope = Annotated[str | None, typer.Option("--scope", help="Scope of the certificate, with --issuer.")]
IssuerCode = Annotated[
    str | None, typer.Option("--code", envvar="HUSHREC_CODE", help="Code from the organiser, with --issuer.")
]
Group = Annotated[
    int | None,
    typer.Option(
        "--device-group",
        "--group",
        min=0,
        help="Your class of device, in tasks that ask for one (FAIR: memory size, 0 has the most).",
    ),
]


def certificate_choice(
    file: Path | None, issuer: str | None, scope: str | None, code: str | None, role: CertifiedRole = "member"
) -> CertificateChoice | None:
    """Where the options say that the certificate comes from; None without any of them.

    Raises `ParameterError` for options that do not go together and for a file that holds no certificate.
    """
    if file is not None and issuer is not None:
        raise ParameterError("pass --certificate or --issuer, not both")
    if file is not None:
        try:
            return IssuedCertificate.model_validate_json(file.read_bytes())
        except (ValueError, CodecError):
            raise ParameterError(f"{file} holds no membership certificate: ask the organiser for one") from None
    if issuer is None:
        return None
    if scope is None or code is None:
        raise ParameterError("--issuer needs --scope and --code: the organiser tells both")
    return Issuer(issuer, scope, code, role)


def _identity_path(path: Path | None) -> Path:
    return path or platformdirs.user_data_path("hushrec") / "identity.key"


def open_identity(path: Path | None) -> Identity:
    """The identity in `path`, made (mode 0600) and told where there is none; `LocalFileError`."""
    place = _identity_path(path)
    fresh = not place.exists()
    identity = Identity.load_or_create(place)
    if fresh:
        stderr.print(f"made a new identity, {identity.fingerprint}, in {place} (mode 0600): keep it", soft_wrap=True)
    return identity


def load_identity(path: Path | None) -> Identity:
    """The identity in `path`; `LocalFileError`, also when there is none."""
    return Identity.load(_identity_path(path))


def kept_membership(identity: Identity, task: str | None) -> Membership:
    """The membership kept for `task` (its name or id; the only one when None), at whatever server.

    Raises `NotEnrolled`, or `ParameterError` when several fit.
    """
    kept = ClientStore(default_store(), identity.fingerprint).memberships()
    found = [membership for membership in kept if task in (None, membership.task_name, membership.task_id)]
    if not found:
        names = ", ".join(sorted(membership.task_name for membership in kept)) or "none"
        wanted = "any task" if task is None else f"task {task!r}"
        raise NotEnrolled(f"identity {identity.fingerprint} is no member of {wanted} (kept: {names})")
    if len(found) > 1:
        choices = ", ".join(f"{membership.task_name} is {membership.task_id}" for membership in found)
        raise ParameterError(f"several tasks fit; name one with --task and its id ({choices})")
    return found[0]


def remember_interactions(identity: Identity, membership: Membership, path: Path) -> None:
    """Keep where the interactions of this membership are: the place, not a copy of what is in it."""
    place = str(path.absolute()).encode("utf-8", "surrogateescape")
    default_store().write(identity.fingerprint, membership.task_id, _INTERACTIONS, place)


def interactions_file(identity: Identity, membership: Membership, given: Path | None) -> Path:
    """`given`, else the file that was joined with; `LocalFileError` when neither is known."""
    if given is not None:
        return given
    place = default_store().read(identity.fingerprint, membership.task_id, _INTERACTIONS)
    if place is None:
        raise LocalFileError("whose interactions? name their file with --interactions")
    return Path(place.decode("utf-8", "surrogateescape"))
