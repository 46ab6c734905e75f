"""A database on a real PostgreSQL server, with an empty schema for each test; several real servers on one storage."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import Request, urlopen

import httpx
import psutil
import psycopg
from sqlalchemy import URL, make_url

from tests.support.api import Api
from tests.support.needs import POSTGRES_SCRIPT, required
from tests.support.server import TLS, AggregatorProcess, free_port
from tests.support.signing import SIGNED


class TestDatabase:
    __test__ = False

    def __init__(self, server: URL, name: str) -> None:
        self.name = name
        self._server = server

    def schema(self) -> str:
        """Create an empty schema and return its URL: faster than a new database."""
        name = f"s_{secrets.token_hex(6)}"
        with connect(self._server.set(database=self.name)) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        url = self._server.set(database=self.name).update_query_dict({"options": f"-csearch_path={name}"})
        return url.render_as_string(hide_password=False)

    def execute(self, url: str, statement: str, *values: object) -> int:
        """Execute a statement in the schema of `url`; return the number of rows."""
        with connect(make_url(url)) as connection:
            return connection.execute(statement, values).rowcount

    def cut_off(self) -> None:
        with connect(self._server) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                (self.name,),
            )

    @contextmanager
    def unavailable(self) -> Iterator[None]:
        """Inside the block, end all connections and refuse new ones."""
        with connect(self._server) as connection:
            connection.execute(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS false")
            self.cut_off()
            try:
                yield
            finally:
                connection.execute(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS true")


def connect(url: URL) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(url.render_as_string(hide_password=False), autocommit=True, connect_timeout=5)


def waits_for_lock(url: URL) -> bool:
    """Whether a session of a server, or of its commands, waits for a lock in this database."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'hushrec'"
        " AND datname = current_database()"
    )
    with connect(url) as connection:
        return connection.execute(query).fetchone() != (0,)


# --- a PostgreSQL of a test's own, which it may crash -----------------------------------------------------------------


class Cluster:
    """A cluster in `folder`. It restarts on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = self._run("start").strip()

    def schema(self) -> str:
        """Return the URL of an empty schema for one server."""
        return TestDatabase(make_url(self.url), "postgres").schema()

    def crash(self) -> None:
        """Kill all processes at once. The next start recovers what was committed."""
        self._run("stop")

    def start_again(self) -> None:
        self._run("again")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside the block the cluster accepts connections and answers nothing."""
        root = psutil.Process(int((self._folder / "data" / "postmaster.pid").read_text().split()[0]))
        halted = [root, *root.children(recursive=True)]
        for process in halted:
            process.suspend()
        try:
            yield
        finally:
            for process in reversed(halted):
                process.resume()

    def _run(self, action: str) -> str:
        done = subprocess.run([POSTGRES_SCRIPT, action, str(self._folder)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def own_cluster() -> Iterator[Cluster]:
    """Run a cluster and remove it after the block. Its folder belongs to the user that runs it, perhaps another one."""
    required("postgres programs")
    with TemporaryDirectory(prefix="hushrec-chaos-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        cluster = Cluster(Path(folder) / "postgres")
        try:
            yield cluster
        finally:
            cluster.crash()


def wait_until(found: Callable[[], bool], what: str, seconds: float = 120.0) -> float:
    """Wait for a condition; return the seconds it took. Raises `AssertionError` after a timeout."""
    begun, pause = time.monotonic(), 0.02
    while not found():
        assert time.monotonic() - begun < seconds, f"timed out waiting for: {what}"
        time.sleep(pause)
        pause = min(1.3 * pause, 0.1)
    return time.monotonic() - begun


class RoundRobin(httpx.HTTPTransport):
    """A balancer without sticky sessions: each request goes to the next server that accepts the connection."""

    def __init__(self, servers: Sequence[AggregatorProcess]) -> None:
        super().__init__(verify=TLS)
        self._count, self._ports = len(servers), cycle([server.port for server in servers])

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        for _ in range(self._count - 1):
            request.url = request.url.copy_with(port=next(self._ports))
            with suppress(httpx.ConnectError):
                return super().handle_request(request)
        request.url = request.url.copy_with(port=next(self._ports))
        return super().handle_request(request)


class Replicas:
    """The servers, and which of them leads."""

    def __init__(self, servers: Sequence[AggregatorProcess]) -> None:
        self.servers = list(servers)
        self.database_url = servers[0].database_url

    def but(self, server: AggregatorProcess) -> list[AggregatorProcess]:
        return [one for one in self.servers if one is not server]

    @contextmanager
    def api(self, *servers: AggregatorProcess) -> Iterator[Api]:
        """An operator whose requests go to these servers in turn; by default to all."""
        used = servers or self.servers
        with httpx.Client(base_url=used[0].url, transport=RoundRobin(used), timeout=60, auth=SIGNED) as http:
            yield Api.of(used[0], http)

    def leading(self, server: AggregatorProcess) -> bool:
        """Whether a server's metrics say that it leads; False when it is down."""
        request = Request(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.operator_token}"})  # noqa: S310 - our own server
        try:
            with urlopen(request, timeout=60) as answer:  # noqa: S310
                return b"\nhushrec_engine_leading 1.0\n" in answer.read()
        except OSError:
            return False

    def leaders(self) -> list[AggregatorProcess]:
        return [server for server in self.servers if server.running and self.leading(server)]

    def leader(self) -> AggregatorProcess:
        """Wait until one of the servers that run leads; return it."""
        wait_until(lambda: len(self.leaders()) == 1, "nobody leads")
        return self.leaders()[0]

    def holders(self) -> list[int]:
        """Process ids of the PostgreSQL backends that hold the leader lock of this schema."""
        query = (
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = 1752527720 AND objsubid = 2"
            " AND objid = hashtext(current_schema())::oid"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        with connect(make_url(self.database_url)) as connection:
            return [int(str(row[0])) for row in connection.execute(query)]


@contextmanager
def running_replicas(folder: Path, count: int = 3, **settings: str | int | float | Path) -> Iterator[Replicas]:
    """Run `count` servers on one storage, each with its own data directory."""
    ports = [free_port() for _ in range(count)]
    origins = ",".join(f"http://127.0.0.1:{port}" for port in ports)  # one address stands for all of them
    servers = [
        AggregatorProcess(folder / f"replica-{index}", port=port, **{"public_origins": origins, **settings})
        for index, port in enumerate(ports)
    ]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.await_ready()
        yield Replicas(servers)
    finally:
        for server in servers:
            server.stop()
