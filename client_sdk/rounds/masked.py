"""One client's part in one masked round: one message per stage.

The states of `protocols.sums.masked.client` are kept in memory only, for the length of the round. A client that
restarts during a round has left it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls, Handout
from client_sdk.api.wire import Program, Traffic, through, work
from client_sdk.errors import PolicyRefused, RoundLost
from client_sdk.history import History
from client_sdk.model.follow import CaughtUp
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.rounds.checks import own_digest
from client_sdk.rounds.events import ClipWarning, Progress, RoundReport
from client_sdk.rounds.ledger import deliver
from client_sdk.rounds.loop import LONG_POLL_SECONDS, is_over
from client_sdk.rounds.member import LocalWork
from client_sdk.store.client_store import ClientStore, Membership
from client_sdk.store.identity import Identity
from client_sdk.store.signed_sets import SignedSets, member_tags
from client_sdk.training.base import LocalResult
from protocols.errors import ParameterError, RefusalError
from protocols.layout import Route
from protocols.messages import BadShares, RoundView, Schedule
from protocols.messages.committee import MOST_BAD_SHARES
from protocols.messages.stages import MASKED_STATES, StageMessage
from protocols.patterns import refuse_short_routes
from protocols.recipes.base import ModelState, RoundSpec
from protocols.sum_classes import Data, SumClass
from protocols.sums.masked import client as stages
from protocols.sums.masked import messages
from protocols.sums.masked.context import RoundContext
from protocols.sums.masked.plan import MaskedPlan, encode
from protocols.sums.masked.roster import Roster, longest_roster

__all__ = [
    "Elements",
    "MaskedPart",
    "MaskedRound",
    "round_context",
    "take_masked_part",
]


_COMPLETED_STAGES: Final[dict[type, int]] = {
    type(None): 0,
    stages.Advertised: 1,
    stages.Shared: 2,
    stages.Contributed: 3,
    stages.Confirmed: 4,
    stages.Done: 5,
}
"""Number of stages that a client in each state has completed."""

R = TypeVar("R")

Elements = Callable[[], NDArray[np.unsignedinteger[Any]]]
"""Returns the vector to sum: ring elements (layout.length,). Called once, when the client contributes."""


def round_context(terms: TaskTerms, view: RoundView, spec: RoundSpec, state: ModelState) -> RoundContext:
    """Return what this client binds its keys and masks to, computed from its own terms and its own model.

    Raises `ParameterError` when the task's mechanism is not masked.
    """
    plan = terms.sum_plan_at(spec.sum_index)
    if not isinstance(plan, MaskedPlan):
        raise ParameterError(f"task {terms.name!r} uses the mechanism {terms.mechanism.name!r}, not a masked sum")
    return RoundContext(terms.task_id, spec.number, spec.seed, plan, own_digest(terms, spec, state), view.cohort)


@dataclass
class MaskedPart:
    """One client in one masked round. `advance` sends the message of the round's current stage, once.

    schedule: of the task, as this client agreed to it. sum_index: which sum the round computes. data_set: the label of
    the task's data set, if it has one. route: returns the route of a client, of which each must be that of enough
    members; None: all have the same. finished: whether the client has answered the unmask request or missed a
    stage. missed: the reason in the second case. work_seconds: time of sharing, training, masking and unmasking,
    without requests. Raises `PolicyRefused` when the task has no organiser and the policy does not trust the roster.
    """

    calls: ApiCalls
    membership: Membership
    identity: Identity
    policy: Policy
    membership_check: MembershipCheck
    context: RoundContext
    client_store: ClientStore
    schedule: Schedule
    sum_index: int
    data_set: str | None = None
    route: Callable[[str], Route] | None = None
    finished: bool = False
    missed: str | None = None
    work_seconds: float = 0.0
    _state: object = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.membership_check.pin is None and not self.policy.trust_roster and self.context.plan.mode != "curious":
            raise PolicyRefused(
                "the task has no organiser, so only the server says who the other clients are; allow it with "
                "--trust-roster, or Policy(trust_roster=True), or ask for a task with an organiser and join with its "
                "certificate (--issuer, or certificate=...)"
            )

    def advance(self, view: RoundView, elements: Elements) -> Program[None]:
        """Send this client's message of the current stage of `view`, unless it was sent before.

        Raises `RefusalError`, `ThresholdError` and `CodecError` when the server breaks a rule or too few neighbours are
        left, and what the calls raise. Each of them ends the round for this client.
        """
        if view.state not in MASKED_STATES or self.finished:
            return
        stage, completed = MASKED_STATES.index(view.state), _COMPLETED_STAGES[type(self._state)]
        if completed < stage and not self._skips_confirming(view):
            self.missed = f"the round advanced to {view.state} before this client had sent its message"
            self.finished = True
            return
        match self._state:
            case None:
                yield from self._advertise()
            case stages.Advertised() as state if completed == stage:
                yield from self._share(state)
            case stages.Shared() as state if completed == stage:
                yield from self._contribute(state, elements)
            case stages.Contributed() as state if view.state == "confirming":
                yield from self._confirm(state)
            case (stages.Contributed() | stages.Confirmed()) as state if view.state == "unmasking":
                yield from self._unmask(state)

    def _skips_confirming(self, view: RoundView) -> bool:
        curious = self.context.plan.mode == "curious"
        return curious and view.state == "unmasking" and isinstance(self._state, stages.Contributed)

    def _advertise(self) -> Program[None]:
        self._signed_sets().require_newest(self.sum_index)  # it would not confirm the survivors of an earlier sum
        client_id, policy = self.membership.client_id, self.policy.for_masked_rounds(self.schedule)
        self._state, body = stages.advertise(self.context, client_id, self.identity.signing_key, policy)
        yield from self._put("advertise", body)

    def _share(self, state: stages.Advertised) -> Program[None]:
        roster = yield from self._fetch("roster", longest_roster(self._most_members), exact=False)
        shared, body = yield from self._timed(lambda: stages.share(state, roster, self.membership_check))
        self._check_routes(shared.roster, range(len(shared.roster)), "the roster")
        self._with_roster(shared.roster)
        self._state = shared
        yield from self._put("share", body)

    def _contribute(self, state: stages.Shared, elements: Elements) -> Program[None]:
        members, degree = len(state.roster), state.roster.degree
        self._keep(self._with_roster(state.roster))
        inbox = yield from self._fetch("inbox", messages.inbox_bytes(members, degree))
        contributed, body = yield from self._timed(lambda: stages.contribute(state, inbox, elements()))
        self._state = contributed
        task_id, number = self.context.task_id, self.context.round_number
        for start in range(0, len(contributed.unopened), MOST_BAD_SHARES):
            named = BadShares(clients=list(contributed.unopened[start : start + MOST_BAD_SHARES]))
            yield from self.calls.name_bad_shares(task_id, number, named)
        yield from deliver(self.calls, self.client_store, task_id, number, self.membership.client_id, body)

    def _confirm(self, state: stages.Contributed) -> Program[None]:
        survivors = yield from self._fetch("survivors", messages.set_bytes(len(state.roster)))
        confirmed, body = stages.confirm(state, survivors)
        self._record_survivors(state, survivors)
        self._state = confirmed
        yield from self._put("confirm", body)

    def _unmask(self, state: stages.Contributed | stages.Confirmed) -> Program[None]:
        roster = state.roster
        if isinstance(state, stages.Confirmed):
            confirmations = yield from self._fetch("confirmations", messages.confirmations_bytes(len(roster)))
            self._state, body = yield from self._timed(lambda: stages.unmask(state, confirmations))
        else:
            survivors = yield from self._fetch("survivors", messages.set_bytes(len(roster)))
            done, body = stages.unmask_unconfirmed(state, survivors)
            self._record_survivors(state, survivors)
            self._state = done
        yield from self._put("unmask", body)
        self.finished = True

    def _with_roster(self, roster: Roster) -> SignedSets:
        """Return the record after a contribution within `roster`.

        Raises `RefusalError` if the same data are summed again and the roster is too small, or has other members than
        the first one.
        """
        signed = self._signed_sets()
        if not self._repeated:
            return signed
        if len(roster) > self.schedule.cohort_size:
            raise RefusalError(f"the roster has {len(roster)} members, more than the task's cohort_size")
        self._check_confirmers(roster, len(roster))
        return signed.with_roster(_tags(roster, frozenset(range(len(roster)))))

    def _timed(self, job: Callable[[], R]) -> Program[R]:
        started = perf_counter()
        done = yield from work(job)
        self.work_seconds += perf_counter() - started
        return done

    def _record_survivors(self, state: stages.Contributed, survivors: bytes) -> None:
        """Store the set of survivors before this client agrees to it.

        Raises `RefusalError` when the sum over this set and those that it agreed to before could reveal one member, or
        a part of the sum could reveal a few.
        """
        alive = messages.decode_set(survivors, len(state.roster))
        self._check_routes(state.roster, alive, "the set of survivors")
        if self._repeated:
            self._check_confirmers(state.roster, len(alive))
        members, min_difference = _tags(state.roster, alive), self.policy.min_difference(self.schedule)
        signed = self._signed_sets().with_set(self.sum_index, members, min_difference, self._sum_class.repeated)
        if self._sum_class.data is not None:
            store, of = self.client_store, (self.context.task_id, self.data_set, self._sum_class.data)
            series = f"{self.context.task_id} {self._sum_class.rule}"
            store.keep_given(*of, store.given(*of).with_confirmed(series, members))
        self._keep(signed)

    def _check_routes(self, roster: Roster, places: Iterable[int], what: str) -> None:
        """Raise `RefusalError` if a part of the sum over these members of the roster is of few of them."""
        if self.route is not None:
            clients = [roster.entries[place].client_id for place in places]
            refuse_short_routes(clients, self.route, self.policy.for_masked_rounds(self.schedule).min_cohort, what)

    def _check_confirmers(self, roster: Roster, survivors: int) -> None:
        """Raise `RefusalError` unless a sum over so many survivors has a confirmer in common with every other one."""
        quorum = self.context.plan.quorum(len(roster))
        if survivors < quorum:
            raise RefusalError(
                f"the task sums the same data again, and {survivors} members are fewer than {quorum}: the server could "
                "have other members confirm another sum, and the sums together could reveal one client's data"
            )

    def _keep(self, signed: SignedSets) -> None:
        if signed != self._signed_sets():
            self.client_store.keep_signed_sets(self.context.task_id, signed, self._summed_again)

    def _signed_sets(self) -> SignedSets:
        return self.client_store.signed_sets(self.context.task_id, self._summed_again)

    @property
    def _sum_class(self) -> SumClass:
        return self.context.plan.layout.sum_class

    @property
    def _summed_again(self) -> Data | None:
        """Which data a sum of class `repeated` is of; None for other sums."""
        return self._sum_class.data if self._sum_class.repeated else None

    @property
    def _repeated(self) -> bool:
        """Whether the server may get sums of the same data over several sets, and is not trusted."""
        return self._sum_class.repeated and self.context.plan.mode != "curious"

    @property
    def _most_members(self) -> int:
        return min(self.context.cohort, self.context.plan.max_contributions)  # the first is the server's word

    def _put(self, stage: StageMessage, body: bytes) -> Program[None]:
        task_id, number = self.context.task_id, self.context.round_number
        yield from self.calls.put_stage(task_id, number, stage, self.membership.client_id, body)

    def _fetch(self, what: Handout, max_bytes: int, exact: bool = True) -> Program[bytes]:
        task_id, number = self.context.task_id, self.context.round_number
        return self.calls.stage_body(task_id, number, what, max_bytes, max_bytes if exact else None)


def _tags(roster: Roster, members: frozenset[int]) -> frozenset[bytes]:
    return member_tags(tuple(entry.identity_key for entry in roster.entries), members)


# --- one client in one masked round: catch up, send one message per stage, train before contributing, report ---------


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
