"""The server, the organiser's endpoint, the coordinator and five organisations, each as a process of this machine."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from client_sdk.lab.local_server import run_server
from client_sdk.organiser import Organiser
from examples.cross_silo.coordinator import ORGANISATIONS, SCOPE, prepare, write_rows


@contextmanager
def issuing(folder: Path) -> Iterator[str]:
    """Run `hushrec organiser serve` and yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "client_sdk.cli", "organiser", "serve", "--scope", SCOPE]
    process = subprocess.Popen([*command, "--folder", str(folder), "--port", str(port)])
    try:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                raise RuntimeError("the organiser's endpoint did not start")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def run(folder: Path, rounds: int) -> list[str]:
    """Play the task; return what each organisation printed."""
    files, organiser = folder / "files", folder / "organiser"
    files.mkdir()
    Organiser.create(organiser)
    write_rows(files)
    with run_server(folder / "server", 180.0) as server, issuing(organiser) as issuer:
        prepare(files, organiser, server.url, issuer, server.operator_token, rounds)
        command = [sys.executable, "-m", "examples.cross_silo.organisation", "--folder", str(files)]
        processes = [
            subprocess.Popen([*command, name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for name in ORGANISATIONS
        ]
        try:
            printed = [process.communicate()[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    return printed


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for printed in run(Path(folder), given.rounds):
            print(printed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
