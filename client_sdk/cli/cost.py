"""`hushrec cost`: what a task costs a client or the server, before there is a task.

For a client it counts bytes and minutes of network traffic, by the paper's counting and by the messages of this
version; for the server also processor time, memory, disk and log, by measured constants.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Option

from client_sdk.cli.common import (
    AsJson,
    MechanismParameters,
    RecipeParameters,
    command_options,
    console,
    picked,
    table,
)
from protocols.parameter_text import named_values
from protocols.sums.registry import OWN

if TYPE_CHECKING:
    from client_sdk.lab.server_cost import ServerCost
    from client_sdk.lab.traffic import Link, TaskTraffic
    from protocols.recipes.base import Recipe

LIST_PRICES: Final = (0.0816, 2, 0.09)
"""Dollars for an hour of a machine, its cores, and dollars for a gigabyte sent: AWS EC2 m7g.large (2 cores, 8 GiB) in
us-east-1 with Linux on demand, and transfer to the internet beyond 100 GB a month. List prices of June 2026,
https://aws.amazon.com/ec2/pricing/on-demand/."""
_HOURS_A_MONTH: Final = 730
_COST_NOTE = (
    "The paper counts the float32 values of one update up and the same number down (Top-K: each entry twice, for its "
    "index). The messages of this version also contain the overhead of the encryption, the handshake of a masked round "
    "and the sealed shares of a one-shot round. The client takes part in every round; a client that takes part in "
    "fewer rounds sends less, but still downloads every sum or a snapshot of the model. Control messages (about 1 kB a "
    "round) and computing time are not counted."
)


@dataclass(frozen=True)
class CostOptions:
    """Options of `hushrec cost`."""

    recipe: Annotated[str, Option(help="What is summed: fedmf, colr, scolr, topk, ...")] = "colr"
    rank: Annotated[int | None, Option(min=1, help="Rank of the update, for recipes that have one.")] = None
    items: Annotated[int, Option(min=1, help="Number of items; the default is MovieLens-1M's.")] = 3706
    dim: Annotated[int | None, Option(min=1, help="Length of an item's factor.", show_default="64")] = None
    mechanism: Annotated[str, Option(help=f"How it is summed: {', '.join(OWN)}.")] = "ckks"
    clients: Annotated[int, Option(min=1, help="Clients in each round.")] = 60
    rounds: Annotated[int, Option(min=1, help="Rounds of the task.")] = 1000
    device_group: Annotated[
        int,
        Option("--device-group", "--group", help="Device group of the client, in tasks with several groups (FAIR)."),
    ] = 0
    up: Annotated[float, Option(help="Upload rate of the client, MiB/s (the paper writes MB).")] = 0.25
    down: Annotated[float, Option(help="Download rate of the client, MiB/s (the paper writes MB).")] = 0.75
    recipe_parameter: RecipeParameters = None
    mechanism_parameter: MechanismParameters = None
    server: Annotated[bool, Option("--server", help="What the task costs the server, instead of a client.")] = False
    members: Annotated[
        int | None, Option(min=1, help="Members of the task, with --server.", show_default="--clients")
    ] = None
    price_per_hour: Annotated[
        float | None, Option(min=0, help="With --server: what an hour of a machine costs.", show_default="0.0816")
    ] = None
    cores: Annotated[int | None, Option(min=1, help="With --server: cores of that machine.", show_default="2")] = None
    price_per_gigabyte: Annotated[
        float | None, Option(min=0, help="With --server: what a gigabyte sent costs.", show_default="0.09")
    ] = None
    as_json: AsJson = False

    def recipe_parameters(self) -> dict[str, object]:
        """Return the recipe's parameters by name; `-r` overrides --items, --dim and --rank."""
        from protocols.recipes.registry import recipe_entry

        items = self.items if recipe_entry(self.recipe).has_items else None
        shape = {"items": items, **picked(self, "dim", "rank")}
        given = {name: value for name, value in shape.items() if value is not None}
        return given | named_values(self.recipe_parameter or [])

    def mechanism_parameters(self) -> dict[str, Any]:
        """Return the mechanism's parameters by name."""
        return named_values(self.mechanism_parameter or [])


@command_options
def cost(options: CostOptions) -> None:
    """Estimate what a whole task costs: the network traffic of one client, or, with --server, the server's resources.

    For a client it prints three countings side by side: the CoLR paper's (its
    Table 2), plain sums, and the chosen mechanism. For the server it uses constants
    that were measured on one machine: docs/monitoring.md has them. The prices are
    list prices of AWS in dollars (m7g.large, us-east-1, June 2026), unless you give
    your own.

    Example: hushrec cost --server --recipe colr --mechanism masked --clients 200 --members 5000 --rounds 100

    Example: hushrec cost --recipe colr --rank 4 --mechanism ckks --clients 60 --rounds 1000 --up 0.25 --down 0.75
    """
    from client_sdk.lab.traffic import Link, published_traffic, wire_traffic
    from protocols.recipes.registry import recipe
    from protocols.sums.registry import mechanism
    from protocols.task_terms import check_combination

    link = Link(options.up, options.down)
    chosen = recipe(options.recipe, options.recipe_parameters())
    check_combination(chosen, options.mechanism)
    if options.server:
        _print_server_cost(options, chosen)
        return
    rounds, group = options.rounds, options.device_group
    countings = {"paper": published_traffic(chosen, rounds, group)}
    for name, parameters in {"plain": {}, options.mechanism: options.mechanism_parameters()}.items():
        countings[name] = wire_traffic(chosen, mechanism(name), parameters, options.clients, rounds, group)
    if options.as_json:
        typer.echo(json.dumps(_cost_document(options, chosen, link, countings), indent=2))
        return
    title = (
        f"{options.recipe} with {options.mechanism}: one client, {options.rounds:,} rounds of {options.clients} clients"
    )
    _, *others = countings
    console.print(table(title, ("", "paper's counting", *others), _cost_rows(link, countings)))
    console.print(f"Rates: {options.up:g} MiB/s up, {options.down:g} MiB/s down. {_COST_NOTE}", highlight=False)


def _cost_rows(link: Link, countings: dict[str, TaskTraffic]) -> list[tuple[str, ...]]:
    base = countings["paper"]
    return [
        ("up per round", *(_size(t.up_bytes / t.rounds) for t in countings.values())),
        ("down per round", *(_size(t.down_bytes / t.rounds) for t in countings.values())),
        ("up, total", *(_size(t.up_bytes) for t in countings.values())),
        ("down, total", *(_size(t.down_bytes) for t in countings.values())),
        ("minutes up", *(f"{t.up_minutes(link):,.2f}" for t in countings.values())),
        ("minutes down", *(f"{t.down_minutes(link):,.2f}" for t in countings.values())),
        ("minutes, total", *(f"[bold]{t.minutes(link):,.2f}[/]" for t in countings.values())),
        ("relative to the paper", *(f"{t.minutes(link) / base.minutes(link):.2f}x" for t in countings.values())),
    ]


def _size(count: float) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:,.2f} {unit}"
    return f"{count:,.0f} B"


def _cost_document(
    options: CostOptions, chosen: Recipe, link: Link, countings: dict[str, TaskTraffic]
) -> dict[str, Any]:
    """Return the JSON document: bytes and minutes of each counting over all rounds, and their inputs."""
    return {
        "recipe": options.recipe,
        "mechanism": options.mechanism,
        "parameters": {
            "recipe": chosen.parameters.model_dump(mode="json"),
            "mechanism": options.mechanism_parameters(),
        },
        "clients": options.clients,
        "mib_per_second": asdict(link),
        "countings": {
            name: {
                **asdict(traffic),
                "up_minutes": traffic.up_minutes(link),
                "down_minutes": traffic.down_minutes(link),
                "minutes": traffic.minutes(link),
            }
            for name, traffic in countings.items()
        },
    }


# --- the server ------------------------------------------------------------------------------------------------------

_SERVER_NOTE = (
    "Processor time, memory, log and rows follow measurements on one machine (docs/monitoring.md, Sizing); bytes "
    "follow the messages. Polls of clients that wait are not counted: about 0.3 ms of a core each. What is kept is "
    "without deletion of tasks and old rounds."
)


def _print_server_cost(options: CostOptions, chosen: Recipe) -> None:
    from client_sdk.lab.server_cost import server_cost
    from protocols.sums.registry import mechanism

    members = options.members or options.clients
    given = (chosen, mechanism(options.mechanism), options.mechanism_parameters(), options.clients, options.rounds)
    found, prices = server_cost(*given, members), _Prices.of(options)
    if options.as_json:
        document = {"recipe": options.recipe, "mechanism": options.mechanism, "clients": options.clients}
        money = {"prices": asdict(prices), "price": prices.total(found)}
        typer.echo(json.dumps(document | {"members": members, **asdict(found), **money}, indent=2))
        return
    rounds = found.rounds
    rows = [
        ("processor time, of one core", _duration(found.cpu_seconds / rounds), _duration(found.cpu_seconds)),
        ("received", _size(found.received_bytes / rounds), _size(found.received_bytes)),
        ("sent, if all members follow", _size(found.sent_bytes / rounds), _size(found.sent_bytes)),
        ("kept: released sums and rows", _size(found.kept_bytes / rounds), _size(found.kept_bytes)),
        ("log", _size(found.log_bytes / rounds), _size(found.log_bytes)),
        ("memory, at most", _size(found.memory_bytes), ""),
        ("contributions on disk, at most", _size(found.disk_bytes), ""),
    ]
    for name, price in (("price of the processor time", prices.of_time), ("price of what is sent", prices.of_bytes)):
        rows.append((name, f"{price(found) / rounds:,.4f}", f"{price(found):,.2f}"))
    asked = f"{rounds:,} rounds of {options.clients:,} of {members:,} members"
    title = f"{options.recipe} with {options.mechanism}: a server, {asked}"
    console.print(table(title, ("", "a round", "all rounds"), rows))
    console.print(f"{_SERVER_NOTE} {prices.note()}", highlight=False)


@dataclass(frozen=True)
class _Prices:
    """Prices of an hour of a machine with `cores` and of a gigabyte sent."""

    hour: float
    cores: int
    gigabyte: float
    listed: bool
    """Whether they are `LIST_PRICES`."""

    @classmethod
    def of(cls, options: CostOptions) -> _Prices:
        """Return the prices that the user gave, and the listed ones in place of the others."""
        given = (options.price_per_hour, options.cores, options.price_per_gigabyte)
        hour, cores, gigabyte = (listed if own is None else own for own, listed in zip(given, LIST_PRICES, strict=True))
        return cls(hour, int(cores), gigabyte, given == (None, None, None))

    def of_time(self, found: ServerCost) -> float:
        """Return the price of the processor time, as if the machine did something else in its other hours."""
        return self.hour * found.cpu_seconds / self.cores / 3600

    def of_bytes(self, found: ServerCost) -> float:
        """Return the price of the bytes that the server sends."""
        return self.gigabyte * found.sent_bytes / 1e9

    def total(self, found: ServerCost) -> float:
        """Return both together."""
        return self.of_time(found) + self.of_bytes(found)

    def note(self) -> str:
        """Say which prices these are, and what the machine costs that waits."""
        whose = (
            "List prices in dollars (AWS EC2 m7g.large, us-east-1, Linux, on demand, June 2026; "
            "https://aws.amazon.com/ec2/pricing/on-demand/): "
            if self.listed
            else "Your prices: "
        )
        return (
            f"{whose}{self.hour:g} an hour for {self.cores} cores, {self.gigabyte:g} a gigabyte sent "
            "(--price-per-hour, --cores, --price-per-gigabyte). A machine that runs all the time costs "
            f"{_HOURS_A_MONTH * self.hour:,.0f} a month, whatever it does."
        )


def _duration(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds < 600 else f"{seconds / 3600:,.2f} h"
