"""One client's contribution to one round, of any mechanism: catch up, train and make it, record it, upload it.

`OwnRound` is the round as its client sees it. `take_part` of each kind of round calls its methods in this order:
`catch_up`, `contribution`, `deliver`, `report`. Where a contribution is one message for the server, that is the whole
round.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Final, Literal, TypeVar, get_args

import numpy as np

from client_sdk.api.wire import Program, Traffic, Turn, Work, through
from client_sdk.errors import Abstained, AggregateMismatch, RoundLost
from client_sdk.history import History
from client_sdk.model.follow import CaughtUp
from client_sdk.rounds.attestations import require_attested
from client_sdk.rounds.events import (
    ClipWarning,
    Progress,
    RoundReport,
    SnapshotPublished,
    TrainingFailed,
    ignore_event,
)
from client_sdk.rounds.ledger import spend_budget
from client_sdk.rounds.part import Part
from client_sdk.rounds.polling import is_over
from client_sdk.store.client_store import ClientStore, OwnContribution
from client_sdk.store.states import ClientState, GivenData
from client_sdk.training.base import LocalResult, why_abstain
from protocols.codec import b64decode
from protocols.contribution import Made, make
from protocols.crypto.aggregate_chain import AGGREGATE_CHAIN
from protocols.errors import HushRecError, ParameterError
from protocols.layout import check_finite
from protocols.messages import RoundView, UploadReceipt
from protocols.recipes.base import Contribution, ModelState, RoundSpec
from protocols.recipes.private import Private

T = TypeVar("T")
Phase = Literal["catch_up", "train", "seal", "upload"]
_LOG: Final = logging.getLogger(__name__)
_SNAPSHOT_VOLUNTEERS: Final = 3.0
"""Average number of cohort members that check whether a snapshot is due: of several uploads only one is kept."""


@dataclass
class OwnRound:
    """One client's part in one round: what it is given, and the bytes and the time that it takes."""

    part: Part
    view: RoundView
    """The round as it opened."""
    history: History
    progress: Progress = ignore_event
    etag: str | None = field(default=None, kw_only=True)
    """Of the poll that was answered with `view`; None if it is not known."""
    traffic: Traffic = field(default_factory=Traffic)
    """Bytes of the programs that ran `through` it."""
    seconds: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(get_args(Phase), 0.0))
    """Wall clock by phase."""

    def take_part(self) -> Program[RoundReport]:
        """Catch up, train, seal and upload one contribution to the round; return the report.

        Raises `PolicyRefused`, `Abstained`, and the errors of catching up, of `train` and of the upload.
        """
        member, follower = self.part.member, self.part.follower
        member.store.require_no_equivocation(member.task_id)
        if member.terms.chained and follower.known >= self.view.number:
            raise RoundLost(
                f"this device holds the sums up to round {follower.known}, and the server would release others for the "
                "same rounds: an encrypted task cannot go on after its server was restored from a backup; its operator "
                "closes it and creates another"
            )
        caught_up = yield from self.catch_up()
        local, made = yield from self.contribution(caught_up)
        yield from through(self.deliver(made.message, caught_up, local), self.traffic)
        if np.random.default_rng().random() * self.view.cohort <= _SNAPSHOT_VOLUNTEERS:
            publish = follower.publish_when_due(caught_up.followed, member.policy.snapshot_every)
            if (yield from through(publish, self.traffic)):
                self.progress(SnapshotPublished(caught_up.state.round_number))
        return self.report(caught_up, local, made, len(made.message))

    @staticmethod
    def end_sums(store: ClientStore, task_id: str) -> bool:
        """Store that this client takes no part again in the sums in which it took part; False where that may be.

        Called when the server has lost its newest rounds.
        """
        del store, task_id
        return False

    @cached_property
    def spec(self) -> RoundSpec:
        """The round's specification, computed from the terms.

        Raises `ContractBroken` when the round contradicts it, or is for another device group.
        """
        member, view, terms = self.part.member, self.view, self.part.member.terms
        spec, own_group, fault = terms.round_spec(view), member.membership.device_group, None
        asked, plan = terms.recipe.device_group_of(spec.sum_index), terms.sum_plan_at(spec.sum_index, spec.size)
        if asked != own_group:
            fault = f"is for group {asked}, and this client is in group {own_group}"
        elif view.contribution_bytes is not None:
            implied = plan.contribution_bytes(terms.recipe.route(spec, member.client_id)) + plan.ticket_bytes
            if view.contribution_bytes != implied:
                fault = f"asks for {view.contribution_bytes} bytes, but the plan has {implied}"
        if fault is not None:
            raise terms.broken_round(view, fault)
        return spec

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        """Count the time of the block as that of `phase`.

        Around the call of a `Work` it counts the call, and not the wait for a free thread: `Work(timed(phase)(call))`.
        """
        started = perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += perf_counter() - started

    def catch_up(self) -> Program[CaughtUp]:
        """Return the model before the round, with the keys to open sums. Reports what it lacks and what it measured.

        Raises `PolicyRefused` and `Abstained` for a round that this client must not contribute to, and `ContractBroken`
        when it has a sum of another size than follows from that model; see `ModelFollower.follow` and
        `require_attested` for the other errors.
        """
        part, member = self.part, self.part.member
        member.policy.check_round(self.view)
        spec, recipe = self.spec, member.terms.recipe
        with self.timed("catch_up"):
            yield from part.ready(self.progress)
            following = part.follower.follow(self.view.number - 1, snapshot_wait=60.0)
            caught_up = yield from through(following, self.traffic)
            if spec.size != (size := recipe.size_after(caught_up.state)):
                fault = f"has a sum of size {spec.size}, and the model before it says {size}"
                raise member.terms.broken_round(self.view, fault)
            part.report_followed(caught_up, self.progress)
            if part.checks_aggregates(caught_up):
                yield from through(require_attested(member, part.follower, caught_up.followed), self.traffic)
            require_data(part, spec, caught_up.state, self.history)
        return caught_up

    def contribution(self, caught_up: CaughtUp) -> Program[tuple[LocalResult, Made]]:
        """Train on this model; return the result, and what is sent of it.

        An application that trains in a loop of its own has its turn here. Reports a training that failed, which is not
        counted among those that carry data, and that many values were clipped. See `train` and
        `protocols.contribution.make` for the errors.
        """
        part, member, spec = self.part, self.part.member, self.spec
        state, keyring = part.follower.view(caught_up.state), part.follower.keyring
        with self.timed("train"):
            asked = part.client_side.ask(spec, state, self.history)
            if asked is not None:
                yield Turn(asked)
        local: LocalResult = yield Work(self.timed("train")(partial(train, part, spec, state, self.history)))
        seal = partial(
            make, member.terms.sum_of(spec), caught_up.state, member.client_id, local.contribution, keyring,
            has_data=local.failure is None, take_ahead=part.take_ahead,
        )  # fmt: skip
        made: Made = yield Work(self.timed("seal")(seal))
        if local.failure is not None:
            _LOG.warning(
                "task %s, round %d: training failed, zeros were sent in its place", member.terms.name, self.view.number
            )
            self.progress(TrainingFailed(self.view.number, local.failure))
        elif not member.terms.entry.hides and _clips_too_much(part, local.contribution):
            self.progress(ClipWarning(self.view.number, local.contribution.clipped, local.contribution.values))
        return local, made

    def deliver(self, body: bytes, caught_up: CaughtUp, local: LocalResult) -> Program[None]:
        """Record a contribution made from the model `caught_up` and what it costs, upload it, keep the client state.

        If the answer is lost, it may still have been counted. In a task with a privacy block a round that is over by
        now costs nothing: `RoundLost`. What was sent is not refunded, since a server may say of any round that it
        failed. The upload states the chain of the model's aggregates. Raises `AggregateMismatch` when the server has
        another chain: then a model that is from a snapshot, or that the server has too, is made anew. Raises what
        `spend_budget` and `ApiCalls.contribute` raise.
        """
        member, followed, follower = self.part.member, caught_up.followed, self.part.follower
        task_id, number, digest = member.task_id, self.view.number, hashlib.sha256(body).hexdigest()
        with self.timed("upload"):
            if isinstance(member.terms.recipe, Private):
                view = yield from member.calls.round(task_id, number)
                if is_over(view):
                    reason = view.failure or f"round {number} ended before this client had sent its contribution"
                    raise RoundLost(reason)
                spend_budget(member.store, member.terms, self.spec)
            record = OwnContribution(digest, acknowledged=False, bytes=len(body))
            member.store.record_contribution(task_id, number, record)
            statements = {} if followed.chain is None else {AGGREGATE_CHAIN: followed.chain.digest.hex()}
            try:
                answer = yield from member.calls.contribute(task_id, number, member.client_id, body, statements)
            except AggregateMismatch:
                if member.terms.checks_states:
                    follower.start_again()
                elif followed.from_snapshot:
                    follower.replay_all()  # the snapshot may be false
                raise
            signature = self._signature(answer)
            member.store.record_contribution(task_id, number, replace(record, acknowledged=True, signature=signature))
        yield from self._keep_state(local)

    def _signature(self, answer: UploadReceipt) -> str:
        """Return the server's signature of the acknowledgement, "" in a task without a receipt key.

        Raises `ContractBroken` for one that is missing or not valid.
        """
        member = self.part.member
        key = member.terms.view.receipt_key
        if key is None:
            return ""
        from protocols.messages.receipts import Acknowledged
        from protocols.receipts import is_acknowledged

        if answer.signature is not None:
            stated = Acknowledged(
                task_id=member.task_id, round=self.view.number, digest=answer.digest, bytes=answer.bytes,
                signature=answer.signature,
            )  # fmt: skip
            if is_acknowledged(b64decode(key, 32), member.identity.public_key, stated):
                return answer.signature
        fault = "was acknowledged without the signature that the task's terms promise"
        raise member.terms.broken_round(self.view, fault)

    def _keep_state(self, local: LocalResult) -> Program[None]:
        """Store the client state after the contribution was uploaded, then run `local.finish` if there is one.

        If that fails, the state stays as it was stored, which is reported.
        """
        self.part.keep_client_state(local.client_state)
        if local.finish is None:
            return
        try:
            finished: ClientState = yield Work(self.timed("train")(local.finish))
            for array in finished.values():
                if array.dtype.kind == "f":
                    check_finite(array, "the client state")
        except (HushRecError, ValueError, ArithmeticError) as error:
            self.progress(TrainingFailed(self.view.number, _reason(error)))
        else:
            self.part.keep_client_state(finished)

    def report(self, caught_up: CaughtUp, local: LocalResult, made: Made, contribution_bytes: int) -> RoundReport:
        """Return the report of a contribution of so many bytes."""
        return RoundReport(
            round=self.view.number,
            client_id=self.part.member.client_id,
            loss=local.loss,
            samples=local.samples,
            values=made.contribution.values,
            clipped=made.contribution.clipped,
            scaled=made.contribution.scaled,
            contribution_bytes=contribution_bytes,
            bytes_up=self.traffic.up,
            bytes_down=self.traffic.down,
            catch_up_seconds=self.seconds["catch_up"],
            train_seconds=self.seconds["train"],
            seal_seconds=self.seconds["seal"],
            upload_seconds=self.seconds["upload"],
            caught_up=caught_up.plan.kind,
        )


# --- whether a client contributes, and its training: pure but for the client's own store ------------------------------


def require_data(part: Part, spec: RoundSpec, state: ModelState, history: History) -> None:
    """Raise `Abstained` if this client must not contribute to the round; called before it sends anything."""
    member = part.member
    sum_class = member.terms.recipe.layout(spec.sum_index).sum_class
    task_id, store, label = member.task_id, member.store, member.terms.view.data_set
    given = GivenData() if sum_class.data is None else store.given(task_id, label, sum_class.data)
    reason = why_abstain(sum_class, spec, state, history, given, task_id)
    if reason is None:
        reason = part.client_side.why_abstain(spec, history, part.client_state())
    if reason is None and (spending := store.spending(task_id)) is not None:
        reason = spending.why_not()
    if reason is None and sum_class.data == "held-out" and given.measured >= member.policy.max_measurements:
        reason = f"this client measured models {given.measured} times on its held-out rows, as often as it allows"
    if reason is not None:
        raise Abstained(reason)


def train(part: Part, spec: RoundSpec, state: ModelState, history: History) -> LocalResult:
    """Train for one round on `state`, the client's view of the model, and return the result.

    It is stored at once that this client is counted in this sum, or measured in it: if the answer to its upload is
    lost, its data may be in the sum all the same. The new client state is stored by `OwnRound.deliver`.

    Whether training works depends on this client's data and on a model that the server may have made up. If only
    clients with some item failed, and a client that fails sent nothing, the server would learn who has the item. So
    training fails like this: the contribution is zeros, which look like any other once they are masked or encrypted,
    and get this client's noise in a task with a privacy block; the result says why (`failure`). It fails if it raises
    or gives no update, if a value of the contribution or of the client state is not finite, or if more than
    `Policy.max_clip_share` of the values that are not zero were clipped: these are the clip, not training.

    Exceptions to this, in which zeros would hide nothing or do harm:

    - In `plain` tasks the server sees every contribution: zeros are as visible as none, and weaken the mean. The
      error of training is raised; clipped values are sent.
    - Counts of items (sums of class `once`) depend on no model: `Abstained`.
    - A contribution that names its blocks in the clear shows what was touched: `Abstained`.
    - In sums of class `repeated` whose total anyone can open, zeros would be the difference of two sums over one set
      of clients, which no check of sets sees: `Abstained`, so that the set shows who is missing.
    """
    member, client_state = part.member, part.client_state() or part.client_side.initial_client_state(part.rng)
    try:
        local = part.client_side.contribute(spec, member.client_id, state, history, client_state, part.rng)
        _require_usable(part, local)
    except Exception as error:  # the trainer is the application's: it may raise anything
        if not member.terms.entry.hides:
            raise
        _require_zeros_allowed(part, spec, error)
        zeros = member.terms.recipe.zeros(spec, member.client_id)
        local = LocalResult(zeros, client_state, float("nan"), 0, failure=_reason(error))
    task_id, store, sum_class = member.task_id, member.store, member.terms.recipe.layout(spec.sum_index).sum_class
    if sum_class.data is not None:
        of = task_id, member.terms.view.data_set, sum_class.data
        with store.exclusive():
            given = store.given(*of)
            if sum_class.once:
                given = given.with_counted(task_id, spec.sum_index)
            if sum_class.data == "held-out":
                given = replace(given, measured=given.measured + 1)
            store.keep_given(*of, given)
    return local


def _require_usable(part: Part, local: LocalResult) -> None:
    """Raise `ParameterError` for a result of training that must not be used; see `train`."""
    made = local.contribution
    for array in (*made.blocks, *local.client_state.values()):
        if array.dtype.kind == "f":
            check_finite(array, "the result of training")
    if _clips_too_much(part, made) and part.member.terms.entry.hides:
        raise ParameterError(
            f"{made.clipped:,} values exceed the task's clip, a larger share than this client's policy allows, "
            f"{part.member.policy.max_clip_share:g} (Policy(max_clip_share=...)): training diverged, or the clip "
            "is too small"
        )


def _clips_too_much(part: Part, made: Contribution) -> bool:
    """Return whether more of the values that are not zero were clipped than the policy allows."""
    used = sum(int(np.count_nonzero(block)) for block in made.blocks)
    return made.clipped > part.member.policy.max_clip_share * used


def _require_zeros_allowed(part: Part, spec: RoundSpec, error: Exception) -> None:
    """Raise `Abstained` where zeros must not be sent in the place of a training that failed with `error`."""
    terms = part.member.terms
    layout = terms.recipe.layout(spec.sum_index, spec.size)
    same_data = layout.sum_class.once or (layout.sum_class.repeated and terms.opened_by == "anyone")
    if same_data or layout.chosen:
        raise Abstained(_reason(error)) from error


def _reason(error: Exception) -> str:
    """Return why training failed, for the device's owner; with the type of an error that is not the SDK's own."""
    return str(error) if isinstance(error, HushRecError) else f"{type(error).__name__}: {error}"
