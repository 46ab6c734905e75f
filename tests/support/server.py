"""A real aggregator: its own process, a free port, a data directory. Shared by the service's and the SDK's tests."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aggregator_service.migrations.migrate import migrate
from aggregator_service.settings import Tuning
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.database import Database
from aggregator_service.storage.stores import open_store
from tests.support.forked import ForkedProcess, can_fork

OPERATOR_TOKEN = "hro_operator-token-of-the-tests"
TLS = httpx.create_ssl_context()
"""What clients of the tests share: httpx would read the machine's certificates for each, in 20 ms."""
RECHECK_SECONDS = 0.5
"""Seconds between looks of a server for changes by others, which cost some milliseconds for each open task."""
_START_SECONDS = 180.0
_PORTS = (10_000, 32_768)
"""Linux connects from ports 32768 and above, other systems from 49152."""


def tuned(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, with those that are fields of `Tuning` under `tuning`."""
    own = {name: value for name, value in given.items() if name in Tuning.model_fields}
    return {**{name: value for name, value in given.items() if name not in own}, "tuning": own}


def free_port() -> int:
    """A TCP port that was free a moment ago.

    It is not from the range that systems take for outgoing connections: a server that is stopped and started again
    finds its port free, however many connections others made meanwhile.
    """
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@cache
def empty_database() -> bytes:
    """A migrated SQLite database: to copy it is faster than to migrate a new one."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        with closing(Database(f"sqlite:///{path}", connections=1)) as database:
            migrate(database)
        return path.read_bytes()


def put_empty_database(data_dir: Path) -> None:
    """Give a server's data directory a migrated SQLite database, unless it has a database."""
    place = data_dir / "hushrec.db"
    if not place.exists():
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.write_bytes(empty_database())
        place.chmod(0o600)


class AggregatorProcess:
    """`hushrec-server serve` as a child process. Kill it, start it again: the port and the data stay the same."""

    def __init__(
        self,
        data_dir: Path,
        context: ssl.SSLContext | None = None,
        port: int | None = None,
        *,
        command: Sequence[str] = (),
        **settings: str | int | float | Path,
    ) -> None:
        """`settings` become HUSHREC_* variables, or parts of HUSHREC_TUNING, such as fold_batch=3.

        context: how to reach a server with TLS.

        test_spawns_workers=1: its fold workers are its children (`tests.support.forked`).

        It is a fork that has imported the server and copies a migrated database. The variable
        HUSHREC_TEST_FRESH_SERVERS starts new interpreters instead, slower by more than a second. command: starts it in
        place of such an interpreter.
        """
        self.data_dir = data_dir
        self.port = free_port() if port is None else port
        self.url = f"{'https' if 'tls_cert' in settings else 'http'}://127.0.0.1:{self.port}"
        self._context = context
        self.operator_token = OPERATOR_TOKEN
        self._has_own_database = "database_url" not in settings
        self.database_url = str(settings.get("database_url", f"sqlite:///{data_dir / 'hushrec.db'}"))
        self._blobs = str(settings.get("blobs", f"dir:{data_dir / 'blobs'}"))
        self.log_path = data_dir.parent / f"{data_dir.name}.log"
        given = tuned({"recheck_seconds": RECHECK_SECONDS, "log_format": "json", **settings})
        self._settings = {f"HUSHREC_{name.upper()}": str(value) for name, value in given.items()}
        self._settings["HUSHREC_TUNING"] = json.dumps(given["tuning"])
        self._fresh = bool(command)
        self._command = list(command) or [sys.executable, "-m", "aggregator_service.cli", "serve"]
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None, "the aggregator is not running"
        return self._process.pid

    @property
    def blobs(self) -> BlobStore:
        """The server's blobs, to look into behind its back."""
        return open_store(self._blobs, self.data_dir.parent)

    def kinds(self) -> Counter[str]:
        """How many blobs of each kind the server has."""
        return Counter(key.partition("/")[0] for key in self.blobs.keys())  # noqa: SIM118 - a store, not a dict

    def fold_worker(self) -> psutil.Process:
        """The fold worker (`test_spawns_workers`): the child that is no resource tracker of multiprocessing."""
        children = psutil.Process(self.pid).children()
        (worker,) = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        return worker

    @property
    def running(self) -> bool:
        """Whether it was started, and has not been ended or found dead."""
        return self._process is not None and self._process.poll() is None

    def start(self, crash_at: str = "") -> None:
        """Start and wait until it is ready. `crash_at`: the crash point where it exits."""
        self.launch(crash_at)
        self.await_ready()

    def launch(self, crash_at: str = "") -> None:
        """Start, and wait for nothing."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HUSHREC_")}
        environment |= self._settings | {
            "HUSHREC_DATA_DIR": str(self.data_dir),
            "HUSHREC_PORT": str(self.port),
            "HUSHREC_OPERATOR_TOKEN": self.operator_token,
            "HUSHREC_CRASH_AT": crash_at,
        }
        forks = not self._fresh and can_fork(environment)
        if forks and self._has_own_database:
            put_empty_database(self.data_dir)
        with self.log_path.open("ab") as log:
            if not forks:
                self._process = subprocess.Popen(self._command, env=environment, stdout=log, stderr=log)
            else:
                self._process = ForkedProcess("server", "aggregator_service.cli", ["serve"], environment, log)

    def await_ready(self) -> None:
        """Wait until it is ready; `RuntimeError`, with what `/readyz` said last, when it ends before that."""
        end, found = time.monotonic() + _START_SECONDS, "it was not asked"
        while time.monotonic() < end:
            if self._process is None or self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=10, context=self._context):  # noqa: S310 - our own server
                    return
            except (OSError, urllib.error.URLError) as error:
                found = repr(error)
                time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"the aggregator did not start, {self.url}/readyz: {found}\n{self.log()[-4000:]}")

    def log(self) -> str:
        """Everything it has written so far, over all starts."""
        return self.log_path.read_text(encoding="utf-8") if self.log_path.exists() else ""

    def kill(self) -> None:
        """kill -9, as a power cut would."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait_dead()

    def wait_dead(self, seconds: float = 120.0) -> int:
        """Wait until the process has ended and return its exit status (-9: killed)."""
        assert self._process is not None, "the aggregator is not running"
        status = self._process.wait(timeout=seconds)
        self._process = None
        return status

    def stop(self) -> None:
        """End it in an orderly way, if it runs."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=15)
        self._process = None


@contextmanager
def running_aggregator(
    data_dir: Path,
    context: ssl.SSLContext | None = None,
    **settings: str | int | float | Path,
) -> Iterator[AggregatorProcess]:
    """An aggregator that runs within the block. Arguments: see `AggregatorProcess`."""
    server = AggregatorProcess(data_dir, context, **settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Persistent(httpx.Client):
    """Repeats a request until it is answered, restarting the server when it died. Counts the deaths."""

    def __init__(self, server: AggregatorProcess, points: Iterable[str] = (), **options: Any) -> None:
        """points: crash points for the restarts, one after the other. options: of the client."""
        super().__init__(base_url=server.url, timeout=60, **options)
        self.server = server
        self.deaths = 0
        self._points = iter(points)

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send the request, at most five times."""
        for _ in range(5):
            try:
                return super().send(request, **options)
            except httpx.TransportError:
                self.revive()
        raise AssertionError("no answer after five attempts")

    def revive(self) -> None:
        """Wait until the server was killed, and start it again."""
        assert self.server.wait_dead() == -signal.SIGKILL
        self.deaths += 1
        self.server.start(crash_at=next(self._points, ""))


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates for 127.0.0.1 and for clients."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder, self._key = folder, generate_private_key(SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        own = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        certificate = builder.add_extension(own, critical=False).add_extension(usage, critical=True)
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def sign(self, name: str, *, server: bool, client: bool | None = None, ends: float = 1.0) -> Pair:
        """A certificate for a server at 127.0.0.1, or for a client; for one that is both when `client` is said too.

        ends: days until it expires; it is valid since an hour ago.
        """
        key = generate_private_key(SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH] if server else []
        purposes += [ExtendedKeyUsageOID.CLIENT_AUTH] if client or not server else []
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = _builder(subject, self._name, key, ends).add_extension(
            x509.ExtendedKeyUsage(purposes), critical=False
        )
        builder = builder.add_extension(here, critical=False).add_extension(issuer, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return pair


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, ends: float = 1.0
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=ends))
    )
