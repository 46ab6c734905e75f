"""The supervisor of several API processes: starts them, passes their messages on, restarts those that end.

It holds the listening socket and the lock of the data directory, and answers no requests. Each process has a socket to
it (`storage.local_channel`); what one process writes there goes to all others.
"""

from __future__ import annotations

import logging
import selectors
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Final, cast

from aggregator_service.logs import fields
from aggregator_service.storage.local_channel import LONGEST_MESSAGE

__all__ = ["Supervisor"]

_LOG: Final = logging.getLogger(__name__)
_SHORT_LIFE: Final = 10.0
"""A process that ends within so many seconds failed to start, or will fail again."""
_MOST_SHORT_LIVES: Final = 5
"""Short lives in a row, of any process, after which the server gives up."""
_RESTART_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 20.0
"""Time for all processes to end: uvicorn gives requests 5 seconds."""

Start = Callable[[int, socket.socket], BaseProcess]


@dataclass
class _Child:
    """A running process. number: from 1. channel: the supervisor's end. since: monotonic time of its start."""

    number: int
    process: BaseProcess
    channel: socket.socket
    since: float = field(default_factory=time.monotonic)


class Supervisor:
    """Runs processes 1 to `count` until SIGTERM or SIGINT.

    start: starts the process of a number with its end of the channel, and returns it.
    """

    def __init__(self, count: int, start: Start) -> None:
        self._start, self._count = start, count
        self._children: dict[int, _Child] = {}
        self._restarts: dict[int, float] = {}
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._short_lives = 0

    def run(self) -> int:
        """Run until a signal; return the exit status: 1 when the processes end again and again, else 0."""
        woken, wakes = socket.socketpair()
        wakes.setblocking(False)

        def stop(_number: int, _frame: FrameType | None) -> None:
            self._stopping = True
            wakes.send(b"\0")

        handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        self._selector.register(woken, selectors.EVENT_READ)
        try:
            for number in range(1, self._count + 1):
                self._launch(number)
            while not self._stopping and self._short_lives < _MOST_SHORT_LIVES:
                self._turn()
        finally:
            self._end_all()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            self._selector.close()
            woken.close()
            wakes.close()
        if not self._stopping:
            _LOG.error("the API processes end again and again: giving up; their log lines above say why")
            return 1
        return 0

    def _launch(self, number: int) -> None:
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        own.setblocking(False)
        try:
            process = self._start(number, theirs)
        finally:
            theirs.close()
        child = self._children[number] = _Child(number, process, own)
        self._selector.register(own, selectors.EVENT_READ, child)
        self._selector.register(process.sentinel, selectors.EVENT_READ, child)
        _LOG.info("API process started", extra=fields(process=number, pid=process.pid))

    def _turn(self) -> None:
        """Wait for the next message, end of a process, or restart that is due, and handle it."""
        due = min(self._restarts.values(), default=None)
        wait = None if due is None else max(0.0, due - time.monotonic())
        for key, _ in self._selector.select(wait):
            child = cast("_Child | None", key.data)
            if child is None or self._children.get(child.number) is not child:
                continue
            if key.fileobj is child.channel:
                self._pass_on(child)
            else:
                self._ended(child)
        for number in [number for number, when in self._restarts.items() if when <= time.monotonic()]:
            del self._restarts[number]
            self._launch(number)

    def _pass_on(self, sender: _Child) -> None:
        """Send what a process wrote to all others. One that takes nothing at once misses the message."""
        try:
            message = sender.channel.recv(LONGEST_MESSAGE)
        except OSError:  # the process is ending
            return
        for child in self._children.values():
            if child is not sender:
                try:
                    child.channel.send(message)
                except OSError as error:
                    _LOG.debug("message lost: %s", type(error).__name__, extra=fields(process=child.number))

    def _ended(self, child: _Child) -> None:
        self._close(child)
        short = time.monotonic() - child.since < _SHORT_LIFE
        self._short_lives = self._short_lives + 1 if short else 0
        _LOG.error(
            "an API process has ended; starting it again",
            extra=fields(process=child.number, exit_status=child.process.exitcode),
        )
        self._restarts[child.number] = time.monotonic() + _RESTART_SECONDS

    def _close(self, child: _Child) -> None:
        del self._children[child.number]
        self._selector.unregister(child.channel)
        self._selector.unregister(child.process.sentinel)
        child.channel.close()
        child.process.join()

    def _end_all(self) -> None:
        """Terminate all processes and wait for them; kill those that do not end in time."""
        for child in self._children.values():
            child.process.terminate()
        end = time.monotonic() + _STOP_SECONDS
        for child in list(self._children.values()):
            child.process.join(max(0.0, end - time.monotonic()))
            if child.process.exitcode is None:
                _LOG.error("an API process does not end; killing it", extra=fields(process=child.number))
                child.process.kill()
            self._close(child)
