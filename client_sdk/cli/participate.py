"""`hushrec join` and `hushrec recommend`: take part in a task, and use its model, on the user's device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from client_sdk.agreement.policy import Policy
from client_sdk.cli.command_options import command_options
from client_sdk.cli.console import console, fail, table
from client_sdk.cli.item_files import read_history, read_titles
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
from client_sdk.participation.enroller import ClientOptions
from client_sdk.participation.participant import Participant

__all__ = ["JoinOptions", "join", "recommend"]


@dataclass(frozen=True)
class JoinOptions:
    """Argument and options of `hushrec join`."""

    url: Annotated[str, typer.Argument(help="Address of the server.")]
    interactions: Annotated[
        Path, typer.Option(help="File of your items: one number a line, or CSV with a column item and perhaps rating.")
    ]
    invitation: Annotated[
        str | None,
        typer.Option(envvar="HUSHREC_INVITATION", help="Invitation from the operator; needed the first time only."),
    ] = None
    certificate: CertificateFile = None
    issuer: IssuerUrl = None
    scope: IssuerScope = None
    code: IssuerCode = None
    device_group: DeviceGroup = None
    identity: IdentityFile = None
    task: TaskName = None
    allow_http: AllowHttp = False
    allow_plain: Annotated[
        bool, typer.Option("--allow-plain", help="Accept a plain task: the server can read your contributions.")
    ] = False
    allow_curious: Annotated[
        bool,
        typer.Option(
            "--allow-curious", help="Accept masked sums that are secure only if the server obeys the protocol."
        ),
    ] = False
    trust_roster: Annotated[
        bool,
        typer.Option(
            "--trust-roster",
            help="Accept tasks without an organiser: the server alone says who the clients are.",
        ),
    ] = False
    reveal_indices: Annotated[
        bool,
        typer.Option("--reveal-indices", help="Accept that the server sees which entries of the model you change."),
    ] = False
    patience: Patience = None
    min_cohort: Annotated[int, typer.Option(help="Refuse sums of fewer clients than this.")] = Policy.min_cohort
    max_measurements: Annotated[
        int, typer.Option(help="Measure models on held-out rows at most so often, in tasks that measure.")
    ] = Policy.max_measurements
    max_model_bytes: Annotated[int, typer.Option(help="Refuse models that need more bytes of memory than this.")] = (
        Policy.max_model_bytes
    )

    def policy(self) -> Policy:
        """Return the conditions under which this client takes part."""
        return Policy(
            min_cohort=self.min_cohort,
            mechanisms=Policy().mechanisms | ({"plain"} if self.allow_plain else set()),
            masked_modes=Policy().masked_modes | ({"curious"} if self.allow_curious else set()),
            trust_roster=self.trust_roster,
            reveal_indices=self.reveal_indices,
            max_measurements=self.max_measurements,
            max_model_bytes=self.max_model_bytes,
        )


@command_options(JoinOptions)
def join(options: JoinOptions) -> None:
    """Enrol in a task and take part in its rounds until it ends. Training data stays on this device.

    After an interruption run the same command again; the invitation is needed
    the first time only.

    Example: hushrec join https://recs.example.org --invitation hri_... --interactions items.txt
    """
    read_history(options.interactions)  # read before anything is sent, so that an error costs nothing
    policy = options.policy()
    who = open_identity(options.identity)
    with Client(options.url, who, policy=policy, options=ClientOptions(allow_http=options.allow_http)) as client:
        if options.invitation is not None and not client.memberships():
            # What does not fit the task must not use up the invitation.
            terms = client.preview(options.invitation)
            _check_device_group(options.device_group, terms.recipe.device_groups)
            read_history(options.interactions, terms.n_items)
        part = client.join(
            options.task,
            invitation=options.invitation,
            certificate=certificate_choice(options.certificate, options.issuer, options.scope, options.code),
            device_group=options.device_group,
        )
        history = read_history(options.interactions, part.terms.n_items)
        remember_interactions(who, part.membership, options.interactions)
        monitor = Monitor(f"task {part.terms.name}")
        try:
            console.print(escape(_describe_task(part, len(history))), highlight=False, soft_wrap=True)
            with monitor:
                part.take_part(history, monitor, patience=options.patience)
        finally:
            console.print(monitor.summary())


def _check_device_group(asked: int | None, groups: int) -> None:
    """Exit with an error if the task has no such device group."""
    if asked is not None and asked >= groups:
        has = "one device group, 0" if groups == 1 else f"the device groups 0 to {groups - 1}"
        fail(f"--device-group {asked}: the task has {has}")


def _describe_task(part: Participant, items: int) -> str:
    """Return one line on the task: this client, recipe, mechanism, schedule and who can open the sums."""
    terms = part.terms
    opened = {"anyone": "anyone, the server included", "members": "its members"}
    device_group = f" in device group {part.membership.device_group}" if terms.recipe.device_groups > 1 else ""
    return (
        f"task {terms.name}: client {part.membership.client_id}{device_group}, "
        f"{terms.recipe.name} with {terms.mechanism.name}, "
        f"{terms.schedule.rounds} rounds of {terms.schedule.cohort_size} clients; sums can be opened by "
        f"{opened[terms.opened_by]}; training on {items} items"
    )


def recommend(
    task: TaskName = None,
    k: Annotated[int, typer.Option("-k", help="Number of items to recommend.")] = 10,
    interactions: Annotated[
        Path | None, typer.Option(help="File of your items.", show_default="the file passed to join")
    ] = None,
    titles: Annotated[
        Path | None, typer.Option(help="CSV file with the columns item and title, to show titles.")
    ] = None,
    graph_filter: Annotated[
        str | None,
        typer.Option("--filter", help="Graph filter, in PriviRec tasks: gf-cf, bspm-em, bspm-lm, ease or turbo-cf."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings of the filter for a data set, from its authors' code: amazon-book, gowalla, yelp2018. "
            "Those of bspm-lm for gowalla and yelp2018 are not published: they are those of bspm-em."
        ),
    ] = None,
    identity: IdentityFile = None,
    allow_http: AllowHttp = False,
) -> None:
    """Recommend items with the newest model, leaving out items that you have. Scores are computed on this device.

    Example: hushrec recommend --task movies -k 10 --titles titles.csv
    """
    if preset is not None:
        graph_filter = f"{graph_filter or 'gf-cf'}/{preset}"
    who = load_identity(identity)
    membership = kept_membership(who, task)
    seen = read_history(interactions_file(who, membership, interactions))
    names = {} if titles is None else read_titles(titles)
    with Client(membership.url, who, policy=READ_ONLY, options=ClientOptions(allow_http=allow_http)) as client:
        found = client.join(membership.task_id, graph_filter=graph_filter).recommend(k, seen)
    rows = [
        (str(place), str(item), *([escape(names.get(item, "-"))] if titles else []), f"{score:.3f}")
        for place, (item, score) in enumerate(found, start=1)
    ]
    headings = ("", "item", *(["title"] if titles else []), "score")
    console.print(table(f"recommendations from task {membership.task_name}", headings, rows))
