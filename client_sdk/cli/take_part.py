"""`hushrec join` and `hushrec recommend`: take part in a task, and use its model, on the user's device."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from typer import Option

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.retry import RetryPolicy
from client_sdk.cli.common import AsJson, MinCohort, command_options, console, fail, picked, say, stderr, table
from client_sdk.cli.membership import (
    READ_ONLY,
    AllowHttp,
    CertificateFile,
    DeviceGroup,
    IdentityFile,
    InteractionsFile,
    IssuerCode,
    IssuerScope,
    IssuerUrl,
    Patience,
    ServerUrl,
    SkipUnknown,
    TaskName,
    TrustRoster,
    certificate_choice,
    interactions_file,
    keep_identity,
    kept_membership,
    load_identity,
    open_identity,
    remember_interactions,
)
from client_sdk.cli.monitor import Monitor
from client_sdk.client import Client
from client_sdk.errors import PolicyRefused
from client_sdk.history import History, OnUnknown
from client_sdk.lab.data.files import read_history, read_titles
from client_sdk.rounds.account import ClientOptions
from client_sdk.rounds.events import Event, ModelBehind
from client_sdk.rounds.ledger import Budget, OwnLedger, read_budget
from client_sdk.store import default_store
from client_sdk.store.client_store import ClientStore
from client_sdk.store.identity import Identity
from client_sdk.task import Task
from protocols.exposure import exposures
from protocols.messages import LedgerEntry
from protocols.sums.registry import CLEAR


@dataclass(frozen=True)
class JoinOptions:
    """Argument and options of `hushrec join`."""

    url: ServerUrl
    interactions: Annotated[
        Path, Option(help="File of your items: one number a line, or CSV with a column item and perhaps rating.")
    ]
    skip_unknown: SkipUnknown = False
    invitation: Annotated[
        str | None,
        Option(envvar="HUSHREC_INVITATION", help="Invitation from the operator; needed the first time only."),
    ] = None
    after: Annotated[
        str | None,
        Option(help="In place of an invitation: a task that you are a member of; join the one that follows it."),
    ] = None
    follow: Annotated[
        bool, Option("--follow", help="When the task is over, join the one that follows it without being asked.")
    ] = False
    certificate: CertificateFile = None
    issuer: IssuerUrl = None
    scope: IssuerScope = None
    code: IssuerCode = None
    device_group: DeviceGroup = None
    identity: IdentityFile = None
    task: TaskName = None
    allow_http: AllowHttp = False
    allow_plain: Annotated[
        bool, Option("--allow-plain", help="Accept a plain task: the server can read your contributions.")
    ] = False
    allow_curious: Annotated[
        bool,
        Option("--allow-curious", help="Accept masked sums that are secure only if the server obeys the protocol."),
    ] = False
    trust_roster: TrustRoster = False
    reveal_indices: Annotated[
        bool, Option("--reveal-indices", help="Accept that the server sees which entries of the model you change.")
    ] = False
    reveal_gram: Annotated[
        bool, Option("--reveal-gram", help="Accept sums from which anyone can compute what single clients have.")
    ] = False
    trust_models: Annotated[
        bool,
        Option(
            "--trust-models",
            help="Accept sums without noise. Those who know some of your items can learn more of them, and a server "
            "that lies about the model all.",
        ),
    ] = False
    patience: Patience = None
    min_cohort: MinCohort = Policy.min_cohort
    max_measurements: Annotated[
        int, Option(help="Measure models on held-out rows at most so often, in tasks that measure.")
    ] = Policy.max_measurements
    max_epsilon: Annotated[
        float, Option(help="Privacy budget of your data: refuse tasks with which all cost more than this epsilon.")
    ] = Policy.max_epsilon
    max_model_bytes: Annotated[int, Option(help="Refuse models that need more bytes of memory than this.")] = (
        Policy.max_model_bytes
    )

    def policy(self) -> Policy:
        """Return the conditions under which this client takes part."""
        return Policy(
            mechanisms=Policy().mechanisms | (CLEAR if self.allow_plain else set()),
            masked_modes=Policy().masked_modes | ({"curious"} if self.allow_curious else set()),
            **picked(self, "min_cohort", "trust_roster", "reveal_indices", "reveal_gram", "trust_models"),
            **picked(self, "max_measurements", "max_epsilon", "max_model_bytes", "follow"),
        )


@command_options
def join(options: JoinOptions) -> None:
    """Enrol in a task and take part in its rounds until it ends. Training data stays on this device.

    After an interruption run the same command again; the invitation is needed
    the first time only.

    Example: hushrec join https://recs.example.org --invitation hri_... --interactions items.txt
    """
    unknown: OnUnknown = "skip" if options.skip_unknown else "error"
    read_history(options.interactions, any_id=True)  # read before anything is sent, so that an error costs nothing
    policy = options.policy()
    certificate = certificate_choice(options.certificate, options.issuer, options.scope, options.code)
    who = open_identity(options.identity)
    with Client(options.url, who, policy=policy, options=ClientOptions(allow_http=options.allow_http)) as client:
        shown: TaskTerms | None = None
        if options.invitation is not None and not client.memberships():
            # What does not fit the task must not use up the invitation.
            shown = client.preview(options.invitation)
            _print_exposures(shown)
            asked, groups = options.device_group, shown.recipe.device_groups
            if asked is not None and asked >= groups:
                has = "one device group, 0" if groups == 1 else f"the device groups 0 to {groups - 1}"
                fail(f"--device-group {asked}: the task has {has}")
            any_id = shown.view.catalogue_digest is not None
            read_history(options.interactions, shown.n_items, any_id=any_id, on_unknown=unknown)
        keep_identity(who, options.identity)
        if options.after is not None:
            shown = client.following(options.after)
            if shown is None:
                fail(f"no task follows {options.after!r} yet; to join another one, pass --invitation")
            _print_exposures(shown)
        part: Task | None = client.join(
            options.task,
            invitation=options.invitation,
            certificate=certificate,
            device_group=options.device_group,
            after=options.after,
            shown=shown,
        )
        while part is not None:
            history = read_history(options.interactions, part.terms.n_items, part.catalogue(), on_unknown=unknown)
            remember_interactions(who, part.membership, options.interactions)
            monitor = Monitor(f"task {part.terms.name}")
            try:
                say(_describe_task(part, len(history)) + _left_out(history))
                with monitor:
                    part.take_part(history, monitor, patience=options.patience)
            finally:
                console.print(monitor.summary())
            part = _following(client, part, options)


def _following(client: Client, part: Task, options: JoinOptions) -> Task | None:
    """Return the task that follows one that is over, if the user, asked once, or `--follow` says so."""
    done = part.membership.task_id
    try:
        terms = client.following(done)
    except PolicyRefused as error:
        say(f"the task that follows is not joined: {error}")
        return None
    if terms is None or terms.view.state != "open":
        return None
    _print_exposures(terms)
    question = f"Task {terms.name} follows: {terms.recipe.name} with {terms.mechanism.name}. Take part in it?"
    if options.follow or (sys.stdin.isatty() and typer.confirm(question)):
        return client.join(after=done, shown=terms)
    say(f"task {terms.name} follows; to take part in it: hushrec join {options.url} --after {part.terms.name}")
    return None


def _print_exposures(terms: TaskTerms) -> None:
    for each in exposures(terms.recipe, terms.schedule, terms.sum_plan.groups):
        stderr.print(f"what the sums say: {each.text}", highlight=False, markup=False, soft_wrap=True)


def _describe_task(part: Task, items: int) -> str:
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


def _left_out(history: History) -> str:
    return f"; left out {history.unknown} items that the task does not have" if history.unknown else ""


def recommend(
    task: TaskName = None,
    k: Annotated[int, Option("-k", help="Number of items to recommend.")] = 10,
    interactions: InteractionsFile = None,
    new: Annotated[
        int,
        Option(help="How many of these at least are new or rare items, by their labels in the task's catalogue."),
    ] = 0,
    titles: Annotated[Path | None, Option(help="CSV file with the columns item and title, to show titles.")] = None,
    graph_filter: Annotated[
        str | None,
        Option("--filter", help="Graph filter, in PriviRec tasks: gf-cf, bspm-em, bspm-lm, ease or turbo-cf."),
    ] = None,
    skip_unknown: SkipUnknown = False,
    identity: IdentityFile = None,
    offline: Annotated[
        bool, Option("--offline", help="Make no request: use the model that is stored on this device.")
    ] = False,
    allow_http: AllowHttp = False,
) -> None:
    """Recommend items with the newest model, leaving out items that you have. Scores are computed on this device.

    While the server cannot be reached, the model that is stored on this device is
    used, and a warning says how old it is.

    Example: hushrec recommend --task movies -k 10 --titles titles.csv
    """
    who = load_identity(identity)
    membership = kept_membership(who, task)
    path = interactions_file(who, membership, interactions)
    read_history(path, any_id=True)
    names = {} if titles is None else read_titles(titles)
    options = ClientOptions(RetryPolicy(attempts=3), allow_http=allow_http)
    with Client(membership.url, who, policy=READ_ONLY, options=options) as client:
        part = client.open(membership.task_id, graph_filter=graph_filter)
        catalogue = part.catalogue()
        unknown: OnUnknown = "skip" if skip_unknown else "error"
        history = read_history(path, part.terms.n_items, catalogue, on_unknown=unknown)
        if history.unknown:
            say(_left_out(history)[2:])
        found = part.recommend(k, history, refresh=not offline, progress=_warn_of_age, new=new)
    if catalogue is not None and titles is None:
        names = dict(zip(found.items.tolist(), found.titles or (), strict=False))
    titled = titles is not None or any(found.titles or ())
    rows = [
        (str(place), escape(str(item)), *([escape(names.get(number) or "-")] if titled else []), f"{score:.3f}")
        for place, (number, (item, score)) in enumerate(zip(found.items.tolist(), found, strict=True), start=1)
    ]
    headings = ("", "item", *(["title"] if titled else []), "score")
    console.print(table(f"recommendations from task {membership.task_name}", headings, rows))


def _warn_of_age(event: Event) -> None:
    if isinstance(event, ModelBehind):
        stderr.print(f"[yellow]warning:[/] {escape(event.reason)}", highlight=False, soft_wrap=True)


# --- `hushrec ledger`: which released sums contain the user's data, data of how many others, and what they cost -------


def ledger(
    task: TaskName = None,
    identity: IdentityFile = None,
    offline: Annotated[
        bool, Option("--offline", help="Ask no server: show only what tasks cost, which this device keeps.")
    ] = False,
    as_json: AsJson = False,
    allow_http: AllowHttp = False,
) -> None:
    """List the released sums that contain your data, and what tasks with a privacy block have cost of its budget.

    The sums are compared with the records on this device; each that differs is
    a warning. The costs are this device's own records, of all tasks.

    Example: hushrec ledger --task movies
    """
    me = load_identity(identity)
    costs = read_budget(ClientStore(default_store(), me.fingerprint), Policy())
    if costs.tasks and not as_json:
        _print_budget(costs)
    elif offline and not as_json:
        console.print("no task with a privacy block has been joined")
    found = [] if offline else _fetch(me, task, ClientOptions(allow_http=allow_http))
    if as_json:
        typer.echo(json.dumps({"tasks": [_as_json(one) for one in found], "budget": asdict(costs)}, indent=2))
    else:
        for one in found:
            title = f"{escape(one.task_name)} ({one.task_id}): {len(one.entries)} sums with your data"
            headings = ("sum", "round", "recipe", "mechanism", "others", "released")
            console.print(table(title, headings, [_row(entry) for entry in one.entries]))
    for one in found:
        for warning in one.warnings:
            stderr.print(f"[yellow]warning:[/] {escape(one.task_name)}, {warning}", highlight=False, soft_wrap=True)


def _print_budget(costs: Budget) -> None:
    rows = [
        (
            escape(one.task_name),
            one.task_id,
            f"{one.sums} of {one.most_sums}",
            f"{one.spent:.3g}",
            f"{one.reserved:.3g}",
            "ended" if one.ended else "open",
        )
        for one in costs.tasks
    ]
    title = f"privacy budget of your data: epsilon at delta {costs.delta:g}"
    total = ("[bold]all together[/]", "", "", f"{costs.spent:.3g}", f"{costs.reserved:.3g}", "")
    console.print(table(title, ("task", "id", "sums", "spent", "reserved", ""), [*rows, total]))
    say(
        "Reserved: what open tasks may still come to, and ended tasks have cost. hushrec join refuses a task with "
        f"which all together exceed {costs.max_epsilon:g}, or --max-epsilon."
    )


def _fetch(me: Identity, task: str | None, options: ClientOptions) -> list[OwnLedger]:
    """Return the ledgers of a task, or of all that were joined."""
    kept, found = ClientStore(default_store(), me.fingerprint).memberships(), []
    for membership in kept if task is None and kept else [kept_membership(me, task)]:
        with Client(membership.url, me, policy=READ_ONLY, options=options) as client:
            found.append(client.ledger(membership.task_id))
    return found


def _row(entry: LedgerEntry) -> tuple[str, ...]:
    released = datetime.fromtimestamp(entry.released_at).astimezone().strftime("%Y-%m-%d %H:%M")
    others = str(entry.survivors - 1)
    return str(entry.step), str(entry.round), entry.recipe, entry.mechanism, others, released


def _as_json(one: OwnLedger) -> dict[str, object]:
    return {
        "task_id": one.task_id,
        "task_name": one.task_name,
        "sums": [{**entry.model_dump(), "others": entry.survivors - 1} for entry in one.entries],
        "warnings": list(one.warnings),
    }
