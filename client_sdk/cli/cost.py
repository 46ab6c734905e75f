"""`hushrec cost`: what taking part costs on the wire, as the CoLR paper counts it and as it is really sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client_sdk.cli.console import console, table
from protocols.parameter_text.named_values import named_values

if TYPE_CHECKING:
    from client_sdk.simulation.traffic_costs import Link, Traffic

__all__ = ["cost"]

_NOTE = (
    "The paper counts the float32 values of an update alone, and as many back (an entry of Top-K twice, for its "
    "index). What is sent holds more: how many clients touched each item (one more value an item, without which no "
    "mean can be taken), and whatever the encryption or a masked round's handshake adds. A client is taken to be in "
    "every round; a client in fewer rounds sends less, and still has every sum to fetch, or a snapshot of the model. "
    "Control messages, about a kilobyte a round, and all computing are left out."
)


def cost(
    recipe: Annotated[str, typer.Option(help="What is summed: fedmf, colr, scolr, topk, ...")] = "colr",
    rank: Annotated[int | None, typer.Option(min=1, help="Rank of the change, for recipes that have one.")] = None,
    items: Annotated[int, typer.Option(min=1, help="Items; MovieLens-1M's by default.")] = 3706,
    dim: Annotated[int | None, typer.Option(min=1, help="Length of an item's factor; 64 unless given.")] = None,
    mechanism: Annotated[str, typer.Option(help="How it is summed: ckks, paillier, masked, plain.")] = "ckks",
    clients: Annotated[int, typer.Option(min=1, help="Clients a round.")] = 60,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 1000,
    device_group: Annotated[
        int, typer.Option("--device-group", "--group", help="Of this group of clients, where groups take turns (FAIR).")
    ] = 0,
    up: Annotated[float, typer.Option(help="What a client sends a second, MiB (the paper writes MB).")] = 0.25,
    down: Annotated[float, typer.Option(help="What a client receives a second, MiB (the paper writes MB).")] = 0.75,
    recipe_parameter: Annotated[
        list[str] | None, typer.Option("-r", help="Further recipe parameter, name=value.")
    ] = None,
    mechanism_parameter: Annotated[
        list[str] | None, typer.Option("-m", help="Mechanism parameter, name=value.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bytes and minutes on the wire for one client, by the communication model of the CoLR paper (its Table 2).

    The paper's counting, plain sums and the chosen mechanism stand side by side.

    Example: hushrec cost --recipe colr --rank 4 --mechanism ckks --clients 60 --rounds 1000 --up 0.25 --down 0.75
    """
    from client_sdk.simulation.traffic_costs import Link, published_traffic, wire_traffic
    from protocols.recipes.registry import check_combination
    from protocols.recipes.registry import recipe as make_recipe
    from protocols.sums.registry import mechanism as find_mechanism

    link = Link(up, down)
    shape = {name: value for name, value in (("items", items), ("dim", dim), ("rank", rank)) if value is not None}
    chosen = make_recipe(recipe, shape | named_values(recipe_parameter or []))
    check_combination(chosen, mechanism)
    how = named_values(mechanism_parameter or [])
    countings = {"paper": published_traffic(chosen, rounds, device_group)}
    if mechanism != "plain":
        countings["plain"] = wire_traffic(chosen, find_mechanism("plain"), {}, clients, rounds, device_group)
    countings[mechanism] = wire_traffic(chosen, find_mechanism(mechanism), how, clients, rounds, device_group)
    if as_json:
        parameters = {"recipe": chosen.parameters.model_dump(mode="json"), "mechanism": how}
        typer.echo(json.dumps(_document(recipe, mechanism, parameters, clients, link, countings), indent=2))
        return
    title = f"{recipe} over {mechanism}: one client in {rounds:,} rounds of {clients} clients"
    console.print(table(title, ("", *(_HEADINGS.get(name, name) for name in countings)), _rows(link, countings)))
    console.print(f"At {up:g} MiB/s up and {down:g} MiB/s down. {_NOTE}", highlight=False)


_HEADINGS = {"paper": "paper's counting"}


def _rows(link: Link, countings: dict[str, Traffic]) -> list[tuple[str, ...]]:
    base = countings["paper"]
    return [
        ("up a round", *(_size(t.up_bytes / t.rounds) for t in countings.values())),
        ("down a round", *(_size(t.down_bytes / t.rounds) for t in countings.values())),
        ("up in all", *(_size(t.up_bytes) for t in countings.values())),
        ("down in all", *(_size(t.down_bytes) for t in countings.values())),
        ("minutes up", *(f"{t.up_minutes(link):,.2f}" for t in countings.values())),
        ("minutes down", *(f"{t.down_minutes(link):,.2f}" for t in countings.values())),
        ("minutes in all", *(f"[bold]{t.minutes(link):,.2f}[/]" for t in countings.values())),
        ("beside the paper's", *(f"{t.minutes(link) / base.minutes(link):.2f}x" for t in countings.values())),
    ]


def _size(count: float) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:,.2f} {unit}"
    return f"{count:,.0f} B"


def _document(
    recipe: str, mechanism: str, parameters: dict[str, Any], clients: int, link: Link, countings: dict[str, Traffic]
) -> dict[str, Any]:
    """JSON: bytes and minutes of each counting over all rounds, and what they follow from."""
    return {
        "recipe": recipe,
        "mechanism": mechanism,
        "parameters": parameters,
        "clients": clients,
        "mib_per_second": {"up": link.up, "down": link.down},
        "countings": {
            name: {
                "rounds": traffic.rounds,
                "up_bytes": traffic.up_bytes,
                "down_bytes": traffic.down_bytes,
                "up_minutes": traffic.up_minutes(link),
                "down_minutes": traffic.down_minutes(link),
                "minutes": traffic.minutes(link),
            }
            for name, traffic in countings.items()
        },
    }
