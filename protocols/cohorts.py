"""How many clients are asked at once, where they take turns.

From sums over cohorts that are drawn anew in each round the server can solve in part for what each client has:
`bench/exposure.py` does. With *batch partitioning* (So, Ali, Güler, Jiao and Avestimehr, "Securing Secure Aggregation:
Mitigating Multi-Round Privacy Leakage in Federated Learning", AAAI 2023) the same clients are in the same
sums, as long as the members of a task are the same and all answer: then the sums of all rounds together say what is
true of a batch, and nothing more of one of its clients.
"""

from __future__ import annotations


def batch(waiting: int, most: int) -> int:
    """Return how many clients are asked next of `waiting` that have yet to be asked in this turn; at most `most`.

    All of them are asked in as few batches as can be, whose sizes differ by at most one, the larger ones first. So a
    turn ends with all of its members asked, and the next one has the same batches.
    """
    return -(-waiting // -(-waiting // most)) if waiting else 0
