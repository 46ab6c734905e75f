"""What one client does in the rounds of one task, whatever the mechanism: keys, training and client state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

import numpy as np

from client_sdk.agreement.terms import broken_terms
from client_sdk.api.wire import Pause, Program, Traffic, Turn, through, work
from client_sdk.errors import Abstained, AggregateMismatch
from client_sdk.history import History
from client_sdk.model.follow import CaughtUp, ModelFollower, curve_of
from client_sdk.rounds.attestations import require_attested
from client_sdk.rounds.events import (
    AggregateRejected,
    ClipWarning,
    ModelMeasured,
    Progress,
    RoundReport,
    TrainingFailed,
    Waiting,
    ignore_event,
)
from client_sdk.rounds.ledger import deliver
from client_sdk.rounds.member import Member, Stop, enter_rounds, receive_keyring, require_known_people
from client_sdk.store.states import ClientState, GivenData
from client_sdk.training import client_half
from client_sdk.training.base import (
    AsksApplication,
    ChecksHistory,
    ClientHalf,
    LocalResult,
    MayAbstain,
    ReadsInteractions,
    TrainingConfig,
    why_abstain,
)
from protocols.catalogue import Catalogue
from protocols.contribution import Made, make
from protocols.crypto.aggregate_chain import AGGREGATE_CHAIN
from protocols.errors import HushRecError, KeyringError, ParameterError
from protocols.layout import Route, SumClass, check_finite
from protocols.messages import RoundView
from protocols.recipes.base import Contribution, ModelState, RoundSpec

if TYPE_CHECKING:
    from protocols.crypto.keys import Keyring

_CATALOGUE_PAUSE: Final = 1.0
_LOG = logging.getLogger(__name__)


@dataclass
class Part:
    """What one client does in the rounds of one task.

    follower: its copy of the model. half: the client side of the recipe. rng: random numbers of training only; keys and
    ciphertexts use the system's generator. seen: the interactions of the last `take_part`. final: the best model of a
    task that ended with it. catalogue: the app's ids of the items, once `load_catalogue` has run. take_ahead: takes at
    most so many pieces of the next seal, made in idle time. is_joined: False for a task as it is stored, which cannot
    be taken part in.
    """

    member: Member
    follower: ModelFollower
    half: ClientHalf
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    seen: History | None = None
    final: ModelState | None = None
    catalogue: Catalogue | None = field(default=None, repr=False)
    take_ahead: Callable[[int], list[Any]] | None = field(default=None, repr=False)
    is_joined: bool = True
    _client_state: ClientState | None = field(default=None, repr=False)
    _reported_point: int = field(default=0, repr=False)

    @classmethod
    def of(
        cls,
        member: Member,
        training: TrainingConfig | None = None,
        seed: int | Sequence[int] | None = None,
        graph_filter: str | None = None,
    ) -> Part:
        """Return the part of `member`, with its model in its own store; see `Client.join` for the arguments."""
        follower = ModelFollower(member.calls, member.terms, member.store, device_group=member.membership.device_group)
        half = client_half(member.terms.recipe, training, graph_filter)
        return cls(member, follower, half, np.random.default_rng(seed))

    def require_joined(self) -> None:
        """Raise `ParameterError` for a task that was opened without asking the server about revocations."""
        if not self.is_joined:
            raise ParameterError(f"task {self.member.terms.name!r} was opened as it is stored: join() it to take part")

    def history(self, interactions: object) -> History:
        """Return the interactions as a `History`; `ParameterError` if there are none or the recipe cannot use them."""
        if isinstance(self.half, ReadsInteractions):
            return self.half.read(interactions)
        history = self.known_items(interactions)
        if not len(history):
            raise ParameterError("interactions must not be empty: there is nothing to train on")
        if isinstance(self.half, ChecksHistory):
            self.half.check(history)
        return history

    def known_items(self, interactions: object) -> History:
        """Return the interactions as a `History`; items are the ids of the task's catalogue, where it has one.

        Raises `ParameterError` before `load_catalogue` has read it.
        """
        if self.catalogue is None and self.member.terms.view.catalogue_digest is not None:
            raise ParameterError(f"the item catalogue of task {self.member.terms.name!r} is not loaded")
        numbers = None if self.catalogue is None else self.catalogue.numbers
        return History.of(interactions, self.member.terms.n_items, numbers)

    # --- the item catalogue --------------------------------------------------------------------------------------

    def load_catalogue(self, progress: Progress = ignore_event, stop: Stop | None = None) -> Program[bool]:
        """Read the item catalogue from the store, or download it, if the task has one.

        It is checked against the digest in the terms that this client agreed to. Until the operator has uploaded it,
        this client waits; False if `stop()` returned True first. Raises `CodecError` for a malformed catalogue, and
        `ContractBroken` for one with another number of items than the recipe has.
        """
        member, digest = self.member, self.member.terms.view.catalogue_digest
        if digest is None or self.catalogue is not None:
            return True
        found = member.store.catalogue(member.task_id, digest)
        waiting = False
        while found is None:
            body = yield from member.calls.catalogue(member.task_id, member.terms.n_items, digest)
            if body is not None:
                found = Catalogue.decode(body)
                if len(found) != member.terms.n_items:
                    fault = f"the catalogue has {len(found)} items, and the task has {member.terms.n_items}"
                    raise broken_terms(member.task_id, fault, "catalogue")
                member.store.keep_catalogue(member.task_id, found)
            elif stop and stop():
                return False
            else:
                if not waiting:
                    progress(Waiting("the item catalogue, which the task's operator uploads"))
                waiting = True
                yield Pause(_CATALOGUE_PAUSE)
        self.catalogue = found
        return True

    # --- keys ----------------------------------------------------------------------------------------------------

    def ready(self, progress: Progress = ignore_event, stop: Stop | None = None, wait: float = 20.0) -> Program[bool]:
        """Load or receive the keyring, if the mechanism needs one; False if `stop()` returned True first.

        wait: seconds of one long poll for the keyring. Raises `KeyringError` and `EnvelopeError` for a keyring that is
        not for this task or this client.
        """
        member = self.member
        if not member.terms.mechanism.needs_keyring or self.follower.keyring is not None:
            return True
        kept = member.store.keyring(member.task_id)
        if kept is None:
            if member.membership.role == "holder":
                raise KeyringError(
                    f"this client is the key holder of task {member.terms.name!r}: create the keyring first"
                )
            require_known_people(member)
            kept = yield from self._receive_keyring(progress, stop, wait)
            if kept is None:
                return False
            member.store.keep_keyring(member.task_id, kept)
        self.follower.keyring = kept
        if member.membership.role == "holder":
            yield from enter_rounds(member, kept)
        return True

    def _receive_keyring(self, progress: Progress, stop: Stop | None, wait: float) -> Program[Keyring | None]:
        kept = yield from receive_keyring(self.member, 0.0)
        if kept is not None:
            return kept
        waiting = Waiting("the keyring, which the task's key holder creates and seals")
        _LOG.warning("task %s: this client waits for %s", self.member.terms.name, waiting.what)
        progress(waiting)
        while kept is None and not (stop and stop()):
            yield Pause(0.05)
            kept = yield from receive_keyring(self.member, wait)
        return kept

    # --- a round -------------------------------------------------------------------------------------------------

    def spec(self, view: RoundView) -> RoundSpec:
        """Return the round's specification, computed from the terms.

        Raises `ContractBroken` when `view` contradicts it, or is for another device group.
        """
        terms, own_group = self.member.terms, self.member.membership.device_group
        spec = terms.round_spec(view)
        asked, fault = terms.recipe.device_group_of(spec.sum_index), None
        plan = terms.sum_plan_at(spec.sum_index, spec.size)
        if asked != own_group:
            fault = f"is for group {asked}, and this client is in group {own_group}"
        elif view.contribution_bytes is not None:
            implied = plan.contribution_bytes(self.route(spec))
            implied += getattr(plan, "ticket_bytes", 0)  # of one-shot sums
            if view.contribution_bytes != implied:
                fault = f"asks for {view.contribution_bytes} bytes, but the plan has {implied}"
        if fault is not None:
            raise terms.broken_round(view, fault)
        return spec

    def route(self, spec: RoundSpec) -> Route:
        """Return which blocks of the sum this client contributes to."""
        return self.member.terms.recipe.route(spec, self.member.client_id)

    def require_data(self, spec: RoundSpec, state: ModelState, history: History) -> None:
        """Raise `Abstained` if this client must not contribute to the round; called before it sends anything."""
        sum_class, task_id, store = self._sum_class(spec), self.member.task_id, self.member.store
        label = self.member.terms.view.data_set
        given = GivenData() if sum_class.data is None else store.given(task_id, label, sum_class.data)
        reason = why_abstain(sum_class, spec, state, history, given, task_id)
        if reason is None and isinstance(self.half, MayAbstain):
            reason = self.half.why_abstain(spec, history, self.client_state())
        if reason is None and (spending := store.spending(task_id)) is not None:
            reason = spending.why_not()
        if reason is None and sum_class.data == "held-out" and given.measured >= self.member.policy.max_measurements:
            reason = f"this client measured models {given.measured} times on its held-out rows, as often as it allows"
        if reason is not None:
            raise Abstained(reason)

    def train(self, spec: RoundSpec, followed: ModelState, history: History) -> Program[LocalResult]:
        """Train for one round and return the result. The new client state is stored by `OwnRound.settle`.

        followed: the followed model. An application that trains in a loop of its own has its turn here.

        Whether training works depends on this client's data and on a model that the server may have made up. If only
        clients with some item failed, and a client that fails sent nothing, the server would learn who has the item. So
        training fails like this: the contribution is zeros, which look like any other once they are masked or
        encrypted, and get this client's noise in a task with a privacy block; the result says why (`failure`). It
        fails if it raises or gives no update, if a value of the contribution or of the client state is not finite, or
        if more than `Policy.max_clip_share` of the values that are not zero were clipped: these are the clip, not
        training.

        Exceptions to this, in which zeros would hide nothing or do harm:

        - In `plain` tasks the server sees every contribution: zeros are as visible as none, and weaken the mean. The
          error of training is raised; clipped values are sent.
        - Counts of items (sums of class `once`) depend on no model: `Abstained`.
        - A contribution that names its blocks in the clear shows what was touched: `Abstained`.
        - In sums of class `repeated` whose total anyone can open, zeros would be the difference of two sums over one
          set of clients, which no check of sets sees: `Abstained`, so that the set shows who is missing.
        """
        state = self.follower.view(followed)
        if isinstance(self.half, AsksApplication):
            asked = self.half.ask(spec, state, history)
            if asked is not None:
                yield Turn(asked)
        return (yield from work(lambda: self._train(spec, state, history)))

    def _train(self, spec: RoundSpec, state: ModelState, history: History) -> LocalResult:
        """Train, and store at once that this client is counted in this sum, or measured in it.

        If the answer to its upload is lost, its data may be in the sum all the same.
        """
        client_state = self.client_state() or self.half.initial_client_state(self.rng)
        try:
            local = self.half.contribute(spec, self.member.client_id, state, history, client_state, self.rng)
            self._require_usable(local)
        except Exception as error:  # the trainer is the application's: it may raise anything
            if self.member.terms.mechanism.name == "plain":
                raise
            local = LocalResult(self._zeros(spec, error), client_state, float("nan"), 0, failure=_reason(error))
        sum_class, task_id, store = self._sum_class(spec), self.member.task_id, self.member.store
        if sum_class.data is not None:
            of = task_id, self.member.terms.view.data_set, sum_class.data
            with store.exclusive():
                given = store.given(*of)
                if sum_class.once:
                    given = given.with_counted(task_id, spec.sum_index)
                if sum_class.data == "held-out":
                    given = replace(given, measured=given.measured + 1)
                store.keep_given(*of, given)
        return local

    def _require_usable(self, local: LocalResult) -> None:
        """Raise `ParameterError` for a result of training that must not be used; see `train`."""
        made = local.contribution
        for array in (*made.blocks, *local.client_state.values()):
            if array.dtype.kind == "f":
                check_finite(array, "the result of training")
        if self.clips_too_much(made) and self.member.terms.mechanism.name != "plain":
            raise ParameterError(
                f"{made.clipped:,} values exceed the task's clip, a larger share than this client's policy allows, "
                f"{self.member.policy.max_clip_share:g} (Policy(max_clip_share=...)): training diverged, or the clip "
                "is too small"
            )

    def clips_too_much(self, made: Contribution) -> bool:
        """Return whether more of the values that are not zero were clipped than the policy allows."""
        used = sum(int(np.count_nonzero(block)) for block in made.blocks)
        return made.clipped > self.member.policy.max_clip_share * used

    def _zeros(self, spec: RoundSpec, error: Exception) -> Contribution:
        """Return zeros in the place of a contribution, without noise; `Abstained` where they must not be sent."""
        terms = self.member.terms
        layout = terms.recipe.layout(spec.sum_index, spec.size)
        same_data = layout.sum_class.once or (layout.sum_class.repeated and terms.opened_by == "anyone")
        if same_data or layout.chosen:
            raise Abstained(_reason(error)) from error
        return terms.recipe.zeros(spec, self.member.client_id)

    def _sum_class(self, spec: RoundSpec) -> SumClass:
        return self.member.terms.recipe.layout(spec.sum_index).sum_class

    def model_digest(self, spec: RoundSpec, state: ModelState) -> bytes:
        """Return the digest (32 bytes) of the terms and of `state`, the model that this client trains on in the round.

        Keys and masks are bound to it, so the client computes it itself.
        """
        from protocols.task_terms import broadcast_digest, model_of_round  # which masked and one-shot sums need

        recipe = self.member.terms.recipe
        held = recipe.encode_view(state, recipe.device_group_of(spec.sum_index))
        model = model_of_round(state.round_number, sha256(held).digest())
        return broadcast_digest(self.member.terms.view, spec.sum_index, model, spec.levels)

    def checks_aggregates(self, caught_up: CaughtUp) -> bool:
        """Whether this client is to check that enough members hold the aggregates that it holds.

        Where members check the states themselves, only if some of them are the server's word, and only in tasks with an
        organiser: without one, it is also the server's word who has stated anything.
        """
        followed, member = caught_up.followed, self.member
        if member.terms.checks_states:
            return followed.unattested and member.check.pin is not None
        return followed.chain is not None

    def report_followed(self, caught_up: CaughtUp, progress: Progress) -> None:
        """Report the aggregates that the model lacks, and its newest measurement, unless it was reported before."""
        if progress is ignore_event:
            return
        for number, reason in caught_up.rejected.items():
            progress(AggregateRejected(number, reason))
        curve = curve_of(self.member.terms.recipe, caught_up.state)
        if curve is None or curve.best is None or len(curve.points) == self._reported_point:
            return
        self._reported_point, newest = len(curve.points), curve.points[-1]
        metrics = curve.metrics(newest)
        if metrics:
            progress(ModelMeasured(newest.model_round, round(newest.clients), metrics, curve.best.model_round))

    # --- client state --------------------------------------------------------------------------------------------

    def client_state(self) -> ClientState | None:
        """Return the arrays that this client never sends, such as its user factor; None before its first round."""
        if self._client_state is None:
            like = self.half.initial_client_state(np.random.default_rng(0))
            self._client_state = self.member.store.client_state(self.member.task_id, like)
        return self._client_state

    def keep_client_state(self, client_state: ClientState) -> None:
        """Store `client_state` as this client's newest."""
        self._client_state = client_state
        self.member.store.keep_client_state(self.member.task_id, client_state)


def _reason(error: Exception) -> str:
    """Return why training failed, for the device's owner; with the type of an error that is not the SDK's own."""
    return str(error) if isinstance(error, HushRecError) else f"{type(error).__name__}: {error}"


# --- one round: what it costs, and the report of a contribution -----------------------------------------------------

T = TypeVar("T")
Phase = Literal["catch_up", "train", "seal", "upload"]


@dataclass
class OwnRound:
    """One client's part in one round, of any mechanism: what it is given, and the bytes and the time that it takes.

    view: the round as it opened. traffic: bytes of the programs that were `metered`. seconds: wall clock by phase.
    """

    part: Part
    view: RoundView
    history: History
    progress: Progress = ignore_event
    traffic: Traffic = field(default_factory=Traffic)
    seconds: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(get_args(Phase), 0.0))

    @cached_property
    def spec(self) -> RoundSpec:
        """The round's specification; see `Part.spec` for the errors."""
        return self.part.spec(self.view)

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        """Count the time of the block as that of `phase`."""
        started = perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += perf_counter() - started

    def metered(self, program: Program[T]) -> Program[T]:
        """Run `program`, and count its bytes."""
        return through(program, self.traffic)

    def catch_up(self) -> Program[CaughtUp]:
        """Return the model before the round; see `ModelFollower.follow` and `require_attested` for the errors.

        Reports what it lacks and what it measured. Raises `ContractBroken` when the round has a sum of another size
        than follows from that model.
        """
        part = self.part
        caught_up = yield from self.metered(part.follower.follow(self.view.number - 1, snapshot_wait=60.0))
        terms = part.member.terms
        if self.spec.size != (size := terms.recipe.size_after(caught_up.state)):
            fault = f"has a sum of size {self.spec.size}, and the model before it says {size}"
            raise terms.broken_round(self.view, fault)
        part.report_followed(caught_up, self.progress)
        if part.checks_aggregates(caught_up):
            yield from self.metered(require_attested(part.member, part.follower, caught_up.followed))
        return caught_up

    def train(self, caught_up: CaughtUp) -> Program[LocalResult]:
        """Return the result of training on this model; report that it failed, or that many values were clipped.

        See `Part.train` for the errors.
        """
        with self.timed("train"):
            local = yield from self.part.train(self.spec, caught_up.state, self.history)
        made = local.contribution
        if local.failure is not None:
            task = self.part.member.terms.name
            _LOG.warning("task %s, round %d: training failed, zeros were sent in its place", task, self.view.number)
            self.progress(TrainingFailed(self.view.number, local.failure))
        elif self.part.clips_too_much(made) and self.part.member.terms.mechanism.name == "plain":
            self.progress(ClipWarning(self.view.number, made.clipped, made.values))
        return local

    def make(self, caught_up: CaughtUp, local: LocalResult) -> Program[Made]:
        """Return what is sent of a result of training; see `protocols.contribution.make` for the errors.

        A training that failed is not counted among those that carry data.
        """
        part, member = self.part, self.part.member
        job = partial(
            make, member.terms.sum_of(self.spec), caught_up.state, member.client_id, local.contribution,
            part.follower.keyring, has_data=local.failure is None, take_ahead=part.take_ahead,
        )  # fmt: skip
        with self.timed("seal"):
            return (yield from work(job))

    def deliver(self, body: bytes, caught_up: CaughtUp) -> Program[None]:
        """Upload a contribution made from the model `caught_up`, and state the chain of its aggregates; see `deliver`.

        Raises `AggregateMismatch` when the server has another chain. Then a model that is from a snapshot, or that the
        server has too, is made anew.
        """
        followed, follower, terms = caught_up.followed, self.part.follower, self.part.member.terms
        statements = {} if followed.chain is None else {AGGREGATE_CHAIN: followed.chain.digest.hex()}
        try:
            yield from deliver(self.part.member, self.spec, body, statements)
        except AggregateMismatch:
            if terms.checks_states:
                follower.start_again()
            elif followed.from_snapshot:
                follower.replay_all()  # the snapshot may be false
            raise

    def settle(self, local: LocalResult) -> Program[None]:
        """Store the client state after the contribution was uploaded, then run `local.finish` if there is one.

        If that fails, the state stays as it was stored, which is reported.
        """
        self.part.keep_client_state(local.client_state)
        if local.finish is None:
            return
        try:
            with self.timed("train"):
                finished = yield from work(local.finish)
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
