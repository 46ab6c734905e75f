"""Clocks that differ: this process's from the database's, which replicas share, and clients' from this process's."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from cachetools import TTLCache
from sqlalchemy.exc import SQLAlchemyError

from aggregator_service.clock import Clock
from aggregator_service.logs import fields
from aggregator_service.observability.metrics import Metrics
from aggregator_service.problems import Problem
from aggregator_service.storage.database import Database

_LOG = logging.getLogger(__name__)
_MEASURE_SECONDS: Final = 10.0
_SLOW_SECONDS: Final = 1.0
"""A database that takes longer to answer does not say when in between it read its clock."""
_NOTICED: Final = 2.0
"""Seconds by which this process's clock may differ from the database's before it is reported."""
_NOTICED_OF_CLIENTS: Final = 5
_AGREES: Final = "the clock of this machine agrees with the database's again"
_DIFFERS: Final = "the clock of this machine is %s; rounds and signatures depend on it"
_TOO_FAR: Final = (
    "the clock of this machine is %s; until then this server drives no rounds, and answers clients and changes of "
    "operators with 503"
)
_LOGGED_CLIENTS: Final = 10_000
_LOGGED_SECONDS: Final = 3600.0


class ClockWatch:
    """Measures this process's clock against the database's, and reports clients whose clocks differ.

    window: seconds that a signature's time may differ from this process's. monotonic: seconds of a clock that nobody
    sets.
    """

    def __init__(
        self,
        clock: Clock,
        database: Database,
        metrics: Metrics,
        window: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._database, self._metrics = clock, database, metrics
        self._window, self._monotonic = window, monotonic
        self._database_ahead: float | None = None
        self._reported = _AGREES
        self._logged: TTLCache[str, bool] = TTLCache(_LOGGED_CLIENTS, _LOGGED_SECONDS)

    @property
    def offset(self) -> float:
        """The seconds that this process's clock is ahead of the database's now, also when it was set a moment ago.

        0.0 before the first measurement, and with SQLite, which has no clock of its own.
        """
        if self._database_ahead is None:
            return 0.0
        return self._clock.now() - (self._monotonic() + self._database_ahead)

    @property
    def remark(self) -> str:
        """By how much this process's clock differs from the database's; empty for less than two seconds."""
        offset = self.offset
        if abs(offset) < _NOTICED:
            return ""
        return f"{abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} the database's: set it (NTP)"

    @property
    def too_far(self) -> bool:
        """Whether the difference is more than half of the window.

        Replicas within half of the window accept each other's time: a client that signs with the time of one of them is
        not refused by another.
        """
        return abs(self.offset) > self._window / 2

    def refuse_too_far(self) -> None:
        """Raise `Problem` unavailable while the clock is too far off to judge signatures, deadlines and lifetimes.

        Its Retry-After is short: behind a proxy the next attempt may reach a replica whose clock is right.
        """
        if self.too_far:
            raise Problem("unavailable", f"the clock of this server is {self.remark}", headers={"Retry-After": "1"})

    async def run(self) -> None:
        """Measure every ten seconds until cancelled."""
        while True:
            await asyncio.to_thread(self.measure)
            await asyncio.sleep(_MEASURE_SECONDS)

    def measure(self) -> None:
        """Compare this process's clock with the database's; log when they begin or cease to differ.

        Does nothing while the database does not answer.
        """
        before = self._monotonic()
        try:
            theirs = self._database.time()
        except SQLAlchemyError:
            return
        after = self._monotonic()
        if theirs is None or after - before > _SLOW_SECONDS:
            return
        self._database_ahead = theirs - (before + after) / 2
        self._metrics.clock_offset.set(self.offset)
        text = _TOO_FAR if self.too_far else _DIFFERS if self.remark else _AGREES
        if text != self._reported:
            level = {_TOO_FAR: logging.ERROR, _DIFFERS: logging.WARNING, _AGREES: logging.INFO}[text]
            _LOG.log(level, text, *(() if text == _AGREES else (self.remark,)))
        self._reported = text

    def saw_client(self, client_id: str, off: int) -> None:
        """Count the clock of a client that signed a request; log one that differs, once an hour for each client.

        off: seconds that the signature's time is ahead of this process's clock.
        """
        self._metrics.client_clocks.observe(abs(off))
        if abs(off) > _NOTICED_OF_CLIENTS and client_id not in self._logged:
            self._logged[client_id] = True
            _LOG.info("the clock of a client differs from this server's", extra=fields(client=client_id, seconds=off))
