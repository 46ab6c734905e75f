"""Clocks that differ: this process's from the database's, which replicas share, and clients' from this process's."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cachetools import TTLCache
from sqlalchemy.exc import SQLAlchemyError

from aggregator_service.clock import Clock
from aggregator_service.logs import fields
from aggregator_service.observability.metrics import Metrics
from aggregator_service.storage.database import Database

_LOG = logging.getLogger(__name__)
_MEASURE_SECONDS: Final = 10.0
_SLOW_SECONDS: Final = 1.0
"""A database that takes longer to answer does not say when in between it read its clock."""
_NOTICED: Final = 2.0
"""Seconds by which this process's clock may differ from the database's before it is reported."""
_NOTICED_OF_CLIENTS: Final = 5
_LOGGED_CLIENTS: Final = 10_000
_LOGGED_SECONDS: Final = 3600.0


class ClockWatch:
    """Measures this process's clock against the database's, and reports clients whose clocks differ.

    window: seconds that a signature's time may differ from this process's. `offset` is the number of seconds that this
    process's clock is ahead of the database's; 0.0 before the first measurement, and with SQLite, which has no clock of
    its own.
    """

    def __init__(self, clock: Clock, database: Database, metrics: Metrics, window: int) -> None:
        self.offset = 0.0
        self._clock, self._database, self._metrics = clock, database, metrics
        self._window = window
        self._reported = False
        self._logged: TTLCache[str, bool] = TTLCache(_LOGGED_CLIENTS, _LOGGED_SECONDS)

    @property
    def remark(self) -> str:
        """By how much this process's clock differs from the database's; empty for less than two seconds."""
        if abs(self.offset) < _NOTICED:
            return ""
        return f"{abs(self.offset):.1f} s {'ahead of' if self.offset > 0 else 'behind'} the database's: set it (NTP)"

    @property
    def too_far(self) -> bool:
        """Whether the difference is more than half of the window.

        Replicas within half of the window accept each other's time: a client that signs with the time of one of them is
        not refused by another.
        """
        return abs(self.offset) > self._window / 2

    async def run(self) -> None:
        """Measure every ten seconds until cancelled."""
        while True:
            await asyncio.to_thread(self.measure)
            await asyncio.sleep(_MEASURE_SECONDS)

    def measure(self) -> None:
        """Compare this process's clock with the database's; log when they begin or cease to differ.

        Does nothing while the database does not answer.
        """
        before = self._clock.now()
        try:
            theirs = self._database.time()
        except SQLAlchemyError:
            return
        after = self._clock.now()
        if theirs is None or after - before > _SLOW_SECONDS:
            return
        self.offset = (before + after) / 2 - theirs
        self._metrics.clock_offset.set(self.offset)
        if self.remark and not self._reported:
            _LOG.warning("the clock of this machine is %s; rounds and signatures depend on it", self.remark)
        elif self._reported and not self.remark:
            _LOG.info("the clock of this machine agrees with the database's again")
        self._reported = bool(self.remark)

    def saw_client(self, client_id: str, off: int) -> None:
        """Count the clock of a client that signed a request; log one that differs, once an hour for each client.

        off: seconds that the signature's time is ahead of this process's clock.
        """
        self._metrics.client_clocks.observe(abs(off))
        if abs(off) > _NOTICED_OF_CLIENTS and client_id not in self._logged:
            self._logged[client_id] = True
            _LOG.info("the clock of a client differs from this server's", extra=fields(client=client_id, seconds=off))
