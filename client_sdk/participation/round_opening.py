"""The key holder's part of a round in tasks whose sums only it can open.

Before a round it publishes the round's key, where the task has such keys. After the round it opens the sum, checks it,
and publishes the model; a sum that honest contributions cannot add up to is refused, and nothing of it is published.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Program, work
from client_sdk.errors import Conflict
from client_sdk.local_state.client_store import ClientStore
from client_sdk.local_state.followed_state import FollowedState
from client_sdk.model.catch_up import ModelFollower
from client_sdk.participation.events import Progress, SnapshotPublished, SumRefused
from client_sdk.participation.follow_rounds import is_over
from client_sdk.participation.round_key import drop_round_keys, publish_round_keys, uses_round_keys
from protocols.crypto.envelope import EnvelopeSender
from protocols.crypto.keyring import Keyring
from protocols.errors import CodecError, ImpossibleSumError, KeyringError
from protocols.messages import RoundView
from protocols.messages.rounds import ROUND_KEYS_AHEAD
from protocols.messages.stages import RoundState
from protocols.recipes.base import ModelState
from protocols.sums.opened_ranges import require_possible

__all__ = ["RoundOpening"]

_LONGEST_REASON = 300


@dataclass
class RoundOpening:
    """The programs of one key holder in one task. keyring: the task's, with the secret key where it serves all rounds.

    published: numbers of the rounds whose keys this process has published.
    """

    calls: ApiCalls
    terms: TaskTerms
    client_store: ClientStore
    sender: EnvelopeSender
    keyring: Keyring
    published: set[int] = field(default_factory=set)
    _follower: ModelFollower | None = field(default=None, repr=False)

    def attend(self, view: RoundView | None, progress: Progress | None = None) -> Program[int | None]:
        """Publish the next round keys, and open the sum of round `view` if it waits for the key holder.

        view: the newest round; None before the first. Returns the number of the round whose model was published, None
        when there was none or it was refused.
        """
        newest = 0 if view is None else view.number
        if uses_round_keys(self.terms):
            drop_round_keys(self.client_store, self.terms.task_id, newest - (view is not None and not is_over(view)))
            ahead = [newest + place for place in range(1, ROUND_KEYS_AHEAD + 1)]
            missing = [number for number in ahead if number not in self.published]
            yield from publish_round_keys(self.calls, self.terms, self.client_store, self.sender, missing)
            self.published = set(ahead)
        if view is None or view.state != RoundState.DECRYPTING:
            return None
        done = yield from self._open(view, progress)
        drop_round_keys(self.client_store, self.terms.task_id, view.number)
        return view.number if done else None

    def _open(self, view: RoundView, progress: Progress | None) -> Program[bool]:
        follower = self._model()
        before = (yield from follower.follow(view.number - 1)).followed
        length = self.terms.sum_plan_at(view.step).aggregate_bytes
        body = yield from self.calls.aggregate(self.terms.task_id, view.number, length, view.aggregate_digest)
        try:
            opened = yield from work(lambda: self._absorb(view, body, before.state))
        except (CodecError, KeyringError) as error:
            yield from self._refuse(view.number, str(error), progress)
            return False
        chain = None if before.chain is None else before.chain.extended(view.number, body)
        if not (yield from follower.publish(FollowedState(opened, chain))):
            return False  # the round ended meanwhile
        if progress:
            progress(SnapshotPublished(view.number))
        return True

    def _model(self) -> ModelFollower:
        """The holder's copy of the model. It follows its own snapshots: opening again would add other noise."""
        if self._follower is None:
            self._follower = ModelFollower(self.calls, self.terms, keyring=self.keyring)
        return self._follower

    def _absorb(self, view: RoundView, body: bytes, state: ModelState) -> ModelState:
        spec, plan = self.terms.round_spec(view), self.terms.sum_plan_at(view.step)
        if not self.terms.schedule.min_clients <= view.survivors <= plan.max_contributions:
            raise ImpossibleSumError(f"a sum over {view.survivors} clients is outside what the task allows")
        total = self.terms.mechanism.open(plan, body, view.survivors, self._round_keyring(view.number))
        require_possible(plan, total, view.survivors)
        return self.terms.recipe.absorb(state, spec, total, view.survivors)

    def _round_keyring(self, number: int) -> Keyring:
        if not uses_round_keys(self.terms):
            return self.keyring
        pair = self.client_store.round_keys(self.terms.task_id).pairs.get(number)
        if pair is None:
            raise KeyringError(f"the key holder has lost the secret key of round {number}")
        return self.keyring.for_round(pair.public_key, pair.secret_key)

    def _refuse(self, number: int, reason: str, progress: Progress | None) -> Program[None]:
        try:
            yield from self.calls.refuse_sum(self.terms.task_id, number, reason[:_LONGEST_REASON])
        except Conflict:
            return  # the round ended meanwhile
        if progress:
            progress(SumRefused(number, reason))
