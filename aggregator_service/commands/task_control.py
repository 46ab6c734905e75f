"""`hushrec-server task`, `invite`, `round` and `diagram`. Creating a task is in `task_creation`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session
from typer import Argument, Option

from aggregator_service.access.audit_trail import Actor, record
from aggregator_service.clock import SystemClock
from aggregator_service.commands.options import (
    AsJson,
    CommandError,
    DatabaseUrl,
    DataDir,
    TaskName,
    as_actor,
    command_group,
    json_array,
    named_task,
    on_database,
)
from aggregator_service.commands.task_creation import Delta, Epsilon, privacy_of, task_create
from aggregator_service.round_states import diagram
from aggregator_service.rounds.interventions import abort_round, close_task, extend_round, resume_task
from aggregator_service.settings import Settings
from aggregator_service.storage.round_rows import find_round, refusals_by_reason
from aggregator_service.storage.stage_rows import count_of
from aggregator_service.tasks.deletion import delete_task
from aggregator_service.tasks.joining import store_revocations
from aggregator_service.tasks.ledger import measurements, privacy_view
from aggregator_service.tasks.plans import most_sums, plan_task, task_terms
from aggregator_service.tasks.task_views import create_invitation, list_tasks, task_view
from protocols.advice import (
    IN_GROUPS,
    MEASURED_ON,
    MESSAGE_BUDGET,
    MOST_COMPONENTS,
    MOST_FACTORS,
    OF_CENTRAL,
    SAFE,
    STARTED,
    STARTS_RANKED,
    UNLIMITED,
    WHOLE,
    Choice,
    choose,
    degrees_are_split,
    settings_of_ratings,
    spectrum_for,
    works_in_groups,
)
from protocols.exposure import exposures
from protocols.messages import Extension, InvitationRequest, Role, Schedule, TaskView
from protocols.messages.privacy import default_delta
from protocols.parameter_text import named_values
from protocols.privacy_advice import choose_noisy
from protocols.recipes.privirec_defaults import blocks_within, ring_bits
from protocols.recipes.privirec_parameters import LEAST_OWNERS, MOST_GRAM_ITEMS
from protocols.recipes.registry import recipe_entry
from protocols.recipes.spectrum import triangle_length
from protocols.sums.groups import Split, advised_cohort, advised_groups_of_degrees
from protocols.sums.masked.parameters import upload_bytes
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.registry import mechanisms

tasks = command_group("Create, list, show, close, resume and delete tasks.")
_STAYING = 0.5  # advised share of the clients that have to stay until the last sum: the limit on equations allows it
_APART = 0.1
"""Advised share of the clients by which sums over the same data differ, or not at all: as many leave such a task when
one drops out between two sums. With min_clients in its place, and that above half, the first one would end the task."""
tasks.command("create")(task_create)


@tasks.command("advise")
def task_advise(
    items: Annotated[int, Option(help="Number of items.")],
    clients: Annotated[int, Option(help="Number of clients that will take part.")],
    interactions: Annotated[int, Option(help="Interactions of all clients together; an estimate is enough.")],
    budget: Annotated[
        float, Option(min=0.000004, help="Megabytes of a client's longest message, at 4 bytes a value.")
    ] = MESSAGE_BUDGET / 1e6,
    ratings: Annotated[bool, Option("--ratings", help="Predict ratings instead of ranking items.")] = False,
    times: Annotated[
        bool, Option("--times", help="The clients' items have times, by which privirec-k learns what follows what.")
    ] = False,
    mechanism: Annotated[str, Option(help=f"Mechanism of the task: {', '.join(mechanisms())}.")] = "masked",
    mechanism_parameter: Annotated[
        list[str] | None, Option("-m", help="Mechanism parameter, name=value; repeatable.")
    ] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
) -> None:
    """Choose a recipe and sizes for data of this size, say why, and print the command that creates the task.

    For recipes of vectors it prints what a larger or smaller message is worth; for
    masked sums the neighbours of a client, the probabilities of failure, and the
    bytes that a client sends. With --epsilon it chooses by what the noise of a
    privacy block leaves of each recipe.

    Example: hushrec-server task advise --items 1682 --clients 943 --interactions 100000 --budget 2
    """
    most_bytes, own = round(budget * 1e6), named_values(mechanism_parameter or [])
    split: Split | None = None
    of_degrees: Split | None = None
    if epsilon is not None and delta is None:
        delta = default_delta(clients)
    privacy = privacy_of(epsilon, Schedule(), fixed_clip=False, delta=delta)
    if privacy is None:
        chosen = partial(
            choose,
            items,
            interactions=interactions,
            budget=most_bytes,
            mechanism=mechanism,
            ratings=ratings,
            ordered=times,
        )
        choice = chosen(clients)
        schedule, more = Schedule(cohort_size=choice.cohort_size, rounds=choice.rounds), ""
        of_degrees = _groups_of_degrees(choice, items, clients, interactions, mechanism, own)
        if of_degrees is not None:  # a member or two less, for whom as many vectors may be too many
            choice, own = chosen(of_degrees.clients), own | {"groups": of_degrees.groups}
        if recipe_entry(choice.recipe).frozen:  # its sums say more, the more clients drop out after the degrees
            floors = _floors(choice.cohort_size // (1 if of_degrees is None else of_degrees.groups))
            schedule = schedule.model_copy(update={"cohort_size": choice.cohort_size, **floors})
            more = _as_options(floors)
    elif ratings:
        raise CommandError("no recipe of ratings can be trained with a privacy block: leave out --ratings or --epsilon")
    else:
        choice, left = choose_noisy(items, clients, interactions, privacy, budget=most_bytes, mechanism=mechanism)
        sizes = left.sizes
        privacy = privacy.model_copy(update={"rounds": sizes.sums})
        schedule = Schedule(cohort_size=sizes.cohort, rounds=sizes.rounds, min_clients=sizes.min_clients)
        of_block = f"--epsilon {privacy.epsilon:g} --delta {privacy.delta:.3g} --client-sums {sizes.sums}"
        more = f"-s min_clients={sizes.min_clients} {of_block} "
    trains = choice.recipe in IN_GROUPS and not recipe_entry(choice.recipe).frozen
    works = works_in_groups(mechanism, own) if trains else None
    if works is not None and privacy is None and "groups" not in own:
        split = advised_cohort(choice.cohort_size, clients, works)
    sums = "1 sum" if choice.rounds == 1 else f"{choice.rounds} sums"
    typer.echo(f"{choice.recipe}: {sums} of {choice.cohort_size} clients")
    if split is not None:
        typer.echo(
            f"  one member that lies owns the model; in {split.groups} groups it spoils little "
            f"(-m groups={split.groups} -s cohort_size={split.clients} -s min_clients={split.min_clients}), but the "
            "sums of groups say more of what each client has: an area under the curve 0.02 above that of counts with "
            "500 clients in each, 0.03 with 333, 0.05 with 200 (docs/security.md#what-sums-give-away)"
        )
    elif of_degrees is not None:
        typer.echo(
            f"  the sum of item degrees is in {of_degrees.groups} groups, so that one member that lies in it does "
            "not own an item; who has what is told better by the degrees of groups than by those of all, as area under "
            "the curve by 0.02 at most on all measured data (docs/security.md#what-sums-give-away); -m groups=1 for one"
        )
    elif privacy is not None and works is not None:
        typer.echo(
            "  in one group, so one member that lies owns the model: each of G groups would have to reach epsilon "
            "alone, with sqrt(G) times the noise in the mean"
        )
    for reason in choice.why:
        typer.echo(f"  {reason}")
    for name, value in sorted(choice.parameters.items()):
        typer.echo(f"  {name} = {value}")
    if "components" in choice.parameters and privacy is None:
        _say_what_vectors_are_worth(items, int(choice.parameters["components"]), most_bytes // (4 * items))
        _say_what_the_matrix_is_worth(items, clients, most_bytes)
        typer.echo("hushrec simulate --dataset FILE --sizes measures it on data of your own")
    terms = task_terms(choice.recipe, choice.parameters, mechanism, own, schedule, None, privacy=privacy)
    planned = plan_task(terms)
    plan = planned.sum_plan
    for said in exposures(planned.recipe, schedule, plan.groups):
        typer.echo(f"what the sums say: {said.text}")
    if isinstance(plan, MaskedPlan):
        neighbourhood = plan.neighbourhood(choice.cohort_size)
        typer.echo("a masked round of one cohort:")
        for name, value in neighbourhood.describe().items():
            typer.echo(f"  {name} = {value}")
        for stage, length in upload_bytes(neighbourhood, planned.recipe.longest_vector(), plan.bits).items():
            typer.echo(f"  a client sends {length} bytes to {stage}, at most")
    if choice.recipe in STARTED and privacy is None:
        spectrum, found, safe = spectrum_for(items, clients, interactions, most_bytes)
        if found <= safe:
            typer.echo(
                f"for a spectral start, which {STARTS_RANKED}: a masked privirec-k task with "
                f"-r components={spectrum['components']} {_as_options(_floors(clients)).strip()}, then --start-from "
                f"it with -r dim={min(found, MOST_FACTORS)} -s rounds=20"
            )
    named = {"items", "components", "item_exponent", "next_vectors", "rank", "dim", "validation"}
    named |= settings_of_ratings(items, interactions).keys()
    given = "".join(f"-r {name}={choice.parameters[name]} " for name in sorted(named & choice.parameters.keys()))
    of_mechanism = [*(mechanism_parameter or []), *([f"groups={of_degrees.groups}"] if of_degrees else [])]
    pairs = "".join(f"-m {pair} " for pair in of_mechanism)
    typer.echo(
        f"hushrec-server task create NAME --recipe {choice.recipe} {given}--mechanism {mechanism} {pairs}"
        f"-s cohort_size={choice.cohort_size} -s rounds={choice.rounds} {more}--organiser KEY"
    )


def _groups_of_degrees(
    choice: Choice, items: int, clients: int, interactions: int, mechanism: str, own: Mapping[str, Any]
) -> Split | None:
    """Return into which groups the sum of degrees is split, where the chosen task has one that can be, and lists are
    long enough; None for one sum, and where `own`, the mechanism's parameters, says how many groups there are."""
    if "groups" in own or not degrees_are_split(choice.recipe, choice.parameters):
        return None
    works = works_in_groups(mechanism, own)
    return None if works is None else advised_groups_of_degrees(items, clients, interactions, works)


def _floors(cohort: int) -> dict[str, int]:
    """Return the fields of a schedule that say how many of a frozen cohort, or of a group of it, may drop out."""
    return {
        "min_clients": max(3, ceil(_STAYING * cohort)),
        "min_difference": max(LEAST_OWNERS, ceil(_APART * cohort)),
    }


def _as_options(fields: dict[str, int]) -> str:
    return "".join(f"-s {name}={value} " for name, value in fields.items())


def _say_what_vectors_are_worth(items: int, own: int, most: int) -> None:
    """Print what messages of each size are worth. own: vectors that were chosen, most: that the budget holds."""
    typer.echo(f"NDCG@20 over all items, as a share of the best central model's without order, on {MEASURED_ON}:")

    def line(vectors: int, iterations: int, key: int | str, what: str = "vectors") -> None:
        lowest, highest = OF_CENTRAL[key]
        megabytes = 4 * items * vectors / 1e6
        typer.echo(f"  {iterations} x {vectors} {what}: {megabytes:.2f} MB a message, {lowest:.2f} to {highest:.2f}")

    measured = [count for count in OF_CENTRAL if isinstance(count, int)]
    for count in measured:
        if count <= own:
            line(count, 3, count)
    if own < most:  # the bound on equations limits it, not the budget
        line(own, 3, SAFE, "vectors, as chosen; on those sets, too, as many as are safe")
    if items >= MOST_COMPONENTS:
        line(MOST_COMPONENTS, 5, UNLIMITED, "vectors with reveal_gram, which give members' items away")


def _say_what_the_matrix_is_worth(items: int, clients: int, budget: int) -> None:
    """Print what the whole matrix of counts is worth, and its bytes in masked sums, where a task can have it."""
    if items > MOST_GRAM_ITEMS:
        return
    blocks, pairs = blocks_within(items, clients, budget), triangle_length(items)
    megabytes = pairs * ring_bits(clients) / 8e6
    lowest, highest = OF_CENTRAL[WHOLE]
    sums = "1 sum" if blocks == 1 else f"{blocks} sums"
    typer.echo(
        f"  the whole matrix (privirec, reveal_gram) in {sums}: {megabytes / blocks:.2f} MB a message, "
        f"{megabytes:.2f} MB in all, {lowest:.2f} to {highest:.2f}; it gives members' items away"
    )


@tasks.command("list")
@on_database
def task_list(session: Session, as_json: AsJson = False) -> str:
    """List all tasks: name, id, state, sums released of all that it can release, and members.

    Example: hushrec-server task list --data-dir /var/lib/hushrec
    """
    rows = list_tasks(session)
    views = [task_view(session, task, now=SystemClock().now()) for task in rows]
    if as_json:
        return json_array(views)
    return "\n".join(
        f"{view.name}  {view.task_id}  {view.state}  {view.completed_rounds}/{most_sums(row)} sums  {_members(view)}"
        for row, view in zip(rows, views, strict=True)
    )


def _members(view: TaskView) -> str:
    """Return the member count; for tasks with several device groups also how many members of each can contribute."""
    if len(view.able_members) == 1:
        return f"{view.members} members"
    return f"{view.members} members, able to contribute by group: {', '.join(map(str, view.able_members))}"


@tasks.command("show")
@on_database
def task_show(session: Session, task: TaskName) -> str:
    """Print a task as JSON, with its plan, counts and warnings, and its curve where the server can open the sums.

    With a privacy block, "spent" says what it promises and how much is spent of it.

    Example: hushrec-server task show movies
    """
    row = named_task(session, task)
    view = task_view(session, row, Settings.load().signatures, SystemClock().now())
    shown = view.model_dump(mode="json")
    if view.evaluation is not None:
        shown["curve"] = measurements(session, row)
    if view.privacy is not None:
        shown["spent"] = privacy_view(session, row).model_dump(mode="json", exclude={"terms"})
    return json.dumps(shown, indent=2)


@tasks.command("revocations")
def task_revocations(
    task: TaskName,
    file: Annotated[Path, Argument(help="Signed list, from hushrec organiser revoke.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Publish the organiser's revocation list for a task, and end the memberships that it revokes.

    Example: hushrec-server task revocations movies movies.revoked
    """
    body = file.read_bytes()

    def work(session: Session, actor: Actor) -> int:
        return store_revocations(session, named_task(session, task), body, actor)

    ended = as_actor("task revocations", data_dir, database_url, work)
    typer.echo(f"{ended} memberships ended")


@tasks.command("close")
@on_database
def task_close(session: Session, actor: Actor, task: TaskName) -> str:
    """Close a task permanently, also a failed one: its active round fails and the contributions are deleted.

    Example: hushrec-server task close movies
    """
    row = named_task(session, task)
    close_task(session, row, actor)
    return f"{row.name}  {row.id}  {row.state}"


@tasks.command("delete")
@on_database
def task_delete(
    session: Session,
    actor: Actor,
    task: TaskName,
    yes: Annotated[
        bool, Option("--yes", help="Delete it; without this option, only say what would be deleted.")
    ] = False,
) -> str:
    """Delete a task that has ended: its model, aggregates, rounds and members. It cannot be undone.

    Digests stay: of its ledger of released sums, and, if it has a data set label,
    of whose data its sums counted, because later sums over the same data must not
    differ from them by a few clients.

    Example: hushrec-server task delete movies --yes
    """
    row = named_task(session, task)
    if row.state == "open":
        raise CommandError(f"task {row.name!r} is open: close it first, with hushrec-server task close {row.name}")
    view = task_view(session, row)
    if not yes:
        return (
            f"{row.name} has {view.members} members, {view.completed_rounds} released sums and its model; to delete "
            f"them: hushrec-server task delete {row.name} --yes"
        )
    done = delete_task(session, row, actor)
    lines = [
        f"deleted {row.name}: {done.members} members, {done.blobs} blobs",
        f"kept of its ledger of {done.released_sums} sums: sha-256 {done.ledger_digest}",
    ]
    if done.kept_sets:
        lines.append(
            f"kept as digests, for later tasks over data set {row.data_set!r}: whose data {done.kept_sets} sums counted"
        )
    return "\n".join(lines)


@tasks.command("retention")
@on_database
def task_retention(
    session: Session,
    actor: Actor,
    settings: Settings,
    task: TaskName,
    keep_rounds: Annotated[
        int | None, Option(min=0, help="Newest rounds to keep whole; 0: as the server's setting says.")
    ] = None,
    ended_days: Annotated[
        int | None, Option(min=-1, help="Days to keep the task after its end; -1: as the server's setting says.")
    ] = None,
) -> str:
    """Show how long a task's data are kept, or change it for this task.

    Example: hushrec-server task retention movies --keep-rounds 20 --ended-days 30
    """
    row = named_task(session, task)
    if keep_rounds is not None:
        row.keep_rounds = keep_rounds or None
    if ended_days is not None:
        row.ended_days = None if ended_days < 0 else ended_days
    if keep_rounds is not None or ended_days is not None:
        changed = {"keep_rounds": keep_rounds, "ended_days": ended_days}
        record(session, actor, "retention changed", task=row, target=None, **changed)
    days = settings.ended_days if row.ended_days is None else row.ended_days
    after = "until an operator deletes it" if days is None else f"for {days} days after its end"
    return f"{row.name}  newest {row.keep_rounds or settings.keep_rounds} rounds whole  kept {after}"


@tasks.command("resume")
@on_database
def task_resume(session: Session, actor: Actor, task: TaskName) -> str:
    """Open a failed task again: its next round computes the sum at which it failed.

    Example: hushrec-server task resume movies
    """
    row = resume_task(session, named_task(session, task).id, actor)
    return f"{row.name}  {row.id}  {row.state}"


@on_database
def invite(
    session: Session,
    actor: Actor,
    task: TaskName,
    role: Annotated[
        Role,
        Option(
            help="holder: creates the task's keys; a task has one holder. committee: takes masks off one-shot sums."
        ),
    ] = "member",
    uses: Annotated[int, Option(help="Number of clients that can use it.")] = 1,
    expires_seconds: Annotated[float, Option(help="Seconds until it expires; the default is one day.")] = 86_400.0,
) -> str:
    """Create an invitation and print it once. Give it to the clients over a channel they trust.

    Example: hushrec-server invite movies --uses 100
    """
    request = InvitationRequest(role=role, uses=uses, expires_seconds=expires_seconds)
    return create_invitation(session, named_task(session, task), request, actor).invitation


# --- rounds -----------------------------------------------------------------------------------------------------------

rounds = command_group("Show a round, extend or abort an active one.")

Number = Annotated[int, Argument(help="Number of the round, counted from 1.")]


@rounds.command("show")
@on_database
def round_show(session: Session, task: TaskName, number: Number) -> str:
    """Show a round's state, its contributions, and the clients that refused it, by reason.

    Example: hushrec-server round show movies 7
    """
    row = named_task(session, task)
    round_ = find_round(session, row.id, number)
    if round_ is None:
        raise CommandError(f"task {row.name!r} has no round {number}")
    counts = f"{count_of(session, round_.id, 'contribute')} of {round_.cohort} contributions"
    failure = f": {round_.failure}" if round_.failure else ""
    refused = refusals_by_reason(session, [round_.id]).get(round_.id, {})
    lines = [f"refused because of {reason}: {clients}" for reason, clients in refused.items()]
    return "\n".join([f"{row.name}  round {number}  {round_.state}{failure}  {counts}", *lines])


@rounds.command("extend")
@on_database
def round_extend(
    session: Session,
    actor: Actor,
    task: TaskName,
    number: Number,
    seconds: Annotated[float, Option(help="Seconds to add to the deadline of the current state.")],
) -> str:
    """Move the deadline of the state that a round is in.

    Example: hushrec-server round extend movies 7 --seconds 300
    """
    extension, row = Extension(seconds=seconds), named_task(session, task)
    _, round_ = extend_round(session, row.id, number, extension.seconds, actor)
    return f"{row.name}  round {number}  {round_.state}  {round_.deadline - actor.at:.0f} seconds left"


@rounds.command("abort")
@on_database
def round_abort(session: Session, actor: Actor, task: TaskName, number: Number) -> str:
    """Abort an active round: it fails and its data is deleted; the task continues with its next round.

    Example: hushrec-server round abort movies 7
    """
    row = named_task(session, task)
    _, round_ = abort_round(session, row.id, number, actor)
    return f"{row.name}  round {number}  {round_.state}: {round_.failure}"


def show_diagram() -> None:
    """Print the states and transitions of a round as a Mermaid diagram.

    Example: hushrec-server diagram
    """
    typer.echo(diagram())
