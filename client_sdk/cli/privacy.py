"""`hushrec privacy`: the noise of a task (`plan`), and the cost of Laplace noise next to what papers state (`laplace`).

`PAPER_CLAIMS` says what papers state about the privacy of their noise, and why it is not the privacy cost of a user.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from pydantic import ValidationError
from typer import Option

from client_sdk.cli.common import AsJson, command_group, command_options, console, picked, table
from client_sdk.cli.privacy_plan import plan
from protocols.errors import ParameterError
from protocols.parameter_text import first_fault

if TYPE_CHECKING:
    from protocols.privacy.laplace import LaplaceNoise, PrivacyCost

privacy = command_group("Plan the noise of a task, and compute privacy costs (epsilon).")
privacy.command("plan")(plan)


@dataclass(frozen=True)
class PaperClaim:
    """A paper's statement about its privacy.

    dim: length of an item's factor in the paper's experiments. clip: bound on each value, None if the paper bounds
    something else or gives no number. scale: of the Laplace noise. formula: the paper's epsilon in words. per: what
    that epsilon is for. objections: why the statement does not hold, or does not mean what a reader may think.
    """

    system: str
    source: str
    dim: int
    clip: float | None
    scale: float
    formula: str
    per: Literal["coordinate", "round"]
    objections: tuple[str, ...]

    @property
    def epsilon(self) -> float | None:
        """The epsilon that the paper states or that follows from its formula; None if it gives no number."""
        return None if self.clip is None else 2 * self.clip / self.scale


_RFREC: Final = PaperClaim(
    system="RFRec",
    source="section 3.4 (eq. 9) and RQ6",
    dim=20,
    clip=0.2,
    scale=0.04,
    formula="2 delta / s, with clip delta and scale s",
    per="coordinate",
    objections=(
        "A client sends items x dim coordinates that all follow from its own data, in every round. Their costs add up, "
        "and the paper adds none.",
        "The released code draws one Laplace number a client and adds it to every entry. The difference between any "
        "two entries is then sent without noise: that is no local differential privacy, for any epsilon.",
        "The released code has other values than the text, clip 0.4 with scale 0.1 and 0.2 with 0.08, and its noise "
        "is commented out.",
    ),
)
PAPER_CLAIMS: Final[Mapping[str, PaperClaim]] = MappingProxyType(
    {
        "pfedclr": PaperClaim(
            system="PFedCLR",
            source="section 4, appendix B.4 (eq. 35, 36, lemma B.7) and D.7",
            dim=16,
            clip=None,
            scale=0.5,
            formula="S_u / lambda, with S_u at most 2 p_u eta C",
            per="round",
            objections=(
                "p_u is the weight of the client in the server's mean, so S_u is the sensitivity of the mean. The "
                "noise is local: it is added to Q_u, whose sensitivity has no p_u in it.",
                "S_u is that of a single gradient step with rate eta. Training is 10 epochs of Adam, which divides "
                "gradients by their own size: clipping them bounds no change of Q_u by eta C.",
                "C bounds a norm of the whole gradient, and which one is not said. Laplace noise needs the sum of the "
                "absolute values; for the Euclidean norm that is up to sqrt(items x dim) times as much.",
                "Neither C nor a value of epsilon is given, and what 100 rounds cost together is not asked.",
            ),
        ),
        "rfrec": _RFREC,
        "rfrecf": replace(_RFREC, system="RFRecF", scale=0.06),
    }
)
"""Name of the recipe -> the paper's statement."""


_NOTE = (
    "Epsilon bounds what a contribution reveals: an attacker who finds two inputs of a user equally likely may, after "
    "seeing the contribution, find one of them at most e^epsilon times as likely as the other. Below 1 is commonly "
    "called strong; above 10 there is hardly a bound. The bound holds for any two inputs of one user, so everything "
    "that a user sends counts: the costs of all coordinates of a vector add up, and so do the costs of rounds. An "
    "attacker who sees only the sum learns less, but because of the secure sum, not because of the noise."
)
_ITEMS = 3706
_DIM = 20


@dataclass(frozen=True)
class LaplaceOptions:
    """Options of `hushrec privacy laplace`."""

    recipe: Annotated[str | None, Option(help="Recipe whose paper's claim is shown: rfrec, rfrecf or pfedclr.")] = None
    items: Annotated[int | None, Option(min=1, help="Number of items.", show_default="3706, MovieLens-1M's")] = None
    dim: Annotated[int | None, Option(min=1, help="Length of an item's factor.", show_default="the paper's, or 20")] = (
        None
    )
    values: Annotated[
        int | None, Option(min=1, help="Number of noised values in one contribution, instead of items x dim.")
    ] = None
    clip: Annotated[float | None, Option(help="Bound to which each value is clipped.", show_default="the paper's")] = (
        None
    )
    scale: Annotated[float | None, Option(help="Scale b of the Laplace noise.", show_default="the paper's")] = None
    rounds: Annotated[int, Option(min=1, help="Rounds that one client contributes to.")] = 100
    clients: Annotated[int, Option(min=1, help="Number of contributions in a mean, for its noise.")] = 6040
    delta: Annotated[float, Option(help="Probability with which the composed bound may fail.")] = 1e-5
    as_json: AsJson = False

    def claim(self) -> PaperClaim | None:
        """Return the claim of the recipe's paper, None without --recipe. Raises `ParameterError` if there is none."""
        if self.recipe is not None and self.recipe not in PAPER_CLAIMS:
            known = ", ".join(PAPER_CLAIMS)
            raise ParameterError(f"no claim on Laplace noise is known for {self.recipe!r}; choose one of {known}")
        return None if self.recipe is None else PAPER_CLAIMS[self.recipe]

    def noise(self) -> LaplaceNoise:
        """Return clip and scale, the paper's where not given. Raises `ParameterError` if one is missing or invalid."""
        from protocols.privacy.laplace import LaplaceNoise

        claim, clip, scale = self.claim(), self.clip, self.scale
        if claim is not None:
            clip = claim.clip if clip is None else clip
            scale = claim.scale if scale is None else scale
        if clip is None or scale is None:
            missing = " and ".join(name for name, value in (("--clip", clip), ("--scale", scale)) if value is None)
            raise ParameterError(f"{missing} must be given" + (": the paper does not state it" if claim else ""))
        try:
            return LaplaceNoise(clip=clip, scale=scale)
        except ValidationError as error:
            raise ParameterError(first_fault(error)) from error

    def coordinates(self) -> int:
        """Return the number of noised values in one contribution."""
        if self.values is not None and (self.items or self.dim):
            raise ParameterError("give either --values, or --items and --dim")
        claim = self.claim()
        dim = self.dim or (_DIM if claim is None else claim.dim)
        return self.values or (self.items or _ITEMS) * dim


@privacy.command("laplace")
@command_options
def laplace(options: LaplaceOptions) -> None:
    """Compute the privacy cost (epsilon) of clipped values with Laplace noise: per coordinate, per round and in total.

    Papers state the cost of one coordinate in one round. A user sends thousands
    of coordinates in every round, and all of them count. With --recipe the
    paper's claim is shown too, and its clip and scale are the defaults.

    Example: hushrec privacy laplace --recipe rfrec --items 3706 --dim 20 --clip 0.2 --scale 0.04 --rounds 100
    """
    from protocols.privacy.laplace import laplace_cost

    claim, noise = options.claim(), options.noise()
    cost = laplace_cost(noise, options.coordinates(), options.rounds, options.delta)
    if options.as_json:
        typer.echo(json.dumps(_document(cost, options.clients, claim), indent=2))
        return
    title = f"clip {noise.clip:g}, Laplace scale {noise.scale:g}: {cost.coordinates:,} values, {cost.rounds:,} rounds"
    headings = ("", "epsilon", "odds up to", *([] if claim is None else [f"{claim.system} states"]))
    console.print(table(title, headings, _rows(cost, claim)))
    console.print(_NOTE, highlight=False)
    console.print(_utility(cost, options.clients), highlight=False)
    if claim is not None:
        console.print(_format_claim(claim), highlight=False)


def _rows(cost: PrivacyCost, claim: PaperClaim | None) -> list[tuple[str, ...]]:
    from protocols.privacy.laplace import odds

    figures = [
        ("coordinate", "one coordinate, one round", cost.epsilon_coordinate),
        ("round", "one round, all coordinates", cost.epsilon_round),
        ("total", f"[bold]{cost.rounds:,} rounds, all coordinates[/]", cost.epsilon_total),
        ("total", f"the same, at delta {cost.delta:g}", cost.epsilon_at_delta),
    ]
    rows = []
    for kind, name, epsilon in figures:
        stated = []
        if claim is not None:
            stated = [_epsilon(claim.epsilon) if claim.per == kind else "nothing"]
        rows.append((name, _epsilon(epsilon), odds(epsilon), *stated))
    return rows


def _epsilon(value: float | None) -> str:
    if value is None:
        return "no number"
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def _utility(cost: PrivacyCost, clients: int) -> str:
    return (
        f"In the mean of {clients:,} contributions, the noise has a standard deviation of "
        f"{cost.noise_of_mean(clients):.2g} per coordinate. For epsilon = 1 in total the scale would have to be "
        f"{cost.scale_for_one:,.4g}, {cost.scale_for_one / cost.noise.scale:,.4g} times as large."
    )


def _format_claim(claim: PaperClaim) -> str:
    at = f"scale {claim.scale:g}" if claim.clip is None else f"clip {claim.clip:g} and scale {claim.scale:g}"
    lines = [f"{claim.system}, {claim.source}: epsilon = {claim.formula}, for one {claim.per}, at {at}. Objections:"]
    return "\n".join([*lines, *(f"- {objection}" for objection in claim.objections)])


def _document(cost: PrivacyCost, clients: int, claim: PaperClaim | None) -> dict[str, Any]:
    """Return the JSON document: every figure, its inputs, and the paper's claim."""
    said = ("system", "source", "clip", "scale", "formula", "per", "epsilon", "objections")
    return {
        **picked(cost.noise, "clip", "scale"),
        **picked(cost, "coordinates", "rounds", "delta", "sensitivity"),
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
        "paper": None if claim is None else picked(claim, *said),
    }
