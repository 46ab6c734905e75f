"""Several real servers over one storage, and a client whose every request goes to another one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import httpx
from sqlalchemy import make_url

from tests.support.api import Api
from tests.support.postgres import connect
from tests.support.server import AggregatorProcess
from tests.support.signing import SIGNED

__all__ = ["Replicas", "running_replicas", "wait_until"]


def wait_until(found: Callable[[], bool], what: str, seconds: float = 60.0) -> float:
    """Wait for a condition; how long it took. `AssertionError` when it does not come about."""
    begun = time.monotonic()
    while not found():
        assert time.monotonic() - begun < seconds, f"waited in vain: {what}"
        time.sleep(0.03)
    return time.monotonic() - begun


class _RoundRobin(httpx.BaseTransport):
    """No sticky session: each request goes to the next server."""

    def __init__(self, servers: Sequence[AggregatorProcess]) -> None:
        self._ports = cycle([server.port for server in servers])
        self._transport = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(port=next(self._ports))
        return self._transport.handle_request(request)

    def close(self) -> None:
        self._transport.close()


class Replicas:
    """The servers, and who of them leads."""

    def __init__(self, servers: Sequence[AggregatorProcess]) -> None:
        self.servers = list(servers)
        self.database_url = servers[0].database_url

    @contextmanager
    def api(self, *servers: AggregatorProcess) -> Iterator[Api]:
        """An operator whose requests go to one server after the other; by default to all."""
        used = servers or self.servers
        made = Api(used[0].url, used[0].operator_token)
        made.http.close()
        with httpx.Client(base_url=used[0].url, transport=_RoundRobin(used), timeout=30, auth=SIGNED) as made.http:
            yield made

    def leading(self, server: AggregatorProcess) -> bool:
        """What its figures say; a server that is down leads nothing."""
        headers = {"Authorization": f"Bearer {server.operator_token}"}
        try:
            text = httpx.get(f"{server.url}/metrics", headers=headers, timeout=30).text
        except httpx.TransportError:
            return False
        return "\nhushrec_engine_leading 1.0\n" in text

    def leaders(self) -> list[AggregatorProcess]:
        """Those that say they lead, asked one after the other."""
        return [server for server in self.servers if server.running and self.leading(server)]

    def leader(self, but: AggregatorProcess | None = None) -> AggregatorProcess:
        """The one that leads, once one does (other than `but`)."""
        found: list[AggregatorProcess] = []

        def one() -> bool:
            found[:] = [server for server in self.leaders() if server is not but]
            return len(found) == 1

        wait_until(one, "nobody leads")
        return found[0]

    def holders(self) -> list[int]:
        """Backends that hold the leader's lock of this schema, as PostgreSQL sees it."""
        query = (
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = 1752527720 AND objsubid = 2"
            " AND objid = hashtext(current_schema())::oid"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        with connect(make_url(self.database_url)) as connection:
            return [int(str(row[0])) for row in connection.execute(query)]


@contextmanager
def running_replicas(folder: Path, count: int = 3, **settings: str | int | float | Path) -> Iterator[Replicas]:
    """`count` servers over one storage, each with a data directory of its own."""
    servers = [AggregatorProcess(folder / f"replica-{index}", **settings) for index in range(count)]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.await_ready()
        yield Replicas(servers)
    finally:
        for server in servers:
            server.stop()
