"""Options that select an identity and a membership, and functions that load them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final, TypeVar, get_args

import platformdirs
from rich.markup import escape
from typer import Argument, Exit, Option, confirm

from client_sdk.agreement.policy import MOST_EPOCHS, MOST_MEASUREMENTS, Policy
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import SyncDriver
from client_sdk.api.requests import base_url
from client_sdk.api.retry import RetryPolicy
from client_sdk.cli.common import command_group, console, expiry_text, stderr, table
from client_sdk.errors import LocalFileError, NotEnrolled
from client_sdk.rounds.member import CertificateChoice, Issuer, request_for
from client_sdk.store import default_store
from client_sdk.store.client_store import ClientStore
from client_sdk.store.identity import Identity, Membership, membership_of
from protocols.crypto.certificates import Certificate, CertifiedRole
from protocols.errors import CodecError, KeyringError, ParameterError
from protocols.messages import IssuedCertificate
from protocols.messages.base import Message
from protocols.sums.masked.neighbourhood import Mode
from protocols.sums.registry import mechanisms

READ_ONLY: Final = Policy(
    min_cohort=2,
    mechanisms=frozenset(mechanisms()),
    masked_modes=frozenset(get_args(Mode)),
    min_ring_bits=0,
    min_corrupt=0.0,
    min_sigma=1,
    min_committee=0,
    min_corrupt_members=0,
    trust_roster=True,
    reveal_indices=True,
    reveal_gram=True,
    trust_models=True,
    max_model_bytes=sys.maxsize,
    max_epochs=MOST_EPOCHS,
    max_measurements=MOST_MEASUREMENTS,
)
"""For commands that send no contribution: every task that was joined is accepted, because nothing is revealed."""

_INTERACTIONS: Final = "interactions.path"
Kind = TypeVar("Kind", bound=Message)

ServerUrl = Annotated[str, Argument(help="Address of the server.")]
RoleInvitation = Annotated[
    str, Option(envvar="HUSHREC_INVITATION", help="Invitation for this role, from the operator.")
]
TrustRoster = Annotated[
    bool,
    Option("--trust-roster", help="Accept tasks without an organiser: the server alone says who the clients are."),
]
IdentityFile = Annotated[
    Path | None,
    Option("--identity", envvar="HUSHREC_IDENTITY", help="Identity file.", show_default="in the user's data directory"),
]
InteractionsFile = Annotated[
    Path | None, Option("--interactions", help="File of your items.", show_default="the file passed to join")
]
SkipUnknown = Annotated[
    bool, Option("--skip-unknown", help="Leave out items that the task does not have, and say how many.")
]
TaskName = Annotated[str | None, Option("--task", help="Name or id of the task; needed if there are several.")]
CertificateFile = Annotated[
    Path | None,
    Option(
        "--certificate",
        envvar="HUSHREC_CERTIFICATE",
        help="File with the membership certificate that the task's organiser issued.",
    ),
]
IssuerUrl = Annotated[
    str | None, Option("--issuer", envvar="HUSHREC_ISSUER", help="Address of the organiser's issuing endpoint.")
]
IssuerScope = Annotated[str | None, Option("--scope", help="Scope of the certificate, with --issuer.")]
IssuerCode = Annotated[
    str | None, Option("--code", envvar="HUSHREC_CODE", help="Code from the organiser, with --issuer.")
]
Patience = Annotated[
    float | None,
    Option(
        min=0.0,
        help="Seconds for which an unreachable server is waited for, each time.",
        show_default="as long as it takes",
    ),
]
AllowHttp = Annotated[
    bool,
    Option(
        "--allow-http",
        envvar="HUSHREC_ALLOW_HTTP",
        help="Accept http:// addresses of other machines: anyone on the way can read tokens and contributions.",
    ),
]
DeviceGroup = Annotated[
    int | None,
    Option(
        "--device-group",
        "--group",
        min=0,
        help="Device group of this client, in tasks with several (FAIR: by memory size, 0 is the largest).",
    ),
]


def certificate_choice(
    file: Path | None, issuer: str | None, scope: str | None, code: str | None, role: CertifiedRole = "member"
) -> CertificateChoice | None:
    """Where the options say that the certificate comes from; None without any of them.

    Raises `ParameterError` for options that do not go together, and for a file that is missing or holds no certificate.
    """
    if issuer == os.environ.get("HUSHREC_ISSUER") and (file is not None or (scope is None and code is None)):
        issuer = None  # the variable serves many commands: a file, or no certificate at all, takes precedence
    if file is not None and issuer is not None:
        raise ParameterError("pass --certificate or --issuer, not both")
    if file is not None:
        wrong = "holds no membership certificate: ask the organiser for one"
        return read_message(file, IssuedCertificate, "membership certificate", wrong)
    if issuer is None and scope is not None:
        raise ParameterError(
            "--scope needs --issuer: pass the address of the organiser's issuing endpoint, or set HUSHREC_ISSUER"
        )
    if issuer is None:
        return None
    if scope is None or code is None:
        raise ParameterError("--issuer needs --scope and --code: ask the organiser for both")
    try:
        base_url(issuer)
    except ParameterError as error:
        raise ParameterError(f"--issuer: {str(error).replace('server', 'organiser')}") from None
    return Issuer(issuer, scope, code, role)


def read_message(path: Path, kind: type[Kind], name: str, wrong: str) -> Kind:
    """Return the message in a JSON file. Raises `ParameterError`: the file cannot be read, or `wrong` is true of it."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (ValueError, CodecError):
        raise ParameterError(f"{path} {wrong}") from None
    except OSError as error:
        raise ParameterError(f"cannot read the {name} {path}: {error.strerror}") from error


def _identity_path(path: Path | None) -> Path:
    return path or platformdirs.user_data_path("hushrec") / "identity.key"


def open_identity(path: Path | None) -> Identity:
    """Return the identity in `path`, or a new one, which is not stored yet, if the file does not exist.

    path: the user's default identity file if None. Raises `LocalFileError`.
    """
    file = _identity_path(path)
    return Identity.load(file) if file.exists() else Identity.generate()


def keep_identity(identity: Identity, path: Path | None) -> None:
    """Store a new identity in `path` with mode 0600 and print a message. An identity that is stored stays as it is.

    To be called before anything binds a server to the identity. Raises `LocalFileError`.
    """
    file = _identity_path(path)
    if not file.exists():
        identity.save(file)
        stderr.print(f"created a new identity, {identity.fingerprint}, in {file} (mode 0600): keep it", soft_wrap=True)


def load_identity(path: Path | None) -> Identity:
    """Return the identity in `path`, or in the default file if None. Raises `LocalFileError` if it does not exist."""
    return Identity.load(_identity_path(path))


def kept_membership(identity: Identity, task: str | None) -> Membership:
    """Return the stored membership of `identity` in `task`, on any server.

    task: name or id; may be None if there is only one membership. Raises `NotEnrolled` if there is none, and
    `ParameterError` if several match.
    """
    kept = ClientStore(default_store(), identity.fingerprint).memberships()
    found = membership_of(kept, task)
    if found is None:
        names = ", ".join(sorted(membership.task_name for membership in kept)) or "none"
        wanted = "any task" if task is None else f"task {task!r}"
        raise NotEnrolled(f"identity {identity.fingerprint} is not a member of {wanted} (memberships: {names})")
    return found


def remember_interactions(identity: Identity, membership: Membership, path: Path) -> None:
    """Store the path of the interactions file of this membership. The contents of the file are not copied."""
    stored = str(path.absolute()).encode("utf-8", "surrogateescape")
    ClientStore(default_store(), identity.fingerprint, membership.url).write(membership.task_id, _INTERACTIONS, stored)


def interactions_file(identity: Identity, membership: Membership, given: Path | None) -> Path:
    """Return `given`, or the file that was passed to `join`. Raises `LocalFileError` if there is neither."""
    if given is not None:
        return given
    client_store = ClientStore(default_store(), identity.fingerprint, membership.url)
    stored = client_store.read(membership.task_id, _INTERACTIONS)
    if stored is None:
        raise LocalFileError("no interactions file is stored for this task: pass it with --interactions", remedy="")
    return Path(stored.decode("utf-8", "surrogateescape"))


# --- `hushrec certificate`: request a membership certificate from an organiser, and show the stored one --------------

certificate = command_group("Request a membership certificate from an organiser, and show the stored one.")


InvitedRole = Annotated[CertifiedRole, Option(help="member, holder (of an encrypted task's keys) or committee.")]


@certificate.command("request")
def request(
    scope: Annotated[str, Option(help="Name of the task or group of tasks, as the organiser gave it.")],
    role: InvitedRole = "member",
    identity: IdentityFile = None,
) -> None:
    """Print a request for a certificate as JSON. Send it to the organiser, which returns the certificate.

    The request contains public keys and a signature, and no secret. `hushrec join --issuer` sends it over HTTP.

    Example: hushrec certificate request --scope movies > ann.request.json
    """
    who = open_identity(identity)
    asked = request_for(who, scope, role)
    keep_identity(who, identity)
    print(asked.model_dump_json(indent=1))


@certificate.command("show")
def show(task: TaskName = None, identity: IdentityFile = None) -> None:
    """Print the organiser's key, the scope, the role and the expiry of the stored certificate.

    Example: hushrec certificate show --task movies
    """
    membership = kept_membership(load_identity(identity), task)
    pin = membership.organiser
    if membership.certificate is None or pin is None:
        raise KeyringError(f"task {membership.task_name!r} has no organiser: no certificate is stored")
    stored = Certificate.decode(membership.certificate)
    console.print(f"organiser {pin.key}", highlight=False, soft_wrap=True)
    console.print(f"scope {pin.scope}, role {stored.role}, serial {stored.serial:016x}", highlight=False)
    console.print(f"valid until {expiry_text(stored.not_after)}", highlight=False)


memberships = command_group(
    "List, export and end the stored memberships, and follow a server that has another address now."
)


@memberships.command("list")
def list_(identity: IdentityFile = None) -> None:
    """List the tasks that this identity has joined, with the address of their server.

    Example: hushrec membership list
    """
    kept = ClientStore(default_store(), load_identity(identity).fingerprint).memberships()
    rows = [(escape(one.task_name), one.task_id, one.role, one.client_id, escape(one.url)) for one in kept]
    console.print(table("memberships", ("task", "id", "role", "client", "server"), rows))


@memberships.command("move")
def move(
    url: Annotated[str, Argument(help="New address of the server.")],
    old: Annotated[str | None, Option("--from", help="Old address.", show_default="that of the only server")] = None,
    identity: IdentityFile = None,
    allow_http: AllowHttp = False,
) -> None:
    """Keep memberships, keys and records when the server has another address.

    Asks the server at the new address for each task first, and moves nothing
    unless its terms are those that you agreed to.

    Example: hushrec membership move https://new.example.org
    """
    who, store = load_identity(identity), default_store()
    kept = ClientStore(store, who.fingerprint).memberships()
    addresses = sorted({one.url for one in kept})
    if old is None and len(addresses) != 1:
        raise ParameterError(f"say which server has moved, with --from: {', '.join(addresses) or 'none is stored'}")
    here = ClientStore(store, who.fingerprint, base_url(old or addresses[0]))
    calls = ApiCalls(url, None, RetryPolicy(), allow_http=allow_http)
    with SyncDriver() as driver:
        for one in (one for one in kept if one.url == here.url):
            own = calls.enrolled(one.client_id, one.token, who.signing_key)
            agreed = here.agreed(one.task_id)
            view = driver.run(own.task(one.task_id))
            if agreed is not None:
                agreed.require(view)
    moved = here.move_to(calls.url)
    console.print(f"{len(moved)} memberships are at {escape(calls.url)} now", highlight=False, soft_wrap=True)


@memberships.command("leave")
def leave(
    task: TaskName = None,
    erase: Annotated[
        bool, Option("--erase", help="Also have the server erase what it stores about this member.")
    ] = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
    identity: IdentityFile = None,
    allow_http: AllowHttp = False,
) -> None:
    """End the membership in a task for good. This identity cannot enrol in the task again.

    Sums that were released stay as they are, with your contributions in them. Your
    own records stay on this machine: they say which sums have your data, and
    limit what later tasks may learn from it.

    Example: hushrec membership leave --task movies --erase
    """
    who = load_identity(identity)
    kept = kept_membership(who, task)
    if not yes and not confirm(f"Leave {kept.task_name} for good{' and have the server erase you' if erase else ''}?"):
        raise Exit(1)
    with SyncDriver() as driver:
        done = driver.run(_calls_of(who, kept, allow_http).leave(kept.task_id, erase=erase))
    console.print(f"left {escape(kept.task_name)}", highlight=False)
    if done.erased:
        console.print("the server has erased what named this member")
    elif done.waits_for_round is not None:
        console.print(f"the server erases what names this member when round {done.waits_for_round} is over")


@memberships.command("export")
def export(task: TaskName = None, identity: IdentityFile = None, allow_http: AllowHttp = False) -> None:
    """Print everything that the server stores about this member, as JSON.

    Example: hushrec membership export --task movies > what-the-server-has.json
    """
    who = load_identity(identity)
    kept = kept_membership(who, task)
    with SyncDriver() as driver:
        stored = driver.run(_calls_of(who, kept, allow_http).member_data(kept.task_id, kept.client_id))
    print(stored.model_dump_json(indent=1))


def _calls_of(who: Identity, kept: Membership, allow_http: bool) -> ApiCalls:
    calls = ApiCalls(kept.url, None, RetryPolicy(), allow_http=allow_http)
    return calls.enrolled(kept.client_id, kept.token, who.signing_key)
