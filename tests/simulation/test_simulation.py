"""Fault schedules, each from a seed, against the real routes, engine, database and blobs; and without a defence.

The invariants are listed in `tests/simulation/invariants.py`; docs/testing.md describes how to replay a seed. CI runs
thousands of schedules with `python -m tests.simulation`; the tests here run a few."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from inspect import getsource
from itertools import product
from textwrap import dedent
from types import FunctionType
from typing import Any, Final, get_args

import pytest

from aggregator_service.compute import jobs
from aggregator_service.polling import views
from aggregator_service.rounds import cohorts, opening, transactions
from aggregator_service.rounds.advance import RoundAdvancer
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.uploads import new_contributions
from protocols.sums import groups, possible
from protocols.sums.oneshot.server import kept_from_opening
from protocols.sums.ring import RingPlan
from tests.simulation.plan import BEYOND, FAULTS, UNMATCHED, WITHIN, Job, Plan, draw_plan
from tests.simulation.process import Process
from tests.simulation.runner import Play, failure
from tests.simulation.world import playing

_SEEDS: Final = (*range(4), 10, 13, 34, 39, 88, 91, 93, 119, 147, 162)
"""Among them are all faults, and rounds of all kinds of tasks that complete and that fail."""
_REPEATED: Final = (174, 91, 152, 88)
"""In 174 a bit of stored masked messages is flipped. Its five members are all neighbours: of more, who are neighbours,
and so which sums open without some of them, depends on their keys."""


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    """Run schedules, one after the other on one disk."""
    with playing() as made:
        yield made


def test_schedules_keep_the_invariants_and_every_fault_happens(play: Play) -> None:
    """Where a seed no longer shows what it should, further ones do."""
    missing = {*FAULTS, *product(get_args(Job), ("complete", "failed"))}
    for number, seed in enumerate((*_SEEDS, *range(200, 300))):
        if number >= len(_SEEDS) and not missing:
            break
        world = play(draw_plan(seed))
        missing -= {*world.injector.injected, *((world.plan.job, end) for end in world.ledger.ended.values())}
    assert not missing


def traces(play: Play) -> str:
    worlds = [play(draw_plan(seed)) for seed in _REPEATED]
    lines = [f"{one.trace} {sorted(one.ledger.released)} {sorted(one.ledger.acknowledged)}" for one in worlds]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_a_seed_repeats_its_schedule(play: Play) -> None:
    """A seed gives the same trace, whatever ran before, also in another process with other hash seeds."""
    elsewhere = (
        "from tests.simulation.test_simulation import playing, traces\nwith playing() as play: print(traces(play))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    found = subprocess.run(
        [sys.executable, "-c", elsewhere], env=environment, capture_output=True, text=True, check=True
    )
    assert traces(play) == found.stdout.strip()


_ENOUGH: Final = 100
"""Schedules without a defence, from a seed on that shows the lack of it, of which one must break an invariant."""
_STORED_ALL_THE_SAME: Final = """from sqlalchemy.exc import SQLAlchemyError
    try:
        return await _insert(services.deliveries, write)
    except SQLAlchemyError:
        return UploadOutcome(new_receipt(admission, digest), is_new=True)"""
Change = tuple[FunctionType, dict[str, str]]
"""A function of the service, and texts of its source with what stands in their place."""
BOUNDS: Final[list[Change]] = [
    (RingPlan.decode, {"if max(total[part].max(), -total[part].min()) > bound * (1.0 + 2.0**-40):": "if False:"}),
    (possible._are_possible, {"return inside and": "return"}),
    (possible._fault, {"sqrt(squares) <= longest * CLIP_SLACK": "True"}),
]
"""What refuses a sum that no honest contributions have."""
DEFECTS: Final[dict[str, tuple[int, set[int], list[Change]]]] = {
    "the last fold wins: neither the partial sum nor the folded marks are compared": (5, {2, 6, 8}, [
        (transactions.record_fold, {
            " or round_.partial_key != (previous.key if previous else None)": "",
            ".where(ContributionRow.folded.is_(False))": "",
        }),
    ]),
    "a round releases a sum over any number of clients": (2, {3}, [
        (cohorts.least_cohort, {"schedule.min_clients": "1"}),
        (transactions.end_collecting, {"received < floor": "received < 1"}),
        (transactions.record_release, {"round_.folded < schedule.min_clients or ": ""}),
    ]),
    "the digest of a blob is not verified": (150, {1}, [
        (DirectoryBlobs.view, {"hexdigest() != digest": "hexdigest() is None"}),
        (jobs.BodyByValue.view, {"!= self.digest": "is None"}),
        (jobs.StoredBody.read, {"not matches_tag(into, self.tag)": "False"}),
    ]),
    "whether the round still takes contributions is not asked again once the body is there": (433, {4, 7}, [
        (new_contributions.NewContribution.__call__, {"_INSERT": "_insert_where(*_HAS_NOTHING_STORED)"}),
        (new_contributions._find_obstacle, {'round_.state != "collecting" or now >= round_.deadline': "False"}),
    ]),
    "the receipt is sent whether or not the database stored the row": (25, {4}, [
        (
            new_contributions._store,
            {"return await _insert(services.deliveries, write)": _STORED_ALL_THE_SAME},
        ),
    ]),
    "the orphans of a dead server are not deleted": (5, {7}, [
        (Process.start, {"collect_orphans(self.database, self.blobs)": "pass"}),
    ]),
    "sums over the same data may differ by any number of clients": (0, {9}, [
        (transactions.enforce_min_difference, {"retire_if_too_similar(session, task, round_)": "None"}),
    ]),
    "a cohort is drawn from all groups": (5, {10}, [
        (cohorts.draw_cohort, {"ClientRow.device_group == plan.recipe.device_group_of(sum_index),": ""}),
    ]),
    "the same bytes again are refused as a conflict": (0, {8}, [
        (new_contributions.already_stored, {"stored.digest != digest": "True"}),
    ]),
    "a sum that was not opened is asked of a new cohort": (34, {8}, [
        (opening.open_round, {"repeat_or_abandon(session, task, previous)": "None"}),
    ]),
    "a round that fails with fixed survivors counts towards the end of the task": (34, {11}, [
        (transactions.fail_round, {"counts and counts_as_failure(session, task, round_)": "counts"}),
    ]),
    "a sum that no honest contributions have stops the engine": (4, {6, 8}, [
        (RoundAdvancer.advance, {"except SumUnopenedError as error:": "except ZeroDivisionError as error:"}),
    ]),
    "a value beyond its bounds is taken for one within": (4, {1}, BOUNDS),
    "only those who contribute are shown the committee's keys": (13, {12}, [
        (views._read_data, {"if awaited is not None else {}": 'if awaited == "contribute" else {}'}),
    ]),
}  # fmt: skip
"""Missing defences: a seed, the invariants that some schedule from it on breaks, and the changes of the code."""


def rewrite(patch: pytest.MonkeyPatch, function: FunctionType, texts: dict[str, str]) -> None:
    """Run a function, wherever it was imported, as if its source had other texts in the place of `texts`."""
    source, made = dedent(getsource(function)), dict[str, Any]()
    for text, other in texts.items():
        assert text in source, f"{function.__qualname__} has no {text!r}"
        source = source.replace(text, other)
    exec(source, function.__globals__, made)  # noqa: S102 - our own source
    patch.setattr(function, "__code__", made[function.__name__].__code__)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_missing_defence_breaks_an_invariant(play: Play, monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    first, invariants, changes = DEFECTS[defect]
    for function, texts in changes:
        rewrite(monkeypatch, function, texts)
    found = (failure(play, draw_plan(seed)) for seed in range(first, first + _ENOUGH))
    starts = tuple(f"invariant {number}:" for number in invariants)
    assert any(line.startswith(starts) for error in found for line in error.splitlines())


def with_liars(job: Job, lie: int) -> Plan:
    """The plan of two rounds without faults, in each of which one client adds `lie`."""
    cohort = 12 if "split" in job else 6
    return Plan(7, job, cohort, 3, 2, batch=3, processes=1, lying={1: 2, 2: 5}, lies={1: lie, 2: lie})


@pytest.mark.parametrize("job", ["split", "one-shot split"])
def test_a_liar_within_what_its_group_can_have_moves_no_row_beyond_its_limit(
    play: Play, monkeypatch: pytest.MonkeyPatch, job: Job
) -> None:
    """Without the two parts of the rule the invariant breaks."""
    plans = [with_liars(job, lie) for lie in WITHIN]
    for plan in plans:
        assert failure(play, plan) == ""
        assert play(plan).ledger.ended == {1: "complete", 2: "complete"}
    rewrite(monkeypatch, groups._kept, {"distances <= tau * median * CLIP_SLACK": "distances >= 0"})
    rewrite(monkeypatch, groups.use_groups, {"if over.size:": "if False:"})
    assert "invariant 1: round 1: the used mean" in failure(play, plans[-1])


@pytest.mark.parametrize("lie", [BEYOND, UNMATCHED])
def test_a_liar_beyond_what_a_one_shot_sum_can_have_spoils_its_group_or_the_round(
    play: Play, monkeypatch: pytest.MonkeyPatch, lie: int
) -> None:
    """The sum of its group is left out, and one without groups is never released."""
    split = play(with_liars("one-shot split", lie)).ledger
    assert split.ended == {1: "complete", 2: "complete"}
    for number, liar in ((1, 2), (2, 5)):
        survivors, _ = split.released[number]
        assert len(survivors) == 8 and liar not in survivors
    whole = play(with_liars("one-shot", lie)).ledger
    assert whole.ended == {1: "failed", 2: "failed"} and not whole.released
    if lie == BEYOND:
        for function, texts in BOUNDS:
            rewrite(monkeypatch, function, texts)
        assert "invariant 1: round 1" in failure(play, with_liars("one-shot", lie))


def test_a_liar_within_what_a_one_shot_sum_can_have_is_in_it(play: Play) -> None:
    ledger = play(with_liars("one-shot", WITHIN[-1])).ledger
    assert ledger.ended == {1: "complete", 2: "complete"} and all(map(ledger.released.get, (1, 2)))


@pytest.mark.parametrize("seed", [2, 7])
def test_shares_that_a_committee_cannot_open_cost_no_honest_client_its_place(
    play: Play, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of client 3, for all members in the odd plan, for one in the other: three of four open what they have.

    Where each report takes a client out, the invariant breaks in the plan in which enough members open its shares.
    """
    plan = Plan(seed, "one-shot split", 12, 3, 1, batch=3, processes=1, garbage=frozenset({3}))
    ledger = play(plan).ledger
    survivors, _ = ledger.released[1]
    assert ledger.ended == {1: "complete"} and survivors == frozenset(range(12)) - ({3} if seed % 2 else set())
    rewrite(monkeypatch, kept_from_opening, {"threshold:\n": "len(members):\n", "[:threshold]": ""})
    broken = failure(play, plan)
    assert broken == "" if seed % 2 else broken.startswith("invariant 4: round 1: clients [3] have a receipt")
