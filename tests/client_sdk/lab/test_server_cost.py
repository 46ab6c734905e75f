"""`hushrec cost --server`: constants that agree with the committed measurements, and sums of bytes that are exact."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from client_sdk.cli.cost import LIST_PRICES
from client_sdk.lab.server_cost import MEASURED, server_cost
from client_sdk.lab.traffic import wire_traffic
from protocols.errors import ParameterError
from protocols.recipes.registry import recipe
from protocols.sums.plain import PlainMechanism
from protocols.sums.registry import OWN, mechanism
from tests.support.pages import cells, hushrec

RESULTS = Path(__file__).parents[3] / "bench" / "results" / "results.json"
FIGURES = json.loads(RESULTS.read_text(encoding="utf-8"))
SIZED = {tuple(key.split(".")[:3]) for key in FIGURES["sizing"] if key.endswith(".server_cpu_s")}
COLR = recipe("colr", {"items": 500, "rank": 4})


def test_every_mechanism_that_was_measured_has_constants() -> None:
    """Those of HushRec's that are listed; a new one is refused in words until it was measured."""
    assert {name for name, _, _ in SIZED} == MEASURED.keys() <= OWN.keys()
    assert {"ckks", "masked", "oneshot", "paillier", "plain"} <= MEASURED.keys()


@pytest.mark.parametrize("size", sorted(SIZED), ids=".".join)
def test_the_constants_give_the_measured_costs(size: tuple[str, str, str]) -> None:
    """Within a factor of 1.6: one line stands for rounds of every size."""
    prefix = f"{'.'.join(size)}."
    measured = {key.removeprefix(prefix): value for key, value in FIGURES["sizing"].items() if key.startswith(prefix)}
    known, members = MEASURED[size[0]], int(size[1][1:])
    pairs = [
        (known.round_seconds(members, measured["bytes_up_per_client"]), measured["server_cpu_s"]),
        (known.round_log + members * known.log, measured["log_bytes"]),
    ]
    if members >= 60:  # with fewer, a committee and the task itself cost more than the members
        pairs += [(known.joining, measured["enrol_cpu_ms_per_member"]), (members * known.rows, measured["rows_bytes"])]
    for predicted, found in pairs:
        assert found / 1.6 < predicted < found * 1.6, (predicted, found)


def test_the_constants_give_the_costs_of_large_rounds() -> None:
    """Measured by other scripts, on an idle machine: within a factor of two."""
    for name, figures, key in (
        ("masked", FIGURES["masked_round"], "round1000"),
        ("oneshot", FIGURES["oneshot_round"], "round10k"),
    ):
        members, found = figures[f"{key}.survivors"], figures[f"{key}.server_cpu_s"]
        predicted = MEASURED[name].round_seconds(members, figures[f"{key}.bytes_up_per_client"])
        assert found / 2 < predicted < found * 2, (name, found, predicted)


def test_bytes_are_those_of_the_messages_and_grow_with_clients_and_rounds() -> None:
    for name in MEASURED:
        found = server_cost(COLR, mechanism(name), {}, 40, 10, 400)
        traffic = wire_traffic(COLR, mechanism(name), {}, 40, 10)
        assert found.received_bytes == 40 * traffic.up_bytes
        assert found.sent_bytes == 40 * (traffic.down_bytes - traffic.model_bytes) + 400 * traffic.model_bytes
        twice = server_cost(COLR, mechanism(name), {}, 40, 20, 400)
        assert twice.log_bytes == 2 * found.log_bytes
        assert found.cpu_seconds < twice.cpu_seconds
        assert found.disk_bytes == pytest.approx(4 * traffic.up_bytes)


def test_a_mechanism_of_a_plug_in_was_not_measured() -> None:
    class Theirs(PlainMechanism):
        name = "theirs"

    with pytest.raises(ParameterError, match="'theirs' was not measured"):
        server_cost(COLR, Theirs(), {}, 40, 10, 400)


def test_the_command_prints_a_table_a_document_and_a_price() -> None:
    asked = ("cost", "--server", "--mechanism", "masked", "--clients", "200", "--members", "5000", "--rounds", "100")
    code, out, err = hushrec(*asked, COLUMNS="140")
    assert code == 0, err
    rows = {row[0]: row[1:] for row in cells(out)}
    assert rows.keys() >= {
        "received",
        "sent, if all members follow",
        "log",
        "memory, at most",
        "processor time, of one core",
    }
    assert "m7g.large, us-east-1" in out
    document = json.loads(hushrec(*asked, "--json")[1])
    assert (document["members"], document["clients"], document["rounds"]) == (5000, 200, 100)
    of_time, of_bytes = 0.0816 / 2 * document["cpu_seconds"] / 3600, 0.09 * document["sent_bytes"] / 1e9
    assert document["price"] == pytest.approx(of_time + of_bytes)
    assert rows["price of the processor time"][1] == f"{of_time:,.2f}"
    assert rows["price of what is sent"][1] == f"{of_bytes:,.2f}"
    own = ("--price-per-hour", "0.4", "--cores", "8", "--price-per-gigabyte", "0")
    assert "Your prices: 0.4 an hour for 8 cores" in hushrec(*asked, *own, COLUMNS="140")[1].replace("\n", " ")
    document = json.loads(hushrec(*asked, *own, "--json")[1])
    assert document["price"] == pytest.approx(0.05 * document["cpu_seconds"] / 3600)
    assert re.findall(r"\[default: \(([0-9.]+)\); x>=", hushrec("cost", "--help")[1])[-3:] == [*map(str, LIST_PRICES)]


@pytest.mark.parametrize("mechanism", sorted(MEASURED))
def test_every_mechanism_has_a_cost(mechanism: str) -> None:
    recipe = "topk" if mechanism == "paillier" else "colr"
    code, out, err = hushrec("cost", "--server", "--mechanism", mechanism, "--recipe", recipe, "--json")
    assert code == 0, err
    assert json.loads(out)["price"] > 0
