"""`hushrec organiser`: certify the members of an app's tasks. For the publisher of the app, not for the aggregator."""

from __future__ import annotations

import json
import re
import socket
from contextlib import closing
from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Argument, Option

from client_sdk.cli.common import AsJson, command_group, console, expiry_text, fail, stderr, table
from client_sdk.cli.membership import InvitedRole, read_message
from client_sdk.organiser import DEFAULT_LIFETIME, LONGEST_LIFETIME, Organiser
from client_sdk.organiser.issued import IssuedRecord
from client_sdk.store import local_errors, write_private
from protocols.codec import b64encode
from protocols.messages.members import CertificateRequest

organiser = command_group(
    "Certify the members of an app's tasks (for the publisher of the app; never on the aggregator's machine)."
)

Folder = Annotated[
    Path, Option("--folder", envvar="HUSHREC_ORGANISER", help="Folder with the organiser's key and ledger.")
]
Scope = Annotated[str, Option(help="Name of the task or group of tasks that the certificates are for.")]
_FOLDER = Path("organiser")
_DAY = 86_400
_DAYS = DEFAULT_LIFETIME / _DAY
Days = Annotated[float, Option(min=0.001, max=LONGEST_LIFETIME / _DAY, help="Validity of a certificate, in days.")]


@organiser.command("init")
def init(folder: Folder = _FOLDER) -> None:
    """Create an organiser's signing key and print the public key.

    Ship the public key with your app, and give it to the operator of the aggregator: hushrec-server task create
    --organiser KEY. Keep the folder off the aggregator's machine and back it up: without the key, no member can
    be certified or revoked.

    Example: hushrec organiser init --folder organiser
    """
    made = Organiser.create(folder)
    stderr.print(f"signing key stored in {escape(str(folder))}; the public key is:", soft_wrap=True)
    print(b64encode(made.public_key))


@organiser.command("key")
def key(folder: Folder = _FOLDER) -> None:
    """Print the organiser's public key.

    Example: hushrec organiser key --folder organiser
    """
    print(b64encode(Organiser.open(folder).public_key))


@organiser.command("certify")
def certify(
    request: Annotated[Path, Argument(help="File with the client's request (hushrec certificate request).")],
    subject: Annotated[
        str, Option(help="The user: an account or a customer number. Each subject has one identity and role.")
    ],
    role: InvitedRole = "member",
    folder: Folder = _FOLDER,
    days: Days = _DAYS,
) -> None:
    """Certify the keys in a client's request and print the certificate as JSON. Send it to the client as a file.

    A request for a role other than --role is refused: a client does not choose its role.

    Example: hushrec organiser certify ann.request.json --subject ann > ann.certificate.json
    """
    wrong = "is not a certificate request; create one with hushrec certificate request"
    wanted = read_message(request, CertificateRequest, "certificate request", wrong)
    print(Organiser.open(folder).issue(wanted, subject, round(days * _DAY), (role,)).model_dump_json(indent=1))


@organiser.command("codes")
def codes(
    scope: Scope,
    count: Annotated[int, Option(min=1, max=100_000, help="Number of codes.")] = 1,
    role: InvitedRole = "member",
    subject: Annotated[
        str | None,
        Option(help="The user who gets the code, as organiser list names them.", show_default="the start of its hash"),
    ] = None,
    folder: Folder = _FOLDER,
) -> None:
    """Print one-time codes, one per line. With a code, one identity gets a certificate from hushrec organiser serve.

    Without --subject nothing tells later whose code it was: you cannot revoke
    the certificate of one user.

    Example: hushrec organiser codes --scope movies --count 100 > codes.txt

    Example: hushrec organiser codes --scope movies --subject ann
    """
    for code in Organiser.open(folder).issued.new_codes(scope, role, count, subject):
        print(code)


@organiser.command("revoke")
def revoke(
    scope: Scope,
    subject: Annotated[str, Option(help="The subject whose certificate is revoked.")],
    output: Annotated[Path, Option("--output", "-o", help="File for the signed list.")],
    folder: Folder = _FOLDER,
) -> None:
    """Revoke a subject's certificate and write the scope's signed revocation list.

    The subject, or the code that it was certified with, gets no other certificate until hushrec organiser readmit.
    Give the list to the operator (hushrec-server task revocations). The server rejects the member at once, and so do
    clients that fetch the list. Other clients accept the certificate until it expires.

    Example: hushrec organiser revoke --scope movies --subject ann -o movies.revoked
    """
    listed = Organiser.open(folder).revoke(scope, subject)
    with local_errors("write the revocation list", output):
        write_private(output, listed.encode())
    console.print(f"{len(listed.serials)} revoked in scope {escape(scope)}; list written to {escape(str(output))}")


@organiser.command("readmit")
def readmit(
    scope: Scope,
    subject: Annotated[str, Option(help="The subject whose certificate was revoked.")],
    folder: Folder = _FOLDER,
) -> None:
    """Allow a new certificate for a subject whose certificate was revoked. The revoked certificate stays listed.

    The subject enrols with new keys: the aggregator accepts no identity again whose membership was revoked.

    Example: hushrec organiser readmit --scope movies --subject ann
    """
    Organiser.open(folder).readmit(scope, subject)
    console.print(f"{escape(subject)} can be certified again in scope {escape(scope)}", soft_wrap=True)


@organiser.command("export")
def export(
    subject: Annotated[str, Option(help="The subject, as hushrec organiser list names it.")], folder: Folder = _FOLDER
) -> None:
    """Print everything that the ledger holds about a subject, in all scopes, as JSON.

    Example: hushrec organiser export --subject ann > ann.json
    """
    print(json.dumps(Organiser.open(folder).stored_about(subject), indent=1))


@organiser.command("erase")
def erase(
    subject: Annotated[str, Option(help="The subject, as hushrec organiser list names it.")],
    output: Annotated[Path, Option("--output", "-o", help="Existing folder for the signed lists, SCOPE.revoked.")],
    folder: Folder = _FOLDER,
) -> None:
    """Delete everything that the ledger holds about a subject, in all scopes. It cannot be undone.

    A certificate that has not expired is revoked first: publish the list that is
    written for its scope with hushrec-server task revocations. Erase the member at
    the server before that: hushrec-server member erase finds it by the serial that
    hushrec organiser list shows. The subject can be certified again afterwards, as
    somebody who is new.

    Example: hushrec organiser erase --subject ann -o .
    """
    opened = Organiser.open(folder)
    scopes = opened.erase(subject)
    console.print("erased", highlight=False)
    for scope in scopes:
        path = output / f"{re.sub(r'[^A-Za-z0-9._-]', '_', scope)}.revoked"
        with local_errors("write the revocation list", path):
            write_private(path, opened.revocations(scope).encode())
        console.print(f"its certificate in scope {escape(scope)} is revoked; list written to {escape(str(path))}")


@organiser.command("list")
def list_certified(scope: Scope, folder: Folder = _FOLDER, as_json: AsJson = False) -> None:
    """List the subjects that have a certificate in a scope, and its expiry.

    With --json also their identity keys, by which hushrec-server member list --json names the members of a task.

    Example: hushrec organiser list --scope movies
    """
    held = Organiser.open(folder).held(scope)
    if as_json:
        print(json.dumps([_certified(record) for record in held], indent=2))
        return
    rows = [(escape(record.subject), f"{record.serial:016x}", expiry_text(record.not_after)) for record in held]
    console.print(table(f"certificates of scope {scope}", ("subject", "serial", "valid until"), rows))


def _certified(record: IssuedRecord) -> dict[str, object]:
    return {
        "subject": record.subject,
        "identity_key": b64encode(record.identity_key),
        "serial": f"{record.serial:016x}",
        "not_after": record.not_after,
    }


@organiser.command("serve")
def serve(
    scope: Annotated[list[str], Option(help="Issue certificates for this scope; may be given several times.")],
    folder: Folder = _FOLDER,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on.")] = 8100,
    days: Days = _DAYS,
    tls_certificate: Annotated[Path | None, Option(help="TLS certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, Option(help="Private key of the TLS certificate (PEM).")] = None,
) -> None:
    """Serve the issuing endpoint for clients with one-time codes. For trials: an app mounts it next to its own login.

    A code certifies the role that it was made for (hushrec organiser codes --role), and no other.

    Example: hushrec organiser serve --scope movies --port 8100
    """
    import uvicorn

    from client_sdk.organiser.app import create_issuer

    app = create_issuer(Organiser.open(folder), scopes=scope, lifetime=round(days * _DAY))
    if not host or (tls_certificate is None) != (tls_key is None):
        fail("--host is empty" if not host else "--tls-certificate and --tls-key must be given together")
    # uvicorn's own set-up of logging would close the handlers of the whole process
    config = uvicorn.Config(
        app, ssl_certfile=tls_certificate, ssl_keyfile=tls_key, log_config=None, log_level="warning", lifespan="off"
    )
    try:
        config.load()
    except (OSError, ValueError) as error:  # of the TLS files: `ssl.SSLError` is an `OSError`
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        fail(
            f"cannot use --tls-certificate {tls_certificate} with --tls-key {tls_key}: {reason}",
            "Pass PEM files that fit and that this user can read; the key without a password.",
        )
    with closing(_listening(host, port)) as listening:
        scheme = "http" if tls_certificate is None else "https"
        address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
        words = f"issuing certificates for {escape(', '.join(scope))} at {address}; press Ctrl-C to stop"

        class Announced(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                stderr.print(words, soft_wrap=True)  # now that Ctrl-C stops it: until then it may be lost

        Announced(config).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address; exits with an error if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = getattr(error, "strerror", None) or error
        fail(
            f"cannot listen on {host}:{port}: {reason}",
            "Choose another address with --host and --port (port 0 selects a free port).",
        )
