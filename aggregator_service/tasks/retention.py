"""What the server deletes by itself, so that nothing is stored for ever, and what it logs of the command line.

Only the process that drives the rounds does it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from starlette.concurrency import run_in_threadpool

from aggregator_service.access.audit import prune, relay
from aggregator_service.clock import Clock
from aggregator_service.settings import Settings
from aggregator_service.storage.database import DATABASE_GONE, Database
from aggregator_service.storage.dialects import database_cause

_LOG = logging.getLogger(__name__)
_DAY: Final = 86_400.0
_RELAY_SECONDS: Final = 2.0
_PRUNE_SECONDS: Final = 3600.0


async def keep_up(database: Database, settings: Settings, clock: Clock) -> None:
    """Log what was done at the command line within two seconds, and delete once an hour, until cancelled."""
    pruned = -_PRUNE_SECONDS
    while True:
        try:
            await run_in_threadpool(relay, database)
            if time.monotonic() - pruned >= _PRUNE_SECONDS:
                await run_in_threadpool(delete_expired, database, settings, clock.now())
                pruned = time.monotonic()
        except DATABASE_GONE as error:
            _LOG.warning("cannot delete what has expired: %s; trying again later", database_cause(error))
        except Exception:
            _LOG.exception("failed to delete what has expired; trying again later")
        await asyncio.sleep(_RELAY_SECONDS)


def delete_expired(database: Database, settings: Settings, now: float) -> None:
    """Delete what the settings keep no longer. now: seconds since the epoch."""
    database.transact(lambda session: prune(session, now - settings.audit_days * _DAY))
