"""Messages between the API processes of one server, which SQLite cannot send.

Each process has one socket to their supervisor (`commands.supervisor`), which passes every message on to the others. A
message may be lost, for example while a process restarts: listeners also query the database regularly.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["LONGEST_MESSAGE", "ApiProcess", "LocalChannel"]

LONGEST_MESSAGE: Final = 4096
_LOG: Final = logging.getLogger(__name__)
_STOP_SECONDS: Final = 0.5


class LocalChannel:
    """One end of a datagram socket pair whose other end the supervisor has."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.settimeout(_STOP_SECONDS)

    def send(self, message: str) -> None:
        """Send a message to the other processes; drop it where the supervisor does not take it at once."""
        try:
            self._socket.send(message.encode(), socket.MSG_DONTWAIT)
        except OSError as error:
            _LOG.warning("cannot notify the other processes: %s; they query the database", type(error).__name__)

    def listen(self, on_message: Callable[[str], None]) -> Callable[[], None]:
        """Call `on_message`, in a thread of its own, with each message; return a function that stops it."""
        stopped = threading.Event()

        def receive() -> None:
            while not stopped.is_set():
                try:
                    message = self._socket.recv(LONGEST_MESSAGE)
                except TimeoutError:
                    continue
                except OSError as error:
                    _LOG.warning("cannot receive messages of the other processes: %s", type(error).__name__)
                    return
                on_message(message.decode())

        thread = threading.Thread(target=receive, name="local channel", daemon=True)
        thread.start()

        def stop() -> None:
            stopped.set()
            thread.join()

        return stop


@dataclass(frozen=True)
class ApiProcess:
    """One of several API processes of a server. number: from 1. channel: to the others."""

    number: int
    channel: LocalChannel
