"""Neighbours and thresholds: the tables of the papers, the tails anew with exact fractions; the graph, and quorums."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from math import comb, inf, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocols.crypto.random import permutation
from protocols.errors import ParameterError
from protocols.layout import REPEATED_ROWS
from protocols.sums.masked.neighbourhood import Mode, Neighbourhood, choose_neighbourhood, corrupt_clients, quorum
from protocols.sums.masked.parameters import ClientPolicy, MaskedParameters, upload_bytes
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.roster import neighbours
from tests.protocols.sums.masked.rounds import LAYOUT

COHORTS = (20, 50, 100, 200, 500, 1000, 10**4, 10**6)
TABLE = """
0.05 curious        | 4/2  | 6/3   | 12/6  | 22/11  | 30/16   | 34/18   | 38/21   | 44/24
0.10 curious        | 6/3  | 12/6  | 22/11 | 36/19  | 46/25   | 52/28   | 60/32   | 70/37
0.20 curious        | 10/5 | 22/11 | 42/21 | 68/36  | 98/51   | 112/59  | 136/71  | 160/83
0.33 curious        | 14/7 | 34/17 | 68/34 | 128/66 | 230/118 | 310/159 | 480/246 | 576/294
0.05 semi-malicious |      |       | 16/11 |        |         | 62/43   | 80/56   | 96/67
0.10 semi-malicious |      |       | 32/22 |        |         | 118/81  | 154/106 | 184/127
0.20 semi-malicious |      |       | 62/42 |        |         | 346/234 | 598/405 | 768/521
"""
"""k/t for corrupt = dropout, sigma = 40, eta = 30."""

PUBLISHED = [
    (1000, 0.33, 0.33, "curious", "286/150"),
    (10**6, 0.33, 0.33, "curious", "518/270"),
    (1000, 0.05, 0.05, "curious", "30/17"),
    (100, 0.05, 0.33, "curious", "28/6"),
]
"""sigma = 40, eta = 20, from Bell et al. Their semi-malicious values assume dropouts that do not see the graph."""


def k_and_t(*values: float, mode: str, eta: int = 30) -> str:
    found = choose_neighbourhood(int(values[0]), *values[1:], mode, sigma=40, eta=eta)
    return f"{found.degree}/{found.threshold}"


def test_the_tables_of_the_papers() -> None:
    for row in TABLE.strip().splitlines():
        head, *values = (cell.strip() for cell in row.split("|"))
        share, mode = head.split()
        for clients, value in zip(COHORTS, values, strict=True):
            assert not value or k_and_t(clients, float(share), float(share), mode=mode) == value, (share, mode, clients)
    for clients, corrupt, dropout, mode, value in PUBLISHED:
        assert k_and_t(clients, corrupt, dropout, mode=mode, eta=20) == value


def test_dropouts_that_are_chosen_after_the_graph_cost_more_neighbours() -> None:
    """Than the values of Bell et al. for 1000 clients of a semi-malicious server, sigma = 40, eta = 20."""
    for corrupt, dropout, degree in ((0.3, 0.3, 872), (0.33, 0.05, 132)):
        found = choose_neighbourhood(1000, corrupt, dropout, sigma=40, eta=20)
        assert degree < found.degree <= degree + 10


def test_a_refusal_says_what_would_fit() -> None:
    for mode in ("curious", "semi-malicious"):
        with pytest.raises(ParameterError, match="no threshold.*a dropout of at most 0"):
            choose_neighbourhood(200, 0.5, 0.5, mode, eta=20)
    with pytest.raises(ParameterError, match="would be disconnected.*a dropout of at most 0"):
        choose_neighbourhood(10**4, 0.3, 0.2, sigma=40)
    for clients, corrupt, dropout in ((200, 0.34, 0.34), (7, 0.34, 0.34), (100, 0.0, 0.5)):
        with pytest.raises(ParameterError, match="no threshold|would be disconnected") as refusal:
            choose_neighbourhood(clients, corrupt, dropout)
        text = str(refusal.value)
        assert "mode curious" in text
        choose_neighbourhood(clients, corrupt, dropout, "curious")
        for words, fixed in (("a dropout of at most ", corrupt), ("a corrupt share of at most ", dropout)):
            if words in text:
                most = float(text.split(words)[1].split()[0].rstrip(","))
                fits, over = ((fixed, share) if "dropout" in words else (share, fixed) for share in (most, most + 0.01))
                choose_neighbourhood(clients, *fits)
                with pytest.raises(ParameterError):
                    choose_neighbourhood(clients, *(round(share, 2) for share in over))
    # of 6 clients with A = 1, 4 shares are needed, and 2 dropouts leave 3 neighbours
    with pytest.raises(ParameterError, match=r"a dropout of at most 0\.33, or 7 clients, or mode curious would fit"):
        choose_neighbourhood(6, 0.05, 0.34)
    choose_neighbourhood(6, 0.05, 0.33), choose_neighbourhood(7, 0.05, 0.34)


def tail(clients: int, marked: int, degree: int, values: range) -> Fraction:
    """Pr[Hyp in values], exactly."""
    return Fraction(sum(comb(marked, x) * comb(clients - marked, degree - x) for x in values), comb(clients, degree))


def cut(clients: int, bad: int, window: int, least: int) -> Fraction:
    """Pr[both of two windows of a random order hold `least` of the `bad` clients or more], exactly."""
    ways = sum(
        comb(window, x) * comb(window, y) * comb(clients - 2 * window, bad - x - y)
        for x in range(least, window + 1)
        for y in range(least, min(window, bad - x) + 1)
    )
    return Fraction(ways, comb(clients, bad))


def tails(found: Neighbourhood, degree: int, threshold: int) -> tuple[Fraction, Fraction, Fraction]:
    """The three probabilities of a (k, t), exactly."""
    n = found.clients
    bad, dropouts = (int(Fraction(str(share)) * n) for share in (found.corrupt, found.dropout))
    bad = max(bad, 1) if found.corrupt else 0
    apart = Fraction(n * (n - degree - 1), 2)
    if found.mode == "curious":
        least = threshold
        for i in range(degree):
            apart *= Fraction(max(bad + dropouts - i, 0), n - i)
    else:
        least = max(2 * threshold - degree, 0)
        apart *= cut(n, bad, degree // 2, max(threshold - degree // 2, 0))
    return (
        apart,
        n * tail(n, bad, degree, range(least, degree + 1)),
        n * tail(n, n - dropouts, degree, range(threshold)),
    )


@given(
    clients=st.integers(3, 200),
    corrupt=st.integers(0, 40),
    dropout=st.integers(0, 40),
    mode=st.sampled_from(["curious", "semi-malicious"]),
)
@settings(max_examples=30, deadline=None)
def test_the_first_that_holds_is_taken(clients: int, corrupt: int, dropout: int, mode: Mode) -> None:
    """Exact fractions: the tails hold for (k, t), for no smaller t, and with no t for the k before."""
    try:
        found = choose_neighbourhood(clients, corrupt / 100, dropout / 100, mode, sigma=40)
    except ParameterError:
        return
    secret, alive = Fraction(1, 2**41), Fraction(1, 2**30)
    bad, dropouts = clients * corrupt // 100 or min(corrupt, 1), clients * dropout // 100
    if found.degree == clients - 1:
        honest_shares = found.threshold - bad
        assert honest_shares >= 1 if mode == "curious" else 2 * found.threshold > clients - 1 + bad
        assert 2 <= found.threshold <= clients - dropouts - 1
        assert clients - bad - dropouts >= 2
        assert found.log2_disconnected == found.log2_too_many_corrupt == found.log2_too_few_survivors == -inf
        return

    def holds(degree: int, threshold: int) -> bool:
        apart, corrupted, lost = tails(found, degree, threshold)
        return apart <= secret and corrupted <= secret and lost <= alive

    assert found.degree % 2 == 0
    assert holds(found.degree, found.threshold)
    assert found.threshold == 2 or not holds(found.degree, found.threshold - 1)
    assert not any(holds(found.degree - 2, t) for t in range(2, found.degree - 1))
    stated = (found.log2_disconnected, found.log2_too_many_corrupt, found.log2_too_few_survivors)
    for said, exact in zip(stated, tails(found, found.degree, found.threshold), strict=True):
        assert said == (pytest.approx(log2(exact), abs=1e-6) if exact else -inf)


def test_small_cohorts_have_a_complete_graph_and_one_client_that_may_collude() -> None:
    """A = max(1, floor(corrupt * n)), and 0 only where the task says that nobody colludes."""
    for clients, share, degree, threshold in ((3, 0.05, 2, 2), (5, 0.2, 4, 3), (8, 0.25, 7, 5), (20, 0.34, 19, 13)):
        found = choose_neighbourhood(clients, share, share)
        assert (found.degree, found.threshold) == (degree, threshold) == (clients - 1, threshold)
        assert json.loads(json.dumps(found.describe()))["log2_disconnected"] is None
    for clients in range(3, 20):
        found = choose_neighbourhood(clients, 0.05, 0.1)
        assert 2 * found.threshold > found.degree + 1
    nobody = choose_neighbourhood(6, 0.0, 0.34)
    assert 2 * nobody.threshold == nobody.degree + 1


def test_shares_are_decimals() -> None:
    """0.29 * 100 is 28.999999999999996 in floating point; 29 of 100 may be corrupt."""
    found = choose_neighbourhood(100, 0.29, 0.0, "curious", sigma=1)
    assert found.log2_too_many_corrupt == pytest.approx(
        log2(100 * tail(100, 29, found.degree, range(found.threshold, found.degree + 1))), abs=1e-6
    )


def test_what_makes_no_sense_is_refused() -> None:
    wrong = ((2, 0.1, 0.1), (2**31, 0.1, 0.1), (9, -0.1, 0.1), (9, 0.1, 1.0), (9, 1.5, 0.1), (9, float("nan"), 0.1))
    for clients, corrupt, dropout in wrong:
        with pytest.raises(ParameterError):
            choose_neighbourhood(clients, corrupt, dropout)
    for sigma, eta in ((0, 30), (40, 129)):
        with pytest.raises(ParameterError):
            choose_neighbourhood(9, 0.1, 0.1, sigma=sigma, eta=eta)
    for name in ("min_cohort", "min_neighbours", "min_threshold"):
        with pytest.raises(ParameterError):
            ClientPolicy(**{name: 1})
    for clients, degree in ((5, 3), (10, 0), (10, 1), (10, 10), (1, 0), (10, -2)):
        with pytest.raises(ParameterError):
            neighbours(clients, degree, SEED)


def test_what_a_client_sends() -> None:
    """Half of the neighbours are after it in the roster."""
    sent = upload_bytes(choose_neighbourhood(1000, 0.05, 0.05, sigma=40), 250_000, 32)
    assert sent == {
        "advertise": 2528,
        "share": 1202 * 62 + 1152 * 31,
        "contribute": 10**6,
        "confirm": 64,
        "unmask": 33 * 62,
    }
    assert upload_bytes(choose_neighbourhood(1000, 0.05, 0.05, "curious"), 3, 17)["confirm"] == 0


def opens_a_part(near: Neighbourhood, seed: bytes, bad: list[int]) -> bool:
    """Whether a server that sees the graph finds dropouts with which all honest survivors answer, but in two parts.

    It declares the honest clients of two windows of k/2 places dropped out; the `bad` clients sign whatever it likes.
    """
    n, half, places = near.clients, near.degree // 2, np.arange(near.degree // 2)
    circle, graph = permutation(seed, "masked sum graph", n), neighbours(n, near.degree, seed)
    corrupt = np.isin(np.arange(n), bad)
    around = corrupt[circle]
    held = np.convolve(np.append(around, around[: half - 1]), np.ones(half, int), "valid")
    starts = np.flatnonzero((held >= near.threshold - half) & ~np.roll(around, 1))
    for one, other in combinations(starts.tolist(), 2):
        if half < other - one < n - half:
            windows = np.isin(np.arange(n), circle[np.concatenate([one + places, other + places]) % n])
            signed, honest = ~windows | corrupt, ~windows & ~corrupt
            answering = signed.sum() >= quorum(near.corrupt, n) and (signed[graph].sum(axis=1) >= near.threshold)
            part = honest & np.isin(np.arange(n), circle[one + half : other])
            if np.all(answering | ~honest) and part.any() and (honest & ~part).any():
                assert not (honest & ~part)[graph[part]].any()  # no mask between the parts
                return True
    return False


def test_attack_with_dropouts_that_are_chosen_after_the_graph() -> None:
    """It succeeds less often than the bound on a weak threshold says, never at the promised share of colluders."""
    promised, rng, rounds = choose_neighbourhood(200, 0.3, 0.05, sigma=40), np.random.default_rng(2), 20
    colluding = corrupt_clients(promised.corrupt, promised.clients)
    pairs = promised.clients * (promised.clients - promised.degree - 1) // 2
    found = dict.fromkeys((promised.threshold, 52, 48, 46, 45), 0)
    for _ in range(rounds):
        seed, bad = rng.bytes(32), rng.choice(promised.clients, colluding, replace=False).tolist()
        for threshold in found:
            found[threshold] += opens_a_part(replace(promised, threshold=threshold), seed, bad)
    assert found.pop(promised.threshold) == 0
    for threshold, opened in found.items():
        bound = pairs * cut(promised.clients, colluding, promised.degree // 2, threshold - promised.degree // 2)
        assert opened / rounds <= bound
    assert max(found.values()) > rounds // 2


SEED = bytes(range(32))


def test_neighbours_are_mutual_distinct_others_and_follow_from_the_seed() -> None:
    sizes = ((2, 1), (3, 2), (4, 3), (5, 2), (5, 4), (6, 4), (7, 6), (100, 22), (1000, 62))
    for clients, degree in sizes:
        graph = neighbours(clients, degree, SEED)
        assert graph.dtype == np.int32
        assert graph.shape == (clients, degree)
        assert (np.diff(graph, axis=1) > 0).all()
        adjacent = np.zeros((clients, clients), bool)
        adjacent[np.arange(clients)[:, None], graph] = True
        assert not adjacent.diagonal().any()
        assert (adjacent == adjacent.T).all()
        assert (adjacent.sum(axis=0) == degree).all()
    assert (neighbours(50, 6, SEED) == neighbours(50, 6, SEED)).all()
    assert (neighbours(50, 6, SEED) != neighbours(50, 6, SEED[::-1])).any()


def test_it_stays_in_one_piece_when_fewer_than_k_leave() -> None:
    """Harary: removing any k-1 clients leaves a connected graph; random sets and the neighbours of one are tried."""
    clients, degree = 30, 6
    graph = neighbours(clients, degree, SEED)
    rng = np.random.default_rng(3)
    removals = [rng.choice(clients, degree - 1, replace=False) for _ in range(50)]
    removals += [np.delete(graph[i], j) for i in range(clients) for j in range(degree)]
    for removed in removals:
        left = set(range(clients)) - set(removed.tolist())
        reached, frontier = set(), {min(left)}
        while frontier:
            reached |= frontier
            frontier = {int(j) for i in frontier for j in graph[i]} & left - reached
        assert reached == left


REPEATED = replace(LAYOUT, sum_class=REPEATED_ROWS)


def test_two_quorums_have_an_honest_member_in_common() -> None:
    """By brute force, with corrupt members that sign both; one signature fewer would not do."""

    def in_common(members: int, corrupt: set[int], size: int) -> bool:
        groups = [set(drawn) | corrupt for drawn in combinations(range(members), size)]
        groups = [group for group in groups if len(group) == size] if size >= len(corrupt) else groups
        return all((one & other) - corrupt for one in groups for other in groups)

    for members, share in product(range(2, 9), (0.0, 0.05, 0.3)):
        corrupt, needed = set(range(corrupt_clients(share, members))), quorum(share, members)
        assert needed > members or in_common(members, corrupt, needed)
        assert not in_common(members, corrupt, needed - 1)


def test_members_are_counted_of_all_that_may_be_summed_where_the_data_are_the_same() -> None:
    assert MaskedPlan(MaskedParameters(), LAYOUT, 100).quorum(60) == quorum(0.05, 60) == 32
    assert MaskedPlan(MaskedParameters(), REPEATED, 100).quorum(60) == quorum(0.05, 100) == 53
    curious = MaskedPlan(MaskedParameters(mode="curious"), REPEATED, 100)
    assert curious.quorum(60) == 32  # the server is trusted about the survivors


def answers(graph: NDArray[np.int32], threshold: int, signed: NDArray[np.bool_], needed: int) -> NDArray[np.bool_]:
    """Who answers, bool (clients,): those that signed a set together with `threshold` neighbours and a quorum."""
    alike: NDArray[np.bool_] = signed & (signed[graph].sum(axis=1) >= threshold) & (signed.sum() >= needed)
    return alike


@pytest.mark.parametrize("defended", [True, False])
def test_attack_with_two_survivor_sets_in_one_round(defended: bool) -> None:
    """Clients on two arcs of a sparse graph confirm two sets; without a quorum, both parts answer.

    On the short arc the server leaves out one client, the victim. It gets all others' seeds, and the victim's mask key:
    the sum of the others. It calls the round failed and asks again those on the long arc, who confirmed everybody. The
    difference of both sums is the victim's vector.
    """
    clients, seed = 100, bytes(32)
    near = choose_neighbourhood(clients, 0.05, 0.1)
    degree, threshold = near.degree, near.threshold
    graph = neighbours(clients, degree, seed)
    needed = quorum(0.05, clients) if defended else 0
    circle = permutation(seed, "masked sum graph", clients)
    opened = False
    for length in range(threshold, clients // 2, 2):
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
