"""Whole runs of the demo, over CoLR and PriviRec: one seed gives the same figures, and the server stores no secret."""

from __future__ import annotations

import base64
import json
import secrets
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from client_sdk.lab.data.columns import Columns
from client_sdk.lab.data.splits import hold_out_share
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.demo import spectrum
from client_sdk.lab.demo.arms import Arm, SharedSetup, demo_identities, run_arm, task_seed
from client_sdk.lab.demo.report import result_table, write_results
from client_sdk.lab.demo.results import DemoRequest
from client_sdk.lab.demo.run import arms_of, chosen_settings, run_demo, shared_setup
from client_sdk.lab.demo.spectrum import central_components
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.local_server import DemoServer, run_server
from client_sdk.rounds.part import Part
from protocols.crypto.domain import repeatable_place
from protocols.recipes.base import FactorState
from protocols.recipes.state import state_as
from tests.client_sdk.lab.demo.test_demo_command import control, made_result

ROUNDS, COHORT, USERS, ITEMS = 2, 10, 30, 300


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of interactions: 30 users have each of 300 items with probability 0.15."""
    users, items = np.nonzero(np.random.default_rng(0).random((USERS, ITEMS)) < 0.15)
    rows = [f"{user},{item}" for user, item in zip(users, items, strict=True)]
    path = tmp_path_factory.mktemp("data") / "mine.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def stored(data_dir: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file in the data directory, including the write-ahead log and the server's log."""
    for path in sorted(data_dir.rglob("*")):
        if path.is_file():
            yield path.relative_to(data_dir).as_posix(), path.read_bytes()


def encodings(secret: bytes) -> list[bytes]:
    """Encodings in which a secret could be stored: raw, hex, base64."""
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


def factor_rows(rows: np.ndarray) -> Iterator[bytes]:
    """Every row as float32 and float64: 64 and 128 bytes, too long for a match by chance."""
    for row in rows:
        yield row.astype("<f4").tobytes()
        yield row.astype("<f8").tobytes()


def found(data_dir: Path, needles: list[tuple[str, bytes]]) -> set[str]:
    different = set(needles)  # all clients have the same keyring
    return {f"{what} in {name}" for name, body in stored(data_dir) for what, needle in different if needle in body}


class Run:
    """A completed arm: its figures and model, and its clients' secrets and factors."""

    def __init__(self, shared: SharedSetup, arm: Arm, server: DemoServer) -> None:
        self.secrets: list[tuple[str, bytes]] = []
        self.factors: list[tuple[str, bytes]] = []

        def inspect(fleet: Fleet) -> None:
            for client in fleet.clients:
                self.secrets += [(what, form) for what, secret in client_secrets(client) for form in encodings(secret)]
            self.model = state_as(fleet.model(), FactorState).item_factors.copy()
            self.factors += [("item factor", run) for run in factor_rows(self.model)]
            self.factors += [("user factor", run) for run in factor_rows(fleet.user_factors())]

        named = replace(arm, name=f"{arm.name} {secrets.token_hex(4)}")  # a server has each name of a task once
        self.result, _ = run_arm(named, shared, server, None, inspect)
        self.curve = [
            (point.round_number, point.values["HR@10"], point.values["NDCG@10"]) for point in self.result.curve
        ]


def prepared(data: Path, dropout: float = 0.0) -> tuple[SharedSetup, list[Arm]]:
    """What the arms of a run share, with keys of its own, and the arms: over CKKS, and plain."""
    request = DemoRequest(str(data), columns=Columns(0, 1), rounds=ROUNDS, cohort=COHORT, dropout=dropout)
    settings = chosen_settings(request)
    shared, _ = shared_setup(request, settings)
    return replace(shared, collect_seconds=1.0) if dropout else shared, arms_of(request, settings)


@pytest.fixture(scope="module")
def shared(data: Path) -> tuple[SharedSetup, list[Arm]]:
    """One setup for both arms, so that both have the same cohorts."""
    return prepared(data)


@pytest.fixture(scope="module")
def encrypted(shared: tuple[SharedSetup, list[Arm]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    data_dir = tmp_path_factory.mktemp("encrypted")
    with run_server(data_dir) as server:
        return Run(shared[0], shared[1][0], server), data_dir


@pytest.fixture(scope="module")
def plain(shared: tuple[SharedSetup, list[Arm]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    data_dir = tmp_path_factory.mktemp("plain")
    with run_server(data_dir) as server:
        return Run(shared[0], shared[1][1], server), data_dir


def test_encrypted_demo_stores_no_secret_and_no_factor_on_the_server(encrypted: tuple[Run, Path]) -> None:
    run, data_dir = encrypted
    assert {what for what, _ in run.secrets} >= {"state key", "HE secret key, middle", "token"}
    assert found(data_dir, run.secrets) == set()
    assert found(data_dir, run.factors) == set()


def test_search_finds_the_factors_of_a_plain_task(plain: tuple[Run, Path]) -> None:
    """A plain task's snapshot is stored in clear, so the same search finds its item factors; it finds no token."""
    run, data_dir = plain
    assert any(hit.startswith("item factor") for hit in found(data_dir, run.factors))
    assert found(data_dir, run.secrets) == set()


def test_searched_directory_contains_the_database(encrypted: tuple[Run, Path]) -> None:
    _, data_dir = encrypted
    databases = list(data_dir.glob("*.db"))
    assert databases
    with sqlite3.connect(databases[0]) as connection:
        (rounds,) = connection.execute("select count(*) from rounds where state = 'complete'").fetchone()
    connection.close()
    assert rounds == ROUNDS


def test_encrypted_and_plain_train_the_same_model(encrypted: tuple[Run, Path], plain: tuple[Run, Path]) -> None:
    ours, theirs = encrypted[0].result, plain[0].result
    assert abs(ours.first - theirs.first) <= 0.0051
    assert ours.bytes_up > theirs.bytes_up > 0
    assert len(ours.curve) >= 2


def test_report_shows_every_arm(encrypted: tuple[Run, Path], plain: tuple[Run, Path], tmp_path: Path) -> None:
    popularity = control("popularity", encrypted[0].result.measured.of_users.size)
    arms = [encrypted[0].result, plain[0].result, popularity]
    page = write_results(made_result(arms, rounds=ROUNDS), tmp_path / "deep")[1].read_text()
    assert all(arm.name in page for arm in arms)
    assert page.count("<svg") == 4
    assert "http://www.w3.org" in page
    assert "src=" not in page
    assert "<link" not in page


def test_the_same_seed_gives_the_same_figures_and_lets_the_same_clients_drop_out(
    data: Path, encrypted: tuple[Run, Path], plain: tuple[Run, Path], tmp_path: Path
) -> None:
    """Although every run makes new keys; with the clients in another order, the figures are others."""
    again, (over_ckks, in_the_clear, _) = prepared(data)
    with run_server(tmp_path / "server") as server:
        repeated = Run(again, over_ckks, server)
        reordered = Run(replace(again, identities=again.identities[::-1]), in_the_clear, server)
        few, same_few = (Run(prepared(data, 0.3)[0], in_the_clear, server) for _ in range(2))
    for first, second, tolerance in ((encrypted[0], repeated, 1e-3), (few, same_few, 0.0)):  # CKKS sums have an error
        assert [number for number, _, _ in first.curve] == list(range(1, ROUNDS + 1))
        assert first.curve == second.curve
        np.testing.assert_allclose(first.model, second.model, atol=tolerance, rtol=0)
    assert reordered.curve != plain[0].curve
    assert np.abs(reordered.model - plain[0].model).max() > 1e-3
    assert few.curve != plain[0].curve


def test_identities_are_new_in_every_run_and_their_order_is_the_seeds() -> None:
    def order(seed: int) -> tuple[list[int], set[bytes]]:
        made = demo_identities(20, seed)
        keys = [one.public_key for one in made]
        return places(keys, seed), set(keys)

    (first, keys), (again, others), (other_seed, _) = order(0), order(0), order(1)
    assert sorted(first) == list(range(20))
    assert first == again != other_seed
    assert not keys & others


def places(keys: list[bytes], seed: int) -> list[int]:
    """Return the rank of each key in the order in which the server asks the clients of the demo's task."""
    found = [repeatable_place(task_seed(seed), key) for key in keys]
    return [sorted(found).index(place) for place in found]


@pytest.mark.parametrize(
    ("recipe", "mechanism", "iterations"), [("privirec-k", "oneshot", 1), ("privirec", "masked", 2)]
)
def test_demo_runs_to_the_end_and_writes_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, mechanism: str, iterations: int
) -> None:
    data = synthetic(SyntheticConfig(users=8, items=40, positives=12))
    monkeypatch.setattr(spectrum, "load_split", lambda *_: hold_out_share(data))
    console = Console(record=True, width=100, force_terminal=True, file=StringIO())
    request = DemoRequest(recipe=recipe, rank=4, rounds=iterations, mechanism=mechanism, server_dir=tmp_path / "server")
    result = run_demo(request, console)
    kinds = ["degrees", *["iteration"] * iterations, *["gram"] * (recipe == "privirec")]
    assert [(done.sum_index, done.kind, done.survivors) for done in result.sums] == [
        (step, kind, 8) for step, kind in enumerate(kinds, 1)
    ]
    assert [len(done.singular_values) for done in result.sums] == [4 * (kind == "iteration") for kind in kinds]
    console.print(result_table(result))
    shown = console.export_text()
    assert "2 P Q" in shown
    assert ("4 masked sums of 8 clients take about" in shown) is (mechanism == "masked")
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
    assert "hushrec[plots]" in write_results(result, tmp_path / "bare")[1].read_text()


def test_estimate_grows_with_clients_and_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fixed times of a mask and a pair, so that the test does not depend on the machine."""
    monkeypatch.setattr(spectrum, "_seconds_of_a_pair", lambda: 1e-3)
    monkeypatch.setattr(spectrum, "_seconds_of_a_mask", lambda plan: plan.layout.length * 1e-9)

    def seconds(users: int, components: int, mechanism: str = "masked") -> float | None:
        data = synthetic(SyntheticConfig(users=users, items=80, positives=12))
        monkeypatch.setattr(spectrum, "load_split", lambda *_: hold_out_share(data))
        request = DemoRequest(recipe="privirec-k", rank=components, rounds=2, mechanism=mechanism)
        return spectrum.estimated_seconds(spectrum.prepare(request))

    few, many, wide = seconds(10, 4), seconds(40, 4), seconds(10, 60)
    assert few is not None
    assert many is not None
    assert wide is not None
    assert 0 < few < wide
    assert many > 3 * few
    assert seconds(10, 4, "plain") is None


def test_central_components_equal_those_of_the_dense_matrix() -> None:
    train = synthetic(SyntheticConfig(users=30, items=25, positives=8))
    factors, exact = central_components(train, 25)
    assert factors.gram is None
    s, v = factors.singular_values.astype(float), factors.vectors.astype(float)
    np.testing.assert_allclose(v @ np.diag(s**2) @ v.T, exact.gram.toarray(), atol=1e-5)
    assert s[0] == pytest.approx(1.0, abs=1e-6)
