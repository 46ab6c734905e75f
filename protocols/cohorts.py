"""Which clients a sum asks, where cohorts take turns.

From sums over cohorts that are drawn anew in each round the server can solve in part for what each client has:
`bench/exposure.py` does. With *batch partitioning* (So, Ali, Güler, Jiao and Avestimehr, "Securing Secure Aggregation:
Mitigating Multi-Round Privacy Leakage in Federated Learning", AAAI 2023) the same clients are in the same
sums, as long as the members of a task are the same and all answer: then the sums of all rounds together say what is
true of a batch, and nothing more of one of its clients.
"""

from __future__ import annotations


def places_in_turn(members: int, turn: int, most: int, least: int = 1) -> tuple[range, ...]:
    """Return the places, from 0, of those of `members` clients in a fixed order that are asked in a turn: one or two
    ranges.

    The clients are split into as few batches of at most `most` as can be, whose sizes differ by at most one, the larger
    ones first; they take turns. Each batch has to be at least the harmonic mean of `most` and `least`, the fewest
    clients that can compute the sum: then it completes with at least half the share of dropouts that `most` clients
    allow. Where batches would be smaller, cohorts of `most` clients follow each other round the order, and overlap.

    turn: sums of this kind that were asked for before, from 0. Raises nothing for members >= 1 and most >= least >= 1.
    """
    batches = -(-members // most)
    size, larger = divmod(members, batches)
    if size * (most + least) >= 2 * most * least or batches == 1:
        batch = turn % batches
        start = batch * size + min(batch, larger)
        return (range(start, start + size + (batch < larger)),)
    return places_after(members, turn, most)


def places_after(members: int, turn: int, most: int) -> tuple[range, ...]:
    """Return the places of the next `most` of `members` clients in a fixed order, who follow those of the turn before.

    The first turn has the first places; after the last place comes the first one. All clients where there are no more
    than `most`.
    """
    if members <= most:
        return (range(members),)
    start = turn * most % members
    end = start + most
    return (range(start, end),) if end <= members else (range(start, members), range(end - members))
