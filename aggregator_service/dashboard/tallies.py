"""Per-round counts for the dashboard, computed by the database in a fixed number of queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_service.round_states import ACTIVE, ORDER
from aggregator_service.storage.round_rows import entered_states, message_counts, refusals_by_reason
from aggregator_service.storage.schema import ChunkRow, RoundRow, RoundStateRow
from protocols.messages.stages import MESSAGE_IN, RoundState, prerequisite_of

Status = Literal["done", "now", "ahead", "failed"]


@dataclass(frozen=True)
class Step:
    """One step of the funnel: a number of clients."""

    name: str
    count: int | None
    """None while it is not known yet."""
    note: str


@dataclass(frozen=True)
class StateFacts:
    """One state of a round."""

    state: str
    status: Status
    entered_at: float | None = None
    left_at: float | None = None
    """Seconds since the epoch."""
    expected: int | None = None
    delivered: int | None = None
    """Clients, None if the state waits for no client."""
    received: int = 0
    handed_out: int = 0
    """Bytes of all clients together."""

    @property
    def missing(self) -> int | None:
        """Clients that have not delivered; None if the state waits for no client."""
        return None if self.expected is None or self.delivered is None else max(0, self.expected - self.delivered)

    def seconds(self, now: float) -> float | None:
        """Return the seconds spent in this state until `now`; None for future and final states."""
        if self.entered_at is None or self.state in (RoundState.COMPLETE, RoundState.FAILED):
            return None
        return max(0.0, (now if self.left_at is None else self.left_at) - self.entered_at)


@dataclass
class Tally:
    """A round and its counts."""

    round: RoundRow
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Message name to (clients, bytes)."""
    uploads: int = 0
    """Clients with an incomplete upload."""
    entered: list[RoundStateRow] = field(default_factory=list)
    """States in order."""
    refusals: dict[str, int] = field(default_factory=dict)
    """Clients that refused the round, by reason."""

    @property
    def active(self) -> bool:
        """Whether the round is in an active state."""
        return self.round.state in ACTIVE

    @property
    def masked(self) -> bool:
        """Whether the round is one of masked sums, which begins with keys and shares."""
        return self.round.model_digest is not None and not self.round.committee

    @property
    def received(self) -> int:
        """Number of stored contributions."""
        return self.clients("contribute")

    @property
    def deadline(self) -> float | None:
        """Deadline of the current state, if it waits for clients."""
        return self.round.deadline if self.round.state in MESSAGE_IN else None

    @property
    def stage_began(self) -> float:
        """When the round entered the state it is in."""
        return self.entered[-1].entered_at if self.entered else self.round.opened_at

    @property
    def failed_in(self) -> str | None:
        """The last state of a failed round before it failed; None for other rounds."""
        failed = self.round.state == RoundState.FAILED and len(self.entered) > 1
        return self.entered[-2].state if failed else None

    @property
    def waited_for(self) -> tuple[int, int] | None:
        """(clients that delivered, clients expected) in the current state; None if it waits for no client."""
        state = self.round.state
        expected = self._expected_deliveries(state)
        return None if expected is None else (self.clients(MESSAGE_IN[state]), expected)

    def clients(self, part: str) -> int:
        """Return the number of clients that sent this message."""
        return self.parts.get(part, (0, 0))[0]

    def seconds(self, now: float) -> float:
        """Return the age of an active round, or the duration of one that has ended, in seconds."""
        until = now if self.active or not self.entered else self.entered[-1].entered_at
        return max(0.0, until - self.round.opened_at)

    def funnel(self) -> list[Step]:
        """Return the steps invited, joined, contributed and survived, with the clients at each."""
        begun = self.received + self.round.unfinished + self.uploads
        joined = self.clients("advertise") if self.masked else begun
        asked_by = "sent the keys of the round" if self.masked else "began to upload"
        ended, complete = not self.active, self.round.state == RoundState.COMPLETE
        return [
            Step("invited", self.round.cohort, "drawn into the cohort"),
            Step("joined", joined, asked_by),
            Step("contributed", self.received, "contribution stored"),
            Step("survived", self.round.survivors if complete else 0 if ended else None, "part of the released sum"),
        ]

    def states(self) -> list[StateFacts]:
        """Return all states of the round in order, including those not reached yet."""
        facts = [self._entered(index, row) for index, row in enumerate(self.entered)]
        if self.active:
            reached = {row.state for row in self.entered}
            facts += [StateFacts(state, "ahead") for state in self._path() if state not in reached]
        return facts

    def _path(self) -> Sequence[str]:
        if self.round.committee:
            return (RoundState.COLLECTING, RoundState.CONFIRMING, RoundState.UNMASKING, RoundState.COMPLETE)
        if not self.masked:
            return (RoundState.COLLECTING, RoundState.FOLDING, RoundState.COMPLETE)
        others = {RoundState.FOLDING, RoundState.FAILED} | (set() if self.round.confirms else {RoundState.CONFIRMING})
        return [state for state in ORDER if state not in others]

    def _entered(self, index: int, row: RoundStateRow) -> StateFacts:
        later = self.entered[index + 1] if index + 1 < len(self.entered) else None
        status: Status = "now" if later is None and row.state != RoundState.COMPLETE else "done"
        if (later or row).state == RoundState.FAILED:
            status = "failed"
        sent = MESSAGE_IN.get(row.state)
        delivered, received = (None, 0) if sent is None else self.parts.get(sent, (0, 0))
        return StateFacts(
            row.state,
            status,
            entered_at=row.entered_at,
            left_at=None if later is None else later.entered_at,
            expected=self._expected_deliveries(row.state),
            delivered=delivered,
            received=received,
            handed_out=row.handed_out,
        )

    def _expected_deliveries(self, state: str) -> int | None:
        """Return how many clients a state waits for: those that delivered in the state before it, or the committee."""
        message = MESSAGE_IN.get(state)
        if message is None:
            return None
        if self.round.committee and message != "contribute":
            return self.round.committee if message == "confirm" else self.clients("confirm")
        before = prerequisite_of(message, confirms=self.round.confirms) if self.masked else None
        return self.round.cohort if before is None else self.clients(before)


def tallies(session: Session, rounds: Iterable[RoundRow]) -> list[Tally]:
    """Return the rounds with their counts, in the order given. Makes five queries."""
    found = {row.id: Tally(row) for row in rounds}
    if not found:
        return []
    ids = list(found)
    for round_id, parts in message_counts(session, ids).items():
        found[round_id].parts = parts
    begun = select(ChunkRow.round_id, func.count(ChunkRow.client_id.distinct())).where(ChunkRow.round_id.in_(ids))
    for round_id, clients in session.execute(begun.group_by(ChunkRow.round_id)):
        found[round_id].uploads = clients
    for state in entered_states(session, *ids):
        found[state.round_id].entered.append(state)
    for round_id, reasons in refusals_by_reason(session, ids).items():
        found[round_id].refusals = reasons
    for one in found.values():
        if one.round.tally is not None:  # the rows of its members are deleted
            one.parts = {name: (clients, size) for name, (clients, size) in one.round.tally["parts"].items()}
            one.refusals = dict(one.round.tally["refusals"])
    return list(found.values())
