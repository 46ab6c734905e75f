"""How long the path of one vector is: the functions and files that a member enters in one round of a small task.

    python scripts/walk.py [MECHANISM ...]      ckks, masked and oneshot if none is named
    python scripts/walk.py --vector [masked]    the functions that one vector passes, in order: over CKKS, or masked

A real server, three members and what else the mechanism needs take part in a CoLR task of two rounds. What one member
calls from the first round's `play` to the second's is recorded by `sys.setprofile`. Only functions of `client_sdk` and
`protocols` count, each once; comprehensions and the like do not. Where a contribution is one message the others begin
after it, so that the first member finds no cached results of theirs. `--list` prints the files with their functions, in
the order in which they are first entered.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from inspect import CO_OPTIMIZED
from pathlib import Path
from threading import Event
from types import CodeType, FrameType
from typing import Any

import numpy as np

from client_sdk import Client, Identity, MemoryStore, Operator, Policy, task_request
from client_sdk.lab.local_server import run_server
from client_sdk.organiser import TrialOrganiser
from client_sdk.rounds.loop import play
from protocols.messages import Schedule
from protocols.sums.registry import mechanism as find_mechanism

ROOT = Path(__file__).parents[1]
MEMBERS = 3
RECIPE = {"items": 60, "dim": 8, "rank": 4}


Entered = dict[Path, list[str]]
"""The functions of our packages that a program enters, by file."""


def entered(call: Callable[[], object]) -> tuple[Entered, Entered]:
    """Run `call`, which plays two rounds; return what it enters until the second one, and what in the first one."""
    before: dict[CodeType, None] = {}
    during: dict[CodeType, None] = {}
    rounds: dict[FrameType, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if frame.f_code is play.__code__:
            rounds.setdefault(frame)
        if event == "call" and len(rounds) < 2 and frame.f_code.co_flags & CO_OPTIMIZED:  # a class has a frame, too
            (during if rounds else before).setdefault(frame.f_code)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return _by_file(before | during), _by_file(during)


def _by_file(codes: Iterable[CodeType]) -> Entered:
    files: Entered = {}
    for code in codes:
        path = Path(code.co_filename)
        if not code.co_name.startswith("<") and path.is_relative_to(ROOT):
            path = path.relative_to(ROOT)
            if path.parts[0] in ("client_sdk", "protocols"):
                files.setdefault(path, []).append(code.co_qualname)
    return files


def vector_path(mechanism: str = "ckks") -> list[tuple[Path, str]]:
    """Return file and name of each function that docs/architecture.md lists as the way of one vector, in order.

    mechanism: ckks, or masked, whose vector goes another way between `play` and `OwnRound.deliver`.
    """
    page = (ROOT / "docs/architecture.md").read_text()

    def listed(heading: str) -> list[tuple[Path, str]]:
        section = page.partition(f"## {heading}")[2].partition("\n## ")[0]
        rows = re.findall(r"^\|([^|]*)\|[^|]*\]\(\.\./([^)]*)\) *\|$", section, re.MULTILINE)
        return [(Path(file), name) for names, file in rows for name in re.findall(r"`([^`]*)`", names)]

    path = listed("One vector")
    if mechanism == "ckks":
        return path
    names = [name for _, name in path]
    return path[: names.index("play") + 1] + listed("One masked vector") + path[names.index("OwnRound.deliver") :]


def walk(mechanism: str) -> tuple[Entered, Entered]:
    """Return what the first member enters in a task over this mechanism; see `entered`."""
    organiser = TrialOrganiser("walk")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(run_server(Path(folder) / "data"))
        operator = stack.enter_context(Operator(server.url, server.operator_token))
        schedule = Schedule(cohort_size=MEMBERS, start_clients=MEMBERS, rounds=2)
        request = task_request("walk", "colr", mechanism, schedule, RECIPE, organiser=organiser.pin)
        task = operator.create_task(request)
        roles = ["member"] * MEMBERS
        roles += ["holder"] if mechanism in ("ckks", "paillier") else []
        roles += ["committee"] * (5 if mechanism == "oneshot" else 0)
        joined: list[tuple[str, Any]] = []
        policy = Policy(trust_models=True)
        for role in roles:
            made = Client(server.url, identity=Identity.generate(), store=MemoryStore(), policy=policy)
            client = stack.enter_context(made)
            invitation = operator.invite(task.task_id, 1, role).invitation
            certificate = organiser.source(role)  # type: ignore[arg-type]
            joined.append((role, client.join("walk", invitation=invitation, certificate=certificate)))
        found = list[tuple[Entered, Entered]]()
        with ThreadPoolExecutor(len(joined)) as pool:
            serving = []
            for role, part in joined[MEMBERS:]:
                if role == "holder":
                    part.create_keyring()
                serving.append(pool.submit(part.serve))

            contributed = Event()
            if find_mechanism(mechanism).interactive:
                contributed.set()

            def take_part(place: int) -> None:
                drawn, part = np.random.default_rng([7, place]).choice(60, 6, replace=False), joined[place][1]
                items = drawn.astype(np.int32)
                if place:
                    contributed.wait(60)
                    part.take_part(items)
                else:
                    found.append(entered(lambda: part.take_part(items, lambda _: contributed.set())))

            list(pool.map(take_part, range(MEMBERS)))
            for one in serving:
                one.result(timeout=60)
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mechanisms", nargs="*", default=["ckks", "masked", "oneshot"])
    parser.add_argument("--list", action="store_true", help="print files and functions")
    parser.add_argument("--vector", action="store_true", help="print the way of one vector, from docs/architecture.md")
    chosen = parser.parse_args()
    if chosen.vector:
        if chosen.mechanisms[0] not in ("ckks", "masked"):
            parser.error("the page has the vectors of ckks and masked")
        for place, (path, name) in enumerate(vector_path(chosen.mechanisms[0]), start=1):
            print(f"{place:2} {path}: {name}")
        return
    for mechanism in chosen.mechanisms:
        _, files = walk(mechanism)
        print(f"{mechanism}: {sum(map(len, files.values()))} functions in {len(files)} files")
        for path, functions in files.items() if chosen.list else ():
            print(f"  {path}: {', '.join(functions)}")


if __name__ == "__main__":
    main()
