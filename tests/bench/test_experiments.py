"""The experiments' shortcuts equal the protocol: sums of all clients at once, devices of RFRec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import new_items
from bench.experiments.rfrec import Devices
from bench.experiments.ring_sums import RingSums, normalised, power_iteration, product_of, start_vectors
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.federation import Federation
from protocols.recipes.registry import recipe
from protocols.sums.ring import FixedPoint

USERS, ITEMS = 40, 23


def interactions(seed: int = 0) -> Interactions:
    """Random interactions; one user and one item have none."""
    chosen = np.random.default_rng(seed).random((USERS, ITEMS)) < 0.25
    chosen[3], chosen[:, 5] = False, False
    users, items = np.nonzero(chosen)
    return Interactions.from_pairs(users, items, n_users=USERS, n_items=ITEMS)


def client_rows(data: Interactions, a: float) -> np.ndarray:
    degrees, rows = data.item_degrees(), np.zeros((USERS, ITEMS))
    for user in range(USERS):
        for item in data.positives(user):
            rows[user, item] = len(data.positives(user)) ** -a * degrees[item] ** (a - 1)
    return rows


@pytest.mark.parametrize("bits", [16, 24, 32, 64])
def test_products_equal_the_sum_of_contributions(bits) -> None:
    data, sums = interactions(), RingSums(interactions(), bits)
    vectors = start_vectors(ITEMS, 35, 1)
    ring = FixedPoint.widest(bits, 1.0)
    total = np.zeros((ITEMS, 35), dtype=ring.dtype)
    sent = vectors.astype(np.float32).astype(np.float64)
    for row in client_rows(data, 0.5):
        total = ring.reduce(total + ring.encode(np.outer(row, row @ sent), 1.0)[0])
    np.testing.assert_allclose(sums.product(vectors), ring.decode(total), rtol=0, atol=1.5 / ring.scale)
    exact = normalised(data).toarray()
    assert sums.max_error == pytest.approx(
        np.abs(ring.decode(total) - exact.T @ exact @ sent).max(), rel=0.5, abs=1e-14
    )
    assert 0 < sums.max_error < data.item_degrees().max() / ring.scale + 1e-12
    assert sums.clipped == 0


@pytest.mark.parametrize(("bits", "a"), [(16, 0.5), (24, 0.5), (32, 0.6)])
def test_the_gram_matrix_equals_the_sum_of_the_clients_pairs(bits, a, monkeypatch) -> None:
    data, sums = interactions(), RingSums(interactions(), bits, a)
    monkeypatch.setattr("bench.experiments.ring_sums.CHUNK_VALUES", 50)
    bound = sums.gram_bound()
    assert bound == pytest.approx(max(1.0, data.item_degrees().max() ** (2 * a - 1)))
    ring = FixedPoint.widest(bits, bound)
    rows = client_rows(data, a)
    assert (rows.T @ rows).max() <= bound + 1e-12
    total = np.zeros((ITEMS, ITEMS), dtype=ring.dtype)
    for row in rows:
        total = ring.reduce(total + ring.encode(np.outer(row, row), bound)[0])
    np.testing.assert_allclose(sums.gram().toarray(), ring.decode(total), rtol=1e-6, atol=1.5 / ring.scale)
    assert sums.clipped == 0


def test_the_power_iteration_converges_and_its_first_columns_are_those_of_a_smaller_one() -> None:
    data = interactions()
    product = product_of(data)
    p = normalised(data).toarray().T @ normalised(data).toarray()
    values = np.linalg.eigvalsh(p)
    many = power_iteration(product, ITEMS, 6, 60, 0)
    few = power_iteration(product, ITEMS, 3, 60, 0)
    np.testing.assert_allclose(many.vectors[:, :3], few.vectors, atol=1e-9)
    assert many.eigenvalues[0] == pytest.approx(values[-1])
    assert np.abs(start_vectors(ITEMS, 5, 2) - start_vectors(ITEMS, 9, 2)[:, :5]).max() == 0


# --- RFRec's devices train the same model as a federation, also with absent clients -----------------------------------


RATERS, RATED, ROUNDS = 9, 14, 6


@pytest.fixture(scope="module")
def data() -> Interactions:
    rng = np.random.default_rng(4)
    pairs = np.argwhere(rng.random((RATERS, RATED)) < 0.4)
    ratings = rng.integers(1, 6, len(pairs)).astype(np.float32)
    return Interactions.from_pairs(pairs[:, 0], pairs[:, 1], n_users=RATERS, n_items=RATED, ratings=ratings)


@pytest.mark.parametrize("cohort", [RATERS, 4])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("rfrec", {"variant": "paper"}),
        ("rfrec", {"variant": "released"}),
        ("rfrecf", {"iterations": 100, "variant": "paper"}),
        ("rfrecf", {"iterations": 100, "variant": "released", "probability": 0.6}),
    ],
)
def test_the_same_model_as_a_federation(data: Interactions, name: str, changes: dict[str, Any], cohort: int) -> None:
    parameters = {"items": RATED, "dim": 3, **changes}
    clients = Federation(data, name, parameters, cohort_size=cohort, seed=2)
    made = recipe(name, parameters)
    devices = Devices(data, made, 2)
    for _ in range(ROUNDS):
        devices.round(np.sort(clients.cohort(made.round_spec(clients.task_seed, clients.state.round_number + 1))))
        list(clients.run(1))
    np.testing.assert_allclose(devices.state.item_factors, clients.state.item_factors, atol=1e-5)
    for user in range(RATERS):
        scores = clients.client_side.scores(clients.state, clients.client_states[user], data.history(user))
        own = devices.predictions(np.full(RATED, user, np.int32), np.arange(RATED, dtype=np.int32))
        np.testing.assert_allclose(own, scores, atol=1e-4)
    start = made.initial_state(clients.task_seed).item_factors
    assert np.abs(devices.state.item_factors - start).max() > 1e-3


def test_a_device_of_several_users_trains_them_all(data: Interactions) -> None:
    made = recipe("rfrec", {"items": RATED, "dim": 3, "variant": "released"})
    devices = Devices(data, made, 0, blocks=4)
    before = devices.users.copy()
    for _ in range(3):
        devices.round(devices.able)
    assert devices.able.tolist() == [0, 1, 2, 3]
    assert (np.abs(devices.users - before).max(axis=1) > 0.01).all()


def test_new_items_of_a_small_shop_are_in_the_first_20(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A task ran without them, and nobody has them: labels and places show them, popularity does not."""
    small = {"members": 400, "items": 200, "styles": 4, "kinds": 5, "each": 12, "new": 10}
    monkeypatch.setattr(new_items, "_SHOP", small)
    bought, labels = new_items.shop(0)
    assert (bought.n_users, bought.n_items, len(labels)) == (400, 200, 200)
    found = new_items.measure_set("shop", tmp_path, 0)
    assert found["popularity.hr20"] == found["none.hr20"] == 0.0
    assert 0.0 < found["labels.hr20"] < found["two-places.hr20"]
    assert found["two-places.seen"] == 1.0
