"""One client in one one-shot round: catch up, check the committee, train, and send one message.

Afterwards the client learns by polling whether the round is complete; nothing more is asked of it. It remembers the
committees to which it has sent its data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.wire import Program, through, work
from client_sdk.errors import RoundLost
from client_sdk.rounds.contribution import OwnRound
from client_sdk.rounds.events import RoundReport
from client_sdk.rounds.member import Member, require_known_people
from client_sdk.store import decoded
from client_sdk.store.client_store import ClientStore, of_data
from client_sdk.store.states import member_tag
from protocols.codec import b64decode
from protocols.errors import AlreadySummed, CodecError, ParameterError, RefusalError
from protocols.layout import Data
from protocols.messages import RoundView
from protocols.sums.oneshot.client import contribute
from protocols.sums.oneshot.committee import Committee, make_committee, split_keys
from protocols.sums.oneshot.plan import OneshotContext, OneshotPlan, OneshotPolicy


class OneshotRound(OwnRound):
    """One client in one one-shot round."""

    def take_part(self) -> Program[RoundReport]:
        """Send this client's only message of the round; return the report.

        Raises `PolicyRefused`, `Abstained`, `RefusalError` for a committee that the client does not accept, and the
        errors of catching up, of training (`contribution.train`) and of the upload.
        """
        member, own_key = self.part.member, self.part.member.identity.signing_key
        require_known_people(member)
        caught_up = yield from self.catch_up()
        with self.timed("catch_up"):
            digest = self.part.model_digest(self.spec, caught_up.state)
            committee = yield from committee_of(member, oneshot_context(member.terms, self.view, digest), self.view)
            self.traffic.down += len(self.view.committee_keys or "")
            remember_committee(member.store, committee)
        local, made = yield from self.contribution(caught_up)
        policy = member.policy.requirements(OneshotPolicy, member.terms.schedule)
        timed = self.timed("seal")
        upload = yield from work(
            timed(lambda: contribute(committee, member.client_id, own_key, policy, made.elements).encode())
        )
        yield from through(self.deliver(upload, caught_up, local), self.traffic)
        return self.report(caught_up, local, made, len(upload))

    @staticmethod
    def end_sums(store: ClientStore, task_id: str) -> bool:
        close_seen(store, task_id)
        return True


# --- checking the committee of a one-shot round -----------------------------------------------------------------------


def oneshot_context(terms: TaskTerms, view: RoundView, model_digest: bytes) -> OneshotContext:
    """Return the facts of round `view` that everything sent in it is bound to, from this party's own terms.

    model_digest: of the terms and the model, 32 bytes. Raises `ContractBroken` for a round that contradicts the terms,
    `RefusalError` for a number of clients that the task does not allow, `ParameterError` for another mechanism.
    """
    spec = terms.round_spec(view)
    plan = OneshotPlan.of(terms.sum_plan_at(spec.sum_index, spec.size))
    try:
        return OneshotContext(terms.task_id, view.number, spec.sum_index, plan, model_digest, view.cohort)
    except ParameterError as error:
        raise RefusalError(str(error)) from error


def committee_of(member: Member, context: OneshotContext, view: RoundView) -> Program[Committee]:
    """Check the committee of the round `view`, which awaits this member; see `make_committee` for the checks.

    Raises `RefusalError` for a committee that cannot be accepted, `RoundLost` where the server names none.
    """
    if view.committee_keys is None:
        raise RoundLost(f"the server names no committee for round {view.number}")
    try:
        keys = split_keys(b64decode(view.committee_keys))
    except CodecError as error:
        raise RefusalError(f"the server names no valid committee for round {view.number}: {error}") from error
    return (yield from work(lambda: make_committee(context, keys, lambda key: member.check(key, "committee"))))


# --- the committees to which a client has sent its data, so that no other one opens a second sum of them --------------
# A member of a committee refuses a sum that, with earlier ones over the same data, reveals a sum over too few clients.
# It knows the sums that it helped to open. The groups of t members that open two sums have at least 2 t - c - d members
# in common, where the second committee has d members that the first one has not. More than `corrupt` of them means an
# honest one, which knows both sums. So a client accepts at most 2 t - c - corrupt - 1 new members for the same data.
#
# Members are compared by their identity keys, which the organiser certified; the server chooses the ids.


@dataclass(frozen=True)
class SeenCommittees:
    """The committees, each a set of tags of identity keys, that a client accepted for sum `sum_index`; none at first.

    Where all sums of a task are over the same data, those of all its sums.
    """

    sum_index: int = 0
    committees: tuple[frozenset[str], ...] = ()
    earlier: frozenset[int] = frozenset()
    """The other sums to which it sent its data, and sends none any more: it does not remember their committees."""

    def with_committee(self, sum_index: int, members: frozenset[str], most_new: int, same_data: bool) -> SeenCommittees:
        """Return the record after `members` is accepted for sum `sum_index`.

        most_new: how many of them may be missing in an earlier committee for the same data. same_data: whether all sums
        of the task are over the same data. Raises `RefusalError` for more, and `AlreadySummed`.
        """
        if sum_index in self.earlier:
            raise AlreadySummed(sum_index)
        earlier = self.committees if same_data or sum_index == self.sum_index else ()
        replaced = max((len(members - each) for each in earlier), default=0)
        if replaced > most_new:
            raise RefusalError(
                f"{replaced} members of the committee were not in it when this client sent the same data before; this "
                f"client accepts {most_new}: the members would not know the earlier sum, and the two together could "
                "reveal one client's data"
            )
        left = {self.sum_index} if self.committees and sum_index != self.sum_index and not same_data else set()
        return SeenCommittees(sum_index, tuple(dict.fromkeys((*earlier, members))), self.earlier | left)

    def closed(self) -> SeenCommittees:
        """Return the record after the server has lost its newest rounds: the client sends its data to no sum twice."""
        return replace(self, earlier=self.earlier | ({self.sum_index} if self.committees else set()))

    def encode(self) -> bytes:
        """Return the record as JSON."""
        committees = [sorted(members) for members in self.committees]
        return json.dumps([self.sum_index, committees, sorted(self.earlier)]).encode()

    @classmethod
    def decode(cls, body: bytes) -> SeenCommittees:
        """Return the record in `body`; `ValueError` or `TypeError` for anything that `encode` did not make."""
        sum_index, committees, earlier = json.loads(body)
        seen = tuple(frozenset(map(str, members)) for members in committees)
        return cls(int(sum_index), seen, frozenset(map(int, earlier)))


def load_seen(client_store: ClientStore, task_id: str, data: Data | None = None) -> SeenCommittees:
    """Return the record of one task; `LocalFileError` when it is damaged.

    data: for sums of class `repeated`, the data that are summed again; None for other sums.
    """
    body = client_store.read(task_id, of_data("committees", data))
    return decoded(body, SeenCommittees.decode, f"committees of task {task_id} are") or SeenCommittees()


def remember_committee(client_store: ClientStore, committee: Committee) -> None:
    """Store that this client sends its data of the round to `committee`; see `SeenCommittees.with_committee`."""
    context, parameters = committee.context, committee.context.plan.parameters
    most_new = 2 * parameters.threshold - parameters.committee - parameters.corrupt - 1
    sum_class = context.plan.layout.sum_class
    data = sum_class.data if sum_class.repeated else None
    seen = load_seen(client_store, context.task_id, data)
    members = frozenset(member_tag(member.identity_key).hex() for member in committee.members)
    after = seen.with_committee(context.step, members, most_new, same_data=data is not None)
    if after != seen:
        client_store.write(context.task_id, of_data("committees", data), after.encode())


def close_seen(client_store: ClientStore, task_id: str) -> None:
    """Store that this client sends its data to none of the sums again to which it sent them; see `closed`."""
    seen = load_seen(client_store, task_id)
    if seen.closed() != seen:
        client_store.write(task_id, of_data("committees", None), seen.closed().encode())
