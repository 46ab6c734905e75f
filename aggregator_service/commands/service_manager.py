"""What the server tells systemd (sd_notify(3)): that it answers requests, and, each second, that it has not hung.

Nothing happens where NOTIFY_SOCKET is not set, as outside of a unit with `Type=notify`.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Final

_LOG = logging.getLogger(__name__)
READY: Final = "READY=1"
ALIVE: Final = "WATCHDOG=1"
STOPPING: Final = "STOPPING=1"


def notify(state: str) -> None:
    """Send a state to systemd, without waiting. An error is logged: the server goes on."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"  # a name in Linux's abstract namespace
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
            sending.sendto(state.encode("ascii"), address)
    except OSError as error:
        _LOG.warning("cannot tell systemd %s: %s", state, error.strerror)
