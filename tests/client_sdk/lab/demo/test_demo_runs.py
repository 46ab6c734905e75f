"""Whole runs of the demo, over CoLR and PriviRec: one seed gives the same figures, and the server stores no secret."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from client_sdk.cli.demo import run_demo
from client_sdk.lab.central import central_components, normalised
from client_sdk.lab.data.columns import Columns
from client_sdk.lab.data.interactions import interaction_rows
from client_sdk.lab.data.splits import hold_out_share
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.demo import DemoRequest, spectrum
from client_sdk.lab.demo.arms import Arm, SharedSetup, arms_of, chosen_settings, run_arm, shared_setup
from client_sdk.lab.demo.report import Display, result_table, write_results
from client_sdk.lab.enrolled import enrolled_fleet
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.lab.local_server import DemoServer
from client_sdk.operator import task_request
from client_sdk.organiser import TrialOrganiser
from client_sdk.rounds.part import Part
from protocols.messages import Schedule
from protocols.recipes.base import FactorState
from protocols.recipes.state import state_as
from tests.support.server import AggregatorProcess, running_aggregator

ROUNDS, COHORT, USERS, ITEMS = 2, 6, 12, 200


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of interactions: 12 users have each of 200 items with probability 0.15."""
    users, items = np.nonzero(np.random.default_rng(0).random((USERS, ITEMS)) < 0.15)
    rows = [f"{user},{item}" for user, item in zip(users, items, strict=True)]
    path = tmp_path_factory.mktemp("data") / "mine.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


@contextmanager
def started(data_dir: Path) -> Iterator[DemoServer]:
    """The demo's server, with its log beside `data_dir`; without the start of an interpreter."""
    with running_aggregator(data_dir) as server:
        yield DemoServer(server.url, server.operator_token, data_dir, server.pid)


def encodings(secret: bytes) -> list[bytes]:
    encoded = [base64.b64encode(secret), base64.urlsafe_b64encode(secret)]
    return [secret, secret.hex().encode(), *(text.rstrip(b"=")[:-1] for text in encoded)]


def client_secrets(client: Part) -> Iterator[tuple[str, bytes]]:
    keyring = client.follower.keyring
    if keyring is not None:
        yield "state key", keyring.state_key
        middle = len(keyring.secret_key) // 2
        yield "HE secret key, beginning", keyring.secret_key[32:96]
        yield "HE secret key, middle", keyring.secret_key[middle : middle + 64]
    yield "token", client.member.membership.token.encode()


def factor_rows(what: str, rows: np.ndarray) -> Iterator[tuple[str, bytes]]:
    """Every row as float32 and float64: 64 and 128 bytes, too long for a match by chance."""
    return ((what, row.astype(kind).tobytes()) for row in rows for kind in ("<f4", "<f8"))


def found(folder: Path, needles: list[tuple[str, bytes]]) -> set[str]:
    """What is in a file of the server, among them the write-ahead log and the server's log."""
    bodies = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return {what for what, needle in set(needles) if any(needle in body for body in bodies)}


class Run:
    """A completed arm: its figures and model, and its clients' secrets and factors."""

    def __init__(self, shared: SharedSetup, arm: Arm, server: DemoServer) -> None:
        self.secrets: list[tuple[str, bytes]] = []
        self.factors: list[tuple[str, bytes]] = []

        def inspect(fleet: Fleet) -> None:
            for client in fleet.clients:
                self.secrets += [(what, form) for what, secret in client_secrets(client) for form in encodings(secret)]
            self.model = state_as(fleet.model(), FactorState).item_factors.copy()
            self.factors += factor_rows("item factor", self.model)
            self.factors += factor_rows("user factor", fleet.user_factors())

        named = replace(arm, name=f"{arm.name} {secrets.token_hex(4)}")  # a server has each name of a task once
        display = Display(Console(file=StringIO()), {named.name: shared.settings.rounds})
        self.result, _ = run_arm(named, shared, server, display, inspect)
        self.curve = [
            (point.round_number, point.values["HR@10"], point.values["NDCG@10"]) for point in self.result.curve
        ]


def prepared(data: Path, dropout: float = 0.0) -> tuple[SharedSetup, list[Arm]]:
    """What the arms of a run share, with keys of its own, and the arms: over CKKS, and plain."""
    request = DemoRequest(str(data), columns=Columns(0, 1), rounds=ROUNDS, cohort=COHORT, dropout=dropout)
    settings = chosen_settings(request)
    shared, _ = shared_setup(request, settings)
    return replace(shared, collect_seconds=3.0) if dropout else shared, arms_of(request, settings)


@pytest.fixture(scope="module")
def demo(server: AggregatorProcess) -> DemoServer:
    """One server for all runs of CoLR."""
    return DemoServer(server.url, server.operator_token, server.data_dir, server.pid)


@pytest.fixture(scope="module")
def encrypted(data: Path, demo: DemoServer) -> Run:
    shared, arms = prepared(data)
    return Run(shared, arms[0], demo)


@pytest.fixture(scope="module")
def plain(data: Path, demo: DemoServer) -> Run:
    shared, arms = prepared(data)
    return Run(shared, arms[1], demo)


def test_encrypted_demo_stores_no_secret_and_no_factor_on_the_server(encrypted: Run, demo: DemoServer) -> None:
    assert {what for what, _ in encrypted.secrets} >= {"state key", "HE secret key, middle", "token"}
    assert found(demo.data_dir.parent, encrypted.secrets) == set()
    assert found(demo.data_dir.parent, encrypted.factors) == set()


def test_search_finds_the_factors_of_a_plain_task(plain: Run, demo: DemoServer) -> None:
    """A plain task's snapshot is stored in clear, so the same search finds its item factors; it finds no token."""
    assert found(demo.data_dir.parent, plain.factors) == {"item factor"}
    assert found(demo.data_dir.parent, plain.secrets) == set()


def test_encrypted_and_plain_train_the_same_model(encrypted: Run, plain: Run) -> None:
    """Although every run makes new keys: the same seed asks the same clients, and CKKS sums have a small error."""
    np.testing.assert_allclose(encrypted.model, plain.model, atol=1e-3, rtol=0)
    assert [number for number, _, _ in encrypted.curve] == list(range(1, ROUNDS + 1))
    assert encrypted.result.bytes_up > plain.result.bytes_up > 0


def test_the_same_seed_lets_the_same_clients_drop_out(data: Path, plain: Run, demo: DemoServer) -> None:
    """With the clients in another order, the figures are others."""
    shared, (_, in_the_clear, _) = prepared(data)
    reordered = Run(replace(shared, identities=shared.identities[::-1]), in_the_clear, demo)
    setups = [prepared(data, 0.3)[0] for _ in range(2)]
    few, same_few = (Run(one, in_the_clear, demo) for one in setups)
    one, other = ({identity.public_key for identity in setup.identities} for setup in setups)
    assert not one & other, "every run makes new keys"
    assert few.curve == same_few.curve
    np.testing.assert_array_equal(few.model, same_few.model)
    for other in (reordered, few):
        assert np.abs(other.model - plain.model).max() > 1e-3
    assert few.result.dropouts > 0


@pytest.mark.parametrize(("recipe", "mechanism"), [("privirec-k", "oneshot"), ("privirec", "masked")])
def test_demo_runs_to_the_end_and_writes_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, mechanism: str
) -> None:
    data = synthetic(SyntheticConfig(users=24, items=40, positives=20))
    monkeypatch.setattr(spectrum, "split_of", lambda *_: hold_out_share(data))
    monkeypatch.setattr("client_sdk.lab.local_server.run_server", started)
    console = Console(record=True, width=100, force_terminal=True, file=StringIO())
    request = DemoRequest(recipe=recipe, rank=3, rounds=1, mechanism=mechanism, server_dir=tmp_path / "server")
    result = run_demo(request, console)
    kinds = ["degrees", *(["iteration", "gram"] if recipe == "privirec" else ["lists", "iteration"])]
    columns = len(next(done for done in result.sums if done.kind == "iteration").singular_values)
    assert [(done.sum_index, done.kind, done.survivors, len(done.singular_values)) for done in result.sums] == [
        (step, kind, 24, columns * (kind == "iteration")) for step, kind in enumerate(kinds, 1)
    ]
    console.print(result_table(result))
    shown = console.export_text()
    assert f"{len(kinds) - (recipe == 'privirec')} P Q" in shown
    assert ("3 masked sums of 24 clients take about" in shown) is (mechanism == "masked")
    assert "central, the whole matrix" in shown
    figures, report = write_results(result, tmp_path / "out")
    kept = json.loads(figures.read_text())
    assert (kept["mechanism"], kept["arms"][0]["dropouts"], len(kept["sums"])) == (mechanism, 0, len(kinds))
    # Over the same rows EASE differs only by vectors that have not converged; where P itself is summed by its weight.
    ours, *_, central, popular = kept["arms"]
    assert popular["name"] == "popularity"
    assert 0 < ours["values"]["Recall@20"] <= 1
    assert "standard errors" in kept["verdict"]
    if recipe == "privirec":
        assert ours["values"]["NDCG@20"] == pytest.approx(central["values"]["NDCG@20"], abs=0.1)
        assert "77.9 %" in " ".join(kept["warnings"])
    page = report.read_text()
    assert page.count('role="img"') == 1
    assert f"<b>{ours['values']['Recall@20']:.3f}</b>Recall@20 on the devices" in page
    assert page.partition("<h2>Parameters")[0].count("<tr><td>") == len(result.arms) + len(result.sums)
    monkeypatch.setattr("client_sdk.lab.demo.report.plots_available", lambda: False)
    assert "the extra <code>plots</code>" in write_results(result, tmp_path / "bare")[1].read_text()


def test_central_components_equal_those_of_the_dense_matrix() -> None:
    train = synthetic(SyntheticConfig(users=30, items=25, positives=8))
    degrees = train.item_degrees().astype(float)
    found = central_components(interaction_rows(train), degrees, 10)
    dense = normalised(interaction_rows(train), degrees, (0.5, 0.5)).toarray()
    _, values, transposed = np.linalg.svd(dense)
    np.testing.assert_allclose(found.gram.toarray(), dense.T @ dense, atol=1e-6)
    np.testing.assert_allclose(found.singular_values, values[:10], atol=1e-6)
    np.testing.assert_allclose(found.vectors @ found.vectors.T, transposed[:10].T @ transposed[:10], atol=1e-5)
    assert central_components(interaction_rows(train), degrees, 25).vectors.shape == (25, 24)
    assert values[0] == pytest.approx(1.0, abs=1e-6)


def test_a_paillier_fleet_gets_its_keys_and_completes_a_round(tmp_path: Path) -> None:
    """As with every mechanism that needs a key holder: without one, no round would open."""
    organiser, schedule = TrialOrganiser(), Schedule(rounds=1, cohort_size=10, min_clients=10)
    shape, keys = {"items": 5, "dim": 2, "clip": 1.0}, {"key_bits": 2048}
    wanted = task_request("keyed", "fedmf", "paillier", schedule, shape, keys, organiser=organiser.pin)
    with (
        started(tmp_path) as server,
        enrolled_fleet(server, wanted, [[0]] * 10, FleetOptions(), organiser) as (_, fleet, _),
    ):
        (played,) = fleet.run(rounds=1)
    assert (played.state, played.survivors) == ("complete", 10)
