"""One client in one masked round: catch up, then one message per stage; train before contributing.

The states of `protocols.sums.masked.client` are kept in memory only, for the length of the round. A client that
restarts during a round has left it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar, cast

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import Handout
from client_sdk.api.wire import Program, Work, through
from client_sdk.errors import RoundLost
from client_sdk.model.follow import CaughtUp
from client_sdk.rounds.contribution import OwnRound
from client_sdk.rounds.events import RoundReport
from client_sdk.rounds.member import require_known_people
from client_sdk.rounds.polling import LONG_POLL_SECONDS, await_round, is_over
from client_sdk.store.client_store import ClientStore
from client_sdk.store.states import SignedSets, member_tags
from client_sdk.training.base import LocalResult
from protocols.codec import b64decode
from protocols.contribution import Made
from protocols.crypto.keys import person_of
from protocols.errors import CodecError, RefusalError
from protocols.layout import Data, refuse_short_routes
from protocols.messages import BadShares, RoundView
from protocols.messages.stages import MASKED_STATES, MOST_BAD_SHARES, StageMessage
from protocols.receipts import Survivors
from protocols.recipes.base import RoundSpec
from protocols.recipes.private import Private
from protocols.sums.masked import client as stages
from protocols.sums.masked import wire
from protocols.sums.masked.parameters import ClientPolicy
from protocols.sums.masked.plan import MaskedPlan, RoundContext
from protocols.sums.masked.roster import Roster, longest_roster

_STATES: Final = (type(None), stages.Advertised, stages.Shared, stages.Contributed, stages.Confirmed, stages.Done)
"""The types of this client's state after 0, 1, 2, ... completed stages."""

R = TypeVar("R")


def round_context(terms: TaskTerms, view: RoundView, spec: RoundSpec, model_digest: bytes) -> RoundContext:
    """Return what this client binds its keys and masks to, computed from its own terms and its own model.

    model_digest: see `Part.model_digest`. Raises `ParameterError` when the task's mechanism is not masked.
    """
    plan = MaskedPlan.of(terms.sum_plan_at(spec.sum_index, spec.size))
    return RoundContext(terms.task_id, spec.number, spec.seed, plan, model_digest, view.cohort)


@dataclass
class MaskedRound(OwnRound):
    """One client in one masked round. Call `advance` with the round's view each time it changes, until `finished`."""

    context: RoundContext | None = field(default=None, repr=False)
    """What keys and masks are bound to, once the client has caught up."""
    finished: bool = False
    """Whether the client has answered the unmask request or missed a stage."""
    _caught_up: CaughtUp | None = field(default=None, repr=False)
    _local: LocalResult | None = field(default=None, repr=False)
    _made: Made | None = field(default=None, repr=False)
    _state: object = field(default=None, repr=False)

    def take_part(self) -> Program[RoundReport]:
        """Take part in the round from its first stage, and return the report.

        Raises `RoundLost` when the round ends before this client has sent all its messages, `NotFound` when the server
        has lost it, and what `advance` raises.
        """
        view, etag, member = self.view, self.etag, self.part.member
        while True:
            yield from self.advance(view)
            if self.finished:
                return self.final_report()
            changed = yield from await_round(member.calls, member.task_id, view.number, lambda _: True, etag)
            etag, view = changed.etag, changed.view
            if is_over(view):
                fault = f"round {view.number} ended before this client had sent all its messages"
                raise RoundLost(view.failure or fault)

    @staticmethod
    def end_sums(store: ClientStore, task_id: str) -> bool:
        store.close_signed_sets(task_id)
        return True

    def advance(self, view: RoundView) -> Program[None]:
        """Send this client's message of the current stage of `view`, unless it was sent before.

        Raises `RoundLost` when the client has missed a stage, `PolicyRefused`, `Abstained` before the first message,
        `RefusalError` with its `stage` when the server breaks a rule or sends a malformed message, `ThresholdError`
        when too few neighbours are left, and what the calls raise. Each of them ends the round for this client.
        """
        try:
            if self.context is None:
                self.context = yield from self._begin()
            message = self._due(view, self.context)
            if message is not None:
                yield from through(message, self.traffic)
        except RefusalError as refusal:
            refusal.stage = view.state
            raise
        except CodecError as error:
            malformed = RefusalError(f"the server sent a malformed message in the state {view.state}: {error}")
            malformed.stage = view.state
            raise malformed from error

    def final_report(self) -> RoundReport:
        """Return the report of this client; `RoundLost` before it has contributed."""
        if self._local is None or self._made is None or self._caught_up is None or self.context is None:
            raise RoundLost("this client has not contributed")
        member = self.part.member
        length = self.context.plan.contribution_bytes(member.terms.recipe.route(self.spec, member.client_id))
        return self.report(self._caught_up, self._local, self._made, length)

    def _begin(self) -> Program[RoundContext]:
        """Catch up; return what this client binds itself to in the round. Raises if it must not take part."""
        member, spec = self.part.member, self.spec
        self._caught_up = yield from self.catch_up()
        digest = self.part.model_digest(spec, self._caught_up.state)
        context = round_context(member.terms, self.view, spec, digest)
        if context.plan.mode != "curious":
            require_known_people(member)
        return context

    def _due(self, view: RoundView, context: RoundContext) -> Program[None] | None:
        """Return the program that sends the message of the current stage; None if it was sent, or none is due."""
        if view.state not in MASKED_STATES or self.finished:
            return None
        stage, completed = MASKED_STATES.index(view.state), _STATES.index(type(self._state))
        skips_confirming = context.plan.mode == "curious" and isinstance(self._state, stages.Contributed)
        if completed < stage and not (skips_confirming and view.state == "unmasking"):
            self.finished = True
            raise RoundLost(f"the round advanced to {view.state} before this client had sent its message")
        match self._state:
            case None:
                return self._advertise(context)
            case stages.Advertised() as state if completed == stage:
                return self._share(state)
            case stages.Shared() as state if completed == stage:
                return self._contribute(state)
            case stages.Contributed() as state if view.state == "confirming":
                return self._confirm(state, view)
            case (stages.Contributed() | stages.Confirmed()) as state if view.state == "unmasking":
                return self._unmask(state, view)
        return None

    # --- one message a stage -------------------------------------------------------------------------------------

    def _advertise(self, context: RoundContext) -> Program[None]:
        member = self.part.member
        split = context.plan.groups > 1 and context.plan.layout.sum_class.repeated
        self._signed_sets(context).require_open(self.spec.sum_index, split)  # it would confirm no set for another one
        policy = member.policy.requirements(ClientPolicy, member.terms.schedule)
        self._state, body = stages.advertise(context, member.client_id, member.identity.signing_key, policy)
        yield from self._put("advertise", body)

    def _share(self, state: stages.Advertised) -> Program[None]:
        context = state.context
        # the cohort's size is the server's word, max_contributions is the task's
        most = min(context.cohort, context.plan.max_contributions)
        roster = yield from self._fetch("roster", longest_roster(most), exact=False)
        shared, body = yield from self._sealed(lambda: stages.share(state, roster, self.part.member.check))
        self._check_routes(shared.roster, range(len(shared.roster)), "the roster")
        self._with_roster(context, shared.roster)
        self._state = shared
        yield from self._put("share", body)

    def _contribute(self, state: stages.Shared) -> Program[None]:
        context, degree, caught_up = state.context, state.roster.degree, self._caught_up
        if caught_up is None:
            raise RoundLost("this client missed the first stage of the round")
        self._keep(context, self._with_roster(context, state.roster))
        length = wire.inbox_bytes(len(state.roster), degree, len(state.roster.earlier(state.index)))
        inbox = yield from self._fetch("inbox", length)
        opened = yield from self._sealed(lambda: stages.open_inbox(state, inbox))
        yield from self._report_bad_shares(opened.unopened)
        if opened.unmasked:
            raise RoundLost(f"what {', '.join(opened.unmasked)} sealed for the common mask does not open")
        self._local, self._made = local, made = yield from self.contribution(caught_up)
        contributed, body = yield from self._sealed(lambda: stages.contribute(opened, made.elements))
        self._state = contributed
        yield from self.deliver(body, caught_up, local)

    def _report_bad_shares(self, unopened: tuple[str, ...]) -> Program[None]:
        """Name the neighbours whose shares did not open; `RoundLost` if the round fails of it.

        Other neighbours of theirs are about to name them, too. A contribution with a privacy block costs budget even if
        the round fails, so this client waits for them before it trains: at most a third of the time that is left.
        """
        member, view = self.part.member, self.view
        for start in range(0, len(unopened), MOST_BAD_SHARES):
            named = BadShares(clients=list(unopened[start : start + MOST_BAD_SHARES]))
            with self.timed("upload"):
                view = yield from member.calls.name_bad_shares(member.task_id, self.view.number, named)
            self._require_open(view)
        if not unopened or not isinstance(member.terms.recipe, Private):
            return
        until, etag = (view.seconds_left or 0.0) * 2 / 3, None
        while (left := view.seconds_left or 0.0) > until:
            wait = min(LONG_POLL_SECONDS, left - until)
            current = yield from member.calls.current_round(member.task_id, etag, wait)
            if current is None:
                return
            etag, view = current.etag, current.view
            self._require_open(view)

    def _require_open(self, view: RoundView) -> None:
        """Raise `RoundLost` if this round is over."""
        if view.number != self.view.number or is_over(view):
            raise RoundLost(view.failure or f"round {self.view.number} ended before this client had sent its vector")

    def _confirm(self, state: stages.Contributed, view: RoundView) -> Program[None]:
        survivors = self._shown(view.survivor_set, "survivors")
        confirmed, body = stages.confirm(state, survivors)
        self._record_survivors(state, survivors)
        self._state = confirmed
        yield from self._put("confirm", body)

    def _unmask(self, state: stages.Contributed | stages.Confirmed, view: RoundView) -> Program[None]:
        if isinstance(state, stages.Confirmed):
            confirmations = self._shown(view.confirmations, "signatures")
            self._state, body = yield from self._sealed(lambda: stages.unmask(state, confirmations))
        else:
            survivors = self._shown(view.survivor_set, "survivors")
            done, body = stages.unmask_unconfirmed(state, survivors)
            self._record_survivors(state, survivors)
            self._state = done
        yield from self._put("unmask", body)
        self.finished = True

    def _shown(self, text: str | None, what: str) -> bytes:
        """Return the bytes of a field of the view; `RefusalError` without it, `CodecError` for another form.

        The view has it for those whom the round awaits: the server has their earlier messages, and counts them.
        """
        if text is None:
            raise RefusalError(f"the server shows this client no {what}: it leaves it out, or lost its last message")
        self.traffic.down += len(text)
        return b64decode(text)

    def _sealed(self, job: Callable[[], R]) -> Program[R]:
        return cast(R, (yield Work(self.timed("seal")(job))))

    def _put(self, stage: StageMessage, body: bytes) -> Program[None]:
        member = self.part.member
        with self.timed("upload"):
            yield from member.calls.put_stage(member.task_id, self.view.number, stage, member.client_id, body)

    def _fetch(self, what: Handout, max_bytes: int, exact: bool = True) -> Program[bytes]:
        member, length = self.part.member, max_bytes if exact else None
        with self.timed("upload"):
            return (yield from member.calls.stage_body(member.task_id, self.view.number, what, max_bytes, length))

    # --- the sets of members that this client signs --------------------------------------------------------------

    def _with_roster(self, context: RoundContext, roster: Roster) -> SignedSets:
        """Return the record after a contribution within `roster`.

        Raises `RefusalError` if the same data are summed again and the roster is too small, or has other members than
        the first one.
        """
        signed = self._signed_sets(context)
        if not context.plan.repeated:
            return signed
        if len(roster) > self.part.member.terms.schedule.cohort_size:
            raise RefusalError(f"the roster has {len(roster)} members, more than the task's cohort_size")
        _check_confirmers(context, roster, len(roster))
        return signed.with_roster(_tags(roster, frozenset(range(len(roster)))))

    def _record_survivors(self, state: stages.Contributed, survivors: bytes) -> None:
        """Store the set of survivors before this client agrees to it.

        Raises `RefusalError` when the sum over this set and those that it agreed to before could reveal one member, or
        a part of the sum could reveal a few.
        """
        context, member = state.context, self.part.member
        sum_class = context.plan.layout.sum_class
        alive = wire.decode_set(survivors, len(state.roster))
        self._check_routes(state.roster, alive, "the set of survivors")
        if context.plan.repeated:
            _check_confirmers(context, state.roster, len(alive))
        parts: tuple[frozenset[bytes], ...] = ()
        if sum_class.repeated:
            own = alive
            if context.plan.groups > 1:
                everyone = dict.fromkeys(alive)
                of_each = (state.roster.of_group(everyone, group) for group in range(context.plan.groups))
                parts = tuple(_tags(state.roster, frozenset(places)) for places in of_each)
        else:
            own = alive & state.roster.same_group(state.index)  # the clients of the sum that has this client's data
        members, min_difference = _tags(state.roster, own), member.policy.min_difference(member.terms.schedule)
        least = member.policy.requirements(ClientPolicy, member.terms.schedule).min_cohort
        signed = self._signed_sets(context).with_set(
            self.spec.sum_index, members, min_difference, sum_class.repeated, parts, least
        )
        if sum_class.data is not None:
            store, of = member.store, (member.task_id, member.terms.view.data_set, sum_class.data)
            series = f"{member.task_id} {sum_class.rule}"
            with store.exclusive():
                store.keep_given(*of, store.given(*of).with_confirmed(series, members))
        self._keep(context, signed)
        root = Survivors(person_of(state.roster.entries[place].identity_key) for place in alive).root
        number, records = context.round_number, member.store.contributions(context.task_id)
        if number in records:
            member.store.record_contribution(context.task_id, number, replace(records[number], confirmed=root))

    def _check_routes(self, roster: Roster, places: Iterable[int], what: str) -> None:
        """Raise `RefusalError` if a part of the sum over these members of the roster is of few of them."""
        member = self.part.member
        clients = [roster.entries[place].client_id for place in places]
        least = member.policy.requirements(ClientPolicy, member.terms.schedule).min_cohort
        refuse_short_routes(clients, lambda client_id: member.terms.recipe.route(self.spec, client_id), least, what)

    def _keep(self, context: RoundContext, signed: SignedSets) -> None:
        if signed != self._signed_sets(context):
            self.part.member.store.keep_signed_sets(context.task_id, signed, _summed_again(context))

    def _signed_sets(self, context: RoundContext) -> SignedSets:
        return self.part.member.store.signed_sets(context.task_id, _summed_again(context))


def _summed_again(context: RoundContext) -> Data | None:
    """Return which data a sum of class `repeated` is of; None for other sums."""
    sum_class = context.plan.layout.sum_class
    return sum_class.data if sum_class.repeated else None


def _check_confirmers(context: RoundContext, roster: Roster, survivors: int) -> None:
    """Raise `RefusalError` unless a sum over so many survivors has a confirmer in common with every other one."""
    quorum = context.plan.quorum(len(roster))
    if survivors < quorum:
        raise RefusalError(
            f"the task sums the same data again, and {survivors} members are fewer than {quorum}: the server could "
            "have other members confirm another sum, and the sums together could reveal one client's data"
        )


def _tags(roster: Roster, members: frozenset[int]) -> frozenset[bytes]:
    return member_tags(tuple(entry.identity_key for entry in roster.entries), members)
