"""Hundreds of participants in one process, over real HTTP: for demos, tests and benchmarks.

Every client has its own identity, token, user factor and random numbers, and sends its own contribution in its own
requests. The clients share, because they run in one process:

- a few worker threads, each with one connection, which is the fastest way against one server process;
- the long polls and, per round, the list of completed rounds and snapshots. They use the token of client 0 (the
  watcher) and are not counted in any client's report;
- the organiser's list of revoked certificates, which client 0 fetches;
- the model: each aggregate is opened and absorbed once. With `downloads="each"` every client downloads and checks all
  that it would need alone. With `"once"` only the watcher does, and `bytes_spared` of a round is what the clients would
  have downloaded;
- in tasks with keys, one decoded copy of the keyring. Every client has fetched and opened its own envelope.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from time import perf_counter
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from client_sdk.api.calls import RoundChanged
from client_sdk.api.http import SyncDriver
from client_sdk.api.retry import Outage, StoppedInOutage
from client_sdk.api.wire import Program, through
from client_sdk.history import History
from client_sdk.lab.fleet_rounds import (
    CohortMember,
    FleetCommittee,
    FleetOptions,
    FleetRound,
    play_masked_round,
    play_unmasked_round,
)
from client_sdk.lab.shared_model import FleetPart, ModelCache, SharedFollower
from client_sdk.model.sync import MissedRounds, fetch_missed, usable_snapshot
from client_sdk.rounds.account import Account
from client_sdk.rounds.events import RoundMissed, RoundReport, TaskEnded, ignore_event, report_outage
from client_sdk.rounds.join import join
from client_sdk.rounds.key_holder import KeyHolder
from client_sdk.rounds.member import CertificateSource, MembershipCheck, Stop
from client_sdk.rounds.polling import RoundChange, await_round, follow_rounds, is_over
from client_sdk.store import MemoryStore
from client_sdk.store.identity import Identity
from client_sdk.store.states import ClientState
from client_sdk.training import client_side
from client_sdk.training.factors import USER_FACTOR
from protocols.crypto.certificates import CertifiedRole
from protocols.errors import ParameterError
from protocols.messages import RoundView
from protocols.messages.stages import MASKED_STATES
from protocols.recipes.base import ModelState

T = TypeVar("T")
CountProgress = Callable[[int], None]
"""Called with the number of clients that are done."""


class Fleet:
    """Many participants of one task. Client 0 polls the rounds for all, and is the key holder where there is one.

    interactions: one entry per client, each as `Task.take_part` takes it. options: see `FleetOptions`.
    Raises `ParameterError` when `interactions` is empty or `options` names another number of clients.
    """

    def __init__(self, url: str, interactions: Sequence[object], options: FleetOptions | None = None) -> None:
        options = options or FleetOptions()
        options.check_size(len(interactions))
        self._url, self._interactions, self._options = url, list(interactions), options
        self._identities = list(options.identities or (Identity.generate() for _ in interactions))
        self._cache = ModelCache(options.downloads)
        self._driver = SyncDriver(self._options.client.timeouts)
        self._closing = threading.Event()
        self._stop: Stop | None = None
        self._local = threading.local()
        self._drivers: list[SyncDriver] = [self._driver]
        self._pool = ThreadPoolExecutor(options.workers, "hushrec-fleet", self._start_worker)
        self._clients: list[FleetPart] = []
        self._histories: list[History] = []
        self._holder: KeyHolder | None = None
        self._committee = FleetCommittee(options, self._run_all)
        self._followers: dict[int | None, SharedFollower] = {}

    def _start_worker(self) -> None:
        self._local.driver = SyncDriver(self._options.client.timeouts, connections=1)
        self._drivers.append(self._local.driver)

    def _run_all(self, programs: Iterable[Callable[[], Program[T]]], progress: CountProgress | None = None) -> list[T]:
        """Run one program per client on the workers and return the results in order. Raises the first error."""
        done: list[T] = []
        queued = [self._pool.submit(self._run_on_worker, make) for make in programs]
        try:
            for future in queued:
                done.append(future.result())
                if progress:
                    progress(len(done))
        finally:
            for future in queued:
                future.cancel()
        return done

    def _is_stopping(self) -> bool:
        return self._closing.is_set() or (self._stop is not None and self._stop())

    def _run_on_worker(self, make: Callable[[], Program[T]]) -> T:
        return self._run(make(), self._local.driver)

    def _run(self, program: Program[T], driver: SyncDriver | None = None) -> T:
        report = report_outage(self._options.progress or ignore_event)
        outage = Outage(self._options.patience, report, self._is_stopping)
        return (driver or self._driver).run(through(program, outage))

    # --- enrolment and keys --------------------------------------------------------------------------------------

    def enrol(
        self,
        invitation: str,
        holder_invitation: str | None = None,
        certificates: Callable[[CertifiedRole], CertificateSource] | None = None,
        progress: CountProgress | None = None,
    ) -> None:
        """Enrol every client; with `holder_invitation` client 0 becomes the key holder and creates the keyring.

        certificates: returns the source of certificates for a role; needed in tasks with an organiser. progress: called
        with the number of enrolled clients.
        """
        store, options = MemoryStore(), self._options

        def program(index: int, check: MembershipCheck | None = None) -> Callable[[], Program[FleetPart]]:
            account = Account.at(self._url, self._identities[index], store, options.policy, options.client)
            is_holder = index == 0 and holder_invitation is not None
            own_invitation = holder_invitation if is_holder else invitation
            certificate = None if certificates is None else certificates("holder" if is_holder else "member")
            seed = None if options.seed is None else (options.seed, index)
            device_group = None if options.device_groups is None else int(options.device_groups[index])

            def joined() -> Program[FleetPart]:
                member = yield from join(account, None, own_invitation, certificate, device_group, check)
                follower = SharedFollower(
                    member.calls, member.terms, device_group=member.membership.device_group, cache=self._cache
                )
                side = client_side(member.terms.recipe, options.training)
                return FleetPart(member, follower, side, np.random.default_rng(seed))

            return joined

        first = [self._driver.run(program(0)())]  # without waiting for a server: the address may be wrong
        check, rest = first[0].member.check, range(1, len(self._interactions))
        self._clients = first + self._run_all((program(index, check) for index in rest), progress)
        self._driver.run(self._clients[0].load_catalogue(options.progress or ignore_event, self._is_stopping))
        for client in self._clients:
            client.catalogue = self._clients[0].catalogue
        self._histories = [
            client.history(items) for client, items in zip(self._clients, self._interactions, strict=True)
        ]
        if holder_invitation:
            self._holder = KeyHolder(self._clients[0].member)
            self._holder.create()

    def give_keys(self, progress: CountProgress | None = None) -> None:
        """Let the key holder send the keyring to every client, and let every client open its envelope.

        Does nothing in tasks without keys. progress: called with the number of sealed envelopes. Raises
        `ParameterError` when the key holder refuses a client.
        """
        if self._holder is not None:
            sealed = count(1)
            self._holder.progress = lambda _: progress(next(sealed)) if progress else None
            self._run(self._holder.deliver())
            if self._holder.refused:
                raise ParameterError(
                    f"the key holder refused {len(self._holder.refused)} members: their certificates are invalid"
                )
        if self._clients[0].member.terms.mechanism.needs_keyring:
            self._run_all(client.ready for client in self._clients)
            keyring = self._clients[-1].follower.keyring
            for client in self._clients[1:]:
                if client.follower.keyring == keyring:
                    client.follower.keyring = keyring

    def enrol_committee(
        self, invitation: str, certificates: Callable[[CertifiedRole], CertificateSource] | None = None
    ) -> None:
        """Enrol the committee of one-shot sums, as many members as the plan has, and publish their first keys.

        certificates: as for `enrol`, which must have been called before. Raises `ParameterError` before it, and for
        another mechanism.
        """
        if not self._clients:
            raise ParameterError("the fleet is not enrolled: call enrol() first")
        source = None if certificates is None else certificates("committee")
        self._committee.enrol(self._url, self._clients[0].member.terms.sum_plan, invitation, source)

    # --- rounds --------------------------------------------------------------------------------------------------

    def run(
        self, on_round: Callable[[FleetRound], None] | None = None, stop: Stop | None = None, rounds: int | None = None
    ) -> list[FleetRound]:
        """Take part in every round until the task ends, `stop()` returns True, or `rounds` rounds are over.

        on_round: called with each round's report once `model` and `user_factors` include the round. Returns the
        reports. Raises `ParameterError` before `enrol`, and `PolicyRefused` when the policy does not allow a round.
        """
        if not self._clients:
            raise ParameterError("the fleet is not enrolled: call enrol() first")
        self._stop = stop
        done: list[FleetRound] = []
        watcher = self._clients[0].member
        opening = watcher.terms.entry.opens_in
        change: RoundChange | None = None
        with suppress(StoppedInOutage):
            while not self._is_stopping() and (rounds is None or len(done) < rounds):
                change = self._run(follow_rounds(watcher.calls, watcher.terms.task_id, change))
                if isinstance(change, TaskEnded):
                    break
                if isinstance(change, RoundChanged) and change.view.state == opening:
                    done.append(self._run_members(change))
                    if on_round:
                        on_round(done[-1])
        return done

    def _run_members(self, opened: RoundChanged) -> FleetRound:
        started = perf_counter()
        view = opened.view
        spared = self._spared()
        self._sync(view.number - 1)
        cohort = self._cohort(view.number)
        if view.committee and cohort and view.committee_keys is None:  # client 0 is not asked
            own = self._clients[cohort[0]].member
            view = self._run(own.calls.round(own.task_id, view.number))
        dropped = self._options.dropout_rng.random(len(cohort)) < self._options.dropout
        members = [
            CohortMember(self._clients[index], self._histories[index], bool(drops))
            for index, drops in zip(cohort, dropped, strict=True)
        ]
        if view.state == MASKED_STATES[0]:
            outcomes = play_masked_round(members, view, self._run_all, self._await_change, self._options.dropout_stage)
        else:
            outcomes = play_unmasked_round(members, view, self._run_all)
        self._committee.unmask(view, self._await_change)
        end = self._await(view.number, is_over, opened.etag)
        if end.state == "complete":
            self._sync(view.number)
        return FleetRound(
            number=view.number,
            state="complete" if end.state == "complete" else "failed",
            failure=end.failure,
            asked=view.cohort,
            survivors=end.survivors,
            reports=tuple(outcome for outcome in outcomes if isinstance(outcome, RoundReport)),
            missed=tuple(outcome for outcome in outcomes if isinstance(outcome, RoundMissed)),
            seconds=perf_counter() - started,
            bytes_spared=self._spared() - spared,
        )

    def _cohort(self, number: int) -> list[int]:
        """Return the places of the clients that round `number` asks."""
        if self._options.cohort is not None:
            asked = frozenset(self._options.cohort(number))
            return [place for place, each in enumerate(self._clients) if each.member.membership.client_id in asked]
        members = [each.member for each in self._clients]
        polls = (
            partial(await_round, own.calls, own.task_id, number, lambda view: view.number == number) for own in members
        )
        return [place for place, current in enumerate(self._run_all(polls)) if current.view.in_cohort]

    def _spared(self) -> int:
        """Return the bytes that the shared model has saved the clients from downloading."""
        return sum(client.shared.spared for client in self._clients)

    def _await_change(self, seen: RoundView, key: Callable[[RoundView], object]) -> RoundView:
        return self._await(seen.number, lambda view: key(view) != key(seen))

    def _await(self, number: int, is_awaited: Callable[[RoundView], bool], etag: str | None = None) -> RoundView:
        watcher = self._clients[0].member
        return self._run(await_round(watcher.calls, watcher.terms.task_id, number, is_awaited, etag)).view

    def _sync(self, upto: int) -> None:
        """Update the shared catalogues and models to the end of round `upto`, and publish a snapshot if one is due."""
        for device_group, follower in self._model_followers().items():
            if self._cache.missed(follower.terms.task_id, device_group, upto) is None:
                self._update(follower, upto)

    def _update(self, follower: SharedFollower, upto: int) -> None:
        """Update the catalogue and the model of one device group."""
        calls, terms, device_group = follower.calls, follower.terms, follower.view_group
        task_id = terms.task_id
        finding = self._pool.submit(self._run_on_worker, partial(usable_snapshot, calls, terms)) if upto else None
        newer = self._run(fetch_missed(calls, terms, follower.known, upto))
        snapshot = finding.result() if finding else None
        self._cache.extend_missed(task_id, device_group, MissedRounds(upto, newer.completed, snapshot))
        followed = self._run(follower.follow(upto)).followed
        if self._run(follower.publish_when_due(followed, self._options.policy.snapshot_every)):
            snapshot = self._run(calls.latest_snapshot(task_id))
            self._cache.extend_missed(task_id, device_group, MissedRounds(upto, (), snapshot))

    def _model_followers(self) -> dict[int | None, SharedFollower]:
        """The fleet's own copies of the model, one for each device group that follows its own view.

        They are separate from the clients' copies, so that the traffic of the clients is counted as if each was alone.
        """
        for client in self._clients:
            if client.follower.view_group not in self._followers:
                own = client.shared.another()
                self._followers[own.view_group] = own
        for follower in self._followers.values():
            follower.keyring = self._clients[0].follower.keyring
        return self._followers

    # --- what it learned -----------------------------------------------------------------------------------------

    @property
    def clients(self) -> tuple[FleetPart, ...]:
        """Every client, in the order of `interactions`."""
        return tuple(self._clients)

    def model(self, device_group: int | None = None) -> ModelState:
        """Return the newest model that the fleet knows; before the first round, the initial one.

        device_group: the group whose view is returned; by default that of client 0. Raises `ParameterError` for a group
        without clients in the fleet.
        """
        wanted = self._clients[0].member.membership.device_group if device_group is None else device_group
        if not self._followers:
            self._sync(0)
        whole = self._followers.get(None)
        if whole is not None:
            return whole.terms.recipe.view(whole.at_hand(), wanted)
        if wanted not in self._followers:
            raise ParameterError(f"no client of this fleet is in group {wanted}, so its model is unknown")
        return self._followers[wanted].at_hand()

    def user_factors(self) -> NDArray[np.float32]:
        """Return every client's user factor, float32 (clients, dim); a random one for a client that never trained."""
        return np.stack([client_state[USER_FACTOR] for client_state in self._client_states()])

    def scores(self) -> Iterator[NDArray[np.float32]]:
        """Yield every client's scores by the newest model, each float32 (items,)."""
        device_groups = {client.member.membership.device_group for client in self._clients}
        states = {device_group: self.model(device_group) for device_group in device_groups}
        for client, client_state, history in zip(self._clients, self._client_states(), self._histories, strict=True):
            yield client.client_side.scores(states[client.member.membership.device_group], client_state, history)

    def _client_states(self) -> list[ClientState]:
        rng = np.random.default_rng(self._options.seed)
        return [client.client_state() or client.client_side.initial_client_state(rng) for client in self._clients]

    def traffic(self) -> tuple[int, int]:
        """Return the bytes of bodies sent and received so far, including enrolment, keys, polls and snapshots."""
        return sum(each.traffic.up for each in self._drivers), sum(each.traffic.down for each in self._drivers)

    def close(self) -> None:
        """Cancel what is queued, let each worker finish its current client, and close all connections."""
        self._closing.set()
        self._pool.shutdown(cancel_futures=True)
        for driver in self._drivers:
            driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
