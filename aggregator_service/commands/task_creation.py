"""`hushrec-server task create`: a task from its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from aggregator_service.commands.options import (
    CommandError,
    DatabaseUrl,
    DataDir,
    blob_store,
    command_actor,
    database_in_use,
    named_task,
    server_settings,
)
from aggregator_service.tasks.choice_checks import noise_warning
from aggregator_service.tasks.creation import add_task, evaluation_block, privacy_block, requested
from aggregator_service.tasks.files import read_initial, read_items
from aggregator_service.tasks.parameter_rows import parameter_help
from aggregator_service.tasks.starts import StartSource, check_no_evaluation, check_start, with_start, with_values
from aggregator_service.tasks.task_views import plan_request
from protocols.advice import Variant, degrees_are_split, is_split_by_itself, works_in_groups
from protocols.catalogue import Catalogue
from protocols.errors import ParameterError
from protocols.messages import Evaluation, Schedule
from protocols.messages.privacy import Privacy
from protocols.parameter_text import named_values, validated
from protocols.recipes.private import Private
from protocols.recipes.registry import recipe_entry, recipes
from protocols.sums.groups import SMALLEST_SPLIT
from protocols.sums.registry import mechanisms

Epsilon = Annotated[
    float | None,
    Option(
        help="Differential privacy: what all contributions of a client may cost. Every client then adds noise to its "
        "contributions.",
        show_default="no noise",
    ),
]
Delta = Annotated[
    float | None,
    Option(
        help="Probability in the guarantee of --epsilon. The default is clients^-1.1, and 1e-5 at most; clients: "
        "start_clients, or cohort_size if that is larger.",
        show_default=False,
    ),
]


def privacy_of(epsilon: float | None, schedule: Schedule, fixed_clip: bool, **given: Any) -> Privacy | None:
    """Return the privacy block of a task from the options; None without --epsilon.

    given: other fields of `Privacy`, None where an option was not used. Raises `CommandError` for values out of range,
    and for options that need --epsilon.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    if epsilon is None:
        if chosen or fixed_clip:
            raise CommandError(
                "--delta, --clip, --fixed-clip, --most-items, --client-sums and --corrupt need --epsilon"
            )
        return None
    if fixed_clip:
        chosen["quantile"] = None
    try:
        return privacy_block({"epsilon": epsilon, **chosen}, schedule)
    except ParameterError as error:
        raise CommandError(str(error).replace("rounds:", "client-sums:")) from None


def evaluation_of(every: int | None, **given: Any) -> Evaluation | None:
    """Return the evaluation block of a task from the options; None without --evaluate-every.

    given: the other fields of `Evaluation`, None where an option was not used. Raises `ParameterError` for values out
    of range, and `CommandError` for options that need --evaluate-every.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    if every is None:
        if chosen:
            raise CommandError(
                "--holdout, --negatives, --keep, --stop-after, --gate and --final-rounds need --evaluate-every"
            )
        return None
    if chosen.get("holdout", "last") != "last":
        chosen["holdout"] = _share(chosen["holdout"])
    return evaluation_block({"every": every, **chosen})


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CommandError(f"--holdout is 'last' or a share such as 0.1, not {text!r}") from None


def _show_parameters(context: typer.Context, wanted: bool) -> None:
    """Print the parameters of the recipe and the mechanism, which are eager options and therefore known, and exit."""
    if wanted:
        typer.echo(parameter_help(context.params["recipe"], context.params["mechanism"]))
        raise typer.Exit


def task_create(
    name: Annotated[str, Argument(help="Name of the task.")],
    recipe: Annotated[str, Option(help=f"What is summed: {', '.join(recipes())}.", is_eager=True)],
    mechanism: Annotated[str, Option(help=f"How it is summed: {', '.join(mechanisms())}.", is_eager=True)] = "ckks",
    help_parameters: Annotated[
        bool,
        Option(
            "--help-parameters",
            callback=_show_parameters,
            help="Print the parameters of the recipe, the mechanism and the schedule, and exit.",
        ),
    ] = False,
    recipe_parameter: Annotated[
        list[str] | None, Option("-r", help="Recipe parameter, name=value; repeatable.")
    ] = None,
    mechanism_parameter: Annotated[
        list[str] | None, Option("-m", help="Mechanism parameter, name=value; repeatable.")
    ] = None,
    schedule: Annotated[list[str] | None, Option("-s", help="Schedule entry, name=value; repeatable.")] = None,
    variant: Annotated[
        Variant, Option(help="Parameters that are not named: recommended ones, or those of the paper.")
    ] = "recommended",
    data_set: Annotated[
        str | None, Option(help="Label of the data set; give tasks over the same data the same label.")
    ] = None,
    organiser: Annotated[
        str | None, Option(help="Public key of the organiser that certifies the members: hushrec organiser init.")
    ] = None,
    scope: Annotated[
        str | None, Option(help="Scope of the organiser's certificates.", show_default="the task's name")
    ] = None,
    evaluate_every: Annotated[
        int | None, Option(help="Clients measure the model in every so many training rounds.", show_default="never")
    ] = None,
    holdout: Annotated[
        str | None,
        Option(help="What a client holds out: last, or a share of its rows such as 0.1.", show_default="last"),
    ] = None,
    negatives: Annotated[
        int | None, Option(help="Drawn items that a held-out item is ranked against.", show_default="all items")
    ] = None,
    keep: Annotated[
        Literal["best", "last"] | None,
        Option(help="Model that the task ends with: the best measured one, or the newest.", show_default="last"),
    ] = None,
    stop_after: Annotated[
        int | None, Option(help="End the task after so many measurements without improvement.", show_default="never")
    ] = None,
    gate: Annotated[
        float | None,
        Option(
            help="Adopt a model only if it measures at most so many standard errors below the last one; 0: adopt all.",
            show_default="2, without --final-rounds",
        ),
    ] = None,
    final_rounds: Annotated[
        int | None, Option(help="Last rounds that train on the held-out rows too.", show_default="0")
    ] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    clip: Annotated[
        float | None, Option(help="First L2 bound on an update; it adapts to the clients.", show_default="1")
    ] = None,
    fixed_clip: Annotated[bool, Option("--fixed-clip", help="Keep the bound --clip in all sums.")] = False,
    most_items: Annotated[
        int | None, Option(help="Items of a client that sums of counts count at most.", show_default="100")
    ] = None,
    client_sums: Annotated[
        int | None,
        Option(
            help="Sums that a client contributes to at most: the fewer, the less noise.", show_default="all of the task"
        ),
    ] = None,
    corrupt: Annotated[
        float | None,
        Option(help="Share of a cohort whose noise is not counted on, as it may collude.", show_default="0.1"),
    ] = None,
    start_from: Annotated[
        str | None,
        Option(
            help="Name or id of a complete task, plain or masked, of privirec-k or of the recipe itself; the new task "
            "starts from its model, and may have further items."
        ),
    ] = None,
    follows: Annotated[
        str | None,
        Option(
            help="Name or id of an earlier task with the same organiser, scope and data set: its members may join "
            "without an invitation, and are asked once."
        ),
    ] = None,
    initial: Annotated[
        Path | None,
        Option(
            help="Safetensors file with the initial values of an arrays task, whose shapes need not be given then.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    items: Annotated[
        Path | None,
        Option(
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
        gate=gate,
        final_rounds=final_rounds,
    )
    del help_parameters  # used by its callback
    planned = validated("schedule", Schedule, named_values(schedule or []))
    privacy = privacy_of(
        epsilon, planned, fixed_clip, delta=delta, clip=clip, most_items=most_items, rounds=client_sums, corrupt=corrupt
    )
    catalogue = None if items is None else _catalogue(items)
    values = None if initial is None else read_initial(initial)
    blobs, start, before = None, None, None
    settings = server_settings(data_dir, database_url)
    with database_in_use(data_dir, database_url) as database:
        if follows is not None:
            with database.read() as session:
                planned = planned.model_copy(update={"follows": named_task(session, follows).id})
        if values is not None or start_from is not None or catalogue is not None:
            blobs = blob_store(settings, database)
        if start_from is not None and blobs is not None:
            with database.read() as session:
                source = StartSource.of(session, named_task(session, start_from))
            before = source.read(blobs)
        request = requested(
            name,
            recipe,
            named_values(recipe_parameter or []),
            mechanism,
            named_values(mechanism_parameter or []),
            planned,
            variant=variant,
            shapes=None if values is None else {name: list(array.shape) for name, array in values.items()},
            data_set=data_set,
            organiser=organiser,
            scope=scope,
            evaluation=evaluation,
            privacy=privacy,
            catalogue=catalogue,
            start=before,
        )
        says = any(each.startswith("groups=") for each in mechanism_parameter or [])
        of_degrees = privacy is None and degrees_are_split(recipe, request.recipe.parameters)
        if of_degrees:
            if not says and works_in_groups(mechanism, {}) is not None:
                typer.echo(_said_of_degrees(request.mechanism.parameters.get("groups", 1)), err=True)
        elif (groups := request.mechanism.parameters.get("groups", 1)) > 1 and not says:
            typer.echo(
                f"each round has {groups} groups of {planned.cohort_size // groups:,} clients with a sum each, so that "
                "one member that lies spoils little; clients send the same, but fetch the sums of all groups, which "
                "everybody sees: -m groups=1 for one sum (docs/oneshot.md#groups)",
                err=True,
            )
        elif groups == 1 and not says and is_split_by_itself(mechanism) and planned.cohort_size >= SMALLEST_SPLIT:
            typer.echo(
                "each round has one sum, which one member that lies can make into anything: this cohort is not split "
                "into groups by itself (docs/oneshot.md#groups says why); -m groups=N does, N a divisor of cohort_size "
                "that is 3 or more",
                err=True,
            )
        check_start(request)
        if values is not None:
            request, start = with_values(request, values)
        if before is not None:
            check_no_evaluation(request)
            request, start = with_start(request, before)
        elif recipe_entry(recipe).needs_start and variant == "recommended":
            typer.echo(f"without --start-from, {recipe} ranked below popularity on every measured data set", err=True)
        plan = plan_request(request)
        if isinstance(plan.recipe, Private) and (outlook := noise_warning(plan.recipe, request.schedule)):
            typer.echo(outlook, err=True)
        view = add_task(
            database, blobs, request, plan, command_actor(), settings.signatures, start=start, catalogue=catalogue
        )
    typer.echo(json.dumps(view.model_dump(mode="json"), indent=2))


def _said_of_degrees(groups: int) -> str:
    """Return what a maker who says nothing of groups is told of a task whose sum of item degrees can be split."""
    if groups > 1:
        return (
            f"the sum of item degrees has {groups} groups with a sum each, which everybody sees, so that one member "
            "that lies in it spoils little: -m groups=1 for one sum (docs/masked.md#groups-of-the-item-degrees)"
        )
    return (
        "one member that lies in the sum of item degrees puts an item into a quarter of all lists or more: -m groups=3 "
        "splits that sum; who has what is told better by the degrees of smaller groups "
        "(docs/masked.md#groups-of-the-item-degrees)"
    )


def _catalogue(path: Path) -> Catalogue:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return read_items(file, str(path))
