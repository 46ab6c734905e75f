"""Connections between a test and a server in the same event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from uvicorn.server import ServerState

__all__ = ["close_both_ends"]


async def close_both_ends(writer: asyncio.StreamWriter, server: asyncio.Server, state: ServerState) -> None:
    """Close the test's end, the server and its ends, and wait until all are closed."""
    writer.close()
    server.close()
    for connection in list(state.connections):
        connection.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()
    while state.connections:
        await asyncio.sleep(0)
