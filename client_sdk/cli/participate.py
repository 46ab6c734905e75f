"""`hushrec join` and `hushrec recommend`: a task from the side of one user's device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from client_sdk.agreement.policy import Policy
from client_sdk.cli.console import console, fail, table
from client_sdk.cli.item_files import read_history, read_titles
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
    interactions_file,
    kept_membership,
    load_identity,
    open_identity,
    remember_interactions,
)
from client_sdk.cli.monitor import Monitor
from client_sdk.client import Client
from client_sdk.participation.participant import Participant

__all__ = ["join", "recommend"]


def join(
    url: Annotated[str, typer.Argument(help="The server's address.")],
    interactions: Annotated[
        Path, typer.Option(help="Your items: one a line, or a CSV file with a column item and, for ratings, rating.")
    ],
    invitation: Annotated[
        str | None, typer.Option(envvar="HUSHREC_INVITATION", help="From the operator; not needed a second time.")
    ] = None,
    certificate: CertificateFile = None,
    issuer: IssuerUrl = None,
    scope: IssuerScope = None,
    code: IssuerCode = None,
    device_group: Group = None,
    identity: IdentityFile = None,
    task: TaskName = None,
    allow_plain: Annotated[
        bool, typer.Option("--allow-plain", help="Agree to a plain task: the server sees your contributions.")
    ] = False,
    allow_curious: Annotated[
        bool,
        typer.Option("--allow-curious", help="Agree to masked sums whose server is trusted to obey the protocol."),
    ] = False,
    trust_roster: Annotated[
        bool,
        typer.Option("--trust-roster", help="Tasks without an organiser: believe the server who is there."),
    ] = False,
    reveal_indices: Annotated[
        bool, typer.Option("--reveal-indices", help="Agree that the server sees which entries of a model you change.")
    ] = False,
    min_cohort: Annotated[int, typer.Option(help="Refuse sums of fewer clients.")] = Policy.min_cohort,
) -> None:
    """Enrol in a task and take part in its rounds until it ends. Training stays here; only sealed updates leave.

    Stopped and started again, it goes on where it was; the invitation is needed once.

    Example: hushrec join https://recs.example.org --invitation hri_... --interactions items.txt
    """
    history = read_history(interactions)  # before anything is sent
    policy = Policy(
        min_cohort=min_cohort,
        mechanisms=Policy().mechanisms | ({"plain"} if allow_plain else set()),
        masked_modes=Policy().masked_modes | ({"curious"} if allow_curious else set()),
        trust_roster=trust_roster,
        reveal_indices=reveal_indices,
    )
    who = open_identity(identity)
    with Client(url, who, policy=policy) as client:  # a wrong address is told soon
        task_id = client.join(
            task,
            invitation=invitation,
            certificate=certificate_choice(certificate, issuer, scope, code),
            device_group=device_group,
        ).terms.task_id
    with Client(url, who, policy=policy, options=PATIENT) as client:
        part = client.join(task_id)
        remember_interactions(who, part.membership, interactions)
        monitor = Monitor(f"task {part.terms.name}")
        try:
            console.print(escape(_greeting(part, len(history))), highlight=False, soft_wrap=True)
            with monitor:
                part.take_part(history, monitor)
        finally:
            console.print(monitor.summary())
    if monitor.ended == "failed":
        fail(f"task {part.terms.name!r} failed: too many rounds in a row did not complete")


def _greeting(part: Participant, items: int) -> str:
    terms = part.terms
    opened = {"anyone": "anyone, the server included", "members": "its members", "holder": "its key holder"}
    device_group = f" of group {part.membership.device_group}" if terms.recipe.device_groups > 1 else ""
    return (
        f"task {terms.name}: client {part.membership.client_id}{device_group}, "
        f"{terms.recipe.name} over {terms.mechanism.name}, "
        f"{terms.schedule.rounds} rounds of {terms.schedule.cohort_size} clients; sums can be opened by "
        f"{opened[terms.opened_by]}; training on {items} items"
    )


def recommend(
    task: TaskName = None,
    k: Annotated[int, typer.Option("-k", help="How many items.")] = 10,
    interactions: Annotated[
        Path | None, typer.Option(help="Your items; the file that was joined with when not given.")
    ] = None,
    titles: Annotated[Path | None, typer.Option(help="CSV file with the columns item and title.")] = None,
    graph_filter: Annotated[
        str | None, typer.Option("--filter", help="In PriviRec tasks: gf-cf, bspm-em, bspm-lm or turbo-cf.")
    ] = None,
    identity: IdentityFile = None,
) -> None:
    """Recommend items, computed here from the newest model. Items that you have are left out.

    Example: hushrec recommend --task movies -k 10 --titles titles.csv
    """
    who = load_identity(identity)
    membership = kept_membership(who, task)
    seen = read_history(interactions_file(who, membership, interactions))
    names = {} if titles is None else read_titles(titles)
    with Client(membership.url, who, policy=READING) as client:
        found = client.join(membership.task_id, graph_filter=graph_filter).recommend(k, seen)
    rows = [
        (str(place), str(item), *([escape(names.get(item, "-"))] if titles else []), f"{score:.3f}")
        for place, (item, score) in enumerate(found, start=1)
    ]
    headings = ("", "item", *(["title"] if titles else []), "score")
    console.print(table(f"for you, from task {membership.task_name}", headings, rows))
