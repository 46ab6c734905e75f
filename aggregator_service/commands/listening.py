"""The sockets that the server listens on, bound before anything else starts: an address in use is told at once."""

from __future__ import annotations

import logging
import socket
from typing import Final

from aggregator_service.commands.api_process import server_config
from aggregator_service.commands.common import CommandError
from aggregator_service.settings import Settings

__all__ = ["bind_process_ports", "bind_service"]

_LOOPBACK: Final = "127.0.0.1"
_UNREAD_MILLISECONDS: Final = 60_000
"""The system closes a connection whose peer has taken nothing of a response for so long."""


def bind_service(settings: Settings) -> socket.socket:
    """Return the bound socket of the service; `CommandError` if the address is in use or not available."""
    log = logging.getLogger("uvicorn.error")
    level = log.level
    log.setLevel(logging.CRITICAL)  # it would log that it runs, before it does, or an error without the address
    try:
        bound = server_config(settings, None).bind_socket()
    except SystemExit:
        raise CommandError(
            f"cannot listen on {settings.host}:{settings.port}; choose another address with --host and --port "
            f"(port 0 selects a free port)"
        ) from None
    finally:
        log.setLevel(level)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted connections inherit it
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MILLISECONDS)
    return bound


def bind_process_ports(settings: Settings) -> list[socket.socket]:
    """Return the socket of each API process's own port; none without `process_port`. `CommandError`: a port is in use.

    The supervisor keeps them, so that a process that is started again finds its port free.
    """
    if not settings.process_port:
        return []
    bound: list[socket.socket] = []
    for number in range(1, settings.processes + 1):
        own = socket.socket()
        bound.append(own)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            own.bind((_LOOPBACK, settings.process_port + number))
        except OSError as error:
            for opened in bound:
                opened.close()
            raise CommandError(
                f"cannot listen on {_LOOPBACK}:{settings.process_port + number}, the own port of API process {number} "
                f"({error.strerror}); choose another --process-port"
            ) from None
    return bound
