"""What one client has for the rounds of one task: item catalogue, keyring, model, client side and client state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import numpy as np

from client_sdk.agreement.terms import broken_terms
from client_sdk.api.wire import Pause, Program
from client_sdk.errors import LocalFileError
from client_sdk.history import History, OnUnknown
from client_sdk.model.follow import CaughtUp, ModelFollower, curve_of
from client_sdk.rounds.events import AggregateRejected, ModelMeasured, Progress, Waiting, ignore_event
from client_sdk.rounds.keys import obtain_keyring
from client_sdk.rounds.member import Member, Stop
from client_sdk.store.states import ClientState
from client_sdk.training import client_side
from client_sdk.training.base import ClientSide, TrainingConfig
from protocols.catalogue import Catalogue
from protocols.errors import ParameterError
from protocols.recipes.base import ModelState, RoundSpec

_CATALOGUE_PAUSE: Final = 1.0


@dataclass
class Part:
    """What one client does in the rounds of one task."""

    member: Member
    follower: ModelFollower
    """Its copy of the model."""
    client_side: ClientSide
    """The client side of the recipe."""
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    """Random numbers of training only; keys and ciphertexts use the system's generator."""
    seen: History | None = None
    """The interactions of the last `take_part`."""
    final: ModelState | None = None
    """The best model of a task that ended with it."""
    catalogue: Catalogue | None = field(default=None, repr=False)
    """The app's ids of the items, once `load_catalogue` has run."""
    take_ahead: Callable[[int], list[Any]] | None = field(default=None, repr=False)
    """Returns pieces of the next seal that were made in idle time, at most the number that is given."""
    is_joined: bool = True
    """False for a task as it is stored, which cannot be taken part in."""
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
        side = client_side(member.terms.recipe, training, graph_filter)
        return cls(member, follower, side, np.random.default_rng(seed))

    def require_joined(self) -> None:
        """Raise `ParameterError` for a task that was opened without asking the server about revocations."""
        if not self.is_joined:
            raise ParameterError(f"task {self.member.terms.name!r} was opened as it is stored: join() it to take part")

    def history(self, interactions: object, on_unknown: OnUnknown = "error") -> History:
        """Return the interactions as a `History`; `ParameterError` if there are none or the recipe cannot use them."""
        read = self.client_side.read(interactions)
        if read is not None:
            return read
        history = History.of(interactions, self.member.terms.n_items, self.numbers, on_unknown)
        if not len(history):
            raise ParameterError("interactions must not be empty: there is nothing to train on")
        self.client_side.check(history)
        return history

    @property
    def numbers(self) -> Mapping[str, int] | None:
        """From id to number of the items of the task's catalogue; None for a task without one.

        Raises `ParameterError` before `load_catalogue` has read it.
        """
        if self.catalogue is None and self.member.terms.view.catalogue_digest is not None:
            raise ParameterError(f"the item catalogue of task {self.member.terms.name!r} is not loaded")
        return None if self.catalogue is None else self.catalogue.numbers

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

        wait: seconds of one long poll for the keyring. Raises what `obtain_keyring` raises.
        """
        if self.member.terms.mechanism.needs_keyring and self.follower.keyring is None:
            self.follower.keyring = yield from obtain_keyring(self.member, progress, stop, wait)
            return self.follower.keyring is not None
        return True

    # --- a round -------------------------------------------------------------------------------------------------

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
            like = self.client_side.initial_client_state(np.random.default_rng(0))
            stored = self.member.store.client_state(self.member.task_id, like)
            self._client_state = self._earlier_state(like) if stored is None else stored
        return self._client_state

    def _earlier_state(self, like: ClientState) -> ClientState | None:
        """Return what this device kept of the task whose item factors this one goes on from, where that fits."""
        from protocols.recipes.spectral_start import start_of  # which loads recipes that other tasks do not use

        start = start_of(self.member.terms.recipe.parameters)
        if start is None or start.is_spectrum:
            return None
        try:
            return self.member.store.client_state(start.task, like)
        except LocalFileError:  # of another recipe, or of arrays over fewer items
            return None

    def keep_client_state(self, client_state: ClientState) -> None:
        """Store `client_state` as this client's newest."""
        self._client_state = client_state
        self.member.store.keep_client_state(self.member.task_id, client_state)
