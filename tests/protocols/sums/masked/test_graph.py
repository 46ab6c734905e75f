"""The graph of neighbours, and quorums: any two have an honest member in common, so that sums fit."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols.crypto.public_random import permutation
from protocols.errors import ParameterError
from protocols.layout import REPEATED_ROWS
from protocols.sums.masked.parameters import MaskedParameters, choose_neighbourhood, corrupt_clients, quorum
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.roster import neighbours
from tests.protocols.sums.masked.rounds import LAYOUT

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


# --- one sum in a round, and sums of the same data that fit: any two quorums have an honest member in common ----------

REPEATED = replace(LAYOUT, sum_class=REPEATED_ROWS)


@pytest.mark.parametrize("members", range(2, 10))
@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
def test_two_quorums_have_an_honest_member_in_common(members: int, share: float) -> None:
    """By brute force, with corrupt members that sign both; one signature fewer would not do."""
    corrupt, needed = set(range(corrupt_clients(share, members))), quorum(share, members)
    everybody = range(members)

    def in_common(size: int) -> bool:
        groups = [set(chosen) | corrupt for chosen in combinations(everybody, size)]
        groups = [group for group in groups if len(group) == size] if size >= len(corrupt) else groups
        return all((one & other) - corrupt for one in groups for other in groups)

    if needed <= members:
        assert in_common(needed)
    assert not in_common(needed - 1)


def test_members_are_counted_of_all_that_may_be_summed_where_the_data_are_the_same() -> None:
    assert MaskedPlan(MaskedParameters(), LAYOUT, 100).quorum(60) == quorum(0.05, 60) == 32
    assert MaskedPlan(MaskedParameters(), REPEATED, 100).quorum(60) == quorum(0.05, 100) == 53
    curious = MaskedPlan(MaskedParameters(mode="curious"), REPEATED, 100)
    assert curious.quorum(60) == 32  # the server is trusted about the survivors


def answers(graph: NDArray[np.int32], threshold: int, signed: NDArray[np.bool_], needed: int) -> NDArray[np.bool_]:
    """Who answers, bool (clients,): those that signed a set together with `threshold` neighbours and a quorum."""
    alike: NDArray[np.bool_] = signed & (signed[graph].sum(axis=1) >= threshold) & (signed.sum() >= needed)
    return alike


@pytest.mark.parametrize("clients", [100, 1000])
@pytest.mark.parametrize("defended", [True, False])
def test_attack_with_two_survivor_sets_in_one_round(clients: int, defended: bool) -> None:
    """Clients on two arcs of a sparse graph confirm two sets; without a quorum, both parts answer.

    On the short arc the server leaves out one client, the victim. It gets all others' seeds, and the victim's mask key:
    the sum of the others. It calls the round failed and asks again those on the long arc, who confirmed everybody. The
    difference of both sums is the victim's vector. For 1,000 clients the parameters are weaker than those in use, whose
    arcs are cut by the bound on the graph already.
    """
    near, seed = choose_neighbourhood(clients, 0.05, 0.1), bytes(32)
    degree, threshold = (near.degree, near.threshold) if clients == 100 else (102, 66)
    graph = neighbours(clients, degree, seed)
    needed = quorum(0.05, clients) if defended else 0
    circle = permutation(seed, "masked sum graph", clients)
    opened = False
    for length in range(threshold, clients // 2, max(1, clients // 50)):
        arc, victim = np.zeros(clients, np.bool_), circle[length // 2]
        arc[circle[:length]] = True
        short = arc.copy()
        short[victim] = False
        answering = answers(graph, threshold, ~arc, needed), answers(graph, threshold, short, needed)
        seeds = (answering[0] | answering[1])[graph].sum(axis=1) >= threshold
        mask_key = answering[1][graph[victim]].sum() >= threshold
        again = neighbours(clients, degree, bytes([1]) * 32)
        everybody = answers(again, threshold, ~arc, needed)[again].sum(axis=1) >= threshold
        opened |= bool(np.delete(seeds, victim).all() and mask_key and everybody.all())
    assert opened is not defended
