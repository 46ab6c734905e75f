"""Options of `hushrec-server task create`: evaluation, privacy, initial values, and help on parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray
from pydantic import ValidationError

from aggregator_service.commands.common import CommandError
from aggregator_service.tasks.choices import as_text, parameter_rows
from protocols.advice import RECOMMENDED
from protocols.errors import ParameterError
from protocols.messages import Evaluation, Schedule
from protocols.messages.privacy import Privacy, default_delta
from protocols.parameter_text import first_fault
from protocols.recipes.registry import recipe_entry
from protocols.sums.registry import parameters_of

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


Epsilon = Annotated[
    float | None,
    typer.Option(
        help="Differential privacy: what all contributions of a client may cost. Every client then adds noise to its "
        "contributions.",
        show_default="no noise",
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(
        help="Probability in the guarantee of --epsilon. The default is clients^-1.1, and 1e-5 at most; clients: "
        "start_clients, or cohort_size if that is larger.",
        show_default=False,
    ),
]
Clip = Annotated[
    float | None, typer.Option(help="First L2 bound on an update; it adapts to the clients.", show_default="1")
]
FixedClip = Annotated[bool, typer.Option("--fixed-clip", help="Keep the bound --clip in all sums.")]
MostItems = Annotated[
    int | None, typer.Option(help="Items of a client that sums of counts count at most.", show_default="100")
]
ClientSums = Annotated[
    int | None,
    typer.Option(
        help="Sums that a client contributes to at most: the fewer, the less noise.", show_default="all of the task"
    ),
]
Corrupt = Annotated[
    float | None,
    typer.Option(help="Share of a cohort whose noise is not counted on, as it may collude.", show_default="0.1"),
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
    chosen.setdefault("delta", default_delta(max(schedule.cohort_size, schedule.start_clients)))
    try:
        return Privacy(epsilon=epsilon, **chosen)
    except ValidationError as error:
        fault = first_fault(error, Privacy.model_fields).replace("rounds:", "client-sums:")
        raise CommandError(f"privacy: {fault}") from None


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


def read_initial(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return the arrays of a safetensors file as float32, by name.

    Values of 16 and 64 bits are converted. Raises `ParameterError` for a file that cannot be read, and, naming it, for
    an array that does not hold floating-point numbers that numpy has.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return {name: _floats(path, name, file.get_slice(name).get_dtype(), file) for name in sorted(file.keys())}
    except (OSError, SafetensorError) as error:
        raise ParameterError(f"cannot read {path} as a safetensors file: {error}") from None


def _floats(path: Path, name: str, dtype: str, file: object) -> NDArray[np.float32]:
    if dtype not in ("F16", "F32", "F64"):
        raise ParameterError(f"{path}: array {name!r} holds {dtype}, not float32: convert it, or leave it out")
    array = file.get_tensor(name)  # type: ignore[attr-defined]
    return np.asarray(array).astype(np.float32)


def parameter_help(recipe: str, mechanism: str) -> str:
    """Return the rows of the page of parameters for this choice as text; `ParameterError` for an unknown name."""
    own = recipe_entry(recipe).parameters
    sums = parameters_of(mechanism)
    parts = [
        f"Recipe {recipe}, -r name=value:",
        as_text(parameter_rows(own, RECOMMENDED.get(recipe))),
        f"Mechanism {mechanism}, -m name=value:",
        "  no parameters" if sums is None else as_text(parameter_rows(sums)),
        "Schedule, -s name=value:",
        as_text(parameter_rows(Schedule)),
    ]
    return "\n\n".join(f"{parts[i]}\n{parts[i + 1]}" for i in range(0, len(parts), 2))
