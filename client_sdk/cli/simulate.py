"""`hushrec simulate`: what a task will learn, before there is a task.

It trains any recipe on any data in one process, without a server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from typer import Option

from client_sdk.cli.common import (
    AsJson,
    ColumnsText,
    DataDir,
    MechanismParameters,
    RecipeParameters,
    SkipBad,
    chosen_columns,
    command_options,
    console,
    fail,
    picked,
    say,
    stderr,
    table,
)
from client_sdk.cli.evaluate import Splitting, TestFile
from client_sdk.cli.install import install_command
from protocols.advice import Variant
from protocols.parameter_text import named_values

if TYPE_CHECKING:
    from client_sdk.lab.data.splits import Split
    from client_sdk.lab.federation import SimulatedRound
    from client_sdk.lab.simulated_task import SimulationRequest
    from client_sdk.lab.simulation import Point, RoundListener, SimulationResult


@dataclass(frozen=True)
class SimulateOptions:
    """Options of `hushrec simulate`."""

    dataset: Annotated[str, Option(help="Name of a data set, or path of a file or folder.")] = "synthetic"
    data_dir: DataDir = None
    columns: ColumnsText = None
    skip_bad: SkipBad = 0
    test: TestFile = None
    split: Splitting = None
    recipe: Annotated[
        str, Option(help="Recipe: privirec-k, colr, fedmf, rfrec, ...; auto chooses what suits the data.")
    ] = "auto"
    mechanism: Annotated[
        str,
        Option(
            help="How it is summed: ckks, paillier, masked (for oneshot, too) or plain (masked where float32 cannot "
            "count so many clients)."
        ),
    ] = "plain"
    rounds: Annotated[int | None, Option(min=1, help="Rounds of the task.", show_default="by recipe and data")] = None
    cohort: Annotated[int | None, Option(min=1, help="Clients in each round.", show_default="by recipe and data")] = (
        None
    )
    every: Annotated[
        int | None, Option(min=1, help="Rounds between two points of the curve.", show_default="a tenth")
    ] = None
    users: Annotated[int, Option(min=1, help="Users that are evaluated, at most; drawn at random.")] = 2000
    recipe_parameter: RecipeParameters = None
    mechanism_parameter: MechanismParameters = None
    variant: Annotated[
        Variant, Option(help="Recipe parameters that are not named: recommended ones, or those of the paper.")
    ] = "recommended"
    start_from_privirec: Annotated[
        bool | None,
        Option(
            "--start-from-privirec/--no-start",
            help="Run privirec-k first and start from its factors.",
            show_default="for pfedclr",
        ),
    ] = None
    budget: Annotated[float, Option(min=0.001, help="Megabytes of a client's longest message of privirec-k.")] = 10.0
    recommend: Annotated[list[str] | None, Option(help="Id of a user to list recommendations for; repeatable.")] = None
    evaluate_every: Annotated[
        int | None, Option(min=1, help="Clients measure the model too, every so many rounds.", show_default="never")
    ] = None
    stop_after: Annotated[
        int | None, Option(min=1, help="Stop after so many measurements without improvement.", show_default="never")
    ] = None
    epsilon: Annotated[
        float | None,
        Option(help="Privacy budget of a client in the whole task: adds its noise.", show_default="no noise"),
    ] = None
    delta: Annotated[float | None, Option(help="Delta of --epsilon.", show_default="users^-1.1, at most 1e-5")] = None
    seed: Annotated[int, Option(min=0, help="Seed of the split, the cohorts and the training.")] = 0
    sizes: Annotated[
        bool,
        Option(
            "--sizes",
            help="Instead: run privirec-k with messages of several sizes, and the whole matrix, and print what each is "
            "worth on this data.",
        ),
    ] = False
    plot: Annotated[Path | None, Option(help="Write the curve to this file, whose name ends in .svg.")] = None
    as_json: AsJson = False


@command_options
def simulate(options: SimulateOptions) -> None:
    """Train a recipe on any data in one process, without a server, and print its curve.

    Shows HR and NDCG (or MAE and RMSE) by round beside popularity (or means),
    what a round costs a client, and a verdict: better or worse than the
    control, by how many standard errors, and what to try next.

    Example: hushrec simulate --dataset ratings.csv --mechanism masked --budget 2
    """
    from client_sdk.lab.simulation import simulate as run

    if options.plot is not None:
        _check_plot(options.plot)  # before the work, which it would be for nothing
    split, request = _split(options), _request(options)
    if options.sizes:
        _compare(split, request, options.as_json)
        return
    with _progress_bar() as on_round:
        result = run(split, request, on_round)
    if options.as_json:
        typer.echo(json.dumps(asdict(result), indent=2))
    else:
        _print(result)
    if options.plot is not None:
        from client_sdk.lab.demo.plots import curve_plot

        options.plot.write_text(curve_plot(result), encoding="utf-8")
        output = stderr if options.as_json else console
        output.print(f"Plot: {options.plot}", highlight=False, markup=False, soft_wrap=True)


def _compare(split: Split, request: SimulationRequest, as_json: bool) -> None:
    from client_sdk.lab.sizes import compare_sizes

    found = compare_sizes(split, request, lambda words: stderr.print(f"training: {words}", highlight=False))
    if as_json:
        typer.echo(json.dumps([asdict(size) for size in found], indent=2))
        return
    metric = next(iter(found[0].values))
    best = max(size.values[metric] for size in found) or 1.0
    rows = [
        (
            size.words + (" (reveal_gram)" if size.consent else ""),
            f"{size.sent_bytes / 1e6:.2f}",
            f"{size.values[metric]:.4f}",
            f"{size.values[metric] / best:.2f}",
        )
        for size in found
    ]
    headings = ("", "MB of a client", metric, "of the best")
    console.print(table(f"privirec-k on {split.train.n_items:,} items, test: {split.words}", headings, rows))


def _split(options: SimulateOptions) -> Split:
    from client_sdk.lab.data.splits import load_split
    from client_sdk.lab.simulated_task import predicts_ratings

    return load_split(
        options.dataset,
        options.data_dir,
        columns=chosen_columns(options.columns),
        skip_bad=options.skip_bad,
        test=options.test,
        kind=options.split,
        seed=options.seed,
        by_rows=predicts_ratings(options.recipe),
        report=None if options.as_json else say,
    )


def _request(options: SimulateOptions) -> SimulationRequest:
    from client_sdk.lab.simulated_task import SimulationRequest
    from protocols.messages import Evaluation

    every = options.evaluate_every
    if every is None and options.stop_after is not None:
        fail("--stop-after needs --evaluate-every")
    return SimulationRequest(
        recipe_parameters=named_values(options.recipe_parameter or []),
        mechanism_parameters=named_values(options.mechanism_parameter or []),
        most_users=options.users,
        recommend=tuple(options.recommend or ()),
        evaluation=None if every is None else Evaluation(every=every, stop_after=options.stop_after),
        budget=round(options.budget * 1e6),
        **picked(options, "recipe", "variant", "mechanism", "rounds", "cohort", "every", "seed"),
        **picked(options, "start_from_privirec", "epsilon", "delta"),
    )


@contextmanager
def _progress_bar() -> Iterator[RoundListener]:
    """Show a bar of the rounds with the newest metric on standard error; in a pipe a line for each point."""
    facts = TextColumn("{task.fields[facts]}", style="cyan")
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), facts)
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        bar = progress.add_task("rounds", total=None, facts="")

        def on_round(done: SimulatedRound, rounds: int, point: Point | None) -> None:
            newest = ""
            if point is not None:
                metric, value = next(iter(point.values.items()))
                newest = f"{metric} {value:.4f}"
            progress.update(bar, completed=done.number, total=rounds, facts=newest)
            if not stderr.is_terminal and point is not None and point.round == done.number:
                stderr.print(f"round {done.number} of {rounds}: {newest}", highlight=False)

        yield on_round


def _print(result: SimulationResult) -> None:
    say(f"{result.train_interactions:,} training interactions; test: {result.split}; {result.measure}")
    if result.left_out:
        say(f"{result.left_out:,} users without training interactions are not evaluated")
    title = f"{result.recipe} with {result.mechanism}: {result.rounds} rounds of {result.cohort:,} clients"
    rows = [(f"round {point.round}", *_values(result, point.values)) for point in result.points]
    rows += [(f"control: {name}", *_values(result, values)) for name, values in result.controls.items()]
    console.print(table(title, ("", *result.metrics), rows))
    if result.measured:
        _print_measured(result.measured)
    up, down = (size / 1024 for size in (result.bytes_up, result.bytes_down))
    say(
        f"A client sends {up:,.1f} KiB and receives {down:,.1f} KiB a round; {result.clipped:,} values were clipped; "
        f"the rounds took {result.seconds:.1f} s."
    )
    if result.rare:
        least = result.recipe_parameters["min_owners"]
        say(
            f"{result.rare:,} of {result.items:,} items have fewer than {least} owners among these users, or owners "
            "with few items: no vector has them, and they are recommended to nobody."
        )
    for reason in result.chosen:
        say(f"Why {result.recipe}: {reason}.")
    say(f"Verdict: {result.verdict.text}")
    for user, items in result.recommendations.items():
        say(f"recommended to user {user}: {', '.join(map(str, items))}")


def _print_measured(measured: list[dict[str, float]]) -> None:
    from protocols.recipes.evaluation_curve import MODEL_ROUND

    counted = [point for point in measured if len(point) > 1]
    names = [name for name in counted[0] if name != MODEL_ROUND] if counted else []
    rows = [
        (f"model of round {point[MODEL_ROUND]:.0f}", *(f"{point[name]:.4f}" for name in names)) for point in counted
    ]
    console.print(table("measured by the clients, on rows that they hold out", ("", *names), rows))


def _values(result: SimulationResult, values: dict[str, float]) -> tuple[str, ...]:
    return tuple(f"{values[metric]:.4f}" for metric in result.metrics)


def _check_plot(path: Path) -> None:
    """Exit with an error if the plot could not be written to `path`."""
    from client_sdk.lab.demo.plots import plots_available

    if path.suffix.lower() != ".svg":
        fail(f"--plot {path}: plots are written as SVG", "Pass a file name that ends in .svg.")
    try:
        if path.exists():
            path.open("r+b").close()
        else:
            TemporaryFile(dir=path.resolve().parent).close()  # tried: permissions alone do not tell
    except OSError as error:
        why = f"--plot {path}: cannot write this file: {error.strerror or error}"
        fail(why, "Pass a file in a folder that exists and is writable.")
    if not plots_available():
        fail("cannot write the plot: matplotlib is not installed", install_command("plots"))
