"""`hushrec cost --server`: constants that agree with the committed measurements, and sums of bytes that are exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client_sdk.lab.server_cost import MEASURED, server_cost
from client_sdk.lab.traffic import wire_traffic
from protocols.errors import ParameterError
from protocols.recipes.registry import recipe
from protocols.sums.registry import mechanism
from tests.support.pages import cells, hushrec

RESULTS = Path(__file__).parents[3] / "bench" / "results" / "results.json"
FIGURES = json.loads(RESULTS.read_text(encoding="utf-8"))
SIZED = {tuple(key.split(".")[:3]) for key in FIGURES["sizing"] if key.endswith(".server_cpu_s")}
COLR = recipe("colr", {"items": 500, "rank": 4})


def test_every_measured_mechanism_has_constants() -> None:
    assert {name for name, _, _ in SIZED} == MEASURED.keys()


@pytest.mark.parametrize("size", sorted(SIZED), ids=".".join)
def test_the_constants_give_the_measured_costs(size: tuple[str, str, str]) -> None:
    """Within a factor of 1.6: other programs ran on the machine."""
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
        assert found.sent_bytes == 40 * traffic.down_bytes
        twice = server_cost(COLR, mechanism(name), {}, 40, 20, 400)
        assert twice.log_bytes == 2 * found.log_bytes
        assert found.cpu_seconds < twice.cpu_seconds
        assert found.disk_bytes == pytest.approx(4 * traffic.up_bytes)
    with pytest.raises(ParameterError, match="'paillier' was not measured"):
        server_cost(COLR, mechanism("paillier"), {}, 40, 10, 400)


def test_the_command_prints_a_table_a_document_and_a_price() -> None:
    asked = ("cost", "--server", "--mechanism", "masked", "--clients", "200", "--members", "5000", "--rounds", "100")
    code, out, err = hushrec(*asked, "--core-hour", "0.05", "--gigabyte", "0.09", COLUMNS="140")
    assert code == 0, err
    rows = {row[0]: row[1:] for row in cells(out)}
    assert rows.keys() >= {"received", "sent", "log", "price", "memory, at most", "processor time, of one core"}
    code, out, err = hushrec(*asked, "--core-hour", "0.05", "--gigabyte", "0.09", "--json")
    found = json.loads(out)
    assert (found["members"], found["clients"], found["rounds"]) == (5000, 200, 100)
    assert found["price"] == pytest.approx(0.05 * found["cpu_seconds"] / 3600 + 0.09 * found["sent_bytes"] / 1e9)
    assert json.loads(hushrec(*asked, "--json")[1])["price"] is None
    code, _, err = hushrec("cost", "--server", "--mechanism", "paillier", "--recipe", "topk")
    assert (code, "was not measured" in err) == (1, True)
