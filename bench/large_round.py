"""One-shot rounds of many clients over two replicas, PostgreSQL and S3, one replica killed in the middle.

    .venv/bin/python -m bench.large_round [--quick] [--clients 1000 10000] [--shard 10000] [--replicas 2] [--beside-one]
        [--sqlite] [--plot FILE] [--json FILE]

Clients are simulated at the wire: their rows are inserted, and their requests (the round with the committee's keys, the
contribution) are made before they are sent, over 16 connections. What the servers check is real: certificates,
signatures, sealed shares. Clients share a few secrets of masks, each with errors of its own, so that the released sums
can be compared with the true ones. The committee is the SDK's. Figures are the servers' processor time and memory.

With `--beside-one` the first size is played by one server, too, and by two that stay: what two can serve, each on a
processor of its own, is twice what one can, times what a client costs one by what it costs both.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import httpx
import numpy as np
import psutil
import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray
from sqlalchemy import insert, make_url

from aggregator_service.storage.database import Database, announce
from aggregator_service.storage.schema import ClientRow
from bench._report import MIB, Figure, arguments, processor_seconds, ratio, say
from bench.figures import run
from bench.floor import Floor, cpu_ms, serve
from bench.rounds import named
from bench.service import peer_server
from bench.service_load import Call, Member
from client_sdk.api.http import SyncDriver
from client_sdk.api.wire import Program
from client_sdk.lab.fleet_rounds import FleetCommittee, FleetOptions
from client_sdk.operator import Operator, task_request
from client_sdk.organiser import TrialOrganiser
from protocols.codec import b64decode
from protocols.crypto.certificates import certify
from protocols.crypto.keys import person_of
from protocols.crypto.sealing import SealingKey
from protocols.layout import whole_route
from protocols.messages import RoundView, Schedule, TaskView
from protocols.recipes.registry import recipe
from protocols.sums.oneshot.client import sign_upload
from protocols.sums.oneshot.committee import Committee, make_committee, seal_share, split_keys
from protocols.sums.oneshot.mechanism import ONESHOT, packed_residues
from protocols.sums.oneshot.member import split
from protocols.sums.oneshot.plan import OneshotContext, OneshotPlan
from protocols.sums.oneshot.polynomials import add_products, gaussian, public_polynomials
from protocols.task_terms import broadcast_digest
from tests.support.needs import required
from tests.support.replicas import Replicas, TestDatabase, connect, running_replicas
from tests.support.s3 import BUCKET, S3Server
from tests.support.server import AggregatorProcess

ITEMS, DIM = 1_000, 9
SECRETS: Final = 16
"""Secrets of masks, of which each client has one times a power of X: a drawn one each would cost this process more."""
FEWEST_GROUPS: Final = 3
"""The model is made of those groups whose sums are near the others'."""
CONNECTIONS: Final = 16
AT_ONCE: Final = 64
"""Clients whose requests are made, and then sent."""
DAY: Final = 86_400.0
LOOK_SECONDS: Final = 0.5
"""Between two looks of the operator at the round: each costs a server as much as a client's upload."""
_END: Final = b"\r\n\r\n"
T = TypeVar("T")


# --- The clients


class Crowd:
    """The clients of one round, as rows of the servers' database and as requests."""

    def __init__(self, task: str, count: int, organiser: Ed25519PrivateKey, scope: str, authority: str) -> None:
        self._task, self._mailbox, self.members = task, SealingKey.generate(), list[Member]()
        later = int(time.time()) + 24 * 3600
        for number in range(count):
            identity = Ed25519PrivateKey.generate()
            key = identity.public_key().public_bytes_raw()
            terms: dict[str, Any] = {"role": "member", "serial": int.from_bytes(key[:8], "big"), "not_after": later}
            certificate = certify(organiser, scope, key, self._mailbox.name, **terms).encode()
            own = f"c_{number:020x}", f"hrc_{token_hex(21)}", identity, self._mailbox, certificate
            self.members.append(Member(*own, authority))

    def enrol(self, database: Database) -> None:
        """Insert the rows, and tell the servers of new members."""
        now, rows = time.time(), list[dict[str, Any]]()
        for number, member in enumerate(self.members):
            key = member.identity.public_key().public_bytes_raw()
            row = {
                **{"id": member.client_id, "task_id": self._task, "sequence": 1_000 + number, "role": "member"},
                **{"identity_key": key, "person": person_of(key), "mailbox_key": member.mailbox.name},
                **{"certificate": member.certificate, "subject": key[:8], "enrolled_at": now},
                **{"token_hash": hashlib.sha256(member.token.encode()).hexdigest(), "turn": number},
            }
            rows.append(row)

        def write(session: Any) -> None:
            for start in range(0, len(rows), 1_000):
                session.execute(insert(ClientRow), rows[start : start + 1_000])
            announce(session, self._task, "members")

        database.transact(write)


class Uploads:
    """What the clients send: vectors drawn from their numbers, masked with one of a few secrets."""

    def __init__(self, committee: Committee) -> None:
        self._committee, context = committee, committee.context
        plan = self.plan = context.plan
        self._ephemeral = X25519PrivateKey.generate()
        public = public_polynomials(context.binding, plan.ring.degree, plan.ring.primes, plan.polynomials)
        self._made = list[tuple[NDArray[np.float64], NDArray[np.int64]]]()
        for _ in range(SECRETS):
            primes, degree = plan.ring.primes, plan.ring.degree
            secret, masks = gaussian(degree, os.urandom), np.zeros((len(primes), plan.polynomials * degree))
            add_products(masks, public, secret, primes)
            shares = split(secret, plan.threshold, committee.points, primes[0], os.urandom)
            self._made.append((masks.reshape(len(primes), -1, degree), np.stack(shares).astype(np.int64)))
        block, random = plan.layout.blocks[0], np.random.default_rng(1)
        bounds, counts = block.bounds(), block.integral_mask()
        self._vectors = [
            plan.encode(whole_route(plan.layout), [np.where(counts, 1.0, random.uniform(-bounds, bounds))])
            for _ in range(SECRETS)
        ]
        self._random = np.random.default_rng()
        self.total, self.sent = np.zeros(plan.layout.length, np.int64), 0

    def make(self, number: int, member: Member) -> bytes:
        """A client's upload, which is then part of `total`."""
        self.sent += 1
        plan, by = self.plan, int(self._random.integers(2 * self.plan.ring.degree))
        masks, shares = (_turned(values, by) for values in self._made[self._random.integers(SECRETS)])
        masks = masks.reshape(len(masks), -1)[:, : plan.coefficients]
        steps = self._vectors[number % SECRETS]
        self.total += steps
        residues = packed_residues(plan.ring, steps, gaussian(plan.coefficients, os.urandom), masks)
        own = self._ephemeral, self._committee
        shares %= plan.ring.primes[0]
        sealed = tuple(seal_share(share, *own, place, member.client_id) for place, share in enumerate(shares))
        key = self._ephemeral.public_key().public_bytes_raw()
        body = residues.astype("<u4", copy=False).tobytes()
        return sign_upload(self._committee, member.client_id, member.identity, key, sealed, body).encode()


def _turned(polynomials: NDArray[Any], by: int) -> NDArray[Any]:
    """Return polynomials (..., N) times X^by, by below 2 N, modulo X^N + 1; X^N is -1.

    All powers have to be drawn: sums over those below N alone are no sums of many secrets, they grow with their number.
    """
    over, by = divmod(by, polynomials.shape[-1])
    turned = np.roll(polynomials, by, axis=-1)
    turned[..., :by] *= -1
    return -turned if over else turned


def failing_over(ports: Callable[[], Sequence[int]], calls: Iterable[Call], *statuses: int) -> list[bytes]:
    """Send each request to a port in turn, again to another one where a connection breaks; the answers' bodies."""

    async def one(numbered: Iterator[tuple[int, Call]], turn: int, answers: dict[int, bytes]) -> None:
        reader: asyncio.StreamReader | None = None
        writer: asyncio.StreamWriter | None = None
        for index, call in numbered:
            while index not in answers:
                try:
                    if reader is None or writer is None:
                        alive = ports()
                        reader, writer = await asyncio.open_connection("127.0.0.1", alive[turn % len(alive)])
                    writer.write(call.head + call.body)
                    head = (await reader.readuntil(_END)).lower()
                    _, _, length = head.partition(b"\r\ncontent-length:")
                    body = await reader.readexactly(int(length.split(b"\r\n", 1)[0] or 0))
                    if int(head[9:12]) not in statuses:
                        raise SystemExit(f"the server answered {head[9:12].decode()}: {body[:300]!r}")
                    answers[index] = body
                except (OSError, asyncio.IncompleteReadError):
                    reader = writer = None
                    turn += 1
                    await asyncio.sleep(0.05)
        if writer is not None:
            writer.close()

    async def everything() -> list[bytes]:
        numbered, answers = enumerate(calls), dict[int, bytes]()
        await asyncio.gather(*(one(numbered, turn, answers) for turn in range(CONNECTIONS)))
        return [answers[index] for index in sorted(answers)]

    return uvloop.run(everything())


# --- The servers


class Peaks:
    """Processor time of servers, and the most memory of each of their processes. Use it as a context manager."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._servers, self._begun = [psutil.Process(pid) for pid in pids], [processor_seconds(pid) for pid in pids]
        self._spent = [0.0] * len(pids)
        self.most: dict[str, int] = {}
        """Peak resident memory by kind of process, bytes."""
        self._stop = threading.Event()

    def __enter__(self) -> Peaks:
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def now(self) -> float:
        """Processor seconds of all servers so far, also of one that was killed."""
        for index, server in enumerate(self._servers):
            with suppress(psutil.NoSuchProcess):
                if server.is_running():  # the number of one that was killed may be another process's by now
                    self._spent[index] = processor_seconds(server.pid) - self._begun[index]
        return sum(self._spent)

    def _sample(self) -> None:
        while not self._stop.wait(0.1):
            self.now()
            for server in filter(psutil.Process.is_running, self._servers):
                with suppress(psutil.NoSuchProcess):
                    for kind, process in (("server", server), *(("worker", one) for one in server.children())):
                        self.most[kind] = max(self.most.get(kind, 0), process.memory_info().rss)


@contextmanager
def started(folder: Path, replicas: int, sqlite: bool, megabytes: int) -> Iterator[Replicas]:
    """The servers: on PostgreSQL and S3, which takes so many megabytes, or one on SQLite and a directory."""
    settings: dict[str, Any] = {f"{who}_rate": 0 for who in ("client", "operator", "failure")}
    settings |= {"log_format": "text", "recheck_seconds": 5.0}
    with ExitStack() as stack:
        if not sqlite:
            server, name = make_url(required("postgres")), f"hushrec_bench_{token_hex(6)}"
            connection = stack.enter_context(connect(server))
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload]
            stack.callback(connection.execute, f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]
            place = folder / "s3"
            place.mkdir()
            s3 = stack.enter_context(closing(S3Server(required("weed"), place, megabytes)))
            s3.start()
            os.environ.update(s3.environment)
            settings |= {"database_url": TestDatabase(server, name).schema(), "blobs": f"s3://{BUCKET}/large"}
        os.environ["HUSHREC_TEST_FRESH_SERVERS"] = "1"  # a fork shares memory with this process
        yield stack.enter_context(running_replicas(folder, replicas, **settings))


# --- A round


def play(name: str, clients: int, shard: int, replicas: int, sqlite: bool, kill: bool) -> dict[str, Figure]:
    """Play one round; its figures `<name>.*`. kill: the leading one of two servers, in the middle."""
    say(f"{clients} clients, {replicas} servers")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        servers = stack.enter_context(started(folder, replicas, sqlite, 1024 + clients // 4))
        leader = servers.leader()
        kept = servers.but(leader)[0] if replicas > 1 else leader
        operator = stack.enter_context(Operator(kept.url, kept.operator_token))
        groups, key = clients // shard if clients // shard >= FEWEST_GROUPS else 1, Ed25519PrivateKey.generate()
        organiser = TrialOrganiser(_key=key)
        each = clients // groups
        schedule = Schedule(
            rounds=1, cohort_size=clients, min_clients=each // 2, collect_seconds=DAY, stage_seconds=DAY
        )
        mechanism: dict[str, Any] = {"groups": groups} if groups > 1 else {}
        parameters: dict[str, Any] = {"items": ITEMS, "dim": DIM, "clip": 1.0}
        given = ("large", "fedmf", "oneshot", schedule, parameters, mechanism)
        task = operator.create_task(task_request(*given, organiser=organiser.pin))
        layout = recipe("fedmf", parameters).layout(1)
        plan = OneshotPlan.of(ONESHOT.plan(task.mechanism.parameters, layout, clients))
        driver = stack.enter_context(closing(SyncDriver()))

        def run_all(programs: Iterable[Callable[[], Program[T]]]) -> list[T]:
            return [driver.run(make()) for make in programs]

        committee = FleetCommittee(FleetOptions(), run_all)
        invitation = operator.invite(task.task_id, plan.committee, "committee").invitation
        committee.enrol(kept.url, plan, invitation, organiser.source("committee"))
        say("enrolling")
        crowd = Crowd(task.task_id, clients, key, organiser.scope, kept.url.removeprefix("http://"))
        with closing(Database(servers.database_url, connections=2)) as database:
            crowd.enrol(database)

        def round_that(fits: Callable[[RoundView], bool]) -> RoundView:
            while not (found := [view for view in operator.rounds(task.task_id) if fits(view)]):
                time.sleep(LOOK_SECONDS)
            return found[0]

        with Peaks([server.pid for server in servers.servers]) as peaks:
            times = [time.perf_counter()]
            view = round_that(lambda view: view.state == "collecting")
            times.append(time.perf_counter())
            say("sending")
            before = peaks.now()
            uploads = _send_all(servers, leader if kill else None, crowd, task, view, plan)
            times.append(time.perf_counter())
            sending = peaks.now() - before
            say(f"sent, {1e3 * sending / clients:.2f} ms a client; the committee confirms and unmasks")
            spent = time.process_time()
            committee.unmask(view, lambda seen, of: round_that(lambda view: of(view) != of(seen)))
            spent = time.process_time() - spent
            end = round_that(lambda view: view.state in ("complete", "failed"))
            times.append(time.perf_counter())
            whole = peaks.now()
        say(f"{end.state}, {1e3 * whole / clients:.2f} ms a client {end.failure or ''}")
        exact = end.state == "complete" and end.survivors == clients and _is_exact(kept, task.task_id, plan, uploads)
    figures: dict[str, Figure] = {
        "exact": exact,
        "clients": clients,
        "groups": groups,
        "server_cpu_ms_per_client": 1e3 * whole / clients,
        "upload_cpu_ms_per_client": 1e3 * sending / clients,
        "uploads_per_s": clients / (times[2] - times[1]),
        "open_s": times[1] - times[0],
        "end_s": times[3] - times[2],
        "whole_s": times[3] - times[0],
        "member_cpu_s": spent / plan.committee,
        "upload_bytes": plan.ticket_bytes + plan.body_bytes,
        "peak_mib": max(peaks.most.values()) / MIB,
        **{f"{kind}_peak_mib": peak / MIB for kind, peak in peaks.most.items()},
    }
    return named(name, figures)


def _send_all(
    servers: Replicas,
    victim: AggregatorProcess | None,
    crowd: Crowd,
    task: TaskView,
    view: RoundView,
    plan: OneshotPlan,
) -> Uploads:
    """Send what all clients send. The server `victim` is killed when half of the clients have sent."""
    path, members = f"/v1/tasks/{task.task_id}/rounds", crowd.members

    def ports() -> list[int]:
        return [server.port for server in servers.servers if server.running]

    (seen,) = failing_over(ports, [members[0].call("GET", f"{path}/current")], 200)
    keys = b64decode(RoundView.model_validate_json(seen).committee_keys or "")
    digest = broadcast_digest(task, view.step, None, view.levels)
    context = OneshotContext(task.task_id, 1, view.step, plan, digest, view.cohort)
    uploads = Uploads(make_committee(context, split_keys(keys), lambda _: True))
    chain = {} if view.aggregate_chain is None else {"aggregate-chain": view.aggregate_chain}
    for start in range(0, len(members), AT_ONCE):
        polls, puts = list[Call](), list[Call]()
        for number, member in enumerate(members[start : start + AT_ONCE], start):
            target = f"{path}/1/contributions/{member.client_id}"
            polls.append(member.call("GET", f"{path}/current"))
            puts.append(member.put(target, uploads.make(number, member), stated=chain))
        with ExitStack() as during:
            if victim is not None and start >= len(members) // 2:
                say("killing the leader")
                killer, victim = threading.Timer(0.3, victim.kill), None
                killer.start()
                during.callback(killer.join)
            failing_over(ports, [*polls, *puts], 200, 201)  # a client sends after it has polled
    return uploads


def _is_exact(server: AggregatorProcess, task: str, plan: OneshotPlan, uploads: Uploads) -> bool:
    """Whether the released sums add up to what all clients sent, element by element."""
    bearer = {"Authorization": f"Bearer {server.operator_token}"}
    answer = httpx.get(f"{server.url}/v1/tasks/{task}/rounds/1/aggregate", timeout=120, headers=bearer)
    body, total = answer.raise_for_status().content, np.zeros(plan.layout.length)
    groups = 1 if len(body) == plan.aggregate_bytes and getattr(plan, "groups", 1) == 1 else plan.groups
    for part in np.split(np.frombuffer(body, np.uint8), groups):
        opened, count = part.tobytes(), uploads.sent
        if groups > 1:
            count, opened = int.from_bytes(opened[:8], "little"), opened[8:]
        values = ONESHOT.open(plan.of_group if groups > 1 else plan, opened, count, None)
        for fixed, where in plan.places[0]:
            total[where] += values[where] * fixed.scale
    return bool((np.rint(total) == uploads.total).all())


# --- The plot


def plot(found: Mapping[str, Figure]) -> str:
    """An SVG of what a client costs the servers in rounds of each size, beside the floor; both axes are logarithmic."""
    sizes = sorted(int(value or 0) for name, value in found.items() if re.fullmatch(r"n\d+\.clients", name))
    across = np.linspace(90, 420, len(sizes)) if len(sizes) > 1 else [255]
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 300" font-family="sans-serif" font-size="13">',
        '<rect width="640" height="300" fill="white"/>',
        '<text x="20" y="16">ms of the servers\' processor time a client, two servers, one killed</text>',
    ]

    def height(value: float) -> float:
        return 250 - 90 * (np.log2(value) / 2)

    for value in (1, 2, 4, 8, 16, 32):
        y = height(value)
        lines.append(f'<path d="M60 {y:.0f}H425" stroke="#ddd"/><text x="30" y="{y + 4:.0f}">{value}</text>')
    for x, size in zip(across, sizes, strict=True):
        lines.append(f'<text x="{x:.0f}" y="285" text-anchor="middle">{size:,} clients</text>')
    for key, colour, what in _CURVES:
        points = [(x, height(float(found[f"n{size}.{key}"] or 1))) for x, size in zip(across, sizes, strict=True)]
        path = "L".join(f"{x:.0f} {y:.0f}" for x, y in points)
        lines.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="{colour}"/>' for x, y in points]
        lines.append(f'<text x="440" y="{points[-1][1] + 4:.0f}" fill="{colour}">{what}</text>')
    return "\n".join([*lines, "</svg>", ""])


_CURVES: Final = (
    ("server_cpu_ms_per_client", "#b3261e", "whole round"),
    ("upload_cpu_ms_per_client", "#1f5fa8", "while clients send"),
    ("floor_ms", "#666666", "plain FastAPI, same bytes"),
)


# ---


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    """Figures of a round of each size, each beside plain FastAPI that takes the same bytes."""
    figures: dict[str, Figure] = {}
    replicas, sqlite = (1, True) if options.quick else (options.replicas, options.sqlite)
    sizes = [12] if options.quick else options.clients
    if options.beside_one:
        for name, servers in (("one", 1), ("two", 2)):
            figures |= play(name, sizes[0], options.shard, servers, sqlite, kill=False)
        key = "server_cpu_ms_per_client"
        figures["two.capacity_ratio"] = 2 * float(figures[f"one.{key}"] or 0) / float(figures[f"two.{key}"] or 1)
    for clients in sizes:
        name = f"n{clients}"
        found = play(name, clients, options.shard, replicas, sqlite, kill=replicas > 1)
        floor = {f"{name}.floor_ms": least_ms(int(found[f"{name}.upload_bytes"] or 0))}
        both = found | floor
        figures |= both | {f"{name}.floor_ratio": ratio(both, f"{name}.upload_cpu_ms_per_client", f"{name}.floor_ms")}
    if options.plot is not None:
        options.plot.write_text(plot(figures), encoding="utf-8")
    return figures


def least_ms(length: int) -> float:
    """Processor time of the floor (`bench.floor`) for a poll and an upload of so many bytes, ms."""
    body, count = os.urandom(length), 200
    with peer_server(serve) as started:
        peer = Floor(*started)
        cpu_ms(peer.pid, peer.port, peer.calls(count, body), 201)
        poll = cpu_ms(peer.pid, peer.port, peer.calls(count), 304)
        return poll + cpu_ms(peer.pid, peer.port, peer.calls(count, body), 201)


_CLIENTS: Final = "clients of the rounds; 100000 take an hour of a processor, and 12 GB of disk"


def _parser() -> argparse.ArgumentParser:
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 10_000], metavar="N", help=_CLIENTS)
    parser.add_argument("--shard", type=int, default=10_000, metavar="N", help="clients of a group")
    parser.add_argument("--replicas", type=int, default=2, metavar="N", help="of two, the leader is killed")
    parser.add_argument("--beside-one", action="store_true", help="also what two servers can serve beside one")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a plot of the sizes, SVG")
    parser.add_argument("--sqlite", action="store_true", help="one server on SQLite and a directory")
    return parser


if __name__ == "__main__":
    run("large_round", _parser(), measure)
