"""`hushrec keyring`: the work of the one client that makes an encrypted task's keys."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from client_sdk.cli.console import console
from client_sdk.cli.membership import (
    PATIENT,
    READING,
    CertificateFile,
    Group,
    IdentityFile,
    IssuerCode,
    IssuerScope,
    IssuerUrl,
    TaskName,
    certificate_choice,
    kept_membership,
    load_identity,
    open_identity,
)
from client_sdk.cli.monitor import Monitor
from client_sdk.client import Client
from client_sdk.local_state.store import ClientStore, default_store
from protocols.errors import KeyringError

__all__ = ["keyring"]

keyring = typer.Typer(no_args_is_help=True, help="Make and hand out the keys of an encrypted task (key holder).")


@keyring.command("create")
def create(
    url: Annotated[str, typer.Argument(help="The server's address.")],
    invitation: Annotated[
        str, typer.Option(envvar="HUSHREC_INVITATION", help="For the role holder, from the operator.")
    ],
    certificate: CertificateFile = None,
    issuer: IssuerUrl = None,
    scope: IssuerScope = None,
    code: IssuerCode = None,
    group: Group = None,
    identity: IdentityFile = None,
) -> None:
    """Enrol as the task's key holder, make its keys and keep them here (mode 0600).

    Example: hushrec keyring create https://recs.example.org --invitation hri_... --certificate holder.json
    """
    who = open_identity(identity)
    with Client(url, who, policy=READING) as client:
        part = client.join(
            invitation=invitation,
            certificate=certificate_choice(certificate, issuer, scope, code, "holder"),
            device_group=group,
        )
        fingerprint = part.key_holder().create_keyring()
    name = part.terms.name
    console.print(f"keyring of task {escape(name)}: [bold]{fingerprint}[/] (members may compare it)", soft_wrap=True)
    console.print(f"now hand it to the members: hushrec keyring serve --task {escape(name)}", soft_wrap=True)


@keyring.command("serve")
def serve(task: TaskName = None, identity: IdentityFile = None) -> None:
    """Seal the keys for every new member, until the task ends; in public-key mode, publish each round's model too.

    Keep it running while members join. A holder that only serves keys is asked in no round:
    to take part as well, run hushrec join with the same identity in another terminal.

    Example: hushrec keyring serve --task movies
    """
    who = load_identity(identity)
    membership = kept_membership(who, task)
    with Client(membership.url, who, policy=READING, options=PATIENT) as client:
        holder = client.join(membership.task_id).key_holder()
        monitor = Monitor(f"keyring of task {membership.task_name}")
        try:
            console.print(f"serving the keyring of task {escape(membership.task_name)}; Ctrl-C stops", soft_wrap=True)
            with monitor:
                holder.serve(monitor)
        finally:
            console.print(monitor.summary())


@keyring.command("fingerprint")
def fingerprint(task: TaskName = None, identity: IdentityFile = None) -> None:
    """Print the fingerprint of the keys kept here: the same for every member that has the right ones.

    Example: hushrec keyring fingerprint --task movies
    """
    who = load_identity(identity)
    membership = kept_membership(who, task)
    kept = ClientStore(default_store(), who.fingerprint).keyring(membership.task_id)
    if kept is None:
        raise KeyringError(f"no keyring of task {membership.task_name!r} is kept here yet")
    console.print(kept.fingerprint, highlight=False)
