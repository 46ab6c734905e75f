"""Clients of a simulated task: what each contributes in a round, and what it sends next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from aggregator_service.rounds.masked_stages import round_context
from aggregator_service.storage.schema import RoundRow, TaskRow
from aggregator_service.tasks.plans import TaskPlan, plan_round, round_spec
from client_sdk.store.signed_sets import SignedSets, member_tags
from protocols.errors import RefusalError, ThresholdError
from protocols.layout import VectorLayout
from protocols.sums.masked import client
from protocols.sums.masked.roster import Roster
from protocols.sums.masked.wire import decode_set
from tests.simulation.plan import MEMBERS, Part
from tests.simulation.process import Message, Process
from tests.support.masked import POLICY, handout_for, next_step

__all__ = ["PLACES", "Client", "counted", "vector"]

PLACES: Final = MEMBERS + 2
"""Members at the beginning, and newcomers at most."""


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


def counted(total: NDArray[np.float64]) -> list[int]:
    """Return how often each client is in a sum."""
    return [round(value) for value in total[:PLACES]]


@dataclass
class Client:
    """One client and its state in the current round. It never dies, but may stop sending.

    token: "" while it has to enrol, again or for the first time. offset: bytes of its upload that are stored; None: it
    asks the server. garbage: whether it seals random bytes instead of shares. signed: the sets of survivors that it
    agreed to. owed: whose shares did not open, until that is reported.
    """

    index: int
    id: str = ""
    token: str = field(default="", repr=False)
    asked_to_leave: bool = False
    number: int = 0
    left: bool = False
    done: frozenset[Part] = frozenset()
    made: tuple[Part, bytes] | None = None
    offset: int | None = 0
    retry_at: float = 0.0
    state: Any = None
    garbage: bool = False
    signed: SignedSets = field(default_factory=SignedSets)
    owed: tuple[str, ...] = ()

    @property
    def identity(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(bytes([self.index + 1] * 32))

    @property
    def mailbox(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(bytes([self.index + 1] * 32))

    def enter(self, number: int) -> None:
        """Start a new round."""
        self.number, self.left, self.done, self.made, self.state = number, False, frozenset(), None, None
        self.offset, self.owed = 0, ()

    def next_message(self, part: Part, body: bytes, pieces: int) -> Message:
        """Return the next request for a message: whole, or one of `pieces` chunks; HEAD for an unknown offset."""

        def message(method: Any, piece: bytes, offset: int | None = None) -> Message:
            return Message(self.number, part, self.id, self.token, method, body, piece, piece, offset)

        if part != "contribute" or pieces < 2:
            return message("PUT", body)
        if self.offset is None or self.offset >= len(body):
            return message("HEAD", b"")
        offset, self.offset = self.offset, None
        return message("PATCH", body[offset : offset + -(-len(body) // pieces)], offset)

    def make(self, process: Process, task: TaskRow, round_: RoundRow, part: Part) -> bytes | None:
        """Return the message of this client for a part, always the same bytes; None: not now, or never."""
        if self.owed:
            process.report(round_.id, self.id, self.owed)
            self.owed = ()
        if self.made is not None and self.made[0] == part:
            return self.made[1]
        try:
            if round_.model_digest is None:
                body: bytes | None = self._plain(plan_round(task, round_), round_)
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
        route = plan.route(round_spec(round_), self.id)
        values = vector(plan.sum_plan.layout, round_.number, self.index)
        return bytes(plan.mechanism.seal(plan.sum_plan, route, plan.sum_plan.layout.split(values), None))

    def _step(self, process: Process, task: TaskRow, round_: RoundRow, part: Part) -> bytes | None:
        if part == "advertise":
            self.state, body = client.advertise(round_context(task, round_), self.id, self.identity, POLICY)
            return body
        if self.state is None:
            self.left = True  # it missed an earlier stage
            return None
        kind = handout_for(part, task.mechanism_parameters["mode"])
        handed = process.hand_out(task.id, round_.number, kind, self.id)
        if handed is None:
            return None
        state, self.state = self.state, None
        self.state, body = next_step(state, part, handed, lambda layout: vector(layout, round_.number, self.index))
        if part == "share" and self.garbage:
            body = bytes([self.index + 1]) * len(body)
        elif part == "contribute":
            self.owed = self.state.unopened
        elif kind == "survivors":
            self._sign(state.roster, handed, round_.sum_index)
        return body

    def _sign(self, roster: Roster, survivors: bytes, sum_index: int) -> None:
        """Agree to a set of survivors as the SDK does; a server that follows the protocol asks for no other one."""
        alive = decode_set(survivors, len(roster))
        members = member_tags(tuple(entry.identity_key for entry in roster.entries), alive)
        self.signed = self.signed.with_set(sum_index, members, min_difference=len(roster))
