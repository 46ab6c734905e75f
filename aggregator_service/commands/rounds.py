"""`hushrec-server round` and `diagram`: show a round, extend or abort an active one; the states of a round."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from pydantic import ValidationError
from sqlalchemy.orm import Session

from aggregator_service.clock import SystemClock
from aggregator_service.commands.common import CommandError, DatabaseUrl, DataDir, TaskName, in_transaction, named_task
from aggregator_service.round_states import diagram
from aggregator_service.rounds.interventions import abort_round, extend_round
from aggregator_service.storage.rounds import find_round, received_count, refusals_by_reason
from protocols.messages import Extension
from protocols.parameter_text import first_fault

rounds = typer.Typer(
    add_completion=False,
    help="Show a round, extend or abort an active one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Number = Annotated[int, typer.Argument(help="Number of the round, counted from 1.")]
_OPERATOR: Final = "(command line)"


@rounds.command("show")
def round_show(task: TaskName, number: Number, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Show a round's state, its contributions, and the clients that refused it, by reason.

    Example: hushrec-server round show movies 7
    """

    def work(session: Session) -> list[str]:
        row = named_task(session, task)
        round_ = find_round(session, row.id, number)
        if round_ is None:
            raise CommandError(f"task {row.name!r} has no round {number}")
        counts = f"{received_count(session, round_.id)} of {round_.cohort} contributions"
        failure = f": {round_.failure}" if round_.failure else ""
        refused = refusals_by_reason(session, [round_.id]).get(round_.id, {})
        return [
            f"{row.name}  round {number}  {round_.state}{failure}  {counts}",
            *(f"refused because of {reason}: {clients}" for reason, clients in refused.items()),
        ]

    typer.echo("\n".join(in_transaction(data_dir, database_url, work)))


@rounds.command("extend")
def round_extend(
    task: TaskName,
    number: Number,
    seconds: Annotated[float, typer.Option(help="Seconds to add to the deadline of the current state.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Move the deadline of the state that a round is in.

    Example: hushrec-server round extend movies 7 --seconds 300
    """
    try:
        extension = Extension(seconds=seconds)
    except ValidationError as error:
        raise CommandError(first_fault(error)) from None
    now = SystemClock().now()

    def work(session: Session) -> str:
        row = named_task(session, task)
        _, round_ = extend_round(session, row.id, number, extension.seconds, _OPERATOR, now)
        return f"{row.name}  round {number}  {round_.state}  {round_.deadline - now:.0f} seconds left"

    typer.echo(in_transaction(data_dir, database_url, work))


@rounds.command("abort")
def round_abort(task: TaskName, number: Number, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Abort an active round: it fails and its data is deleted; the task continues with its next round.

    Example: hushrec-server round abort movies 7
    """

    def work(session: Session) -> str:
        row = named_task(session, task)
        _, round_ = abort_round(session, row.id, number, _OPERATOR, SystemClock().now())
        return f"{row.name}  round {number}  {round_.state}: {round_.failure}"

    typer.echo(in_transaction(data_dir, database_url, work))


def show_diagram() -> None:
    """Print the states and transitions of a round as a Mermaid diagram.

    Example: hushrec-server diagram
    """
    typer.echo(diagram())
