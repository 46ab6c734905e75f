"""What a task costs its server: processor time, memory, traffic, disk and log, by constants that were measured.

`bench.sizing` measures them; docs/monitoring.md has the table.

Bytes of the network and of a sum follow from the messages (`client_sdk.lab.traffic`). The rest is a line for each
mechanism: a time for each member of a round, and one for each megabyte that it sends. The constants are those of one
machine, which `bench/results/results.json` names; another one needs a factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from client_sdk.lab.traffic import MIB, wire_traffic
from protocols.contribution import plan_of_task
from protocols.errors import ParameterError
from protocols.recipes.base import Recipe, main_layout
from protocols.sums.base import Mechanism

_MB: Final = 1e6


@dataclass(frozen=True)
class MeasuredCost:
    """Constants of one mechanism. Times in milliseconds of a core, of the server and its fold worker."""

    joining: float
    """To enrol one member."""
    round: float
    """Of a round, whoever takes part: its committee among others."""
    member: float
    """Of one member's part in a round, without its bytes."""
    megabyte: float
    """For each that it uploads."""
    rows: int
    """Bytes of the database that this leaves, at most: pages of deleted messages are used again."""
    round_log: int
    log: int
    """Bytes of the log, at level info, for a round and for a member's part in it."""

    def round_seconds(self, members: int, up_bytes: float) -> float:
        """Return the processor seconds of a round of `members` that upload so many bytes each."""
        return (self.round + members * (self.member + self.megabyte * up_bytes / _MB)) / 1000


MEASURED: Final[Mapping[str, MeasuredCost]] = {
    "plain": MeasuredCost(4.7, 53.0, 2.1, 7.4, rows=320, round_log=220, log=330),
    "ckks": MeasuredCost(9.3, 13.0, 3.8, 15.0, rows=920, round_log=650, log=330),
    "oneshot": MeasuredCost(8.6, 245.0, 7.0, 10.8, rows=1640, round_log=7400, log=330),
    "masked": MeasuredCost(5.4, 0.0, 17.0, 9.0, rows=8700, round_log=650, log=1630),
    "paillier": MeasuredCost(16.0, 130.0, 4.8, 236.0, rows=820, round_log=650, log=330),
}
_MEMORY: Final = 235 * MIB
"""Server and one fold worker, with short vectors; shared pages count twice."""
_BODIES: Final = 8
"""Contributions that a fold worker holds at once, at most (`bench.memory`)."""


@dataclass(frozen=True)
class ServerCost:
    """Costs of a task at its server; all but `memory_bytes` and `disk_bytes` over all rounds."""

    rounds: int
    cpu_seconds: float
    """Of one core."""
    memory_bytes: float
    """Peak of server and fold worker."""
    received_bytes: float
    sent_bytes: float
    """Bodies, and as much as if every member followed the model through all rounds."""
    disk_bytes: float
    """What a round's contributions take until it ends, at most."""
    kept_bytes: float
    """Released sums and rows, if nothing is deleted."""
    log_bytes: float
    """At level info."""


def server_cost(
    recipe: Recipe, mechanism: Mechanism, parameters: Mapping[str, Any], clients: int, rounds: int, members: int
) -> ServerCost:
    """Estimate what a task costs its server.

    clients: that contribute to each sum. members: that enrol; all of them download every sum or snapshot. Raises
    `ParameterError`, also for a mechanism that was not measured, and `BudgetError`.
    """
    if mechanism.name not in MEASURED:
        raise ParameterError(
            f"the server's cost of {mechanism.name!r} was not measured; measured: {', '.join(MEASURED)}"
        )
    known = MEASURED[mechanism.name]
    traffic = wire_traffic(recipe, mechanism, parameters, clients, rounds)
    plan = plan_of_task(mechanism, parameters, recipe.layout(1), clients, main_layout(recipe))
    up, own = traffic.up_bytes / rounds, traffic.down_bytes - traffic.model_bytes
    return ServerCost(
        rounds=rounds,
        cpu_seconds=members * known.joining / 1000 + rounds * known.round_seconds(clients, up),
        memory_bytes=_MEMORY + _BODIES * up,
        received_bytes=rounds * clients * up,
        sent_bytes=clients * own + members * traffic.model_bytes,
        disk_bytes=clients * up,
        kept_bytes=rounds * (plan.aggregate_bytes + clients * known.rows),
        log_bytes=rounds * (known.round_log + clients * known.log),
    )
