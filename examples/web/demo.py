"""`make web-demo`: a server, 20 Python clients, a committee, and a page that takes part as one client more.

    python -m examples.web.demo [--port 8080] [--rounds 60] [--clients 20] [--mechanism masked] [--no-browser]

Everything runs on this machine and is gone when the program ends. The simulated clients like two genres each.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk import Operator, task_request
from client_sdk.lab.fleet import Fleet, FleetRound
from client_sdk.lab.local_server import run_server
from client_sdk.organiser import TrialOrganiser
from examples.web.serve import FOLDER, PageServer, serve_page
from protocols.messages import Schedule

PARAMETERS: Final[dict[str, Any]] = {
    "dim": 16,
    "rank": 8,
    "clip": 4.0,
    "learning_rate": 1.5,
    "epochs": 15,
    "batch_size": 16,
}
MOST_PAGES: Final = 4
"""Pages, in different browsers, that can take part at once."""


@dataclass(frozen=True)
class WebDemo:
    """A running demo."""

    page: PageServer
    """The page's server."""
    fleet: Fleet
    """Enrolled, not yet started."""
    settings: dict[str, Any]
    """What the page reads."""
    server: str
    operator_token: str

    @property
    def task(self) -> str:
        """The task's id."""
        return str(self.settings["task"])


def films() -> list[dict[str, str]]:
    """Return the films of the page: title and genre. The titles are invented."""
    return list(json.loads((FOLDER / "films.json").read_text(encoding="utf-8")))


def made_up_users(count: int, seed: int = 1) -> list[NDArray[np.int32]]:
    """Return the liked films of each user: seven of each of two genres, and one of any."""
    rng, genres = np.random.default_rng(seed), np.array([film["genre"] for film in films()])
    kinds = np.unique(genres)
    users = []
    for user in range(count):
        pair = (kinds[user % kinds.size], kinds[(user + 1 + user // kinds.size) % kinds.size])
        own = [rng.choice(np.flatnonzero(genres == kind), 7, replace=False) for kind in pair]
        users.append(np.unique([*own[0], *own[1], rng.integers(genres.size)]).astype(np.int32))
    return users


@contextmanager
def running_demo(
    folder: Path,
    port: int = 0,
    clients: int = 20,
    rounds: int = 60,
    parameters: dict[str, Any] | None = None,
    collect_seconds: float = 60.0,
    mechanism: str = "oneshot",
    page_folder: Path = FOLDER,
) -> Iterator[WebDemo]:
    """Start server and page, create the task, and enrol fleet and committee, until the block ends.

    The first round starts when one client more than the fleet has enrolled. parameters: of CoLR, beside the defaults
    of the demo; without `items` as many as there are films. mechanism: oneshot or masked. page_folder: of
    the page and its files.
    """
    organiser = TrialOrganiser("films")
    schedule = Schedule(
        rounds=rounds,
        cohort_size=clients + MOST_PAGES,
        start_clients=clients + 1,
        min_clients=max(3, clients // 2),
        collect_seconds=collect_seconds,
        stage_seconds=collect_seconds,
    )
    shape = {"items": len(films()), **PARAMETERS, **(parameters or {})}
    with (
        serve_page(port, organiser, page_folder) as page,
        run_server(folder, 180.0, {"HUSHREC_CORS_ORIGINS": page.origin}) as server,
        Operator(server.url, server.operator_token) as operator,
        Fleet(server.url, made_up_users(clients)) as fleet,
    ):
        request = task_request("films", "colr", mechanism, schedule, shape, organiser=organiser.pin)
        task = operator.create_task(request)
        fleet.enrol(operator.invite(task.task_id, clients).invitation, None, organiser.source)
        if mechanism == "oneshot":
            fleet.enrol_committee(operator.invite(task.task_id, 5, "committee").invitation, organiser.source)
        settings = {
            "server": server.url,
            "task": task.task_id,
            "invitation": operator.invite(task.task_id, MOST_PAGES).invitation,
            "organiser": organiser.pin.model_dump(),
        }
        page.settings = settings
        yield WebDemo(page, fleet, settings, server.url, server.operator_token)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, start everything, and play the rounds until the task or Ctrl-C ends them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=8080, help="of the page; 0 for a free one")
    parser.add_argument("--clients", type=int, default=20, help="simulated clients beside the page")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--mechanism", choices=("oneshot", "masked"), default="oneshot")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the page")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two rounds")
    parser.add_argument("--no-browser", action="store_true", help="only print the page's address")
    given = parser.parse_args(arguments)

    def show(done: FleetRound) -> None:
        print(f"round {done.number}: {done.state}, the sum of {done.survivors} clients", flush=True)
        time.sleep(given.pause)

    with tempfile.TemporaryDirectory() as folder:
        try:
            started = running_demo(
                Path(folder) / "server",
                given.port,
                given.clients,
                given.rounds,
                collect_seconds=20.0,
                mechanism=given.mechanism,
                page_folder=given.folder,
            )
            with started as demo:
                print(
                    f"{given.clients} clients and a committee of 5 wait for you at {demo.page.origin}/  (Ctrl-C ends)"
                )
                if not given.no_browser:
                    webbrowser.open(demo.page.origin)
                demo.fleet.run(show)
                print("all rounds are done; the page recommends on. Ctrl-C ends.", flush=True)
                while True:
                    time.sleep(3600)
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    sys.exit(main())
