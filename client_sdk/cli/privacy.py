"""`hushrec privacy plan`: noise, costs and what is left of each recipe, for so many users, items and an epsilon."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Option

from client_sdk.cli.common import AsJson, command_group, command_options, console, picked, stderr, table
from client_sdk.cli.install import install_command
from protocols.errors import ParameterError

if TYPE_CHECKING:
    from protocols.messages.privacy import Privacy
    from protocols.privacy_advice import NoiseOutlook

_WHICH: Final = (
    "Epsilon: cost of all sums that one client is in, against everybody, also those who know that it took part. This "
    "is what a task promises, and what clients count towards their budgets. Gaussian: by privacy loss distributions, "
    "for Gaussian noise of the same multiplier, for comparison."
)
_NOTE: Final = (
    "z: deviation of the noise of the honest clients of the smallest round, in units of the L2 bound on a "
    "contribution. Noise per value: in the sum of a whole cohort. Sums of one client, at most: the block's `rounds`. "
    "What is left is a rule of thumb (docs/privacy.md): measure before you promise."
)


privacy = command_group("Plan the noise of a task.")
privacy.callback()(lambda: None)  # a group, although it has one command


@dataclass(frozen=True)
class PlanOptions:
    """Options of `hushrec privacy plan`."""

    users: Annotated[int, Option(min=2, help="Number of users.")]
    items: Annotated[int, Option(min=1, help="Number of items.")]
    epsilon: Annotated[float, Option(help="Cost to a client of all its contributions to the task.")]
    delta: Annotated[
        float | None, Option(help="Probability in the guarantee.", show_default="users^-1.1, at most 1e-5")
    ] = None
    recipe: Annotated[str | None, Option(help="Plan this recipe only.", show_default="all that can have noise")] = None
    cohort: Annotated[
        int | None,
        Option(min=2, help="Clients in a sum.", show_default="all for PriviRec, otherwise 1,000 or 1 % of the users"),
    ] = None
    min_clients: Annotated[
        int | None, Option(min=2, help="Clients of the smallest round.", show_default="80 % of the cohort")
    ] = None
    corrupt: Annotated[float, Option(help="Share of a cohort whose noise is not counted on.")] = 0.1
    rounds: Annotated[
        int | None, Option(min=1, help="Rounds of the task.", show_default="3 and 1 for PriviRec, otherwise 101")
    ] = None
    interactions_per_user: Annotated[int, Option(min=1, help="Mean number of items of a user.")] = 50
    clip: Annotated[float, Option(help="L2 bound on an update, from which it adapts, in tasks that train.")] = 1.0
    as_json: AsJson = False

    def block(self) -> Privacy:
        """Return the privacy block. Raises `ParameterError` for values out of range."""
        from pydantic import ValidationError

        from protocols.messages.privacy import Privacy, default_delta
        from protocols.parameter_text import first_fault

        delta = default_delta(self.users) if self.delta is None else self.delta
        try:
            return Privacy(epsilon=self.epsilon, delta=delta, clip=self.clip, corrupt=self.corrupt)
        except ValidationError as error:
            raise ParameterError(first_fault(error, Privacy.model_fields)) from None

    def outlooks(self) -> tuple[list[NoiseOutlook], dict[str, str]]:
        """Return the plan of each recipe, and by name why the others have none.

        Raises the reason if one recipe was asked for.
        """
        from protocols.privacy_advice import noisy_recipes, outlook, sizes_for

        block, found, missing = self.block(), [], {}
        for name in noisy_recipes() if self.recipe is None else (self.recipe,):
            try:
                sizes = sizes_for(name, self.users, **picked(self, "rounds", "cohort", "min_clients"))
                found.append(
                    outlook(name, self.users, self.items, block, sizes, interactions=self.interactions_per_user)
                )
            except ParameterError as error:
                if self.recipe is not None:
                    raise
                missing[name] = str(error)
        return found, missing


@privacy.command("plan")
@command_options
def plan(options: PlanOptions) -> None:
    """Plan a task with a privacy block: the noise, what it costs, and what it leaves of each recipe.

    Nothing is looked at but sizes. With the extra `privacy`, tighter bounds for
    Gaussian noise stand beside ours.

    Example: hushrec privacy plan --users 1000000 --items 50000 --epsilon 4
    """
    found, missing = options.outlooks()
    gaussian = {one.recipe: figures for one in found if (figures := _gaussian(one)) is not None}
    if options.as_json:
        typer.echo(json.dumps(_document(options, found, missing, gaussian), indent=2))
        return
    delta = options.block().delta
    title = f"{options.users:,} users, {options.items:,} items: epsilon {options.epsilon:g} at delta {delta:.2g}"
    headings = ("", *(one.recipe for one in found))
    if found:
        console.print(table(title, headings, [*_sizes(found), *_costs(found, gaussian)]))
    for one in found:
        console.print(f"{one.text}.", highlight=False, soft_wrap=True)
    for name, why in missing.items():
        console.print(f"{name}: {why}", highlight=False, soft_wrap=True)
    console.print(f"{_WHICH}\n{_NOTE}", highlight=False, soft_wrap=True)
    if found and not gaussian:
        stderr.print(
            f"For the figures of Gaussian noise: {install_command('privacy')}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _sizes(found: list[NoiseOutlook]) -> list[tuple[str, ...]]:
    return [
        ("rounds", *(f"{one.sizes.rounds:,}" for one in found)),
        ("clients in a sum", *(f"{one.sizes.cohort:,}" for one in found)),
        ("clients of the smallest round", *(f"{one.sizes.min_clients:,}" for one in found)),
        ("of them honest", *(f"{one.honest:,}" for one in found)),
        ("sums of one client, at most", *(f"{one.sizes.sums:,}" for one in found)),
        ("clip (L2 bound)", *(f"{one.sums[-1].bound:g}" for one in found)),
        ("z", *(f"{one.multiplier:.3g}" for one in found)),
        ("noise per value of a sum", *(f"{one.sums[-1].deviation:.3g}" for one in found)),
        ("noise per value of a count", *(_of_counts(one) for one in found)),
    ]


def _of_counts(one: NoiseOutlook) -> str:
    return f"{one.sums[0].deviation:.3g}" if one.sums[0].what == "counts" else "-"


def _costs(found: list[NoiseOutlook], gaussian: Mapping[str, float]) -> list[tuple[str, ...]]:
    rows = [("epsilon", *(f"{one.epsilon:.3g}" for one in found))]
    if gaussian:
        rows.append(("the same, Gaussian", *(f"{gaussian[one.recipe]:.3g}" for one in found)))
    return rows


def _gaussian(one: NoiseOutlook) -> float | None:
    """Return epsilon for Gaussian noise of the same multiplier.

    By privacy loss distributions, with `dp-accounting` (extra `privacy`; None without it): tighter than a bound by
    Renyi orders. The Skellam noise of a task comes close to Gaussian noise, so the figures are for comparison; what a
    task promises is the bound of `protocols.privacy.noise`, which holds for the noise that is added.
    """
    try:
        from dp_accounting import GaussianDpEvent
    except ModuleNotFoundError:
        return None
    return loss_epsilon(GaussianDpEvent(one.multiplier), one.sizes.sums, one.delta)


def loss_epsilon(event: Any, times: int, delta: float) -> float:
    """Return epsilon at `delta` of `times` sums, each with the privacy loss of `event`, one of `dp_accounting`."""
    from dp_accounting import SelfComposedDpEvent, pld

    accountant = pld.PLDAccountant().compose(SelfComposedDpEvent(event, times))
    return float(accountant.get_epsilon(delta))


def _document(
    options: PlanOptions,
    found: list[NoiseOutlook],
    missing: Mapping[str, str],
    gaussian: Mapping[str, float],
) -> dict[str, Any]:
    """Return the JSON document: the request, and each recipe's sizes, costs, noise and outlook."""
    recipes = []
    for one in found:
        own = asdict(one)
        costs = {"stated": own.pop("epsilon"), "gaussian": gaussian.get(one.recipe)}
        recipes.append({**own, "epsilon": costs})
    return {
        "users": options.users,
        "items": options.items,
        "interactions_per_user": options.interactions_per_user,
        "privacy": options.block().model_dump(mode="json"),
        "recipes": recipes,
        "not_planned": dict(missing),
    }
