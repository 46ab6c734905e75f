"""What taking part costs on the wire: bytes and minutes, as the CoLR paper counts them and as they are really sent.

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

from protocols.errors import ParameterError
from protocols.layout import Block, Route, VectorLayout
from protocols.recipes.base import Recipe
from protocols.sums.base import Mechanism, SumPlan

__all__ = ["MIB", "Link", "Traffic", "published_traffic", "wire_traffic"]

MIB: Final = 2**20
_FLOAT32: Final = 4
_SEED: Final = bytes(32)
"""Whatever the seed, a route has the lengths that it has on average: only SCoLR's differ at all."""


@dataclass(frozen=True)
class Link:
    """A client's connection, MiB a second in each direction."""

    up: float
    down: float

    def __post_init__(self) -> None:
        if not (self.up > 0 and self.down > 0):
            raise ParameterError(f"a link needs a positive rate both ways, got {self.up} up and {self.down} down")


@dataclass(frozen=True)
class Traffic:
    """Bytes that one client sends and receives over `rounds` rounds, being asked in each."""

    rounds: int
    up_bytes: int
    down_bytes: int

    def up_minutes(self, link: Link) -> float:
        """Minutes that sending takes."""
        return self.up_bytes / MIB / link.up / 60

    def down_minutes(self, link: Link) -> float:
        """Minutes that receiving takes."""
        return self.down_bytes / MIB / link.down / 60

    def minutes(self, link: Link) -> float:
        """T_comm of all rounds, in minutes."""
        return self.up_minutes(link) + self.down_minutes(link)


def published_traffic(recipe: Recipe, rounds: int) -> Traffic:
    """The paper's counting: the float32 values of an update up, those of a sum down; no counts, no cipher.

    A sparse update's entries count twice, value and index.
    """
    entry_bytes = _FLOAT32 * (2 if recipe.name == "topk" else 1)
    up = down = 0
    for layout, route, _ in _sums(recipe, rounds):
        up += entry_bytes * _values(layout.contribution_blocks(route))
        down += entry_bytes * _values(layout.blocks)
    return Traffic(rounds, up, down)


def _values(blocks: Iterable[Block]) -> int:
    return sum(segment.length for block in blocks for segment in block.segments if not segment.integral)


def wire_traffic(
    recipe: Recipe, mechanism: Mechanism, parameters: Mapping[str, Any], clients: int, rounds: int
) -> Traffic:
    """What is sent: contributions of the plan's length up, aggregates (or snapshots of the model) down.

    `clients`: contributions a sum, which the plan's budget depends on. Control messages, about a kilobyte a round, are
    left out. Raises what planning raises (`ParameterError`, `BudgetError`).
    """

    @cache
    def plan_of(layout: VectorLayout) -> SumPlan:
        return mechanism.plan(parameters, layout, clients)

    up = down = 0
    for layout, route, step in _sums(recipe, rounds):
        plan = plan_of(layout)
        up += plan.contribution_bytes(route)
        down += recipe.state_bytes(step) if recipe.by_snapshot else plan.aggregate_bytes
    return Traffic(rounds, up, down)


def _sums(recipe: Recipe, rounds: int) -> Iterator[tuple[VectorLayout, Route, int]]:
    """Layout and one client's route of every sum, with the sum's number."""
    if rounds < 1:
        raise ParameterError(f"at least one round is needed, got {rounds}")
    for step in range(1, rounds + 1):
        yield recipe.layout(step), recipe.route(recipe.plan(_SEED, step), "client"), step
