"""One-shot rounds whose survivors are split into groups: one committee opens the sum of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols.errors import CodecError, ParameterError, RefusalError
from protocols.layout import REPEATED_HELD_OUT, REPEATED_ROWS, TRAINED, Block, Segment, VectorLayout
from protocols.sums.group_sums import no_sum
from protocols.sums.groups import TAU, advised_cohort, default_groups, group_of_each
from protocols.sums.oneshot import member, server
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.plan import OneshotParameters, OneshotPlan, OneshotPolicy
from protocols.sums.oneshot.plan import make_plan as plan_of
from protocols.sums.oneshot.run import run_oneshot_sum
from protocols.sums.plain import PLAIN
from protocols.sums.ring import ring_mechanism
from tests.protocols.sums.oneshot.rounds import Round

CLIENTS, GROUPS = 12, 3
LAYOUT = VectorLayout((Block("a", (Segment("v", 6, 1.0), Segment("n", 3, 1.0, integral=True))),), sum_class=TRAINED)


def plan(clients: int = CLIENTS, **more: Any) -> OneshotPlan:
    return plan_of({"groups": GROUPS, "tau": 10.0} | more, LAYOUT, clients)


def contributed(clients: int = CLIENTS, **more: Any) -> Round:
    return Round(plan(clients, **more), clients=clients).contribute()


@pytest.fixture
def played() -> Round:
    return contributed()


def groups(played: Round, names: Sequence[str]) -> dict[str, int]:
    return group_of_each(played.context.task_id, names, played.plan.groups)


def opened(played: Round, names: Sequence[str]) -> list[NDArray[np.float64] | None]:
    done = server.unmask(played.committee, played.partial(names), len(names), played.summed(names))
    return list(ONESHOT.open_groups(played.plan, done.aggregate, len(names)).sums)


def test_the_committee_opens_the_sum_of_each_group(played: Round) -> None:
    """Also when clients are missing: the groups of those that are left differ by at most one."""
    for names in (played.names, played.names[1:]):
        group = groups(played, names)
        assert sorted(Counter(group.values()).values()) == ([4, 4, 4] if len(names) == CLIENTS else [3, 4, 4])
        for number, total in enumerate(opened(played, names)):
            assert total is not None
            assert total.tolist() == played.truth([name for name in names if group[name] == number]).tolist()


def test_the_kept_groups_give_the_sum_of_all(played: Round) -> None:
    total = run_oneshot_sum(played.plan, played.vectors).total
    done = server.unmask(played.committee, played.partial(), CLIENTS, played.summed())
    found = ONESHOT.open_groups(played.plan, done.aggregate, CLIENTS)
    assert total.shape == found.total().shape == (9,)
    used = ONESHOT.open(played.plan, done.aggregate, CLIENTS, None)
    np.testing.assert_array_equal(used, found.total())
    if found.report()["groups_used"] == GROUPS and not any(map(max, (one.limited for one in found.used.values()))):
        np.testing.assert_allclose(used, played.truth(played.names))


def test_without_a_rule_the_sum_is_that_of_all_exactly() -> None:
    """Groups are then nothing but smaller sums: two are enough, and one that does not open spoils the total."""
    played = contributed(groups=2, tau=0.0)
    names, shares = played.names, played.summed()
    assert played.open(names, shares).tolist() == played.truth(names).tolist()
    done = server.unmask(played.committee, played.partial(), CLIENTS, shares)
    report = ONESHOT.open_groups(played.plan, done.aggregate, CLIENTS).report()
    assert report == {"groups": 2.0, "groups_used": 2.0, "smallest_group": CLIENTS // 2}
    spoilt = done.aggregate[: -len(no_sum(28, 9))] + no_sum(28, 9)
    with pytest.raises(CodecError, match="1 of 2 groups"):
        ONESHOT.open(played.plan, spoilt, CLIENTS, None)
    wrong = contributed(groups=2, tau=0.0)
    wrong.tamper(
        "c0", contribution=Round(wrong.plan, seed=8, clients=CLIENTS).contribute("c0").uploads["c0"].contribution
    )
    with pytest.raises(CodecError, match="1 of 2 groups"):
        wrong.open(names, wrong.summed())


def test_attack_a_client_whose_contribution_does_not_match_its_secret_spoils_its_group_only(played: Round) -> None:
    other = Round(played.plan, seed=8, clients=CLIENTS).contribute("c0")
    played.tamper("c0", contribution=other.uploads["c0"].contribution)
    spoilt = groups(played, played.names)["c0"]
    sums = opened(played, played.names)
    assert [group for group, total in enumerate(sums) if total is None] == [spoilt]
    done = server.unmask(played.committee, played.partial(), CLIENTS, played.summed())
    report = ONESHOT.open_groups(played.plan, done.aggregate, CLIENTS).report()
    assert report["groups_used"] == 2.0 and f"group_{spoilt + 1}_distance" not in report
    others = [name for name in played.names if groups(played, played.names)[name] != spoilt]
    used = ONESHOT.open(played.plan, done.aggregate, CLIENTS, None)
    np.testing.assert_allclose(used[:6], played.truth(others)[:6] * CLIENTS / len(others))


def test_attack_clients_in_half_of_the_groups_stop_the_round(played: Round) -> None:
    of = groups(played, played.names)
    liars = [next(name for name in played.names if of[name] == group) for group in (0, 1)]
    other = Round(played.plan, seed=8, clients=CLIENTS).contribute(*liars)
    for name in liars:
        played.tamper(name, contribution=other.uploads[name].contribution)
    with pytest.raises(CodecError, match="2 of 3 groups"):
        played.open(played.names, played.summed())


def test_a_wrong_summed_share_of_one_group_names_its_member(played: Round) -> None:
    shares = played.summed()
    shares["m1"] = shares["m1"].copy()
    shares["m1"][2] = (shares["m1"][2] + 2**20) % played.plan.ring.primes[0]
    done = server.unmask(played.committee, played.partial(), CLIENTS, shares)
    assert done.wrong == ("m1",)


def test_members_sign_no_set_of_which_a_group_is_below_the_floor(played: Round) -> None:
    with pytest.raises(RefusalError, match="in a group, the set has 3 survivors; this member requires at least 4"):
        played.confirm("m0", minimum=4, names=played.names[1:])
    assert played.confirm("m0", minimum=4)[0].inspection.smallest == 4
    with pytest.raises(RefusalError, match="in a group, the round asks 4 clients"):
        played.ready("m0", OneshotPolicy(min_cohort=5))
    with pytest.raises(RefusalError, match="in a group, the round asks 4 clients"):
        Round(played.plan, clients=CLIENTS, policy=OneshotPolicy(min_cohort=5)).contribute("c0")


def test_attack_the_same_data_in_other_groups(played: Round) -> None:
    """Sums of overlapping groups could be of few clients together: members open one set over the same data."""
    _, ledger = played.confirm("m0")
    later = Round(played.plan, number=2, seed=3, clients=CLIENTS).contribute()
    with pytest.raises(RefusalError, match="in a sum of groups over the same data"):
        later.confirm("m0", ledger=ledger.begin())
    again, after = played.confirm("m0", ledger=ledger)  # after a restart, the same set
    assert again.signature == played.confirm("m0")[0].signature and after == ledger


def test_clients_that_were_together_are_together_again(played: Round) -> None:
    """In every round of a task, whatever the order and the keys; and one that is absent moves one at each border."""
    again = groups(contributed_again(), played.names[::-1])
    assert groups(played, played.names) == again
    assert all(group == 0 for group in group_of_each("t", played.names, 1).values())
    many = [f"c_{place}" for place in range(101)]
    whole = group_of_each("t", many, 7)
    assert sorted(Counter(whole.values()).values()) == [14] * 4 + [15] * 3
    assert whole != group_of_each("u", many, 7)
    for absent in many:
        others = [name for name in many if name != absent]
        moved = [name for name, group in group_of_each("t", others, 7).items() if whole[name] != group]
        assert len(moved) <= 6


def contributed_again() -> Round:
    return Round(plan(), seed=2, clients=CLIENTS).contribute()


def test_shares_may_come_in_pieces(played: Round) -> None:
    statements, ready = played.statements(), played.ready("m0")
    sealed = [played.uploads[statement.client_id].ticket.sealed[0] for statement in statements]
    whole = member.inspect(ready, statements, sealed, lambda _: True)
    pieces = member.Inspecting(ready, statements, lambda _: True)
    pieces.add(sealed[:5])
    with pytest.raises(ParameterError, match="12 statements came with 5 shares"):
        pieces.found()
    pieces.add(sealed[5:])
    found = pieces.found()
    assert found.digest == whole.digest and found.bad == () and np.array_equal(found.summed, whole.summed)
    assert found.summed.shape == (GROUPS, played.plan.ring.degree)


def test_a_ring_is_of_one_group() -> None:
    """So a round of many groups has the uploads, the errors and the limit of one of them."""
    one, whole = plan_of({}, LAYOUT, 10_000), plan_of({}, LAYOUT, 100_000)
    split = plan_of({"groups": 10}, LAYOUT, 100_000)
    assert split.of_group.ring == split.ring == one.ring and split.most_in_sum == 10_000
    assert split.segment_scales == one.segment_scales != whole.segment_scales
    assert split.summed_share_bytes == 10 * (one.summed_share_bytes - 64) + 64
    assert split.aggregate_bytes == 10 * (8 + one.aggregate_bytes)
    assert plan_of({"groups": 100, "tau": 0.0}, LAYOUT, 50_000_000).most_in_sum == 500_000
    measured = plan_of({"groups": 10}, VectorLayout(LAYOUT.blocks, sum_class=REPEATED_HELD_OUT), 100)
    assert (
        measured.groups == 1 and measured.most_in_sum == 100 and measured.summed_share_bytes == one.summed_share_bytes
    )


def test_parameters_of_groups() -> None:
    assert not {"groups", "tau"} & OneshotParameters().model_dump().keys()
    assert OneshotParameters(groups=3).model_dump(mode="json")["tau"] == TAU
    assert OneshotParameters(groups=2, tau=0.0).model_dump(mode="json")["tau"] == 0.0
    for given, text in (
        ({"groups": 2}, "from 3 on"),
        ({"groups": 3, "tau": 0.5}, "at least 1, or the rule"),
        ({"tau": 0.0}, "set groups, too"),
    ):
        with pytest.raises(ValueError, match=text):
            OneshotParameters(**given)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="a one-shot group of 3 needs at least 3 clients"):
        plan().check_cohort(8)
    with pytest.raises(ParameterError, match="same rows"):
        plan_of({"groups": 3}, VectorLayout(LAYOUT.blocks, sum_class=REPEATED_ROWS), 12)
    with pytest.raises(ParameterError, match="by group"):
        ONESHOT.fold(plan(), None, [])
    assert ring_mechanism(ONESHOT) is ONESHOT
    with pytest.raises(ParameterError, match="sums of plain are not split into groups"):
        ring_mechanism(PLAIN)
    assert "split into 3 groups" in " ".join(plan().trust(12)) and "near the others" in " ".join(plan().trust(12))
    assert "one member that lies can spoil" in " ".join(plan(tau=0.0).trust(12))
    assert advised_cohort(300, 300, OneshotParameters().works) == (10, 300, 15)


def test_the_groups_that_a_cohort_has_by_itself_are_few_equal_and_large() -> None:
    found = {clients: default_groups(clients, 3) for clients in (3, 2999, 3000, 3001, 4000, 5000, 10_000, 100_000)}
    assert found == {3: 1, 2999: 1, 3000: 3, 3001: 1, 4000: 4, 5000: 4, 10_000: 4, 100_000: 4}
    assert default_groups(6000, 1000) == 3 and default_groups(6000, 1001) == 1


def test_folds_in_batches_and_parts_give_the_same_bytes(played: Round) -> None:
    group = groups(played, played.names)
    bodies = sorted((group[name], 1, played.uploads[name].contribution) for name in played.names)
    whole = ONESHOT.fold_groups(played.plan, None, bodies)
    assert whole == played.partial()
    assert (
        ONESHOT.merge(played.plan, [ONESHOT.fold_groups(played.plan, None, one) for one in (bodies[:5], bodies[5:])])
        == whole
    )
    assert ONESHOT.merge(played.plan, []) == ONESHOT.fold_groups(played.plan, None, [])
    zero = ONESHOT.fold_groups(played.plan, None, [])
    assert ONESHOT.release(played.plan, zero)[:8] == bytes(8)


def test_a_split_sum_over_the_same_data_is_the_first_and_later_ones_leave_enough_of_each_group() -> None:
    degrees = VectorLayout(LAYOUT.blocks, sum_class=REPEATED_ROWS, in_groups=True)
    whole = VectorLayout(LAYOUT.blocks, sum_class=REPEATED_ROWS, in_groups=False)
    split, later = (
        Round(plan_of({"groups": GROUPS}, one, CLIENTS), clients=CLIENTS).contribute() for one in (degrees, whole)
    )
    assert (split.plan.groups, later.plan.groups) == (GROUPS, 1)
    found = split.inspect("m0")
    _, ledger = member.confirm(split.ready("m0"), found, member.Ledger(), 3, bytes(32))
    assert ledger.groups == found.groups and sorted(map(len, found.groups)) == [4, 4, 4]
    with pytest.raises(RefusalError, match="another one over the same data was opened before"):
        member.confirm(split.ready("m0"), found, ledger.begin(), 3, bytes(32))
    _, after = member.confirm(later.ready("m0"), later.inspect("m0"), ledger.begin(), 3, bytes(32))
    assert after.groups == found.groups
    with pytest.raises(RefusalError, match="another one"):
        _, first = member.confirm(later.ready("m0"), later.inspect("m0"), member.Ledger(), 3, bytes(32))
        member.confirm(split.ready("m0"), found, first.begin(), 3, bytes(32))
    (gone, *_), *others = (sorted(group) for group in found.groups)
    left = later.inspect("m0", [name for name in later.names if name not in {gone, others[0][0], others[1][0]}])
    member.confirm(later.ready("m0"), left, ledger.begin(), 3, bytes(32))
    left = later.inspect("m0", [name for name in later.names if name not in others[0][:3]])
    with pytest.raises(RefusalError, match="of a group of the first sum over the same data 1 clients are left"):
        member.confirm(later.ready("m0"), left, ledger.begin(), 3, bytes(32))
    stranger = replace(found, groups=tuple(frozenset(group) - {gone} for group in found.groups))
    with pytest.raises(RefusalError, match="clients of the set are in no group"):
        known = replace(ledger, groups=stranger.groups).begin()
        member.confirm(later.ready("m0"), later.inspect("m0"), known, 3, bytes(32))


def test_sets_that_overlap_in_a_group_are_judged_with_the_sums_of_groups() -> None:
    """Of a group of seven four are in neither of two sums each: with the group's sum both say what the one in common
    has, and without it they do not."""
    whole = VectorLayout(LAYOUT.blocks, sum_class=REPEATED_ROWS, in_groups=False)
    played = Round(plan_of({"groups": GROUPS}, whole, 21), clients=21).contribute()
    names = sorted(played.names)
    parts = tuple(frozenset(names[start : start + 7]) for start in (0, 7, 14))
    released = frozenset(names), frozenset(names[4:])
    found = played.inspect("m0", [*names[:3], *names[7:]])
    member.confirm(played.ready("m0"), found, member.Ledger(released), 3, bytes(32))
    with pytest.raises(RefusalError, match="with those of the groups, would reveal a sum over too few clients"):
        member.confirm(played.ready("m0"), found, member.Ledger(released, groups=parts), 3, bytes(32))
