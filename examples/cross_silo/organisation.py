"""One organisation: join with the coordinator's file, train on the own users until the task ends, print HR@10."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk import Client, ClientOptions, Identity, Issuer, MemoryStore, Task
from examples.two_tower_numpy.two_tower import Arrays, scores, train

Histories = list[NDArray[np.int32]]


def load(path: Path) -> Histories:
    """Return the items of each user; the last one of each is held out."""
    with np.load(path) as rows:
        users, items = rows["users"], rows["items"]
    return [items[users == user].astype(np.int32) for user in range(int(users.max()) + 1)]


def hit_ratio(arrays: Arrays, histories: Histories) -> float:
    """Return the share of users whose held-out item is among the best ten that they do not have."""
    hits = []
    for items in histories:
        mine, held_out = items[:-1], items[-1]
        found = scores(arrays, mine)
        found[mine] = -np.inf
        hits.append((found > found[held_out]).sum() < 10)
    return float(np.mean(hits))


def train_all(arrays: Arrays, histories: Histories, rng: np.random.Generator) -> Arrays:
    """Return the arrays after one pass over all users."""
    for user in rng.permutation(len(histories)):
        arrays, _ = train(arrays, histories[user][:-1], rng, epochs=1, rate=0.05)
    return arrays


def take_part(part: Task, histories: Histories) -> tuple[float, float]:
    """Train in every round; return HR@10 of the own users with the first and with the last model."""
    rng, weight = np.random.default_rng(), sum(items.size - 1 for items in histories)
    first = hit_ratio(part.arrays(), histories)
    for asked in part.rounds(poll_seconds=2.0):
        arrays = asked.arrays()
        new = train_all(arrays, histories, rng)
        report = asked.contribute({name: new[name] - arrays[name] for name in new}, weight=weight)
        print(f"round {report.round}: {report.contribution_bytes:,} bytes sent, {report.clipped} values clipped")
    return first, hit_ratio(part.arrays(), histories)


def main(arguments: Sequence[str] | None = None) -> int:
    """Wait for the organisation's file, and take part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--folder", type=Path, required=True, help="where NAME.json and NAME.npz are")
    given = parser.parse_args(arguments)
    path = given.folder / f"{given.name}.json"
    while not path.exists():
        time.sleep(0.2)
    own: dict[str, Any] = json.loads(path.read_text())
    histories = load(given.folder / f"{given.name}.npz")
    certificate = Issuer(own["issuer"], own["scope"], own["code"], "holder" if own["holder"] else "member")
    options = ClientOptions(allow_http=True)
    with Client(own["url"], Identity.generate(), MemoryStore(), options=options) as client:
        part = client.join(invitation=own["invitation"], certificate=certificate)
        serving = None
        if own["holder"]:
            holder = part
            holder.create_keyring()
            serving = threading.Thread(target=holder.serve, args=(None, None, 1.0))
            serving.start()
        first, last = take_part(part, histories)
        print(f"{given.name}: {len(histories)} users, HR@10 {first:.3f} before, {last:.3f} after", flush=True)
        if serving is not None:
            serving.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
