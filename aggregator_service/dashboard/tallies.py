"""What there is to tell of rounds, counted by the database: a few queries for any number of rounds and clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_service.round_states import ACTIVE, ORDER
from aggregator_service.storage.schema import ChunkRow, ContributionRow, RoundRow, RoundStateRow, StageMessageRow
from protocols.messages.stages import MESSAGE_IN, RoundState, prerequisite_of

__all__ = ["StateFacts", "Step", "Tally", "tallies"]

Status = Literal["done", "now", "ahead", "failed"]


@dataclass(frozen=True)
class Step:
    """One step of the funnel; `count` is null while it cannot be known."""

    name: str
    count: int | None
    note: str


@dataclass(frozen=True)
class StateFacts:
    """One state of a round. Clients it waited for and those that delivered, seconds since the epoch, bytes of all."""

    state: str
    status: Status
    entered_at: float | None = None
    left_at: float | None = None
    expected: int | None = None
    delivered: int | None = None
    received: int = 0
    handed_out: int = 0

    @property
    def missing(self) -> int | None:
        """Clients that did not deliver, or have not yet."""
        return None if self.expected is None or self.delivered is None else max(0, self.expected - self.delivered)

    def seconds(self, now: float) -> float | None:
        """How long it took, or has taken; None for states that are ahead and for the one it ended in."""
        if self.entered_at is None or self.state in (RoundState.COMPLETE, RoundState.FAILED):
            return None
        return max(0.0, (now if self.left_at is None else self.left_at) - self.entered_at)


@dataclass
class Tally:
    """A round and its counts. parts: what was sent -> (clients, bytes); uploads: those that are not whole yet."""

    round: RoundRow
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    uploads: int = 0
    entered: list[RoundStateRow] = field(default_factory=list)

    @property
    def active(self) -> bool:
        """Whether it is under way."""
        return self.round.state in ACTIVE

    @property
    def masked(self) -> bool:
        """Whether it has a masked round's stages."""
        return self.round.model_digest is not None

    @property
    def received(self) -> int:
        """Contributions stored."""
        return self.clients("contribute")

    @property
    def ended_at(self) -> float | None:
        """When it completed or failed."""
        return None if self.active or not self.entered else self.entered[-1].entered_at

    @property
    def deadline(self) -> float | None:
        """Of the stage it is in, if clients are waited for."""
        return self.round.deadline if self.round.state in MESSAGE_IN else None

    @property
    def stage_began(self) -> float:
        """When the round entered the state it is in."""
        return self.entered[-1].entered_at if self.entered else self.round.opened_at

    @property
    def failed_in(self) -> str | None:
        """The state that a failed round was in."""
        failed = self.round.state == RoundState.FAILED and len(self.entered) > 1
        return self.entered[-2].state if failed else None

    @property
    def waited_for(self) -> tuple[int, int] | None:
        """(clients that delivered, clients asked) in the present stage; None when it waits for nobody."""
        state = self.round.state
        asked = self._expected(state)
        return None if asked is None else (self.clients(MESSAGE_IN[state]), asked)

    def clients(self, part: str) -> int:
        """How many clients sent this."""
        return self.parts.get(part, (0, 0))[0]

    def seconds(self, now: float) -> float:
        """Its age, or how long it took."""
        return max(0.0, (self.ended_at or now) - self.round.opened_at)

    def funnel(self) -> list[Step]:
        """Invited, joined, contributed, survived."""
        begun = self.received + self.round.unfinished + self.uploads
        joined = self.clients("advertise") if self.masked else begun
        how = "sent the keys of the round" if self.masked else "began to upload"
        over, complete = not self.active, self.round.state == RoundState.COMPLETE
        return [
            Step("invited", self.round.cohort, "drawn into the cohort"),
            Step("joined", joined, how),
            Step("contributed", self.received, "contribution stored"),
            Step("survived", self.round.survivors if complete else 0 if over else None, "part of the released sum"),
        ]

    def states(self) -> list[StateFacts]:
        """Every state on its way, those ahead included."""
        facts = [self._entered(index, row) for index, row in enumerate(self.entered)]
        if self.active:
            been = {row.state for row in self.entered}
            facts += [StateFacts(state, "ahead") for state in self._path() if state not in been]
        return facts

    def _path(self) -> Sequence[str]:
        if not self.masked:
            return (RoundState.COLLECTING, RoundState.FOLDING, RoundState.COMPLETE)
        order = [state for state in ORDER if state not in (RoundState.FOLDING, RoundState.FAILED)]
        return [state for state in order if state != RoundState.CONFIRMING or self.round.confirms]

    def _entered(self, index: int, row: RoundStateRow) -> StateFacts:
        later = self.entered[index + 1] if index + 1 < len(self.entered) else None
        if row.state in (RoundState.COMPLETE, RoundState.FAILED):
            return StateFacts(row.state, "failed" if row.state == RoundState.FAILED else "done", row.entered_at)
        status: Status = "now" if later is None else "failed" if later.state == RoundState.FAILED else "done"
        sent = MESSAGE_IN.get(row.state)
        return StateFacts(
            row.state,
            status,
            row.entered_at,
            None if later is None else later.entered_at,
            expected=self._expected(row.state),
            delivered=None if sent is None else self.clients(sent),
            received=0 if sent is None else self.parts.get(sent, (0, 0))[1],
            handed_out=row.handed_out,
        )

    def _expected(self, state: str) -> int | None:
        """Clients that a stage waits for: those that took part in the one before."""
        message = MESSAGE_IN.get(state)
        if message is None:
            return None
        before = prerequisite_of(message, confirms=self.round.confirms) if self.masked else None
        return self.round.cohort if before is None else self.clients(before)


def tallies(session: Session, rounds: Iterable[RoundRow]) -> list[Tally]:
    """The rounds with their counts, in the order given: four queries."""
    found = {row.id: Tally(row) for row in rounds}
    if not found:
        return []
    ids = list(found)
    whole = select(ContributionRow.round_id, func.count(), func.sum(ContributionRow.bytes))
    whole = whole.where(ContributionRow.round_id.in_(ids)).group_by(ContributionRow.round_id)
    for round_id, clients, size in session.execute(whole):
        found[round_id].parts["contribute"] = (clients, int(size))
    row = StageMessageRow
    staged = select(row.round_id, row.stage, func.count(), func.sum(row.length)).where(row.round_id.in_(ids))
    for round_id, stage, clients, size in session.execute(staged.group_by(row.round_id, row.stage)):
        found[round_id].parts[stage] = (clients, int(size))
    begun = select(ChunkRow.round_id, func.count(ChunkRow.client_id.distinct())).where(ChunkRow.round_id.in_(ids))
    for round_id, clients in session.execute(begun.group_by(ChunkRow.round_id)):
        found[round_id].uploads = clients
    entered = session.scalars(select(RoundStateRow).where(RoundStateRow.round_id.in_(ids)))
    for row_ in sorted(entered, key=lambda one: (one.entered_at, ORDER.index(one.state))):
        found[row_.round_id].entered.append(row_)
    return list(found.values())
