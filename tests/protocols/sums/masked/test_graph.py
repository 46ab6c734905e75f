from __future__ import annotations

import numpy as np
import pytest

from protocols.errors import ParameterError
from protocols.sums.masked.roster import neighbours

SEED = bytes(range(32))


@pytest.mark.parametrize(
    ("clients", "degree"), [(2, 1), (3, 2), (4, 3), (5, 2), (5, 4), (6, 4), (7, 6), (100, 22), (1000, 62)]
)
def test_neighbours_are_mutual_distinct_others(clients: int, degree: int) -> None:
    graph = neighbours(clients, degree, SEED)
    assert graph.dtype == np.int32
    assert graph.shape == (clients, degree)
    assert (np.diff(graph, axis=1) > 0).all()
    adjacent = np.zeros((clients, clients), bool)
    adjacent[np.arange(clients)[:, None], graph] = True
    assert not adjacent.diagonal().any()
    assert (adjacent == adjacent.T).all()
    assert (adjacent.sum(axis=0) == degree).all()


def test_the_seed_alone_decides() -> None:
    assert (neighbours(50, 6, SEED) == neighbours(50, 6, SEED)).all()
    assert (neighbours(50, 6, SEED) != neighbours(50, 6, SEED[::-1])).any()


def test_it_stays_in_one_piece_when_fewer_than_k_leave() -> None:
    """Harary: removing any k-1 clients leaves a connected graph; random sets and the neighbours of one are tried."""
    clients, degree = 30, 6
    graph = neighbours(clients, degree, SEED)
    rng = np.random.default_rng(3)
    removals = [rng.choice(clients, degree - 1, replace=False) for _ in range(200)]
    removals += [np.delete(graph[i], j) for i in range(clients) for j in range(degree)]
    for removed in removals:
        left = set(range(clients)) - set(removed.tolist())
        reached, frontier = set(), {min(left)}
        while frontier:
            reached |= frontier
            frontier = {int(j) for i in frontier for j in graph[i]} & left - reached
        assert reached == left


def test_who_sits_beside_whom_is_random() -> None:
    """Client 0's neighbours over many seeds cover everybody about equally often."""
    counts = np.zeros(20)
    for seed in range(2000):
        counts[neighbours(20, 4, seed.to_bytes(32, "little"))[0]] += 1
    assert counts[0] == 0
    assert np.abs(counts[1:] - 2000 * 4 / 19).max() < 6 * np.sqrt(2000 * 4 / 19)


@pytest.mark.parametrize(("clients", "degree"), [(5, 3), (10, 0), (10, 1), (10, 10), (1, 0), (10, -2)])
def test_degrees_that_no_such_graph_has(clients: int, degree: int) -> None:
    with pytest.raises(ParameterError):
        neighbours(clients, degree, SEED)
