"""Compare small requests with the least that a Python server can spend on them, in turn in one run.

The floor is FastAPI on uvicorn and h11 that verifies a client's Ed25519 signature, hashes the body and commits rows in
groups to SQLite, and does nothing else that an aggregator does. Figures are the servers' processor time.

.venv/bin/python -m bench.floor [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import socket
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from fastapi import FastAPI, Request, Response

from bench._report import Figure, arguments, in_turn, processor_seconds, ratio, say
from bench.figures import run
from bench.service import SMALL, peer_server
from bench.service_load import Call, Federation, closed_loop, request_bytes

# --- The floor

floor = FastAPI()


def _verify(request: Request) -> bytes:
    """The public key of the caller, whose signature of method, path and digest of the body is right."""
    key, signature = (bytes.fromhex(request.headers[name]) for name in ("x-key", "x-signature"))
    signed = f"{request.method} {request.url.path} {request.headers.get('content-digest', '')}"
    Ed25519PublicKey.from_public_bytes(key).verify(signature, signed.encode())
    return key


@floor.get("/poll")
async def poll(request: Request) -> Response:
    """Answer a signed request from memory."""
    _verify(request)
    return Response(status_code=304)


@floor.put("/stored", status_code=201)
async def stored(request: Request) -> dict[str, str]:
    """Verify, hash and store a signed body; answer once its row is on disk, with those that arrived meanwhile."""
    key, body, state = _verify(request), await request.body(), request.app.state
    digest = hashlib.sha256(body).hexdigest()
    if digest != request.headers["content-digest"]:
        raise ValueError("another digest")
    done = asyncio.get_running_loop().create_future()
    state.waiting.append(((key, digest, body), done))
    if len(state.waiting) == 1:
        state.committing = asyncio.create_task(_commit(state))
    await done
    return {"digest": digest}


async def _commit(state: object) -> None:
    """Commit what waits, in a thread, until nothing does."""
    waiting = state.waiting  # type: ignore[attr-defined]
    while waiting:
        group = list(waiting)
        await asyncio.to_thread(_insert, state.database, [row for row, _ in group])  # type: ignore[attr-defined]
        del waiting[: len(group)]
        for _, done in group:
            done.set_result(None)


def _insert(database: sqlite3.Connection, rows: list[tuple[bytes, str, bytes]]) -> None:
    with database:
        database.executemany("INSERT INTO stored VALUES (?, ?, ?)", rows)


def serve(port: int, folder: str) -> None:
    database = sqlite3.connect(Path(folder) / "floor.db", check_same_thread=False)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE stored (client BLOB, digest TEXT, body BLOB)")
    floor.state.database, floor.state.waiting = database, []
    uvicorn.run(floor, host="127.0.0.1", port=port, http="h11", log_level="error", access_log=False)


@dataclass(frozen=True)
class Floor:
    """The floor, running in its own process."""

    port: int
    pid: int

    def calls(self, count: int, body: bytes = b"") -> Iterator[Call]:
        """Requests of `count` clients, signed: polls, or with a body uploads."""
        method, path = ("PUT", "/stored") if body else ("GET", "/poll")
        digest = hashlib.sha256(body).hexdigest() if body else ""
        for _ in range(count):
            key = Ed25519PrivateKey.generate()
            signature = key.sign(f"{method} {path} {digest}".encode())
            headers = {"x-key": key.public_key().public_bytes_raw().hex(), "x-signature": signature.hex()}
            yield request_bytes(method, path, headers | ({"content-digest": digest} if body else {}), body)


# --- Beside ours

CONNECTIONS: Final = 16
STEPS: Final = ("poll", "contribution", "visit")


def cpu_ms(pid: int, port: int, calls: Iterable[Call], status: int) -> float:
    """A server's processor time for a request, ms; the requests are made beforehand."""
    made = list(calls)
    before = processor_seconds(pid)
    closed_loop(port, made, CONNECTIONS).expect(status)
    return 1e3 * (processor_seconds(pid) - before) / len(made)


def etag_of(port: int, call: Call) -> str:
    """The ETag of the answer to a request."""
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as answer:
        connection.sendall(call.head)
        for line in iter(answer.readline, b"\r\n"):
            name, _, value = line.decode().partition(":")
            if name.lower() == "etag":
                return value.strip()
    raise SystemExit("the answer has no ETag")


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    """Processor time of a poll that finds nothing new, a contribution of 10 KB and a visit, beside the floor's.

    A visit is an enrolment, an envelope, a poll and a contribution; the floor's is three uploads and a poll.
    """
    batch, repetitions = (20, 1) if options.quick else (500, 9)
    cohort = batch * (repetitions + 1) + 1
    with TemporaryDirectory() as root, peer_server(serve) as started:
        peer = Floor(*started)
        # the round stays open, since one member does not contribute, and nothing is folded meanwhile
        settings = {"HUSHREC_TUNING": '{"fold_batch": 100000}'}
        with Federation(Path(root), **SMALL, cohort=cohort, **settings) as ours:
            say(f"enrolling {cohort} members")
            before = processor_seconds(ours.server.pid)
            ours.enrol(cohort)
            enrolled = processor_seconds(ours.server.pid)
            ours.upload_envelopes()
            once = {"enrol_ms": enrolled - before, "envelope_ms": processor_seconds(ours.server.pid) - enrolled}
            bodies, _ = ours.sealed(4)
            ours.wait_round("collecting")
            current, waiting = f"{ours.path}/rounds/current", ours.members[1:]
            known = etag_of(ours.port, waiting[0].call("GET", current))

            def polls() -> Iterable[Call]:
                return (each.call("GET", current, {"if-none-match": known}) for each in waiting[:batch])

            def uploads() -> Iterable[Call]:
                return ours.uploads([waiting.pop() for _ in range(batch)], bodies)

            say("requests in turn")
            steps: dict[str, Callable[[], float]] = {
                "poll": lambda: cpu_ms(ours.server.pid, ours.port, polls(), 304),
                "floor_poll": lambda: cpu_ms(peer.pid, peer.port, peer.calls(batch), 304),
                "contribution": lambda: cpu_ms(ours.server.pid, ours.port, uploads(), 201),
                "floor_contribution": lambda: cpu_ms(peer.pid, peer.port, peer.calls(batch, bodies[0]), 201),
            }
            times = {f"{name}_ms": median(found) for name, found in in_turn(steps, repetitions).items()}
    times |= {name: 1e3 * seconds / cohort for name, seconds in once.items()}
    times["visit_ms"] = sum(times[f"{name}_ms"] for name in ("enrol", "envelope", "poll", "contribution"))
    times["floor_visit_ms"] = times["floor_poll_ms"] + 3 * times["floor_contribution_ms"]
    ratios = {f"{name}_ratio": ratio(times, f"{name}_ms", f"floor_{name}_ms") for name in STEPS}
    return {**times, **ratios, "body_bytes": len(bodies[0]), "requests": batch}


if __name__ == "__main__":
    run("floor", arguments(__doc__), measure)
