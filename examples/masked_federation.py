"""A whole federation in one process against a running server: 20 clients train with masked sums.

    hushrec-server serve --data-dir trial &
    python examples/masked_federation.py http://127.0.0.1:8000 trial/admin.token

The clients are simulated, the protocol is not: each has its own keys, masks its own contributions, and the server
learns only their sums.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from client_sdk import Operator, task_request
from client_sdk.lab.fleet import Fleet
from client_sdk.organiser import TrialOrganiser
from protocols.messages import Schedule

CLIENTS, ITEMS, ROUNDS = 20, 60, 3


def made_up_users() -> list[np.ndarray]:
    """Return item numbers for each client: half of the users like low numbers, half like high ones."""
    random = np.random.default_rng(1)
    halves = np.arange(ITEMS).reshape(2, -1)
    return [random.choice(halves[user % 2], 8, replace=False).astype(np.int32) for user in range(CLIENTS)]


def main(url: str, token: str) -> list[int]:
    """Create a task, train it, and return what the first user is recommended."""
    organiser, users = TrialOrganiser("example"), made_up_users()
    schedule = Schedule(rounds=ROUNDS, cohort_size=CLIENTS, start_clients=CLIENTS)
    parameters = {"items": ITEMS, "dim": 8, "rank": 4}
    with Operator(url, token) as operator:
        request = task_request("example", "colr", "masked", schedule, parameters, organiser=organiser.pin)
        task = operator.create_task(request)
        invitation = operator.invite(task.task_id, uses=CLIENTS).invitation
    with Fleet(url, users) as fleet:
        fleet.enrol(invitation, certificates=organiser.source)
        fleet.run(lambda done: print(f"round {done.number}: {done.survivors} survivors, {done.bytes_up:,} bytes sent"))
        scores = fleet.user_factors()[0] @ fleet.model().item_factors.T
    scores[users[0]] = -np.inf
    best = [int(item) for item in np.argsort(-scores)[:5]]
    print("the first user has", sorted(users[0].tolist()), "and is recommended", best)
    return best


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]).read_text(encoding="utf-8").strip())
