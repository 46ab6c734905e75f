"""Prepare the task: data of five organisations, the organiser's codes, the task, and a file for each organisation."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from client_sdk import ClientOptions, Operator, task_request
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.organiser import Organiser
from examples.two_tower_numpy.two_tower import shapes
from protocols.codec import b64encode
from protocols.messages import OrganiserPin, Schedule

ORGANISATIONS: Final = {"north": 40, "east": 20, "south": 12, "west": 6, "centre": 2}
"""Name -> number of users. The first one holds the keys."""
SCOPE: Final = "cross-silo"
ITEMS: Final = 120
PARAMETERS: Final[dict[str, Any]] = {
    "shapes": shapes(ITEMS, 16), "rows": ["items"], "clip": 1.0, "max_weight": 1000, "std": 0.25,
    "reveal_rows": True, "reveal_weights": True,
    "optimiser": "momentum", "momentum": 0.5, "server_rate": 0.7,
}  # fmt: skip


def write_rows(folder: Path) -> None:
    """Write NAME.npz for each organisation: its users and their items. In earnest these are there before."""
    data = synthetic(SyntheticConfig(users=sum(ORGANISATIONS.values()), items=ITEMS, positives=14))
    first = 0
    for name, users in ORGANISATIONS.items():
        mine = (data.users >= first) & (data.users < first + users)
        np.savez(folder / f"{name}.npz", users=data.users[mine] - first, items=data.items[mine])
        first += users


def prepare(folder: Path, organiser: Path, url: str, issuer: str, token: str, rounds: int) -> str:
    """Create the task and write NAME.json for each organisation; return the task's id.

    url, issuer: addresses of the server and of the organiser's endpoint. organiser: the organiser's folder.
    """
    own = Organiser.open(organiser)
    pin = OrganiserPin(key=b64encode(own.public_key), scope=SCOPE)
    count = len(ORGANISATIONS)
    schedule = Schedule(rounds=rounds, cohort_size=count, start_clients=count, min_clients=3, collect_seconds=120)
    with Operator(url, token, ClientOptions(allow_http=True)) as operator:
        request = task_request("cross-silo", "arrays", "ckks", schedule, PARAMETERS, organiser=pin)
        task = operator.create_task(request).task_id
        for number, name in enumerate(ORGANISATIONS):
            holds = number == 0
            (code,) = own.issued.new_codes(SCOPE, "holder" if holds else "member", 1)
            invitation = operator.invite(task, role="holder" if holds else "member").invitation
            given = {"url": url, "issuer": issuer, "scope": SCOPE, "code": code, "invitation": invitation}
            path = folder / f"{name}.json.new"
            path.touch(mode=0o600)
            path.write_text(json.dumps({**given, "holder": holds}))
            path.rename(folder / f"{name}.json")  # complete when an organisation sees it
    return task


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and prepare; the operator's token is in HUSHREC_OPERATOR_TOKEN."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the organisations' files are written")
    parser.add_argument("--organiser", type=Path, required=True, help="folder of the organiser")
    parser.add_argument("--url", required=True)
    parser.add_argument("--issuer", required=True)
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args(arguments)
    write_rows(given.folder)
    token = os.environ["HUSHREC_OPERATOR_TOKEN"]
    print(prepare(given.folder, given.organiser, given.url, given.issuer, token, given.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
