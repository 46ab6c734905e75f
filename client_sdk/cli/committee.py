"""`hushrec committee`: join and serve as a member of the committee of a task with one-shot sums."""

from __future__ import annotations

from typing import Final

from rich.markup import escape

from client_sdk.agreement.policy import Policy
from client_sdk.cli import monitor
from client_sdk.cli.common import MinCohort, command_group, console, fail, say
from client_sdk.cli.membership import (
    AllowHttp,
    CertificateFile,
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
    kept_membership,
    load_identity,
    open_identity,
)
from client_sdk.client import Client
from client_sdk.committee.service import CommitteeMember
from client_sdk.rounds.join import ClientOptions

committee = command_group("Take the masks off one-shot sums (for the members of a task's committee).")
_ANY_SIZE: Final = 1 << 62
"""A member does not hold the model, so its size does not matter."""


def _policy(min_cohort: int, trust_roster: bool) -> Policy:
    return Policy(min_cohort=min_cohort, trust_roster=trust_roster, max_model_bytes=_ANY_SIZE)


@committee.command("join")
def join(
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
    who = open_identity(identity)
    policy, options = _policy(min_cohort, trust_roster), ClientOptions(allow_http=allow_http)
    with Client(url, who, policy=policy, options=options) as client:
        chosen = certificate_choice(certificate, issuer, scope, code, "committee")
        part = client.join(invitation=invitation, certificate=chosen)
        CommitteeMember(part.part.member)  # raises unless the invitation was for this role
    say(f"member {part.membership.client_id} of the committee of task {part.terms.name}")
    console.print(
        f"Now run, and keep running: hushrec committee serve --task {escape(part.terms.name)}", soft_wrap=True
    )


@committee.command("serve")
def serve(
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
        served = monitor.serve(member, f"in the committee of task {membership.task_name}", patience)
    if served.ended == "failed":
        fail(f"task {membership.task_name!r} failed: too many consecutive rounds did not complete")
