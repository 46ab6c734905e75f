"""One client in one masked round: catch up, send one message per stage, train before contributing, report."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk.api.effects import Program, Traffic, through
from client_sdk.errors import RoundLost
from client_sdk.history import History
from client_sdk.model.catch_up import CaughtUp
from client_sdk.participation.events import ClipWarning, Progress, RoundReport
from client_sdk.participation.follow_rounds import LONG_POLL_SECONDS, is_over
from client_sdk.participation.local_work import LocalWork
from client_sdk.participation.masked_protocol import MaskedPart, round_context
from client_sdk.training.base import LocalResult
from protocols.errors import RefusalError
from protocols.messages import RoundView
from protocols.recipes.base import RoundSpec
from protocols.sums.masked.plan import encode

__all__ = ["MaskedRound", "take_masked_part"]


@dataclass
class MaskedRound:
    """One client in one masked round. Call `advance` with the round's view each time it changes, until `finished`.

    client: the client. view: the round as it opened. traffic: counts the bytes of the round.
    """

    client: LocalWork
    view: RoundView
    history: History
    progress: Progress | None = None
    traffic: Traffic = field(default_factory=Traffic)
    _part: MaskedPart | None = field(default=None, repr=False)
    _caught_up: CaughtUp | None = field(default=None, repr=False)
    _local: LocalResult | None = field(default=None, repr=False)
    _settled: bool = False
    _seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("catch up", "train", "seal", "upload"), 0.0)
    )

    @property
    def finished(self) -> bool:
        """Whether this client has sent all its messages, or missed a stage."""
        return self._part is not None and self._part.finished

    def respond(self, view: RoundView) -> Program[None]:
        """Do what `advance` does; a `RefusalError` says in which stage it was raised."""
        try:
            yield from self.advance(view)
        except RefusalError as refusal:
            refusal.stage = view.state
            raise

    def advance(self, view: RoundView) -> Program[None]:
        """Send what the current stage of `view` asks of this client.

        Raises `RoundLost` when the client has missed a stage, `PolicyRefused`, `Abstained` before the first message,
        and what `MaskedPart.advance` raises.
        """
        started, training = perf_counter(), self._seconds["train"]
        if self._part is None:
            self._part = yield from through(self._begin(), self.traffic)
            self._seconds["catch up"] += perf_counter() - started
            started = perf_counter()
        sealing = self._part.work_seconds
        yield from through(self._part.advance(view, self._elements), self.traffic)
        elapsed, worked = perf_counter() - started, self._part.work_seconds - sealing
        self._seconds["seal"] += worked - (self._seconds["train"] - training)  # training is a part of the work
        self._seconds["upload"] += elapsed - worked
        if self._part.missed:
            raise RoundLost(self._part.missed)
        if view.state == "collecting" and self._local is not None and not self._settled:
            self._settled = True
            self._seconds["train"] += yield from self.client.settle(self._local)

    def _begin(self) -> Program[MaskedPart]:
        client, view = self.client, self.view
        client.policy.check_round(view)
        self._caught_up = yield from client.follower.follow(view.number - 1, snapshot_wait=60.0)
        client.report_measured(self._caught_up.state, self.progress)
        client.require_data(self._spec, self._caught_up.state, self.history)
        context = round_context(client.terms, view, self._spec, self._caught_up.state)
        return MaskedPart(
            client.calls,
            client.membership,
            client.identity,
            client.policy,
            client.membership_check,
            context,
            client.client_store,
            client.terms.schedule,
            self._spec.sum_index,
            client.terms.view.data_set,
            partial(client.terms.recipe.route, self._spec),
        )

    @property
    def _spec(self) -> RoundSpec:
        return self.client.spec(self.view)

    def _elements(self) -> NDArray[np.unsignedinteger[Any]]:
        """Train, and encode the contribution as ring elements."""
        if self._caught_up is None or self._part is None:
            raise RoundLost("this client missed the first stage of the round")
        started, spec, client = perf_counter(), self._spec, self.client
        self._local = client.train(spec, client.follower.view(self._caught_up.state), self.history)
        self._seconds["train"] += perf_counter() - started
        if self.progress and client.policy.too_much_clipped(self._local.clipped, self._local.values):
            self.progress(ClipWarning(self.view.number, self._local.clipped, self._local.values))
        route = client.terms.recipe.route(spec, client.membership.client_id)
        return encode(self._part.context.plan, route, self._local.blocks)

    def report(self) -> RoundReport:
        """Return the report of this client; `RoundLost` before it has contributed."""
        if self._local is None or self._caught_up is None:
            raise RoundLost("this client has not contributed")
        route = self.client.terms.recipe.route(self._spec, self.client.membership.client_id)
        return RoundReport(
            round=self.view.number,
            client_id=self.client.membership.client_id,
            loss=self._local.loss,
            samples=self._local.samples,
            values=self._local.values,
            clipped=self._local.clipped,
            scaled=self._local.scaled,
            contribution_bytes=self.client.terms.sum_plan_at(self._spec.sum_index).contribution_bytes(route),
            bytes_up=self.traffic.up,
            bytes_down=self.traffic.down,
            bytes_spared=self._caught_up.bytes_spared,
            catch_up_seconds=self._seconds["catch up"],
            train_seconds=self._seconds["train"],
            seal_seconds=self._seconds["seal"],
            upload_seconds=self._seconds["upload"],
            caught_up=self._caught_up.plan.kind,
        )


def take_masked_part(
    client: LocalWork, view: RoundView, history: History, progress: Progress | None
) -> Program[RoundReport]:
    """Take part in the masked round `view` from its first stage, and return the report.

    Raises `RoundLost` when the round ends before this client has sent all its messages, and what `MaskedRound.advance`
    raises.
    """
    part, etag = MaskedRound(client, view, history, progress), None
    while True:
        yield from part.respond(view)
        if part.finished:
            return part.report()
        current = yield from client.calls.current_round(client.terms.task_id, etag, LONG_POLL_SECONDS)
        if current is None:
            continue
        etag, newest = current.etag, current.round
        if newest.number != view.number or is_over(newest):
            raise RoundLost(newest.failure or f"round {view.number} ended before this client had sent all its messages")
        view = newest
