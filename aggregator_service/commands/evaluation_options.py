"""Options of `hushrec-server task create` about federated evaluation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError

from aggregator_service.commands.common import CommandError
from protocols.messages import Evaluation
from protocols.parameter_text.first_fault import first_fault

__all__ = ["EvaluateEvery", "FinalRounds", "HoldOut", "Keep", "Negatives", "StopAfter", "evaluation_of"]

EvaluateEvery = Annotated[
    int | None, typer.Option(help="Clients measure the model in every so many training rounds.", show_default="never")
]
HoldOut = Annotated[
    str | None,
    typer.Option(help="What a client holds out: last, or a share of its rows such as 0.1.", show_default="last"),
]
Negatives = Annotated[
    int | None, typer.Option(help="Drawn items that a held-out item is ranked against.", show_default="all items")
]
Keep = Annotated[
    Literal["best", "last"] | None,
    typer.Option(help="Model that the task ends with: the best measured one, or the newest.", show_default="last"),
]
StopAfter = Annotated[
    int | None,
    typer.Option(help="End the task after so many measurements without improvement.", show_default="never"),
]
FinalRounds = Annotated[
    int | None,
    typer.Option(help="Last rounds that train on the held-out rows too.", show_default="0"),
]


def evaluation_of(every: int | None, **given: Any) -> Evaluation | None:
    """Return the evaluation block of a task from the options; None without --evaluate-every.

    given: the other fields of `Evaluation`, None where an option was not used. Raises `CommandError` for values out of
    range, and for options that need --evaluate-every.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    if every is None:
        if chosen:
            raise CommandError("--holdout, --negatives, --keep, --stop-after and --final-rounds need --evaluate-every")
        return None
    if chosen.get("holdout", "last") != "last":
        chosen["holdout"] = _share(chosen["holdout"])
    try:
        return Evaluation(every=every, **chosen)
    except ValidationError as error:
        raise CommandError(f"evaluation: {first_fault(error, Evaluation.model_fields)}") from None


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CommandError(f"--holdout is 'last' or a share such as 0.1, not {text!r}") from None
