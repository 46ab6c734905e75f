"""`hushrec certificate`: request a membership certificate from an organiser, and show the stored one."""

from __future__ import annotations

from typing import Annotated

import typer

from client_sdk.cli.console import console, expiry_text
from client_sdk.cli.membership import IdentityFile, TaskName, kept_membership, load_identity, open_identity
from client_sdk.participation.certificates import request_for
from protocols.crypto.certificates import Certificate, CertifiedRole
from protocols.errors import KeyringError, ParameterError

__all__ = ["certificate", "parse_role"]

certificate = typer.Typer(
    no_args_is_help=True,
    help="Request a membership certificate from an organiser, and show the stored one.",
    rich_markup_mode=None,
)


def parse_role(name: str) -> CertifiedRole:
    """Return `name` as a role. Raises `ParameterError` if it is not one."""
    match name:
        case "member" | "holder" | "committee":
            return name
    raise ParameterError(f"unknown role {name!r}: must be member, holder or committee")


@certificate.command("request")
def request(
    scope: Annotated[str, typer.Option(help="Name of the task or group of tasks, as the organiser gave it.")],
    role: Annotated[str, typer.Option(help="member, holder (of an encrypted task's keys) or committee.")] = "member",
    identity: IdentityFile = None,
) -> None:
    """Print a request for a certificate as JSON. Send it to the organiser, which returns the certificate.

    The request contains public keys and a signature, and no secret. `hushrec join --issuer` sends it over HTTP.

    Example: hushrec certificate request --scope movies > ann.request.json
    """
    print(request_for(open_identity(identity), scope, parse_role(role)).model_dump_json(indent=1))


@certificate.command("show")
def show(task: TaskName = None, identity: IdentityFile = None) -> None:
    """Print the organiser's key, the scope, the role and the expiry of the stored certificate.

    Example: hushrec certificate show --task movies
    """
    membership = kept_membership(load_identity(identity), task)
    if membership.certificate is None or membership.organiser is None:
        raise KeyringError(f"task {membership.task_name!r} has no organiser: no certificate is stored")
    stored = Certificate.decode(membership.certificate)
    console.print(f"organiser {membership.organiser.key}", highlight=False, soft_wrap=True)
    console.print(
        f"scope {membership.organiser.scope}, role {stored.role}, serial {stored.serial:016x}", highlight=False
    )
    console.print(f"valid until {expiry_text(stored.not_after)}", highlight=False)
