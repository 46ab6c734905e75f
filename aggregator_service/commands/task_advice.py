"""`hushrec-server task advise`: which recipe and sizes suit data of a size, and the command that creates the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any

import typer
from typer import Option

from aggregator_service.commands.options import CommandError
from aggregator_service.commands.task_creation import Delta, Epsilon, privacy_of
from aggregator_service.tasks.plans import plan_task, task_terms
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
from protocols.messages import Schedule
from protocols.messages.privacy import Privacy, default_delta
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

_STAYING = 0.5
"""Advised share of the clients that have to stay until the last sum: the limit on equations allows it."""
_APART = 0.1
"""Advised share of the clients by which sums over the same data differ, or not at all: as many leave such a task when
one drops out between two sums. With min_clients in its place, and that above half, the first one would end the task."""


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
    data = _Data(items, clients, interactions, round(budget * 1e6))
    given = mechanism_parameter or []
    if epsilon is not None and delta is None:
        delta = default_delta(clients)
    privacy = privacy_of(epsilon, Schedule(), fixed_clip=False, delta=delta)
    if privacy is None:
        advised = _choose(data, mechanism, named_values(given), ratings, times)
    elif ratings:
        raise CommandError("no recipe of ratings can be trained with a privacy block: leave out --ratings or --epsilon")
    else:
        advised = _choose_noisy(data, mechanism, named_values(given), privacy)
    _say_what_is_chosen(advised, data, mechanism)
    _say_what_sums_say(advised, mechanism)
    choice, of_degrees = advised.choice, advised.of_degrees
    if choice.recipe in STARTED and advised.privacy is None:
        _say_how_to_start(data)
    named = {"items", "components", "item_exponent", "next_vectors", "rank", "dim", "validation"}
    named |= settings_of_ratings(items, interactions).keys()
    of_recipe = "".join(f"-r {name}={choice.parameters[name]} " for name in sorted(named & choice.parameters.keys()))
    of_mechanism = [*given, *([f"groups={of_degrees.groups}"] if of_degrees else [])]
    pairs = "".join(f"-m {pair} " for pair in of_mechanism)
    typer.echo(
        f"hushrec-server task create NAME --recipe {choice.recipe} {of_recipe}--mechanism {mechanism} {pairs}"
        f"-s cohort_size={choice.cohort_size} -s rounds={choice.rounds} {advised.options}--organiser KEY"
    )


# --- the choice -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Data:
    """The size of the data, and what a client may send."""

    items: int
    clients: int
    interactions: int
    budget: int
    """Bytes of a client's longest message, at 4 bytes a value."""


@dataclass(frozen=True)
class _Advised:
    """A task that suits the data."""

    choice: Choice
    schedule: Schedule
    own: Mapping[str, Any]
    """Parameters of the mechanism."""
    options: str
    """Further options of the command that creates the task."""
    privacy: Privacy | None = None
    of_degrees: Split | None = None
    """The groups of the sum of item degrees; None for one sum."""


def _choose(data: _Data, mechanism: str, own: Mapping[str, Any], ratings: bool, ordered: bool) -> _Advised:
    """Return the task of a recipe without a privacy block. own: parameters of the mechanism that are given."""

    def chosen(clients: int) -> Choice:
        return choose(
            data.items,
            clients,
            interactions=data.interactions,
            budget=data.budget,
            mechanism=mechanism,
            ratings=ratings,
            ordered=ordered,
        )

    choice = chosen(data.clients)
    schedule, options = Schedule(cohort_size=choice.cohort_size, rounds=choice.rounds), ""
    of_degrees = _groups_of_degrees(choice, data, mechanism, own)
    if of_degrees is not None:  # a member or two less, for whom as many vectors may be too many
        choice, own = chosen(of_degrees.clients), {**own, "groups": of_degrees.groups}
    if recipe_entry(choice.recipe).frozen:  # its sums say more, the more clients drop out after the degrees
        floors = _floors(choice.cohort_size // (1 if of_degrees is None else of_degrees.groups))
        schedule = schedule.model_copy(update={"cohort_size": choice.cohort_size, **floors})
        options = _as_options(floors)
    return _Advised(choice, schedule, own, options, of_degrees=of_degrees)


def _choose_noisy(data: _Data, mechanism: str, own: Mapping[str, Any], privacy: Privacy) -> _Advised:
    """Return the task of which the noise of a privacy block leaves most."""
    choice, left = choose_noisy(
        data.items, data.clients, data.interactions, privacy, budget=data.budget, mechanism=mechanism
    )
    sizes = left.sizes
    privacy = privacy.model_copy(update={"rounds": sizes.sums})
    schedule = Schedule(cohort_size=sizes.cohort, rounds=sizes.rounds, min_clients=sizes.min_clients)
    of_block = f"--epsilon {privacy.epsilon:g} --delta {privacy.delta:.3g} --client-sums {sizes.sums}"
    return _Advised(choice, schedule, own, f"-s min_clients={sizes.min_clients} {of_block} ", privacy)


def _groups_of_degrees(choice: Choice, data: _Data, mechanism: str, own: Mapping[str, Any]) -> Split | None:
    """Return into which groups the sum of degrees is split, where the chosen task has one that can be, and lists are
    long enough; None for one sum, and where `own`, the mechanism's parameters, says how many groups there are."""
    if "groups" in own or not degrees_are_split(choice.recipe, choice.parameters):
        return None
    works = works_in_groups(mechanism, own)
    return None if works is None else advised_groups_of_degrees(data.items, data.clients, data.interactions, works)


def _floors(cohort: int) -> dict[str, int]:
    """Return the fields of a schedule that say how many of a frozen cohort, or of a group of it, may drop out."""
    return {
        "min_clients": max(3, ceil(_STAYING * cohort)),
        "min_difference": max(LEAST_OWNERS, ceil(_APART * cohort)),
    }


def _as_options(fields: dict[str, int]) -> str:
    return "".join(f"-s {name}={value} " for name, value in fields.items())


# --- what is printed --------------------------------------------------------------------------------------------------


def _say_what_is_chosen(advised: _Advised, data: _Data, mechanism: str) -> None:
    """Print the recipe with the reasons for it, its parameters, and what other sizes of messages are worth."""
    choice = advised.choice
    sums = "1 sum" if choice.rounds == 1 else f"{choice.rounds} sums"
    typer.echo(f"{choice.recipe}: {sums} of {choice.cohort_size} clients")
    of_liars = _about_liars(advised, data.clients, mechanism)
    if of_liars is not None:
        typer.echo(f"  {of_liars}")
    for reason in choice.why:
        typer.echo(f"  {reason}")
    for name, value in sorted(choice.parameters.items()):
        typer.echo(f"  {name} = {value}")
    if "components" in choice.parameters and advised.privacy is None:
        items, components = data.items, int(choice.parameters["components"])
        _say_what_vectors_are_worth(items, components, data.budget // (4 * items))
        _say_what_the_matrix_is_worth(items, data.clients, data.budget)
        typer.echo("hushrec simulate --dataset FILE --sizes measures it on data of your own")


def _about_liars(advised: _Advised, clients: int, mechanism: str) -> str | None:
    """Return what one member that lies can do, and which groups are against it; None where there is nothing to say."""
    choice, own = advised.choice, advised.own
    trains = choice.recipe in IN_GROUPS and not recipe_entry(choice.recipe).frozen
    works = works_in_groups(mechanism, own) if trains else None
    if works is not None and advised.privacy is not None:
        return (
            "in one group, so one member that lies owns the model: each of G groups would have to reach epsilon "
            "alone, with sqrt(G) times the noise in the mean"
        )
    split = advised_cohort(choice.cohort_size, clients, works) if works is not None and "groups" not in own else None
    if split is not None:
        return (
            f"one member that lies owns the model; in {split.groups} groups it spoils little "
            f"(-m groups={split.groups} -s cohort_size={split.clients} -s min_clients={split.min_clients}), but the "
            "sums of groups say more of what each client has: an area under the curve 0.02 above that of counts with "
            "500 clients in each, 0.03 with 333, 0.05 with 200 (docs/security.md#what-sums-give-away)"
        )
    if advised.of_degrees is not None:
        return (
            f"the sum of item degrees is in {advised.of_degrees.groups} groups, so that one member that lies in it "
            "does not own an item; who has what is told better by the degrees of groups than by those of all, as area "
            "under the curve by 0.02 at most on all measured data (docs/security.md#what-sums-give-away); -m groups=1 "
            "for one"
        )
    return None


def _say_what_sums_say(advised: _Advised, mechanism: str) -> None:
    """Print what the sums say of the clients, and for masked sums a round's neighbours and bytes."""
    choice, schedule = advised.choice, advised.schedule
    planned = plan_task(
        task_terms(choice.recipe, choice.parameters, mechanism, advised.own, schedule, None, privacy=advised.privacy)
    )
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


def _say_how_to_start(data: _Data) -> None:
    """Print the tasks of a spectral start, where as many factors as it finds are safe."""
    spectrum, found, safe = spectrum_for(data.items, data.clients, data.interactions, data.budget)
    if found <= safe:
        typer.echo(
            f"for a spectral start, which {STARTS_RANKED}: a masked privirec-k task with "
            f"-r components={spectrum['components']} {_as_options(_floors(data.clients)).strip()}, then --start-from "
            f"it with -r dim={min(found, MOST_FACTORS)} -s rounds=20"
        )


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
