"""A device of `tests.chaos.devices`: a process that takes part in an `arrays` task and adds one known value.

python -m tests.chaos.counted_client URL TASK FOLDER INDEX
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from client_sdk import Client, ClientOptions, DirectoryStore, Identity, Policy, RetryPolicy
from client_sdk.errors import GaveUp, RoundLost

BASE = 4.0
"""Client `index` adds `BASE ** index` to each value, so the digits of a sum show how often each client is in it."""
SERVING = -1
"""In place of an index: the process of the key holder that seals the keys for members."""
SHAPE = (3, 2)
_POLICY = Policy(
    trust_models=True,
    mechanisms=frozenset({"masked", "ckks", "plain"}),
    min_corrupt=0.0,
    max_clip_share=1.0,
    snapshot_every=1,
)
_OPTIONS = ClientOptions(retry=RetryPolicy(cap_seconds=1.0))


def opened_client(url: str, folder: Path) -> Client:
    """The client whose identity and store are in `folder`; the first time, a new one."""
    folder.mkdir(parents=True, exist_ok=True)
    return Client(url, Identity.load_or_create(folder / "me.key"), DirectoryStore(folder / "store"), _POLICY, _OPTIONS)


def main(url: str, task_id: str, folder: Path, index: int) -> None:
    """Take part until the task ends, however often the server goes away meanwhile; with `SERVING`, serve the keys."""
    with opened_client(url, folder) as client:
        task = None
        while task is None:
            with suppress(GaveUp):  # the server is away while this process starts
                task = client.join(task_id)
        if index == SERVING:
            task.serve(poll_seconds=1.0)
            return
        for round_ in task.rounds(poll_seconds=1.0):
            with suppress(RoundLost):  # this process, or the server, was away for too long
                round_.contribute({"w": np.full(SHAPE, BASE**index, dtype=np.float32)})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
