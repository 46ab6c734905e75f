"""`hushrec keyring`: create and hand out the keys of an encrypted task. For its key holder."""

from __future__ import annotations

from rich.markup import escape

from client_sdk.cli import monitor
from client_sdk.cli.common import command_group, console
from client_sdk.cli.membership import (
    READ_ONLY,
    AllowHttp,
    CertificateFile,
    DeviceGroup,
    IdentityFile,
    IssuerCode,
    IssuerScope,
    IssuerUrl,
    Patience,
    RoleInvitation,
    ServerUrl,
    TaskName,
    certificate_choice,
    kept_membership,
    load_identity,
    open_identity,
)
from client_sdk.client import Client
from client_sdk.rounds.join import ClientOptions
from client_sdk.store.client_store import ClientStore
from client_sdk.store.stores import default_store
from protocols.errors import KeyringError

keyring = command_group("Create and hand out the keys of an encrypted task (for its key holder).")


@keyring.command("create")
def create(
    url: ServerUrl,
    invitation: RoleInvitation,
    certificate: CertificateFile = None,
    issuer: IssuerUrl = None,
    scope: IssuerScope = None,
    code: IssuerCode = None,
    device_group: DeviceGroup = None,
    identity: IdentityFile = None,
    allow_http: AllowHttp = False,
) -> None:
    """Enrol as the key holder of a task and create its keys. They are stored on this device, with mode 0600.

    Prints the fingerprint of the keys. Then run `hushrec keyring serve`.

    Example: hushrec keyring create https://recs.example.org --invitation hri_... --certificate holder.json
    """
    who = open_identity(identity)
    with Client(url, who, policy=READ_ONLY, options=ClientOptions(allow_http=allow_http)) as client:
        chosen = certificate_choice(certificate, issuer, scope, code, "holder")
        part = client.join(invitation=invitation, certificate=chosen, device_group=device_group)
        fingerprint = part.create_keyring()
    name = part.terms.name
    console.print(f"keyring of task {escape(name)}: [bold]{fingerprint}[/] (members can compare it)", soft_wrap=True)
    console.print(f"Hand it out to the members with: hushrec keyring serve --task {escape(name)}", soft_wrap=True)


@keyring.command("serve")
def serve(
    task: TaskName = None, identity: IdentityFile = None, allow_http: AllowHttp = False, patience: Patience = None
) -> None:
    """Seal the keys for each new member until the task ends.

    Keep it running while members join.
    This command does not contribute data: to take part as well, run hushrec join
    with the same identity in another terminal.

    Example: hushrec keyring serve --task movies
    """
    who = load_identity(identity)
    membership = kept_membership(who, task)
    with Client(membership.url, who, policy=READ_ONLY, options=ClientOptions(allow_http=allow_http)) as client:
        monitor.serve(client.join(membership.task_id), f"the keyring of task {membership.task_name}", patience)


@keyring.command("fingerprint")
def fingerprint(task: TaskName = None, identity: IdentityFile = None) -> None:
    """Print the fingerprint of the task's keys on this device. It is equal for all members with the correct keys.

    Example: hushrec keyring fingerprint --task movies
    """
    who = load_identity(identity)
    membership = kept_membership(who, task)
    kept = ClientStore(default_store(), who.fingerprint, membership.url).keyring(membership.task_id)
    if kept is None:
        raise KeyringError(f"no keyring of task {membership.task_name!r} is stored on this device yet")
    console.print(kept.fingerprint, highlight=False)
