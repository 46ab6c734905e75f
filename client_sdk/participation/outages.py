"""Waiting for a server that cannot be reached: a participant outlives restarts and upgrades of its server.

`through_outages` runs a program and repeats each request that finds no server, until one answers. A request that may
have been processed and must not be repeated fails as it would alone, and so does one to a server that is not trusted.
After an outage of `OUTAGE_TOLD_SECONDS` the user is told, then at 30 s, 60 s, 120 s and so on, and once more when the
server answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from client_sdk.api.effects import Effect, Pause, Program, Request, Response
from client_sdk.api.retry import IDEMPOTENT, RetryPolicy, retry_after
from client_sdk.errors import ClientSDKError, ConnectionFailed, GaveUp, UntrustedServer
from client_sdk.participation.events import Progress, ServerBack, ServerUnreachable
from protocols.errors import ParameterError

__all__ = ["OUTAGE_TOLD_SECONDS", "Outages", "StoppedInOutage", "through_outages"]

T = TypeVar("T")
OUTAGE_TOLD_SECONDS: Final = 2.0
"""Length of an outage after which it is reported first."""
_TOLD_AGAIN_SECONDS: Final = 30.0
_UNREACHABLE: Final = frozenset({502, 503, 504})
"""Statuses of a proxy without a server behind it, and of a server that is starting or ending."""
_LONGEST_PAUSE: Final = 20.0


class StoppedInOutage(ClientSDKError):
    """The caller's `stop()` returned True while the server could not be reached."""


@dataclass(frozen=True)
class Outages:
    """How a program waits for its server.

    patience: seconds without an answer after which `GaveUp` is raised; None waits without limit. progress: receives
    `ServerUnreachable` and `ServerBack`. stop: asked before each attempt; `StoppedInOutage` is raised when it returns
    True. clock: seconds that only increase. pauses: lengths of the pauses between attempts; its number of attempts is
    not used.
    """

    patience: float | None = None
    progress: Progress | None = None
    stop: Callable[[], bool] | None = None
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    pauses: RetryPolicy = field(default_factory=lambda: RetryPolicy(base_seconds=0.5, cap_seconds=_LONGEST_PAUSE))

    def __post_init__(self) -> None:
        if self.patience is not None and not self.patience >= 0.0:
            raise ParameterError(f"patience must be at least 0 seconds, got {self.patience}")


def through_outages(program: Program[T], outages: Outages) -> Program[T]:
    """Run `program`; while the server cannot be reached, repeat its request as `outages` says.

    Raises `GaveUp` when the patience ends, `StoppedInOutage` when the caller asks to stop. Neither is thrown into
    `program`, which is closed.
    """
    try:
        effect = next(program)
        while True:
            try:
                reply = yield from _perform(effect, outages)
            except (GeneratorExit, GaveUp, StoppedInOutage):
                raise
            except BaseException as error:  # thrown into the program, which re-raises what it does not handle
                effect = program.throw(error)
            else:
                effect = program.send(reply)
    except StopIteration as done:
        return cast(T, done.value)
    finally:
        program.close()


def _perform(effect: Effect, outages: Outages) -> Program[object]:
    """Yield `effect` and return the driver's reply; a request is repeated until a server answers."""
    if not isinstance(effect, Request):
        return (yield effect)
    outage: _Outage | None = None
    while True:
        reply: object = None
        failure: ConnectionFailed | None = None
        try:
            reply = yield effect
        except ConnectionFailed as error:
            if isinstance(error, UntrustedServer) or (error.sent and effect.method not in IDEMPOTENT):
                raise
            failure = error
        asked = _asked_pause(reply)
        if failure is None and asked is None:
            if outage is not None:
                outage.end()
            return reply
        outage = outage or _Outage(outages, outages.clock())
        yield from outage.wait(failure or _no_server(effect, reply), asked)


def _asked_pause(reply: object) -> float | None:
    """The pause that an answer without a server behind it asks for, in seconds, at least 0; None for other answers."""
    if not isinstance(reply, Response) or reply.status not in _UNREACHABLE:
        return None
    return retry_after(reply.headers) or 0.0


def _no_server(request: Request, reply: object) -> ConnectionFailed:
    status = reply.status if isinstance(reply, Response) else 0
    return ConnectionFailed(request.method, request.url, f"the server is not available ({status})", sent=False)


@dataclass
class _Outage:
    """One outage: since when, the failed attempts, and when it is reported next (seconds after its start)."""

    outages: Outages
    since: float
    attempts: int = 0
    tell_at: float = OUTAGE_TOLD_SECONDS
    told: bool = False

    def seconds(self) -> float:
        return self.outages.clock() - self.since

    def wait(self, failure: ConnectionFailed, asked: float | None) -> Program[None]:
        """Report the outage when it is due, and pause before the next attempt."""
        self.attempts += 1
        lasted, patience = self.seconds(), self.outages.patience
        if patience is not None and lasted >= patience:
            raise GaveUp(self.attempts, failure) from failure
        if self.outages.stop and self.outages.stop():
            raise StoppedInOutage(f"stopped while waiting for the server: {failure}")
        if lasted >= self.tell_at:
            self._tell(ServerUnreachable(lasted, str(failure)))
            self.tell_at = max(_TOLD_AGAIN_SECONDS, 2.0 * lasted)
        pause = self.outages.pauses.pause(min(self.attempts, 16), min(asked or 0.0, _LONGEST_PAUSE) or None)
        yield Pause(pause if patience is None else min(pause, max(0.0, patience - lasted)))

    def end(self) -> None:
        if self.told:
            self._tell(ServerBack(self.seconds()))

    def _tell(self, event: ServerUnreachable | ServerBack) -> None:
        self.told = True
        if self.outages.progress:
            self.outages.progress(event)
