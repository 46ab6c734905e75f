"""Small tasks on a real aggregator for the SDK's tests, their organiser, and single steps of their clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk import Client, ClientOptions, Identity, MemoryStore, Operator, Policy, RoundReport, Task, task_request
from client_sdk.api.http import SyncDriver
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.organiser import TrialOrganiser
from client_sdk.rounds.contribution import train
from client_sdk.rounds.events import Progress, ignore_event
from client_sdk.rounds.key_holder import KeyHolder
from client_sdk.rounds.loop import play
from client_sdk.rounds.member import CertificateSource
from client_sdk.store.client_store import ClientStore
from protocols.crypto.certificates import CertifiedRole
from protocols.messages import RoundView, Schedule, TaskRequest
from protocols.messages.rounds import Evaluation
from protocols.recipes.base import ModelState

TRIAL = TrialOrganiser("tests")


ITEMS = 60


def interactions(users: int, each: int = 6) -> list[NDArray[np.int32]]:
    """`each` distinct items for every user, the same in every run."""
    rng = np.random.default_rng(7)
    return [rng.choice(ITEMS, each, replace=False).astype(np.int32) for _ in range(users)]


@dataclass
class SmallTask:
    """A task with what its clients need to join."""

    operator: Operator
    task_id: str
    name: str
    invitation: str
    holder_invitation: str | None
    certified: bool

    @classmethod
    def of(cls, operator: Operator, request: TaskRequest, users: int) -> SmallTask:
        """Create what `request` describes, with invitations for its `users` and, where it needs one, the key holder."""
        task_id = operator.create_task(request).task_id
        keyed = request.mechanism.name in ("ckks", "paillier")
        return cls(
            operator,
            task_id,
            request.name,
            operator.invite(task_id, uses=users + 5).invitation,
            operator.invite(task_id, role="holder").invitation if keyed else None,
            request.organiser is not None,
        )

    def join(self, client: Client, place: int = 1, **options: Any) -> Task:
        """Let `client` join; at place 0 as the key holder, where the task has one."""
        holds = place == 0 and self.holder_invitation is not None
        invitation = self.holder_invitation if holds else self.invitation
        certificate = TRIAL.source("holder" if holds else "member") if self.certified else None
        return client.join(self.name, invitation=invitation, certificate=certificate, **options)

    @property
    def certificates(self) -> Callable[[CertifiedRole], CertificateSource] | None:
        """What a fleet enrols with."""
        return TRIAL.source if self.certified else None


def small_task(
    operator: Operator,
    name: str,
    *,
    users: int,
    recipe: str = "colr",
    mechanism: str = "plain",
    mechanism_parameters: dict[str, Any] | None = None,
    recipe_parameters: dict[str, Any] | None = None,
    data_set: str | None = None,
    certified: bool | None = None,
    seed: bytes | None = None,
    evaluation: Evaluation | None = None,
    **schedule: Any,
) -> SmallTask:
    """A task over 60 items with factors of length 8, whose cohort is everybody unless told otherwise.

    certified: whether it has the tests' organiser; plain tasks have none unless told otherwise. recipe_parameters: what
    replaces the length and what goes with it.
    """
    rank = {} if recipe == "fedmf" else {"rank": 4}
    parameters = {"items": ITEMS, **(recipe_parameters or {"dim": 8, "clip": 2.0, **rank})}
    plan = Schedule(**{"rounds": 2, "cohort_size": users, "start_clients": users, **schedule})
    certified = mechanism != "plain" if certified is None else certified
    organiser = TRIAL.pin if certified else None
    own: dict[str, Any] = {"data_set": data_set, "organiser": organiser, "evaluation": evaluation}
    request = task_request(name, recipe, mechanism, plan, parameters, mechanism_parameters, seed, **own)
    return SmallTask.of(operator, request, users)


TRUSTING = Policy(trust_models=True, reveal_gram=True)
"""The policy of clients in tests: sums without noise over few clients, whose server does not lie about models."""


def new_client(url: str, policy: Policy = TRUSTING, options: ClientOptions | None = None) -> Client:
    """A client without any membership, whose records are in memory."""
    return Client(url, Identity.generate(), MemoryStore(), policy, options)


@contextmanager
def joined(
    url: str,
    task: SmallTask,
    users: int,
    policy: Policy = TRUSTING,
    options: ClientOptions | None = None,
    **how: Any,
) -> Iterator[list[Task]]:
    """So many new clients that have joined; the first one holds the keys, where the task has some. how: of `join`."""
    with ExitStack() as stack:
        clients = [stack.enter_context(new_client(url, policy, options)) for _ in range(users)]
        yield [task.join(client, place, **{"seed": place, **how}) for place, client in enumerate(clients)]


def take_part_together(
    parts: Sequence[Task], histories: Sequence[Any], play: Callable[[Task, Any], Any] = Task.take_part
) -> list[Any]:
    """Let each member `play` in its own thread, and the key holder serve beside them, until the task ends."""
    holder = parts[0] if parts[0].membership.role == "holder" else None
    with ThreadPoolExecutor(len(parts) + 1) as pool:
        if holder is not None:
            holder.create_keyring()
        serving = pool.submit(holder.serve, None, None, 1.0) if holder is not None else None
        reports = list(pool.map(play, parts, histories))
        if serving is not None:
            serving.result(timeout=60)
    return reports


# --- one step of a client's part in a task, where a test needs less than `take_part` and `serve` do -------------------


def play_round(task: Task, view: RoundView, interactions: object, progress: Progress | None = None) -> RoundReport:
    """Take part in one round, and raise the errors that `take_part` reports as events."""
    part = task.part
    part.seen = part.history(interactions)
    return task._driver.run(play(part, view, part.seen, progress or ignore_event))


def deliver_keys(task: Task, progress: Progress | None = None) -> list[str]:
    """As the key holder, send the keyring to every member without one."""
    return task._driver.run(KeyHolder(task.part.member, progress or ignore_event).deliver())


def enrolled_fleet(url: str, task: SmallTask, histories: Sequence[Any], seed: int = 3, **options: Any) -> Fleet:
    """A fleet whose clients have joined, with their keys or a committee where the task needs them."""
    made = Fleet(url, histories, FleetOptions(seed=seed, **options))
    made.enrol(task.invitation, task.holder_invitation, task.certificates)
    made.give_keys()
    if task.operator.task(task.task_id).mechanism.name == "oneshot":
        committee = task.operator.invite(task.task_id, 5, "committee").invitation
        made.enrol_committee(committee, task.certificates)
    return made


def model_in_the_clear(fleet: Fleet, histories: Sequence[Any]) -> ModelState:
    """The model after round 1, from training every client again with seed 3 and adding without encryption."""
    terms = fleet.clients[0].member.terms
    with SyncDriver() as driver:
        view = driver.run(fleet.clients[0].member.calls.round(terms.task_id, 1))
    state, spec = terms.recipe.initial_state(terms.seed), terms.round_spec(view)
    total = np.zeros(terms.recipe.layout(1).length)
    for index, (client, items) in enumerate(zip(fleet.clients, histories, strict=True)):
        own = replace(client.member, store=ClientStore(MemoryStore(), "twin"))
        twin = replace(client, rng=np.random.default_rng((3, index)), member=own, _client_state=None)
        blocks = train(twin, spec, state, twin.history(items)).blocks
        total += terms.recipe.layout(1).scatter(terms.recipe.route(spec, client.member.client_id), blocks)
    return terms.recipe.absorb(state, spec, total, len(histories))
