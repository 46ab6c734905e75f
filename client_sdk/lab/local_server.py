"""The demo's aggregator: `hushrec-server serve` in a separate process, with its own data directory."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from protocols.errors import HushRecError


class ServerDidNotStart(HushRecError):
    """The aggregator process exited or did not listen in time. The message contains the end of its log."""


@dataclass(frozen=True, repr=False)
class DemoServer:
    """A running aggregator: its URL, an operator token, its data directory and its process id."""

    url: str
    operator_token: str
    data_dir: Path
    pid: int


@contextmanager
def run_server(
    data_dir: Path, timeout: float = 30.0, settings: Mapping[str, str] | None = None
) -> Iterator[DemoServer]:
    """Start an aggregator on a free port of 127.0.0.1, wait until it listens, and stop it when the block ends.

    timeout: seconds. settings: further `HUSHREC_*` variables. Raises `ServerDidNotStart`, with the end of
    `data_dir/server.log`, if it does not listen in time.
    """
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    (port,), token = free_ports(1), secrets.token_urlsafe(32)
    command = [
        sys.executable, "-m", "aggregator_service.cli", "serve",
        "--data-dir", str(data_dir), "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    log = data_dir / "server.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=stream,
            # as in docs/deploy: two arenas keep less of what threads freed than the usual 8 for each core
            env={"MALLOC_ARENA_MAX": "2", **os.environ, **(settings or {}), "HUSHREC_OPERATOR_TOKEN": token},
        )
    try:
        _wait_until_listening(process, port, log, timeout)
        yield DemoServer(f"http://127.0.0.1:{port}", token, data_dir, process.pid)
    finally:
        _stop(process)


def is_in_use(data_dir: Path) -> bool:
    """Return whether a server runs in `data_dir`: it holds a lock, which the kernel releases when the process ends."""
    lock = data_dir / "server.lock"
    if not lock.exists():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def free_ports(count: int) -> list[int]:
    """Return so many ports of the loopback address that nothing listens on."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, log: Path, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerDidNotStart(f"the aggregator exited with code {process.returncode}:\n{_tail(log)}")
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise ServerDidNotStart(f"the aggregator did not listen within {timeout:.0f} seconds:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process; kill it if it has not exited after 10 seconds."""
    process.terminate()  # does nothing to one that has exited
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
