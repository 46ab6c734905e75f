"""`hushrec keyring` and `hushrec committee`: serve a task, as its key holder or as a member of its committee."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rich.markup import escape

from client_sdk.agreement.policy import MOST_EPOCHS, MOST_MEASUREMENTS, Policy
from client_sdk.cli.common import MinCohort, command_group, console, fail, say
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
    TrustRoster,
    certificate_choice,
    keep_identity,
    kept_membership,
    load_identity,
    open_identity,
)
from client_sdk.cli.monitor import Monitor
from client_sdk.client import Client
from client_sdk.rounds.account import ClientOptions
from client_sdk.rounds.member import CertificateChoice
from client_sdk.store import default_store
from client_sdk.store.client_store import ClientStore
from client_sdk.store.identity import Identity
from client_sdk.task import Task
from protocols.errors import KeyringError


def _serve(part: Task, what: str, patience: float | None) -> Monitor:
    """Let the key holder or a member of the committee serve until its task ends. Display it, and print a summary.

    what: what is served, such as the keyring of task movies.
    """
    monitor = Monitor(what.removeprefix("in ").removeprefix("the "))
    try:
        console.print(f"serving {escape(what)}; press Ctrl-C to stop", soft_wrap=True)
        with monitor:
            part.serve(monitor, patience=patience)
    finally:
        console.print(monitor.summary())
    return monitor


def _enrol(
    client: Client,
    who: Identity,
    identity: Path | None,
    invitation: str,
    certificate: CertificateChoice | None,
    device_group: int | None = None,
) -> Task:
    """Join a task with an invitation, and keep the identity where the options say."""
    if not client.memberships():  # otherwise the invitation may be used up
        client.preview(invitation)
    keep_identity(who, identity)
    return client.join(invitation=invitation, certificate=certificate, device_group=device_group)


# --- `hushrec keyring`: create and hand out the keys of an encrypted task -------------------------------------------

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
        choice = certificate_choice(certificate, issuer, scope, code, "holder")
        part = _enrol(client, who, identity, invitation, choice, device_group)
        fingerprint = part.create_keyring()
    name = part.terms.name
    console.print(f"keyring of task {escape(name)}: [bold]{fingerprint}[/] (members can compare it)", soft_wrap=True)
    console.print(f"Hand it out to the members with: hushrec keyring serve --task {escape(name)}", soft_wrap=True)


@keyring.command("serve")
def serve_keyring(
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
        _serve(client.join(membership.task_id), f"the keyring of task {membership.task_name}", patience)


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


# --- `hushrec committee`: take the masks off one-shot sums ------------------------------------------------------------

committee = command_group("Take the masks off one-shot sums (for the members of a task's committee).")
_ANY_SIZE: Final = 1 << 62
"""A member neither holds the model nor trains, so its size and the number of epochs and measurements do not matter."""


def _policy(min_cohort: int, trust_roster: bool) -> Policy:
    return Policy(
        trust_models=True,  # a member gives no data
        reveal_gram=True,
        min_cohort=min_cohort,
        trust_roster=trust_roster,
        max_model_bytes=_ANY_SIZE,
        max_epochs=MOST_EPOCHS,
        max_measurements=MOST_MEASUREMENTS,
    )


@committee.command("join")
def join_committee(
    url: ServerUrl,
    invitation: RoleInvitation,
    certificate: CertificateFile = None,
    issuer: IssuerUrl = None,
    scope: IssuerScope = None,
    code: IssuerCode = None,
    identity: IdentityFile = None,
    allow_http: AllowHttp = False,
    trust_roster: TrustRoster = False,
    min_cohort: MinCohort = Policy.min_cohort,
) -> None:
    """Enrol as a member of a task's committee. Each member must be run by a different party.

    The certificate must be for the role committee. Then run `hushrec committee serve`.

    Example: hushrec committee join https://recs.example.org --invitation hri_... --certificate committee.json
    """
    from client_sdk.committee import CommitteeMember  # which a key holder does not need

    who = open_identity(identity)
    policy, options = _policy(min_cohort, trust_roster), ClientOptions(allow_http=allow_http)
    with Client(url, who, policy=policy, options=options) as client:
        choice = certificate_choice(certificate, issuer, scope, code, "committee")
        part = _enrol(client, who, identity, invitation, choice)
        CommitteeMember(part.part.member)  # raises unless the invitation was for this role
    say(f"member {part.membership.client_id} of the committee of task {part.terms.name}")
    console.print(
        f"Now run, and keep running: hushrec committee serve --task {escape(part.terms.name)}", soft_wrap=True
    )


@committee.command("serve")
def serve_in_committee(
    task: TaskName = None,
    identity: IdentityFile = None,
    allow_http: AllowHttp = False,
    patience: Patience = None,
    trust_roster: TrustRoster = False,
    min_cohort: MinCohort = Policy.min_cohort,
) -> None:
    """Confirm the survivors of each round and send the sum of their shares, until the task ends.

    Publishes a key for each of the next rounds and deletes it after the sum. It
    may be stopped and started again at any time; run one process for each
    member, with the same data directory. It refuses to open what could reveal
    one client's data, and prints why.

    Example: hushrec committee serve --task movies
    """
    who = load_identity(identity)
    membership = kept_membership(who, task)
    policy, options = _policy(min_cohort, trust_roster), ClientOptions(allow_http=allow_http)
    with Client(membership.url, who, policy=policy, options=options) as client:
        member = client.join(membership.task_id)
        served = _serve(member, f"in the committee of task {membership.task_name}", patience)
    if served.ended == "failed":
        fail(f"task {membership.task_name!r} failed: too many consecutive rounds did not complete")
