"""Four members of each task in one process, by public names alone: it runs with the packages of any state in its path.

python federation.py URL OPERATOR_TOKEN FOLDER MECHANISM=UNTIL ...

The first run creates a task of each MECHANISM and enrols its members; a later one with the same FOLDER goes on with
what that left. Each stops after UNTIL complete rounds and prints a JSON object: for each mechanism the rounds each
member took part in, and each one's model.
"""

from __future__ import annotations

import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from client_sdk import Client, DirectoryStore, Identity, Operator, Policy, task_request
from client_sdk.organiser import TrialOrganiser
from protocols.messages import Schedule

MEMBERS, ROUNDS, ITEMS = 4, 4, 30


def play(url: str, token: str, kept: Path, mechanism: str, until: int) -> dict[str, Any]:
    """Take part until the task has `until` complete rounds."""
    name, folder = f"upgraded-{mechanism}", kept / mechanism
    first = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    organiser = TrialOrganiser(name)
    with ExitStack() as stack:
        operator = stack.enter_context(Operator(url, token))
        if first:
            schedule = Schedule(
                rounds=ROUNDS,
                cohort_size=MEMBERS,
                min_clients=3,
                stage_seconds=5,
                collect_seconds=5,
                max_failed_rounds=50,
            )
            parameters = {"items": ITEMS, "dim": 4}
            request = task_request(name, "fedmf", mechanism, schedule, parameters, organiser=organiser.pin)
            task_id = operator.create_task(request).task_id
        else:
            (task_id,) = (task.task_id for task in operator.tasks() if task.name == name)
        holds = mechanism == "ckks"

        def join(index: int) -> Any:
            identity = Identity.load_or_create(folder / f"{index}.key")
            policy = Policy(trust_models=True)
            client = stack.enter_context(Client(url, identity, DirectoryStore(folder / str(index)), policy))
            if not first:
                return client.join(name)
            role = "holder" if holds and index == 0 else "member"
            invitation = operator.invite(task_id, role=role).invitation
            return client.join(name, invitation=invitation, certificate=organiser.source(role))

        def take_part(index: int) -> list[int]:
            reports = parts[index].take_part(list(range(index, index + 10)), stop=stop, poll_seconds=0.5)
            return [report.round for report in reports]

        def stop() -> bool:
            return operator.task(task_id).completed_rounds >= until

        parts = [join(index) for index in range(MEMBERS)]
        with ThreadPoolExecutor(MEMBERS + 1) as pool:
            if holds:
                role_of = parts[0].key_holder() if hasattr(parts[0], "key_holder") else parts[0]
                if first:
                    role_of.create_keyring()
                pool.submit(role_of.serve, None, stop, 0.5)
            rounds = list(pool.map(take_part, range(MEMBERS)))
        models = [hashlib.sha256(part.model().item_factors.tobytes()).hexdigest() for part in parts]
        return {"rounds": rounds, "models": models, "state": operator.task(task_id).state}


def main(url: str, token: str, kept: Path, until: dict[str, int]) -> dict[str, Any]:
    """Take part in the task of each mechanism, at the same time."""
    with ThreadPoolExecutor(len(until)) as pool:
        played = {how: pool.submit(play, url, token, kept, how, rounds) for how, rounds in until.items()}
        return {how: one.result() for how, one in played.items()}


if __name__ == "__main__":
    _, at, operator_token, kept_in, *asked = sys.argv
    rounds_of = dict(one.split("=") for one in asked)
    print(json.dumps(main(at, operator_token, Path(kept_in), {how: int(last) for how, last in rounds_of.items()})))
