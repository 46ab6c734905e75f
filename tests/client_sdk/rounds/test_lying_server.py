"""Attacks of a lying server, with no colluding client, on real clients of masked rounds: `MaskedRound` and its store.

The server sums the same data again without one client, and learns that client's vector from the difference. Each attack
must fail.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from client_sdk import DirectoryStore, Identity, Policy
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import SyncDriver
from client_sdk.api.wire import Program
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.rounds.member import Member
from client_sdk.rounds.part import Part
from client_sdk.store.client_store import ClientStore, Membership
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.domain import digest
from protocols.errors import RefusalError
from protocols.layout import REPEATED_ROWS, TRAINED, Route
from protocols.messages import RoundView, Schedule
from protocols.recipes.base import RoundSpec
from protocols.recipes.registry import recipe as make_recipe
from protocols.sums.masked import server
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.roster import Roster, RosterEntry, make_roster
from protocols.sums.ring import unpack
from tests.protocols.sums.masked.rounds import LAYOUT, complete_plan, names, round_context
from tests.support.tasks import GivenElements

SCOLR = make_recipe("scolr", {"items": 4, "dim": 2, "rank": 2})
CLIENTS = names(6)
VICTIM = CLIENTS[-1]
Elements = NDArray[np.unsignedinteger[Any]]


@dataclass
class LyingServer:
    """Plays rounds with six clients, whose stores and vectors stay the same, and leaves out whom it likes."""

    folder: Path
    schedule: Schedule
    plan: MaskedPlan = field(default_factory=complete_plan)
    policy: Policy = field(default_factory=lambda: Policy(trust_roster=True))
    identities: dict[str, Identity] = field(default_factory=lambda: {name: Identity.generate() for name in CLIENTS})
    elements: dict[str, Elements] = field(init=False)
    messages: dict[tuple[str, str], bytes] = field(default_factory=dict)
    roster: Roster = field(init=False)
    refusals: list[str] = field(default_factory=list)
    route: Callable[[str], Route] | None = None

    def __post_init__(self) -> None:
        rng = np.random.default_rng(5)
        self.elements = {name: rng.integers(0, 1 << 32, LAYOUT.length, np.uint32) for name in CLIENTS}

    def play(
        self,
        number: int,
        sum_index: int = 1,
        no_entry: Collection[str] = (),
        no_shares: Collection[str] = (),
        no_contribution: Collection[str] = (),
        same_data: bool = False,
    ) -> Elements | None:
        """Play round `number`, and return the opened sum; None if the clients refused.

        no_entry, no_shares, no_contribution: whose advertisement, shares and contribution the server keeps back.
        same_data: whether all sums of the task are over the same data.
        """
        self.messages.clear()
        self.refusals.clear()
        layout = replace(LAYOUT, sum_class=REPEATED_ROWS if same_data else TRAINED)
        plan = replace(self.plan, layout=layout, max_contributions=self.schedule.cohort_size)
        context = round_context(plan, len(CLIENTS), number)
        route = self.route or (lambda _: ((0,),))
        terms = SimpleNamespace(
            task_id=context.task_id,
            schedule=self.schedule,
            view=SimpleNamespace(data_set=None),
            recipe=SimpleNamespace(route=lambda _, client_id: route(client_id)),
        )
        parts = {
            name: GivenElements(
                Part(
                    Member(
                        cast(ApiCalls, self),
                        cast(Any, terms),
                        Membership("https://server.example", "t_1", "movies", name, "member", "hrc_token"),
                        identity,
                        ClientStore(DirectoryStore(self.folder / name), "me"),
                        self.policy,
                        MembershipCheck(None),
                    ),
                    cast(Any, None),
                    cast(Any, None),
                ),
                cast(RoundView, SimpleNamespace(number=number)),
                cast(Any, None),
                spec=RoundSpec(number, context.round_seed, sum_index),
                context=context,
                elements=lambda name=name: self.elements[name],  # type: ignore[misc]
            )
            for name, identity in self.identities.items()
        }
        with SyncDriver() as driver:
            self._stage(driver, parts, "advertising")
            if not parts:
                return None
            keys = ((name, self.identities[name]) for name in CLIENTS if name not in no_entry)
            self.roster = make_roster(
                context,
                [
                    RosterEntry(n, i.public_key, i.mailbox_key, NO_CERTIFICATE, self.messages["advertise", n])
                    for n, i in keys
                ],
            )
            self._stage(driver, parts, "sharing")
            shares = self._all("share", no_shares)
            if len(shares) < 3:
                return None
            self.inboxes = server.inboxes(self.roster, shares)
            self._stage(driver, parts, "collecting")
            contributions = self._all("contribute", no_contribution)
            if len(contributions) < 3:
                return None
            self.survivors = self.roster.encode_set(contributions)
            self._stage(driver, parts, "confirming")
            self.confirmed = server.confirmations(self.roster, self._all("confirm", ()))
            self._stage(driver, parts, "unmasking")
        replies = self._all("unmask", ())
        if not replies:
            return None
        total = np.zeros(LAYOUT.length, np.uint32)
        for body in contributions.values():
            total += unpack(body, self.plan.bits, LAYOUT.length)
        return total + server.unmask(self.roster, shares, contributions, replies).correction

    def _stage(self, driver: SyncDriver, parts: dict[str, GivenElements], state: str) -> None:
        for name, part in list(parts.items()):
            view = cast(RoundView, SimpleNamespace(state=state))
            self.asking = name
            try:
                driver.run(part.advance(view))
            except RefusalError as refusal:
                self.refusals.append(str(refusal))
                del parts[name]
            except KeyError:  # the server left this client out of the roster or the sharers
                del parts[name]

    def _all(self, stage: str, without: Collection[str]) -> dict[str, bytes]:
        return {name: body for (step, name), body in self.messages.items() if step == stage and name not in without}

    # --- the calls of the clients --------------------------------------------------------------------------------

    def put_stage(self, task_id: str, number: int, stage: str, client_id: str, body: bytes) -> Program[None]:
        self.messages[stage, client_id] = body
        yield from ()

    def contribute(
        self, task_id: str, number: int, client_id: str, body: bytes, statements: object = None
    ) -> Program[None]:
        del statements
        return self.put_stage(task_id, number, "contribute", client_id, body)

    def stage_body(
        self, task_id: str, number: int, what: str, max_bytes: int, length: int | None = None
    ) -> Program[bytes]:
        yield from ()
        match what:
            case "roster":
                return self.roster.body
            case "inbox":
                return self.inboxes[self.asking]
            case "survivors":
                return self.survivors
            case _:
                return self.confirmed  # [self.asking]


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        ("no_entry", "the roster has 5 clients; this client requires at least 6"),
        ("no_shares", "shares came from 5 clients; this client requires at least 6"),
        ("no_contribution", "contributions came from 5 clients; this client requires at least 6"),
    ],
)
def test_a_sum_below_the_task_s_own_minimum(tmp_path: Path, stage: str, text: str) -> None:
    """The task promises sums of 6, the policy alone would accept 3."""
    lying = LyingServer(tmp_path, Schedule(cohort_size=6, min_clients=6))
    assert lying.play(1, **{stage: [VICTIM]}) is None  # type: ignore[arg-type]
    assert text in lying.refusals


def levels_of(spec: RoundSpec) -> dict[str, int]:
    return {name: len(SCOLR.route(spec, name)) for name in CLIENTS}


@pytest.mark.parametrize("stage", ["roster", "survivors"])
def test_a_client_alone_in_its_columns(tmp_path: Path, stage: str) -> None:
    """The server grinds ids, here seeds, until the victim alone has the higher level: its block is the victim's own.

    Or three have that level, and the server keeps the contribution of one back and knows that of another.
    """
    higher = {VICTIM} if stage == "roster" else {*CLIENTS[:2], VICTIM}
    specs = (RoundSpec(1, digest("grind", number), 1, (1, 2)) for number in count())
    spec = next(each for each in specs if {name for name, level in levels_of(each).items() if level == 2} == higher)
    lying = LyingServer(tmp_path, Schedule(cohort_size=6, min_clients=3), route=partial(SCOLR.route, spec))
    assert lying.play(1, no_contribution=() if stage == "roster" else CLIENTS[:1]) is None
    what = "the roster has 1 clients" if stage == "roster" else "the set of survivors has 2 clients"
    assert any(f"{what} that contribute to the same blocks" in text for text in lying.refusals)


def test_the_same_sum_again_without_one_client(tmp_path: Path) -> None:
    """The server calls round 1 failed, although it opened its sum, and repeats the sum. Clients restart in between.

    They sum the same clients again, and other data without one of them; then not the first sum once more.
    """
    lying = LyingServer(tmp_path, Schedule(cohort_size=6, min_clients=4))
    first, again = lying.play(1), lying.play(2)
    assert first is not None and again is not None
    np.testing.assert_array_equal(first, again)
    assert lying.play(3, no_contribution=[VICTIM]) is None
    assert any("differ by 1 from" in text for text in lying.refusals)
    assert lying.play(4, sum_index=2, no_contribution=[VICTIM]) is not None
    assert lying.play(5, sum_index=3) is not None
    assert lying.play(6, sum_index=1, no_contribution=[VICTIM]) is None
    assert any("repeats sum 1, and this client took part in it before" in text for text in lying.refusals)


@pytest.mark.parametrize("min_difference", [None, 1])
def test_the_same_data_under_the_next_sum(tmp_path: Path, min_difference: int | None) -> None:
    """All sums of PriviRec are over the same rows, and the server publishes the model: it publishes the same again.

    The client's own `min_cohort` holds for differences too, whatever the task's `min_difference` is.
    """
    lying = LyingServer(tmp_path, Schedule(cohort_size=6, min_clients=4, min_difference=min_difference))
    assert lying.play(1, sum_index=2, same_data=True) is not None
    assert lying.play(2, sum_index=3, same_data=True, no_contribution=[VICTIM]) is None


@pytest.mark.parametrize(
    ("weak", "text"),
    [
        ({"corrupt": 0.0}, "a corrupt share of 0 of the cohort; this client's policy requires at least 0.05"),
        ({"sigma": 63}, "up to 2^-63; this client's policy requires at least 64"),
    ],
)
def test_a_task_with_weak_parameters(tmp_path: Path, weak: dict[str, Any], text: str) -> None:
    """The server creates the task, so it could choose parameters that tolerate no colluding client."""
    plan = complete_plan()
    weakened = replace(plan, parameters=plan.parameters.model_copy(update=weak))
    lying = LyingServer(tmp_path, Schedule(cohort_size=6, min_clients=4), weakened)
    assert lying.play(1) is None
    assert sum(text in refusal for refusal in lying.refusals) == len(CLIENTS)
