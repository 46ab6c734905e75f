"""Communication costs of a client in bytes and minutes: as the CoLR paper counts them, and as this project sends them.

Nguyen et al. (WWW 2024), section 5.2, after Wang et al., "A Field Guide to Federated Optimization" (2021):

    T_comm = S_down / B_down + S_up / B_up      a round

with S in MiB and B in MiB a second (the paper writes MB/secs). Its Table 2 is this model with S_up = S_down = 4 bytes
times the values of one message, over 1,000 rounds, for a client that is in every round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from protocols.contribution import plan_of_task
from protocols.errors import ParameterError
from protocols.layout import Block, Route, VectorLayout
from protocols.recipes.base import Recipe, main_layout
from protocols.recipes.colr import SVD
from protocols.recipes.topk import TopKRecipe
from protocols.sums.base import Mechanism, SumPlan
from protocols.task_terms import states_chain

MIB: Final = 2**20
_FLOAT32: Final = 4
_CLIENT_ID: Final = 22
"""Length of a client id of this version's server."""
_SEED: Final = bytes(32)
"""Any seed: the lengths of routes do not depend on it, except for SCoLR's, which vary around their mean."""


@dataclass(frozen=True)
class Link:
    """A client's connection in MiB per second. Raises `ParameterError` unless both rates are positive."""

    up: float
    down: float

    def __post_init__(self) -> None:
        if not (self.up > 0 and self.down > 0):
            raise ParameterError(f"the rates of a link must be positive, got {self.up} up and {self.down} down")


@dataclass(frozen=True)
class TaskTraffic:
    """Bytes that one client sends and receives over `rounds` rounds if it is asked in each."""

    rounds: int
    up_bytes: int
    down_bytes: int
    model_bytes: int
    """The part of `down_bytes` that a client receives who only follows the model: sums or snapshots."""

    def up_minutes(self, link: Link) -> float:
        """Return the minutes to send `up_bytes` over `link`."""
        return self.up_bytes / MIB / link.up / 60

    def down_minutes(self, link: Link) -> float:
        """Return the minutes to receive `down_bytes` over `link`."""
        return self.down_bytes / MIB / link.down / 60

    def minutes(self, link: Link) -> float:
        """Return T_comm of all rounds over `link`, in minutes."""
        return self.up_minutes(link) + self.down_minutes(link)


def published_traffic(recipe: Recipe, rounds: int, device_group: int = 0) -> TaskTraffic:
    """Return the traffic as the paper counts it: float32 values of an update up, of a sum down, without encryption.

    Counts of contributors are not included. An entry of Top-K counts twice, as value and index, in both directions. SVD
    at rank r counts as CoLR at rank r. Where device groups take turns, only the rounds of `device_group` count. Raises
    `ParameterError` for fewer than one round and an unknown device group.
    """
    up = down = 0
    for layout, route, sum_index in _sums(recipe, rounds, device_group):
        if recipe.device_group_of(sum_index) != device_group:
            continue
        sent, released = _published_values(recipe, layout, route)
        up += _FLOAT32 * sent
        down += _FLOAT32 * released
    return TaskTraffic(rounds, up, down, down)


def _published_values(recipe: Recipe, layout: VectorLayout, route: Route) -> tuple[int, int]:
    if isinstance(recipe, TopKRecipe):
        return 2 * recipe.kept, 2 * recipe.kept
    if isinstance(recipe, SVD):
        values = recipe.parameters.items * recipe.parameters.rank
        return values, values
    return _values(layout.contribution_blocks(route)), _values(layout.blocks)


def _values(blocks: Iterable[Block]) -> int:
    return sum(segment.length for block in blocks for segment in block.segments if not segment.integral)


def wire_traffic(
    recipe: Recipe,
    mechanism: Mechanism,
    parameters: Mapping[str, Any],
    clients: int,
    rounds: int,
    device_group: int = 0,
) -> TaskTraffic:
    """Return the traffic as sent: contributions up, aggregates or snapshots of the model down.

    parameters: of the mechanism. clients: contributions per sum, on which the plan's budget and the other messages of a
    masked or one-shot round depend. Where device groups take turns, a client contributes in the rounds of its
    `device_group`. It downloads its group's view of the model in these rounds or, where the server cannot open the
    sums, every aggregate. Control messages, about a kilobyte per round, are not included. Raises `ParameterError` and
    `BudgetError`.
    """

    @cache
    def plan_of(layout: VectorLayout) -> SumPlan:
        return plan_of_task(mechanism, parameters, layout, clients, main_layout(recipe))

    up = down = model = 0
    for layout, route, sum_index in _sums(recipe, rounds, device_group):
        plan = plan_of(layout)
        is_chained = states_chain(recipe, mechanism.interactive, plan.opened_by)
        by_snapshot = recipe.by_snapshot and plan.opened_by == "anyone" and not is_chained
        asked = recipe.device_group_of(sum_index) == device_group
        if asked:
            more_up, more_down = plan.other_bytes(clients, _CLIENT_ID)
            up += plan.contribution_bytes(route) + more_up
            down += more_down
        if asked or not by_snapshot:
            model += recipe.view_bytes(sum_index, device_group) if by_snapshot else plan.aggregate_bytes
    return TaskTraffic(rounds, up, down + model, model)


def _sums(recipe: Recipe, rounds: int, device_group: int) -> Iterator[tuple[VectorLayout, Route, int]]:
    """The layout, one client's route and the index of every sum."""
    if rounds < 1:
        raise ParameterError(f"rounds must be at least 1, got {rounds}")
    if not 0 <= device_group < recipe.device_groups:
        raise ParameterError(
            f"device_group must be less than {recipe.device_groups} for the recipe {recipe.name!r}, got {device_group}"
        )
    for sum_index in range(1, rounds + 1):
        yield recipe.layout(sum_index), recipe.route(recipe.round_spec(_SEED, sum_index), "client"), sum_index
