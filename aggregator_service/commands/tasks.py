"""`hushrec-server task` and `hushrec-server invite`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from sqlalchemy.orm import Session

from aggregator_service.clock import SystemClock
from aggregator_service.commands.common import (
    CommandError,
    DatabaseUrl,
    DataDir,
    TaskName,
    blob_store,
    in_transaction,
    named_task,
    server_settings,
    show,
)
from aggregator_service.commands.task_options import (
    ClientSums,
    Clip,
    Corrupt,
    Delta,
    Epsilon,
    EvaluateEvery,
    FinalRounds,
    FixedClip,
    HoldOut,
    Keep,
    MostItems,
    Negatives,
    StopAfter,
    evaluation_of,
    parameter_help,
    privacy_of,
    read_initial,
)
from aggregator_service.rounds.interventions import resume_task
from aggregator_service.rounds.transactions import close_task
from aggregator_service.settings import Settings
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.certificates import store_revocations
from aggregator_service.tasks.checks import noise_warning
from aggregator_service.tasks.choices import add_task, requested
from aggregator_service.tasks.ledger import measurements, privacy_view
from aggregator_service.tasks.plans import plan_task, task_terms
from aggregator_service.tasks.starts import (
    StartSource,
    check_start,
    check_start_alone,
    read_items,
    with_start,
    with_values,
)
from aggregator_service.tasks.tasks import create_invitation, list_tasks, plan_request, task_view
from protocols.advice import (
    MESSAGE_BUDGET,
    MOST_FACTORS,
    QUALITY_BY_COMPONENTS,
    STARTED,
    Variant,
    choose,
    components_within,
    settings_of_ratings,
)
from protocols.catalogue import Catalogue
from protocols.messages import InvitationRequest, Role, Schedule, TaskView
from protocols.messages.privacy import default_delta
from protocols.parameter_text import named_values, validated
from protocols.privacy_advice import choose_noisy
from protocols.recipes.arrays import shapes_of
from protocols.recipes.private import Private
from protocols.recipes.registry import recipes
from protocols.sums.masked.parameters import upload_bytes
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.registry import mechanisms

tasks = typer.Typer(
    add_completion=False,
    help="Create, list, show, close and resume tasks.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _show_parameters(context: typer.Context, wanted: bool) -> None:
    """Print the parameters of the recipe and the mechanism, which are eager options and therefore known, and exit."""
    if wanted:
        typer.echo(parameter_help(context.params["recipe"], context.params["mechanism"]))
        raise typer.Exit


@tasks.command("create")
def task_create(
    name: Annotated[str, typer.Argument(help="Name of the task.")],
    recipe: Annotated[str, typer.Option(help=f"What is summed: {', '.join(recipes())}.", is_eager=True)],
    mechanism: Annotated[
        str, typer.Option(help=f"How it is summed: {', '.join(mechanisms())}.", is_eager=True)
    ] = "ckks",
    help_parameters: Annotated[
        bool,
        typer.Option(
            "--help-parameters",
            callback=_show_parameters,
            help="Print the parameters of the recipe, the mechanism and the schedule, and exit.",
        ),
    ] = False,
    recipe_parameter: Annotated[
        list[str] | None, typer.Option("-r", help="Recipe parameter, name=value; repeatable.")
    ] = None,
    mechanism_parameter: Annotated[
        list[str] | None, typer.Option("-m", help="Mechanism parameter, name=value; repeatable.")
    ] = None,
    schedule: Annotated[list[str] | None, typer.Option("-s", help="Schedule entry, name=value; repeatable.")] = None,
    variant: Annotated[
        Variant, typer.Option(help="Parameters that are not named: recommended ones, or those of the paper.")
    ] = "recommended",
    data_set: Annotated[
        str | None, typer.Option(help="Label of the data set; give tasks over the same data the same label.")
    ] = None,
    organiser: Annotated[
        str | None, typer.Option(help="Public key of the organiser that certifies the members: hushrec organiser init.")
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(help="Scope of the organiser's certificates.", show_default="the task's name"),
    ] = None,
    evaluate_every: EvaluateEvery = None,
    holdout: HoldOut = None,
    negatives: Negatives = None,
    keep: Keep = None,
    stop_after: StopAfter = None,
    final_rounds: FinalRounds = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    clip: Clip = None,
    fixed_clip: FixedClip = False,
    most_items: MostItems = None,
    client_sums: ClientSums = None,
    corrupt: Corrupt = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            help="Name or id of a complete privirec-k task, plain or masked; the new task starts from its factors."
        ),
    ] = None,
    initial: Annotated[
        Path | None,
        typer.Option(
            help="Safetensors file with the initial values of an arrays task, whose shapes need not be given then.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    items: Annotated[
        Path | None,
        typer.Option(
            help="CSV file with the heading id,title, or one id a line, in order of the item numbers; the recipe's "
            "items need not be given then.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Create a task and print it as JSON, with its plan and warnings.

    Example: hushrec-server task create movies --recipe colr -r items=3706 -r rank=4 -s cohort_size=20 -s rounds=100
    """
    evaluation = evaluation_of(
        evaluate_every,
        holdout=holdout,
        negatives=negatives,
        keep=keep,
        stop_after=stop_after,
        final_rounds=final_rounds,
    )
    del help_parameters  # used by its callback
    planned = validated("schedule", Schedule, named_values(schedule or []))
    privacy = privacy_of(
        epsilon,
        planned,
        fixed_clip,
        delta=delta,
        clip=clip,
        most_items=most_items,
        rounds=client_sums,
        corrupt=corrupt,
    )
    catalogue = None if items is None else _catalogue(items)
    values = None if initial is None else read_initial(initial)
    request = requested(
        name,
        recipe,
        named_values(recipe_parameter or []),
        mechanism,
        named_values(mechanism_parameter or []),
        planned,
        variant=variant,
        shapes=None if values is None else shapes_of(values),
        data_set=data_set,
        organiser=organiser,
        scope=scope,
        evaluation=evaluation,
        privacy=privacy,
        catalogue=catalogue,
        started=start_from is not None,
    )
    check_start(request)
    start, settings = None, server_settings(data_dir, database_url)
    blobs = None if values is None and start_from is None and catalogue is None else blob_store(settings)
    if values is not None:
        request, start = with_values(request, values)
    if start_from is not None and blobs is not None:
        check_start_alone(request)
        named = start_from
        source = in_transaction(
            data_dir, database_url, lambda session: StartSource.of(session, named_task(session, named))
        )
        request, start = with_start(request, source, blobs)
    elif recipe == "pfedclr" and variant == "recommended":
        typer.echo("without --start-from, pfedclr ranked below popularity on every measured data set", err=True)
    plan = plan_request(request)
    if isinstance(plan.recipe, Private) and (outlook := noise_warning(plan.recipe, request.schedule)):
        typer.echo(outlook, err=True)

    def transact(work: Callable[[Session], TaskView]) -> TaskView:
        return in_transaction(data_dir, database_url, work)

    def told(session: Session, task: TaskRow) -> TaskView:
        return task_view(session, task, settings.signatures)

    now = SystemClock().now()
    view = add_task(blobs, transact, request, plan, now, told, start=start, catalogue=catalogue)
    show(view.model_dump(mode="json"))


def _catalogue(path: Path) -> Catalogue:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return read_items(file, str(path))


@tasks.command("advise")
def task_advise(
    items: Annotated[int, typer.Option(help="Number of items.")],
    clients: Annotated[int, typer.Option(help="Number of clients that will take part.")],
    interactions: Annotated[int, typer.Option(help="Interactions of all clients together; an estimate is enough.")],
    budget: Annotated[
        float, typer.Option(min=0.000004, help="Megabytes of a client's longest message, at 4 bytes a value.")
    ] = MESSAGE_BUDGET / 1e6,
    ratings: Annotated[bool, typer.Option("--ratings", help="Predict ratings instead of ranking items.")] = False,
    mechanism: Annotated[str, typer.Option(help=f"Mechanism of the task: {', '.join(mechanisms())}.")] = "masked",
    mechanism_parameter: Annotated[
        list[str] | None, typer.Option("-m", help="Mechanism parameter, name=value; repeatable.")
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
    most_bytes = round(budget * 1e6)
    if epsilon is not None and delta is None:
        delta = default_delta(clients)
    privacy = privacy_of(epsilon, Schedule(), fixed_clip=False, delta=delta)
    if privacy is None:
        choice = choose(items, clients, interactions, budget=most_bytes, mechanism=mechanism, ratings=ratings)
        schedule, more = Schedule(cohort_size=choice.cohort_size, rounds=choice.rounds), ""
    elif ratings:
        raise CommandError("no recipe of ratings can be trained with a privacy block: leave out --ratings or --epsilon")
    else:
        choice, sizes = choose_noisy(items, clients, interactions, privacy, budget=most_bytes, mechanism=mechanism)
        privacy = privacy.model_copy(update={"rounds": sizes.sums})
        schedule = Schedule(cohort_size=sizes.cohort, rounds=sizes.rounds, min_clients=sizes.min_clients)
        of_block = f"--epsilon {privacy.epsilon:g} --delta {privacy.delta:.3g} --client-sums {sizes.sums}"
        more = f"-s min_clients={sizes.min_clients} {of_block} "
    typer.echo(f"{choice.recipe}: {choice.rounds} sums of {choice.cohort_size} clients")
    for reason in choice.why:
        typer.echo(f"  {reason}")
    for name, value in sorted(choice.parameters.items()):
        typer.echo(f"  {name} = {value}")
    if choice.recipe == "privirec-k" and privacy is None:
        _say_what_vectors_are_worth(items)
    own = named_values(mechanism_parameter or [])
    terms = task_terms(choice.recipe, choice.parameters, mechanism, own, schedule, None, privacy=privacy)
    planned = plan_task(terms)
    plan = planned.sum_plan
    if isinstance(plan, MaskedPlan):
        neighbourhood = plan.neighbourhood(choice.cohort_size)
        typer.echo("a masked round of one cohort:")
        for name, value in neighbourhood.describe().items():
            typer.echo(f"  {name} = {value}")
        for stage, length in upload_bytes(neighbourhood, planned.recipe.longest_vector(), plan.bits).items():
            typer.echo(f"  a client sends {length} bytes to {stage}, at most")
    if choice.recipe in STARTED and privacy is None:
        components = components_within(items, round(budget * 1e6))
        typer.echo(
            "for a spectral start, which ranks better: a masked privirec-k task with "
            f"-r components={components}, then --start-from it with -r dim={min(components, MOST_FACTORS)} -s rounds=20"
        )
    named = {"items", "components", "rank", "dim", *settings_of_ratings(items, interactions)}
    given = "".join(f"-r {name}={choice.parameters[name]} " for name in sorted(named & choice.parameters.keys()))
    pairs = "".join(f"-m {pair} " for pair in mechanism_parameter or [])
    typer.echo(
        f"hushrec-server task create NAME --recipe {choice.recipe} {given}--mechanism {mechanism} {pairs}"
        f"-s cohort_size={choice.cohort_size} -s rounds={choice.rounds} {more}--organiser KEY"
    )


def _say_what_vectors_are_worth(items: int) -> None:
    typer.echo("NDCG@20 over all items, as a share of that with 256 vectors, on six measured data sets:")
    for count, (lowest, highest) in sorted(QUALITY_BY_COMPONENTS.items()):
        if count <= items:
            megabytes = 4 * items * count / 1e6
            typer.echo(f"  {count} vectors, {megabytes:.2f} MB a message: {lowest:.2f} to {highest:.2f}")


@tasks.command("list")
def task_list(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """List all tasks: name, id, state, completed rounds and members.

    Example: hushrec-server task list --data-dir /var/lib/hushrec
    """

    def work(session: Session) -> list[TaskView]:
        return [task_view(session, task, now=SystemClock().now()) for task in list_tasks(session)]

    views = in_transaction(data_dir, database_url, work)
    for view in views:
        done = f"{view.completed_rounds}/{view.schedule.rounds} rounds"
        typer.echo(f"{view.name}  {view.task_id}  {view.state}  {done}  {_members(view)}")


def _members(view: TaskView) -> str:
    """Return the member count; for tasks with several device groups also how many members of each can contribute."""
    if len(view.able_members) == 1:
        return f"{view.members} members"
    return f"{view.members} members, able to contribute by group: {', '.join(map(str, view.able_members))}"


@tasks.command("show")
def task_show(
    task: TaskName,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Print a task as JSON, with its plan, counts and warnings, and its curve where the server can open the sums.

    With a privacy block, "spent" says what it promises and how much is spent of it.

    Example: hushrec-server task show movies
    """

    def work(session: Session) -> dict[str, Any]:
        row = named_task(session, task)
        view = task_view(session, row, Settings.load().signatures, SystemClock().now())
        shown = view.model_dump(mode="json")
        if view.evaluation is not None:
            shown["curve"] = measurements(session, row)
        if view.privacy is not None:
            shown["spent"] = privacy_view(session, row).model_dump(mode="json", exclude={"terms"})
        return shown

    show(in_transaction(data_dir, database_url, work))


@tasks.command("revocations")
def task_revocations(
    task: TaskName,
    file: Annotated[Path, typer.Argument(help="Signed list, from hushrec organiser revoke.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Publish the organiser's revocation list for a task, and end the memberships that it revokes.

    Example: hushrec-server task revocations movies movies.revoked
    """
    body = file.read_bytes()
    now = SystemClock().now()
    ended = in_transaction(
        data_dir, database_url, lambda session: store_revocations(session, named_task(session, task), body, now)
    )
    typer.echo(f"{ended} memberships ended")


@tasks.command("close")
def task_close(
    task: TaskName,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Close a task permanently: its active round fails and the contributions are deleted.

    Example: hushrec-server task close movies
    """

    def work(session: Session) -> str:
        row = named_task(session, task)
        close_task(session, row, SystemClock().now())
        return f"{row.name}  {row.id}  {row.state}"

    typer.echo(in_transaction(data_dir, database_url, work))


@tasks.command("resume")
def task_resume(
    task: TaskName,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Open a failed task again: its next round computes the sum at which it failed.

    Example: hushrec-server task resume movies
    """

    def work(session: Session) -> str:
        row = resume_task(session, named_task(session, task).id, "(command line)")
        return f"{row.name}  {row.id}  {row.state}"

    typer.echo(in_transaction(data_dir, database_url, work))


def invite(
    task: TaskName,
    role: Annotated[
        Literal["member", "holder", "committee"],
        typer.Option(
            help="holder: creates the task's keys; a task has one holder. committee: takes masks off one-shot sums."
        ),
    ] = "member",
    uses: Annotated[int, typer.Option(help="Number of clients that can use it.")] = 1,
    expires_seconds: Annotated[
        float, typer.Option(help="Seconds until it expires; the default is one day.")
    ] = 86_400.0,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Create an invitation and print it once. Give it to the clients over a channel they trust.

    Example: hushrec-server invite movies --uses 100
    """
    as_role: Role = role
    request = InvitationRequest(role=as_role, uses=uses, expires_seconds=expires_seconds)
    now = SystemClock().now()
    made = in_transaction(
        data_dir, database_url, lambda session: create_invitation(session, named_task(session, task), request, now)
    )
    typer.echo(made.invitation)
