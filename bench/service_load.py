"""One real server with one encrypted task and its enrolled members, as input of the load generator.

Members share this process and one keyring. Each has its own identity, mailbox key, membership proof and token.
Everything that the server checks is real: signatures, invitations, and envelopes sealed for the member.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

import httpx
import numpy as np
import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from bench._report import READY_SECONDS
from client_sdk.lab.local_server import run_server
from client_sdk.operator import Operator, task_request
from protocols.codec import b64encode
from protocols.contribution import plan_of_task
from protocols.crypto.aggregate_chain import first_chain
from protocols.crypto.certificates import CertifiedRole, certify
from protocols.crypto.envelope import EnvelopeSender, seal_envelope
from protocols.crypto.http_signature import SignedRequest, sign_request
from protocols.crypto.keys import encode_keyring
from protocols.crypto.sealing import SealingKey
from protocols.layout import whole_route
from protocols.messages import OrganiserPin, RoundView, Schedule
from protocols.recipes.registry import recipe
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.plan import CkksPlan
from tests.support.api import digest_field, signed_enrolment

# --- A cheap load generator: requests that were made beforehand, over a fixed number of persistent connections

AUTHORITY: Final = "127.0.0.1"
"""Host of every request, whatever the port; the server is told that it is its address."""
_END: Final = b"\r\n\r\n"
_TIMEOUT_SECONDS: Final = 900.0


class Call(NamedTuple):
    """The bytes of a request. `body` is separate, so that several requests can share it."""

    head: bytes
    body: bytes = b""


@dataclass
class Run:
    """The result of a load: wall time from the first request to the last answer; head and body of each by request."""

    seconds: float = 0.0
    heads: dict[int, bytes] = field(default_factory=dict)
    answers: dict[int, bytes] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)

    def expect(self, *statuses: int) -> Self:
        """Return self; raise `SystemExit` if an answer had a status not in `statuses`."""
        if set(self.statuses) - set(statuses):
            raise SystemExit(f"the server answered {dict(self.statuses)}, expected {statuses}")
        return self


def request_bytes(method: str, target: str, headers: dict[str, str], body: bytes = b"") -> Call:
    """The bytes of a request to a server on the loopback address."""
    sent = {"host": AUTHORITY, **headers, "content-length": str(len(body))}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {text}" for name, text in sent.items())]
    return Call("\r\n".join(lines).encode() + _END, body)


def forward(call: Call) -> Call:
    """The same request as a proxy passes it on."""
    return Call(call.head.removesuffix(b"\r\n") + b"x-forwarded-for: 192.0.2.1" + _END, call.body)


async def _send(
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], numbered: Iterator[tuple[int, Call]], run: Run
) -> None:
    """Send requests over one connection, each when the one before has its answer, until there are no more."""
    reader, writer = connection
    try:
        for index, call in numbered:
            writer.write(call.head)
            if call.body:
                writer.write(call.body)
            run.heads[index] = head = await reader.readuntil(_END)
            _, _, length = head.lower().partition(b"\r\ncontent-length:")
            run.answers[index] = await reader.readexactly(int(length.split(b"\r\n", 1)[0] or 0))
            run.statuses[int(head[9:12])] += 1
    finally:
        writer.close()


def closed_loop(port: int, calls: Iterable[Call], connections: int, forwarded: bool = False) -> Run:
    """Send `calls` over `connections` connections; each sends its next request as soon as it has an answer.

    forwarded: add X-Forwarded-For to each request, as a proxy does. Raises `asyncio.IncompleteReadError` if the server
    closes a connection, and `TimeoutError` after 900 s.
    """

    async def run() -> Run:
        done, numbered = Run(), enumerate(map(forward, calls) if forwarded else calls)
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(connections)]
        started = time.perf_counter()
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await asyncio.gather(*(_send(each, numbered, done) for each in opened))
        done.seconds = time.perf_counter() - started
        return done

    return uvloop.run(run())


# ---

CONNECTIONS = 4
_SCOPE = "bench"
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Member:
    """An enrolled client: its id, token, identity key, mailbox and certificate."""

    client_id: str
    token: str
    identity: Ed25519PrivateKey
    mailbox: SealingKey
    certificate: bytes

    authority: str = AUTHORITY
    """Host of its requests."""

    def call(self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b"") -> Call:
        """A request of this client, signed now; the server accepts it for a minute."""
        path, _, query = target.partition("?")
        own = {"host": self.authority, "authorization": f"Bearer {self.token}", **(headers or {})}
        signed = SignedRequest(method, self.authority, path, query, own)
        signature = sign_request(self.identity, self.client_id, signed, created=round(time.time()))
        return request_bytes(method, target, own | signature, body)

    def put(self, target: str, body: bytes, digest: str = "", stated: dict[str, str] | None = None) -> Call:
        """An upload of `body` to `target`.

        digest: the body's Content-Digest, if it is known already. stated: further header fields that are signed.
        """
        return self.call("PUT", target, {"content-digest": digest or digest_field(body), **(stated or {})}, body)


class Federation(ExitStack):
    """A server without rate limits, and one CKKS task (FedMF, shared secret) of one round over `cohort` members.

    An organiser certifies the members. forwarded: whether members' requests have X-Forwarded-For, as behind a proxy.
    settings: further environment variables of the server.
    """

    def __init__(
        self, root: Path, *, items: int, dim: int, cohort: int, forwarded: bool = False, **settings: str
    ) -> None:
        fixed = {f"HUSHREC_{who}_RATE": "0" for who in ("CLIENT", "OPERATOR", "FAILURE")}
        fixed["HUSHREC_PUBLIC_ORIGINS"] = f"http://{AUTHORITY}"
        self.cohort, self._forwarded = cohort, forwarded
        super().__init__()
        self.server = self.enter_context(run_server(root, READY_SECONDS, {**fixed, **settings}))
        self.port = int(urlsplit(self.server.url).port or 0)
        self._operator = self.enter_context(Operator(self.server.url, self.server.operator_token))
        self._organiser = Ed25519PrivateKey.generate()
        pin = OrganiserPin(key=b64encode(self._organiser.public_key().public_bytes_raw()), scope=_SCOPE)
        schedule = Schedule(rounds=1, cohort_size=cohort, min_clients=2, collect_seconds=3600)
        parameters: dict[str, Any] = {"items": items, "dim": dim, "clip": 0.1}
        given = ("service", "fedmf", "ckks", schedule, parameters, {"set": "standard"})
        self.task = self._operator.create_task(task_request(*given, organiser=pin)).task_id
        plan = plan_of_task(CKKS, {"set": "standard"}, recipe("fedmf", parameters).layout(), cohort)
        assert isinstance(plan, CkksPlan)
        self.plan, self.keyring = plan, CKKS.generate_keyring(plan)
        self.members: list[Member] = []

    @property
    def path(self) -> str:
        return f"/v1/tasks/{self.task}"

    def load(self, calls: Iterable[Call], status: int, connections: int = CONNECTIONS) -> Run:
        """Send `calls` in a closed loop over `connections` connections; `SystemExit` for another status."""
        return closed_loop(self.port, calls, connections, self._forwarded).expect(status)

    def enrol(self, wanted: int) -> Run:
        """Enrol the holder, who takes part, and `wanted` - 1 members; the load of the members."""
        self._enrol(1, "holder")
        return self._enrol(wanted - 1, "member")

    def _enrol(self, count: int, role: CertifiedRole) -> Run:
        """Enrol `count` clients; the load. Keys, certificates and signatures are made before."""
        invitation = self._operator.invite(self.task, count, role).invitation
        waiting, calls = list[Member](), list[Call]()
        for serial in range(len(self.members), len(self.members) + count):
            identity, mailbox = Ed25519PrivateKey.generate(), SealingKey.generate()
            keys = identity.public_key().public_bytes_raw(), mailbox.name
            made = certify(self._organiser, _SCOPE, *keys, role=role, serial=serial, not_after=2**40)
            certificate = made.encode()
            body = signed_enrolment(invitation, identity, mailbox, certificate=certificate)
            calls.append(request_bytes("POST", "/v1/enrolments", _JSON, json.dumps(body).encode()))
            waiting.append(Member("", "", identity, mailbox, certificate))
        run = self.load(calls, 201)
        for index, member in enumerate(waiting):
            body = json.loads(run.answers[index])
            self.members.append(replace(member, client_id=body["client_id"], token=body["token"]))
        return run

    def upload_envelopes(self) -> Run:
        """Upload one envelope with the keyring per member, the holder included."""
        keyring, holder = encode_keyring(self.keyring), self.members[0]
        sender = EnvelopeSender(holder.identity, holder.mailbox.name, holder.certificate)
        sealed = {
            each.client_id: seal_envelope(keyring, each.mailbox.public, self.task, sender) for each in self.members
        }
        calls = (holder.put(f"{self.path}/keyring/{name}", envelope) for name, envelope in sealed.items())
        return self.load(calls, 201)

    def sealed(self, count: int) -> tuple[list[bytes], NDArray[np.float64]]:
        """`count` sealed contributions, and the sum of the vectors in them."""
        random = np.random.default_rng(1)
        block, route = self.plan.layout.blocks[0], whole_route(self.plan.layout)
        bounds, counts = block.bounds(), block.integral_mask()
        total, bodies = np.zeros(block.length), []
        for _ in range(count):
            vector = np.where(counts, 1.0, random.uniform(-bounds, bounds))
            total += vector
            bodies.append(CKKS.seal(self.plan, route, [vector], self.keyring))
        return bodies, total

    def wait_round(self, *states: str) -> RoundView:
        """Round 1 as soon as it is in one of `states`."""
        while True:
            for seen in self._operator.rounds(self.task):
                if seen.state in states:
                    return seen
            time.sleep(0.05)

    def uploads(self, members: Sequence[Member], bodies: Sequence[bytes]) -> Iterator[Call]:
        """One contribution per member; `bodies` are used in turn, which the server does not detect."""
        digests = [digest_field(body) for body in bodies]
        stated = {"aggregate-chain": first_chain(self.task).hex()}
        for index, member in enumerate(members):
            target, turn = f"{self.path}/rounds/1/contributions/{member.client_id}", index % len(bodies)
            yield member.put(target, bodies[turn], digests[turn], stated)

    def aggregate(self) -> bytes:
        bearer = {"Authorization": f"Bearer {self.server.operator_token}"}
        url = f"{self.server.url}{self.path}/rounds/1/aggregate"
        return httpx.get(url, timeout=120, headers=bearer).raise_for_status().content
