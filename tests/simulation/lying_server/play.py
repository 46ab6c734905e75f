"""Play a schedule of lies against real clients. Two invariants must hold, whatever the server says:

1. Nothing that the server and its helpers can compute is over fewer honest members than the task promises: the smaller
   of `min_clients` and `min_difference`, less the helpers. So no member's vector comes out.
2. Members that were told different things have no mask in common: their contributions cannot be in one sum.

The clients are `MaskedRound` with its store, as in the SDK; the helpers' keys are the server's. The server never
deletes anything, and hands out what serves it best; it can repeat any answer. Certificates, signatures and shares are
real.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import combinations
from typing import Final
from unittest.mock import patch

import numpy as np

from protocols.errors import HushRecError, ParameterError, ThresholdError
from protocols.sums.masked import roster as rosters
from protocols.sums.masked import wire
from protocols.sums.masked.roster import Roster, RosterEntry, make_roster, open_handout, signed_survivors
from protocols.sums.masked.shares import seal_pair_secret, sealed_pair_secret
from protocols.sums.wire import unpack
from tests.simulation.lying_server.adversary import Adversary, Contribution, Reply, SentShares, smallest_group
from tests.simulation.lying_server.lies import draw_schedule
from tests.simulation.lying_server.parties import (
    LAYOUT,
    Elements,
    Honest,
    Puppet,
    certificate_of,
    context_of,
    identity_of,
    make_puppet,
    name_of,
)
from tests.simulation.lying_server.schedule import Attempt, Claim, Schedule
from tests.simulation.runner import Game, ScheduleError

_BITS: Final = 32
_TRIES: Final = 10
"""Rosters that the server tries before it hands one out: with new keys of its own members, each has another graph."""
_CRAFTED: Final = np.zeros(LAYOUT.length, np.uint32)


@dataclass
class Outcome:
    """What happened: one line per step, the refusals by type, and how many sums the server opened."""

    trace: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    opened: int = 0

    @property
    def counts(self) -> Counter[str]:
        """How often the server opened a sum, and was refused something."""
        return self.refusals + Counter({"sums opened": self.opened})


def play(schedule: Schedule) -> Outcome:
    """Play a schedule to its end, then compute what the server can know. Raises `ScheduleError`.

    Each signature is verified once, and not once for each member: this halves the time.
    """
    world = _World(schedule)
    with patch.object(rosters, "verifies", lru_cache(maxsize=None)(rosters.verifies)):
        for number, attempt in enumerate(schedule.attempts, start=1):
            _Round(world, number, attempt).play()
    world.check()
    return world.outcome


class _World:
    """The members, what the server saw, and what it can repeat."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.task = schedule, schedule.task
        self.choose = random.Random(schedule.seed + 1_000_003)
        self.members = {index: Honest(index, self.task) for index in sorted(self.task.honest)}
        self.adversary, self.outcome = Adversary(), Outcome()
        self.advertisements: dict[int, list[bytes]] = {index: [] for index in self.members}
        self.handed: dict[str, list[bytes]] = {}
        self.made: dict[tuple[bytes, bytes], Roster] = {}
        """By binding and bytes: the same bytes are another roster to a member that was sent another model."""
        self.vectors: dict[tuple[int, int], Elements] = {}

    def vector(self, member: int, data: int) -> Elements:
        if (member, data) not in self.vectors:
            rng = np.random.default_rng([self.schedule.seed, member, data])
            self.vectors[member, data] = rng.integers(0, 1 << _BITS, LAYOUT.length, np.uint32)
        return self.vectors[member, data]

    def check(self) -> None:
        opened = self.adversary.opened()
        self.outcome.opened = len(opened)
        for one in opened:
            expected = np.zeros(LAYOUT.length, np.uint32)
            for (member, data), count in one.coefficients.items():
                expected += self.vector(member, data) * np.uint32(count % (1 << _BITS))
            assert (one.value == expected).all(), "the sums that the simulation opens are wrong"
        found = smallest_group(opened, self.task.honest, self.task.least)
        if found is not None:
            self._broken(1, f"the server computes something over {sorted(found)} alone, from {len(opened)} sums")
        for one, other in self.adversary.shared_masks():
            if one.told != other.told:
                self._broken(2, "two members that were told different things have a mask in common")

    def _broken(self, invariant: int, what: str) -> None:
        raise ScheduleError([f"invariant {invariant}: {what}"], self.schedule, self.outcome.trace)


def _completed(accepted: Roster, sent: Roster) -> Roster:
    """Return a roster that was damaged on its way, with the advertisements that its members are still named by.

    A member that is no neighbour of the one who accepted it may be named by anything: the digest is another one then,
    and what is signed for it counts for nobody else.
    """
    known = {entry.name: entry.advertisement for entry in sent.entries}
    named = {place: known[entry.name] for place, entry in enumerate(accepted.entries) if entry.name in known}
    return accepted.with_advertisements(named)


@dataclass
class _Round:
    world: _World
    number: int
    attempt: Attempt
    rosters: dict[int, Roster] = field(default_factory=dict)
    puppets: dict[str, Puppet] = field(default_factory=dict)
    shares: dict[int, bytes] = field(default_factory=dict)
    confirmed: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    told: dict[int, bytes] = field(default_factory=dict)
    sharers_told: dict[int, bytes] = field(default_factory=dict)

    def play(self) -> None:
        """Play the round from its first to its last stage."""
        sent = self._advertise()
        for _ in range(_TRIES if self.attempt.cut else 1):
            if not self._make_rosters(sent):
                return
            claims, cuts = self._cut() if self.attempt.cut else (self.attempt.claims, True)
            if cuts:
                break
        for index, body in sent.items():
            self.world.advertisements[index].append(body)
        self.world.made.update({(one.context.binding, one.body): one for one in self.rosters.values()})
        for index, roster in self.rosters.items():
            body = self._hand_out("roster", roster.handout(name_of(index)))
            told = self._ask(index, "sharing", {"roster": body})
            if "share" in told:
                accepted = open_handout(self.world.members[index].context, body, name_of(index), sent[index])
                known = self.world.made.get((accepted.context.binding, accepted.body))
                self.rosters[index] = known or _completed(accepted, roster)
                self.shares[index] = told["share"]
                place = self.rosters[index].index(name_of(index))
                self.world.adversary.shares.append(SentShares(self.rosters[index], place, told["share"]))
        for index in self.shares:
            self._collect(index)
        for together in [(claim,) for claim in claims] if self.attempt.in_turn else [claims]:
            for ask in (self._confirm, self._unmask):
                for claim in together:
                    for index in sorted(claim.clients & self.sharers_told.keys()):
                        ask(index, claim)

    # --- stages ---------------------------------------------------------------------------------------------------

    def _advertise(self) -> dict[int, bytes]:
        sent = {}
        for index, member in self.world.members.items():
            member.enter(self.number, self.attempt, index in self.attempt.crafted)
            told = self._ask(index, "advertising", {})
            if "advertise" in told:
                sent[index] = told["advertise"]
        return sent

    def _make_rosters(self, sent: dict[int, bytes]) -> bool:
        """Make the roster of every member that is in one; False if there is none."""
        attempt, everyone = self.attempt, sorted(self.world.members)
        made = [self._puppet(how, helps=True) for how in attempt.invented]
        lists = {False: attempt.listed, True: attempt.second_listed}
        entries: dict[int, RosterEntry] = {}
        for index in sorted(attempt.listed | attempt.second_listed):
            if index not in self.world.members or index in attempt.swapped:
                entries[index] = self._puppet(index, helps=index not in self.world.members)
            elif index in sent:
                old = self.world.advertisements[index]
                body = old[0] if index in attempt.replayed and old else sent[index]
                own = identity_of(index)
                entries[index] = RosterEntry(
                    name_of(index), own.public_key, own.mailbox_key, certificate_of(index), body
                )
        chosen = {
            second: self._equal_groups([*(entries[one] for one in sorted(listed) if one in entries), *made])
            for second, listed in lists.items()
        }
        for index in everyone:
            crafted, own = index in attempt.crafted, chosen[index in attempt.second]
            if index not in sent or name_of(index) not in {entry.client_id for entry in own}:
                continue
            try:
                self.rosters[index] = make_roster(context_of(self.world.task, self.number, attempt, crafted), own)
            except (ParameterError, ThresholdError):
                self._note("no such roster can be made")
        return bool(self.rosters)

    def _equal_groups(self, entries: list[RosterEntry]) -> list[RosterEntry]:
        """Return these members without as many, at random, as are left over by equal groups."""
        spare = self.world.choose.sample(entries, len(entries) % self.world.task.groups)
        return [entry for entry in entries if entry not in spare]

    def _cut(self) -> tuple[tuple[Claim, ...], bool]:
        """Return dropouts for which the graph of the honest survivors falls apart, and whether all can answer.

        These are the fewest dropouts; of as many, those that leave the members the most survivors among neighbours.
        """
        roster, task = next(iter(self.rosters.values())), self.world.task
        listed = [entry.client_id for entry in roster.entries]
        beside = [frozenset(roster.neighbours_of(place)) for place in range(len(roster))]
        honest = frozenset(listed.index(name_of(one)) for one in self.rosters)
        kept, most = honest, -1
        for count in range(1, len(roster) - task.min_clients + 1):
            for gone in map(frozenset, combinations(sorted(honest), count)):
                left = honest - gone
                fewest = min(len(beside[place] - gone) for place in left)
                if fewest > most and _falls_apart(beside, left):
                    kept, most = left, fewest
            if most >= roster.threshold:
                break
        answering = frozenset(one for one in self.rosters if listed.index(name_of(one)) in kept)
        return (Claim(answering, answering | task.helpers),), most >= roster.threshold

    def _puppet(self, who: object, helps: bool) -> RosterEntry:
        context = context_of(self.world.task, self.number, self.attempt, crafted=False)
        puppet = make_puppet(context, who, helps, self.world.choose.randbytes)
        self.puppets[puppet.entry.client_id] = puppet
        self.world.adversary.know(puppet)
        return puppet.entry

    def _collect(self, index: int) -> None:
        """Hand out the inbox, and take the contribution."""
        roster = self.rosters[index]
        listed = {entry.client_id: place for place, entry in enumerate(roster.entries)}
        sharing = [name for name in listed if name in self._sharing]
        without = self._unshared | {name_of(peer) for one, peer in self.attempt.hidden if one == index}
        sharers = wire.encode_set([listed[name] for name in sharing if name not in without], len(roster))
        neighbours = [roster.entries[place].client_id for place in roster.neighbours_of(listed[name_of(index)])]
        slots = [None if name in without else self._sealed_for(index, name) for name in neighbours]
        own = listed[name_of(index)]
        before = (roster.entries[place].client_id for place in roster.earlier(own))
        secrets = [None if name in without else self._secret_for(index, name) for name in before]
        sealed = wire.join_slots(slots, wire.SEALED_BYTES) + wire.join_slots(secrets, wire.PAIR_BYTES)
        inbox = self._hand_out("inbox", sharers + sealed)
        crafted = index in self.attempt.crafted
        elements = _CRAFTED if crafted else self.world.vector(index, self._data)
        told = self._ask(index, "collecting", {"inbox": inbox}, elements)
        if "contribute" not in told:
            return
        self.sharers_told[index] = body = inbox[: wire.set_bytes(len(roster))]
        self.world.adversary.contributions.append(
            Contribution(
                roster,
                listed[name_of(index)],
                wire.decode_set(body, len(roster)),
                body,
                None if crafted else (index, self._data),
                unpack(told["contribute"], _BITS, LAYOUT.length),
            )
        )

    def _sealed_for(self, receiver: int, sender: str) -> bytes | None:
        """Return what `sender` sealed for `receiver`, if it is a member that follows the protocol and shared."""
        index = next((one for one in self.shares if name_of(one) == sender), None)
        if index is None or sender in self.puppets:
            return None
        roster = self.rosters[index]
        places = [roster.entries[place].client_id for place in roster.neighbours_of(roster.index(sender))]
        if name_of(receiver) not in places:
            return None
        at = places.index(name_of(receiver)) * wire.SEALED_BYTES
        return self.shares[index][at : at + wire.SEALED_BYTES]

    def _secret_for(self, receiver: int, sender: str) -> bytes | None:
        """Return the secret of a mask that an earlier neighbour sealed for `receiver`; the server's own members do."""
        own = self.rosters[receiver]
        puppet = self.puppets.get(sender)
        if puppet is not None:
            return seal_pair_secret(puppet.mask_secret, own, own.index(sender), own.index(name_of(receiver)))
        index = next((one for one in self.shares if name_of(one) == sender), None)
        if index is None:
            return None
        roster = self.rosters[index]
        names = [roster.entries[place].client_id for place in roster.later(roster.index(sender))]
        if name_of(receiver) not in names:
            return None
        at = roster.index(name_of(receiver))
        return sealed_pair_secret(roster, self.shares[index], roster.index(sender), at)

    def _confirm(self, index: int, claim: Claim) -> None:
        body = self._hand_out("survivors", self._survivors(index, claim))
        told = self._ask(index, "confirming", {"survivors": body})
        if "confirm" in told:
            self.confirmed[index, body] = told["confirm"]
            self.told[index] = body

    def _survivors(self, index: int, claim: Claim) -> bytes:
        """Return the claimed survivors: without those who never shared; the server's own members are in it."""
        roster, alive = self.rosters[index], {name_of(one) for one in claim.survivors}
        places = [
            place
            for place, entry in enumerate(roster.entries)
            if entry.client_id not in self._unshared
            and (entry.client_id in alive or entry.client_id.startswith("d_"))
            and entry.client_id in self._sharing
        ]
        return wire.encode_set(places, len(roster))

    @property
    def _sharing(self) -> frozenset[str]:
        return frozenset(self.puppets) | {name_of(one) for one in (*self.shares, *self.attempt.replayed)}

    @property
    def _unshared(self) -> frozenset[str]:
        return frozenset(map(name_of, self.attempt.unshared))

    def _unmask(self, index: int, claim: Claim) -> None:
        roster, survivors = self.rosters[index], self.told.get(index, self._survivors(index, claim))
        place = roster.index(name_of(index))
        slots = [self._signature(roster, at, index, survivors) for at in range(len(roster))]
        confirmations = self._hand_out("confirmations", wire.join_slots(slots, wire.CONFIRMATION_BYTES))
        told = self._ask(index, "unmasking", {"confirmations": confirmations, "survivors": survivors})
        if "unmask" in told:
            alive = wire.decode_set(survivors, len(roster))
            self.world.adversary.replies.append(Reply(roster, place, told["unmask"], alive))

    def _signature(self, roster: Roster, place: int, asking: int, survivors: bytes) -> bytes | None:
        """Return the best signature for a slot: of these survivors, or else any that this member made."""
        entry = roster.entries[place]
        puppet = self.puppets.get(entry.client_id)
        if puppet is not None:
            if puppet.signs is None:
                return bytes([1]) * wire.CONFIRMATION_BYTES
            sharers = self.sharers_told[asking]
            return puppet.signs.sign(signed_survivors(roster, sharers, survivors))
        index = int(entry.client_id.removeprefix("c_"))
        made = {body: signature for (one, body), signature in self.confirmed.items() if one == index}
        return made.get(survivors, next(iter(made.values()), None))

    # --- one question ---------------------------------------------------------------------------------------------

    def _ask(
        self, index: int, state: str, answers: dict[str, bytes], elements: Elements = _CRAFTED
    ) -> dict[str, bytes]:
        try:
            told = self.world.members[index].asked(state, answers, elements)
        except HushRecError as error:
            self.world.outcome.refusals[type(error).__name__] += 1
            self._note(f"{name_of(index)}, {state}: {error}")
            return {}
        self._note(f"{name_of(index)}, {state}: sends {', '.join(told) or 'nothing'}")
        return told

    def _hand_out(self, kind: str, body: bytes) -> bytes:
        """Return `body`, or what the server hands out in its place; every body is kept for later."""
        kept, choose = self.world.handed.setdefault(kind, []), self.world.choose
        kept.append(body)
        if choose.random() >= self.attempt.disturbed:
            return body
        way = choose.choice(["earlier", "earlier", "cut", "bit"])
        if way == "earlier":
            return choose.choice(kept)
        if way == "cut":
            return body[:-1]
        at = choose.randrange(len(body))
        return body[:at] + bytes([body[at] ^ 1 << choose.randrange(8)]) + body[at + 1 :]

    @property
    def _data(self) -> int:
        """Which data a contribution is of, so what of it is in other sums too; a number of its own for each update."""
        update = 1000 * self.attempt.task + self.attempt.sum_index
        numbers = {"counted": 0, "iterated": 0, "measured": 1, "touched": 2, "weighted": 3, "trained": update}
        return numbers[self.attempt.summed_in(self.world.task)]

    def _note(self, text: str) -> None:
        self.world.outcome.trace.append(f"  round {self.number}: {text}")


def _falls_apart(beside: Sequence[frozenset[int]], places: frozenset[int]) -> bool:
    """Return whether the graph of these places is in two parts or more. beside: the neighbours of each place."""
    reached: frozenset[int] = frozenset()
    found = frozenset({min(places)})
    while found:
        reached |= found
        found = frozenset().union(*(beside[place] for place in found)) & places - reached
    return reached != places


LYING: Final = Game("tests.simulation.lying_server", draw_schedule, partial(nullcontext, play))
