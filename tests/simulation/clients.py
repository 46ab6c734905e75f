"""A simulated task and its clients: what each sees of it, contributes in a round, and sends next."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from aggregator_service.access.principals import hash_token
from aggregator_service.rounds.masked import round_context
from aggregator_service.storage.round_rows import cohort_clients, last_round
from aggregator_service.storage.schema import CommitteeKeyRow, RoundRow, TaskRow
from aggregator_service.storage.stage_rows import clients_with
from aggregator_service.tasks.membership import able_members
from aggregator_service.tasks.plans import TaskPlan, plan_round, plan_task, round_spec, row_terms
from aggregator_service.tasks.task_views import create_invitation, create_task, plan_request
from client_sdk.store.states import SignedSets, member_tags
from protocols.codec import b64encode
from protocols.crypto.random import Randomness
from protocols.errors import RefusalError, ThresholdError
from protocols.layout import VectorLayout, whole_route
from protocols.messages import InvitationRequest, TaskRequest
from protocols.messages.stages import MaskedMessage
from protocols.sums.masked import client
from protocols.sums.masked.roster import Roster
from protocols.sums.masked.wire import decode_set
from protocols.sums.oneshot.committee import Committee
from tests.simulation.committee import CommitteeMember, Keys, make_upload
from tests.simulation.machine import Disk
from tests.simulation.plan import BEYOND, COMMITTEE, LIE_PARTS, PLACES, SPLIT, Job, Plan
from tests.simulation.process import Process
from tests.support.masked import POLICY, can_step, handout_for, next_step
from tests.support.world import an_operator, client_row, request_json


def vector(layout: VectorLayout, number: int, index: int) -> NDArray[np.float64]:
    """Return the vector of client `index` in round `number`: integers, so that every sum is exact.

    Each of the first values belongs to one client, 1 in its vector and 0 in all others: a sum shows who is in it, and
    how often. The other values distinguish rounds and clients, where the layout has room for them.
    """
    bounds = np.concatenate([block.bounds() for block in layout.blocks])
    counts = np.concatenate([block.integral_mask() for block in layout.blocks])
    values = np.minimum((np.arange(counts.size) * 7 + number * 13 + index * 5) % 31 + 1.0, np.floor(bounds))
    values[counts] = 1.0
    values[:PLACES] = 0.0
    values[index] = 1.0
    return values


@dataclass
class Client(Keys):
    """One client and its state in the current round. It never dies, but may stop sending."""

    index: int
    random: Randomness
    """What its keys are made of."""
    id: str = ""
    token: str = field(default="", repr=False)
    """Empty while it has to enrol, again or for the first time."""
    number: int = 0
    left: bool = False
    done: frozenset[MaskedMessage] = frozenset()
    made: tuple[MaskedMessage, bytes] | None = None
    offset: int | None = 0
    """Bytes of its upload that are stored; None: it asks the server."""
    retry_at: float = 0.0
    state: Any = None
    garbage: bool = False
    """Whether it seals random bytes instead of shares."""
    spoilt: int = 0
    """For how many members of a committee."""
    lies: Mapping[int, int] = field(default_factory=dict)
    """By round, what it adds to its last value: `BEYOND` for what no honest contributions add up to."""
    signed: SignedSets = field(default_factory=SignedSets)
    """The sets of survivors that it agreed to."""
    owed: tuple[str, ...] = ()
    """Whose shares did not open, until that is reported."""
    chain: str | None = None
    """What its contribution states of the sums before the round; None: nothing."""
    committee: Committee | None = None
    """Of a one-shot round, once it was shown to this client."""

    def enter(self, number: int) -> None:
        self.number, self.left, self.done, self.made, self.state = number, False, frozenset(), None, None
        self.offset, self.owed, self.committee = 0, (), None

    def make(self, process: Process, task: TaskRow, round_: RoundRow, part: MaskedMessage) -> bytes | None:
        """Return the message of this client for a part, always the same bytes; None: not now, or never."""
        self.chain = round_.aggregate_chain
        if self.owed:
            process.report(round_.id, self.id, self.owed)
            self.owed = ()
        if self.made is not None and self.made[0] == part:
            return self.made[1]
        try:
            if round_.model_digest is None:
                body: bytes | None = self._plain(plan_round(task, round_), round_)
            elif round_.committee:
                body = self._upload(round_.number)
            else:
                body = self._step(process, task, round_, part)
        except ThresholdError:
            self.left = True
            return None
        except RefusalError:
            if "contribute" in self.done:
                raise
            self.left = True  # its last chunk was late, and it got no answer
            return None
        if body is not None:
            self.made = (part, body)
        return None if self.owed else body  # it reports before it contributes

    def _plain(self, plan: TaskPlan, round_: RoundRow) -> bytes:
        route = plan.recipe.route(round_spec(round_), self.id)
        values = vector(plan.sum_plan.layout, round_.number, self.index)
        return bytes(plan.mechanism.seal(plan.sum_plan, route, plan.sum_plan.layout.split(values), None))

    def _upload(self, number: int) -> bytes:
        assert self.committee is not None
        values, lie = vector(self.committee.context.plan.layout, number, self.index), self.lies.get(number)
        return make_upload(self.committee, self.id, self.identity, values, self.random, lie, self.spoilt)

    def _step(self, process: Process, task: TaskRow, round_: RoundRow, part: MaskedMessage) -> bytes | None:
        if part == "advertise":
            self.state, body = client.advertise(
                round_context(task, round_), self.id, self.identity, POLICY, self.random
            )
            return body
        if not can_step(self.state, part):
            self.left = True  # it missed an earlier stage
            return None
        kind = handout_for(part, task.mechanism_parameters["mode"])
        handed = process.hand_out(task.id, round_.number, kind, self.id)
        if handed is None:
            return None
        state, self.state = self.state, None
        if part == "contribute" and round_.number in self.lies:
            self.state, body = self._lie(state, handed, round_.number)
        else:
            own = partial(vector, number=round_.number, index=self.index)
            self.state, body = next_step(state, part, handed, own, self.random)
        if part == "share" and self.garbage:
            body = bytes([self.index + 1]) * len(body)
        elif part == "contribute":
            self.owed = self.state.unopened
        elif kind == "survivors":
            self._sign(state.roster, handed, round_.sum_index)
        return body

    def _lie(self, state: Any, inbox: bytes, number: int) -> tuple[Any, bytes]:
        """Contribute the client's vector with more in its last value: `BEYOND` adds half the ring."""
        plan, lie = state.context.plan, self.lies[number]
        own, more = vector(plan.layout, number, self.index), np.zeros(plan.layout.length)
        more[-1] = lie / LIE_PARTS  # within a client's bounds, which the sum of the parts need not be
        elements, part = (plan.encode(whole_route(plan.layout), plan.layout.split(one)) for one in (own, more))
        if lie == BEYOND:
            elements[-1] += elements.dtype.type(1 << (plan.bits - 1))
        else:
            elements += part * elements.dtype.type(LIE_PARTS)
        return client.contribute(client.open_inbox(state, inbox), elements)

    def _sign(self, roster: Roster, survivors: bytes, sum_index: int) -> None:
        """Agree to a set of survivors as the SDK does; a server that follows the protocol asks for no other one."""
        alive = decode_set(survivors, len(roster)) & roster.same_group(roster.index(self.id))
        members = member_tags(tuple(entry.identity_key for entry in roster.entries), alive)
        self.signed = self.signed.with_set(sum_index, members, min_difference=len(roster))


STAGE_SECONDS: Final = 100.0
GROUPS: Final = 2
_RECIPES: Final[dict[Job, tuple[str, dict[str, Any]]]] = {
    "frozen": (
        "privirec-k",
        {
            "items": PLACES,
            "components": 1,
            "iterations": 3,
            "degrees": False,
            "item_exponent": 0,
            "reveal_gram": True,
            "min_owners": 1,
        },
    ),
    "groups": ("fair", {"items": PLACES, "dim": 1, "clip": 50.0, "capacities": [0, 1]}),
}
_PLAIN: Final = "fedmf", {"items": 4, "dim": 4, "clip": 5000.0, "row_clip": 1e6}


@dataclass(frozen=True)
class View:
    """What clients see of the task."""

    task: TaskRow
    round: RoundRow | None
    asked: frozenset[str]
    """The cohort of the newest round."""
    committee: frozenset[str] = frozenset()
    """Of this round."""
    published: frozenset[tuple[str, int]] = frozenset()
    """The keys that members of the committee have published, by member and round."""


def device_group_of(plan: Plan, index: int) -> int:
    return index % GROUPS if plan.job == "groups" else 0


def create_job(
    plan: Plan, disk: Disk, now: float, clients: Sequence[Client], committee: Sequence[CommitteeMember]
) -> tuple[str, str]:
    how: tuple[Any, ...] = ("masked", {"mode": plan.job, "corrupt": 0.0, "dropout": 0.25}) if plan.masked else ()
    if plan.job == "split":  # far apart, so that honest sums are used
        how = "masked", {"mode": "semi-malicious", "corrupt": 0.0, "dropout": 0.1, "groups": SPLIT, "tau": 10.0}
    if plan.one_shot:
        split = {"groups": SPLIT, "tau": 10.0} if plan.groups > 1 else {}
        how = "oneshot", {"committee": COMMITTEE, "corrupt": 1, **split}
    request = request_json(
        "simulated",
        *_RECIPES.get(plan.job, _PLAIN),
        *how,
        seed=b64encode(random.Random(plan.seed).randbytes(32)),
        rounds=plan.rounds,
        cohort_size=plan.cohort,
        min_clients=plan.floor,
        collect_seconds=STAGE_SECONDS,
        stage_seconds=STAGE_SECONDS,
        max_failed_rounds=3,
    )
    asked = TaskRequest.model_validate(request)
    with disk.database.write() as session:
        task = create_task(session, asked, plan_request(asked), an_operator(now))
        for client in clients[: plan.members]:
            client.id, client.token = f"c_{client.index:02}", f"token-{client.index}"
        for party in (*clients[: plan.members], *committee):
            session.add(
                client_row(
                    party.id,
                    task.id,
                    sequence=party.index + 1,
                    role="committee" if party.index >= PLACES else "member",
                    device_group=device_group_of(plan, party.index),
                    identity_key=party.identity.public_key().public_bytes_raw(),
                    mailbox_key=party.mailbox.name,
                    sealing_key=party.mailbox.public,
                    token_hash=hash_token(party.token),
                    turn=party.index,
                )
            )
        many = InvitationRequest(uses=100, role="member", expires_seconds=86_400.0 * 30)
        return task.id, create_invitation(session, task, many, an_operator(now)).invitation


def read_view(disk: Disk, task_id: str) -> View:
    with disk.database.read() as session:
        newest = last_round(session, task_id)
        task = session.get_one(TaskRow, task_id)
        if newest is None:
            asked = committee = frozenset[str]()
        else:
            asked = frozenset(cohort_clients(session, newest.id))
            committee = frozenset(session.scalars(clients_with(newest.id, "committee")))
        rows = select(CommitteeKeyRow.client_id, CommitteeKeyRow.round_number).where(CommitteeKeyRow.task_id == task_id)
        published = frozenset((member, number) for member, number in session.execute(rows))
        return View(task, newest, asked, committee, published)


def has_members(disk: Disk, view: View, floor: int) -> bool:
    """Whether each group has enough members for a sum."""
    with disk.database.read() as session:
        return min(able_members(session, view.task, plan_task(row_terms(view.task)).recipe)) >= floor
