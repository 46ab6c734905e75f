"""`hushrec privacy`: what clipping and Laplace noise cost a user in privacy, beside what the papers state."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from client_sdk.cli.console import console, table
from protocols.errors import ParameterError
from protocols.parameter_text.first_fault import first_fault

if TYPE_CHECKING:
    from protocols.privacy.accountant import PrivacyCost
    from protocols.privacy.claims import PaperClaim
    from protocols.privacy.laplace import LaplaceNoise

__all__ = ["privacy"]

_NOTE = (
    "Epsilon bounds what a contribution gives away: someone who finds two inputs of a user equally likely may, after "
    "seeing what was sent, hold one for e^epsilon times as likely as the other. Below 1 is commonly called strong, "
    "above 10 hardly a bound at all. It compares any two inputs, and everything that a user sends counts: coordinates "
    "of one vector are not separate users, so their costs add up, and so do rounds. Whoever sees only the sum learns "
    "less, but that is then owed to the secure sum and not to the noise."
)


def privacy(
    recipe: Annotated[str | None, typer.Option(help="Whose paper to set beside it: rfrec, rfrecf, pfedclr.")] = None,
    items: Annotated[int | None, typer.Option(min=1, help="Items; MovieLens-1M's 3706 by default.")] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="Length of an item's factor; the paper's, else 20.")] = None,
    values: Annotated[
        int | None, typer.Option(min=1, help="Noised values one contribution holds, instead of items x dim.")
    ] = None,
    clip: Annotated[float | None, typer.Option(help="What each value is clipped to; else the paper's.")] = None,
    scale: Annotated[float | None, typer.Option(help="Scale b of the Laplace noise; else the paper's.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that one client contributes to.")] = 100,
    clients: Annotated[int, typer.Option(min=1, help="Clients a mean is over, for the noise left in it.")] = 6040,
    delta: Annotated[float, typer.Option(help="Probability with which the composed bound may fail.")] = 1e-5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The privacy cost of clipped values with Laplace noise: of one coordinate, one round, and all rounds together.

    Papers state the cost of one coordinate in one round. A user sends thousands of them, in every round, and all of
    them count. With --recipe the paper's own clip and scale stand in for those not given, and its claim is shown.

    Example: hushrec privacy --recipe rfrec --items 3706 --dim 20 --clip 0.2 --scale 0.04 --rounds 100
    """
    from protocols.privacy.accountant import laplace_cost

    claim = _claim(recipe)
    noise = _noise(clip, scale, claim)
    usual = 20 if claim is None else claim.dim
    cost = laplace_cost(noise, _coordinates(items, dim, values, usual), rounds, delta)
    if as_json:
        typer.echo(json.dumps(_document(cost, clients, claim), indent=2))
        return
    title = f"clip {noise.clip:g}, Laplace scale {noise.scale:g}: {cost.coordinates:,} values, {rounds:,} rounds"
    headings = ("", "cost", "odds up to", *([] if claim is None else [f"{claim.system} states"]))
    console.print(table(title, headings, _rows(cost, claim)))
    console.print(_NOTE, highlight=False)
    console.print(_utility(cost, clients), highlight=False)
    if claim is not None:
        console.print(_objections(claim), highlight=False)


def _claim(recipe: str | None) -> PaperClaim | None:
    from protocols.privacy.claims import PAPER_CLAIMS

    if recipe is not None and recipe not in PAPER_CLAIMS:
        raise ParameterError(f"no claim on Laplace noise is known of {recipe!r}, only of {', '.join(PAPER_CLAIMS)}")
    return None if recipe is None else PAPER_CLAIMS[recipe]


def _noise(clip: float | None, scale: float | None, claim: PaperClaim | None) -> LaplaceNoise:
    """The noise asked for, the paper's where it is not said."""
    from protocols.privacy.laplace import LaplaceNoise

    if claim is not None:
        clip = claim.clip if clip is None else clip
        scale = claim.scale if scale is None else scale
    if clip is None or scale is None:
        missing = " and ".join(name for name, value in (("--clip", clip), ("--scale", scale)) if value is None)
        raise ParameterError(f"{missing} must be given" + (": the paper does not say" if claim is not None else ""))
    try:
        return LaplaceNoise(clip=clip, scale=scale)
    except ValidationError as error:
        raise ParameterError(first_fault(error)) from error


def _coordinates(items: int | None, dim: int | None, values: int | None, usual_dim: int) -> int:
    if values is None:
        return (3706 if items is None else items) * (usual_dim if dim is None else dim)
    if items is not None or dim is not None:
        raise ParameterError("give either --values, or --items and --dim")
    return values


def _rows(cost: PrivacyCost, claim: PaperClaim | None) -> list[tuple[str, ...]]:
    from protocols.privacy.accountant import odds

    figures = [
        ("coordinate", "one coordinate, one round", cost.epsilon_coordinate),
        ("round", "one round, all coordinates", cost.epsilon_round),
        ("total", f"[bold]{cost.rounds:,} rounds, all coordinates[/]", cost.epsilon_total),
        ("total", f"the same, at delta {cost.delta:g}", cost.epsilon_at_delta),
    ]
    return [
        (name, _number(epsilon), odds(epsilon), *([] if claim is None else [_stated(claim, kind)]))
        for kind, name, epsilon in figures
    ]


def _number(epsilon: float) -> str:
    return f"{epsilon:,.4g}" if epsilon < 1000 else f"{epsilon:,.0f}"


def _stated(claim: PaperClaim, kind: str) -> str:
    if claim.per != kind:
        return "nothing"
    return "no number" if claim.epsilon is None else _number(claim.epsilon)


def _utility(cost: PrivacyCost, clients: int) -> str:
    return (
        f"The mean of {clients:,} contributions keeps noise of standard deviation {cost.noise_of_mean(clients):.2g} a "
        f"coordinate. For epsilon = 1 over everything that a client sends the scale would have to be "
        f"{cost.scale_for_one:,.4g}, times {cost.scale_for_one / cost.noise.scale:,.4g}."
    )


def _objections(claim: PaperClaim) -> str:
    at = f"scale {claim.scale:g}" if claim.clip is None else f"clip {claim.clip:g} and scale {claim.scale:g}"
    lines = [f"{claim.system}, {claim.source}: epsilon = {claim.formula}, for one {claim.per}, at {at}. But:"]
    return "\n".join([*lines, *(f"- {objection}" for objection in claim.objections)])


def _document(cost: PrivacyCost, clients: int, claim: PaperClaim | None) -> dict[str, Any]:
    """JSON: every figure, what it follows from, and the paper's claim."""
    stated = None
    if claim is not None:
        stated = {
            "system": claim.system,
            "source": claim.source,
            "clip": claim.clip,
            "scale": claim.scale,
            "formula": claim.formula,
            "per": claim.per,
            "epsilon": claim.epsilon,
            "objections": list(claim.objections),
        }
    return {
        "clip": cost.noise.clip,
        "scale": cost.noise.scale,
        "coordinates": cost.coordinates,
        "rounds": cost.rounds,
        "delta": cost.delta,
        "sensitivity": cost.sensitivity,
        "epsilon": {
            "coordinate": cost.epsilon_coordinate,
            "round": cost.epsilon_round,
            "total": cost.epsilon_total,
            "total_at_delta": cost.epsilon_at_delta,
            "advanced_composition": cost.advanced,
            "renyi_composition": cost.renyi,
            "renyi_order": cost.renyi_order,
        },
        "scale_for_epsilon_1": cost.scale_for_one,
        "clients": clients,
        "noise_of_mean": cost.noise_of_mean(clients),
        "paper": stated,
    }
