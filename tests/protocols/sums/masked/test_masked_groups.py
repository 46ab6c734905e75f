"""Masked rounds whose roster is split into groups: each has its own sum, masks, confirmations and floor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.codec import b64length
from protocols.errors import BudgetError, CodecError, ParameterError, RefusalError, ThresholdError
from protocols.layout import REPEATED_HELD_OUT, REPEATED_ROWS, TRAINED, Block, Segment, VectorLayout
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.groups import TAU, advised_cohort
from protocols.sums.masked import client, server
from protocols.sums.masked.neighbourhood import corrupt_clients
from protocols.sums.masked.parameters import ClientPolicy, MaskedParameters
from protocols.sums.masked.plan import MASKED, MaskedPlan, make_plan
from protocols.sums.masked.roster import RosterEntry, open_roster
from protocols.sums.masked.run import MaskedRun, run_masked_sum
from protocols.sums.masked.wire import confirmations_bytes
from tests.protocols.sums.masked.rounds import entry_of, is_member, round_context

GROUPS = 3
LAYOUT = VectorLayout((Block("a", (Segment("v", 4, 1.0), Segment("n", 2, 1.0, integral=True))),), sum_class=TRAINED)
GIVEN = {"groups": GROUPS, "tau": 2.0, "corrupt": 0.0, "dropout": 0.07}


def plan_of(clients: int = 15, **more: object) -> MaskedPlan:
    return make_plan(GIVEN | more, LAYOUT, clients)


def vectors_of(clients: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        f"c_{index:02d}": np.concatenate([rng.uniform(-0.5, 0.5, 4), rng.integers(0, 2, 2)]) for index in range(clients)
    }


def played(clients: int = 15, vectors: dict[str, np.ndarray] | None = None, **more: object) -> MaskedRun:
    plan = plan_of(clients, **more)
    return run_masked_sum(plan, vectors or vectors_of(clients, np.random.default_rng(1)), {"c_02": "contribute"})


def test_each_group_has_its_own_sum_and_the_kept_groups_give_the_sum_of_all() -> None:
    vectors = vectors_of(15, np.random.default_rng(1))
    run = played(vectors=vectors, tau=10.0)
    plan, roster = run.context.plan, run.roster
    assert sorted(np.bincount(roster.groups)) == [5, 5, 5]
    for place in range(15):
        assert {int(roster.groups[one]) for one in roster.neighbours_of(place)} == {int(roster.groups[place])}
    bodies = sorted((roster.group_of(name), 1, body) for name, body in run.contributions.items())
    partial = MASKED.fold_groups(plan, None, bodies)
    corrected, _ = MASKED.correct(plan, partial, run.unmasking)
    opened = MASKED.open_groups(plan, MASKED.release(plan, corrected), 14)
    for group, total in enumerate(opened.sums):
        mine = [vectors[name] for name in run.contributions if roster.group_of(name) == group]
        assert opened.clients[group] == len(mine)
        assert total is not None
        np.testing.assert_allclose(total, np.sum(mine, axis=0), atol=plan.predicted_error)
    for segment, span in (("a/v", slice(0, 4)), ("a/n", slice(4, 6))):
        # Who is in which group is chance: one may lie far from two that happen to be near, and is left out.
        kept = opened.used[segment].groups.kept
        names = [name for name in run.contributions if roster.group_of(name) in kept]
        expected = np.sum([vectors[name] for name in names], axis=0)[span] * (14 / len(names))
        expected = np.round(expected) if segment == "a/n" else expected  # counts stay whole
        np.testing.assert_allclose(run.total[span], expected, atol=2 * plan.predicted_error)


def test_folds_in_batches_and_parts_give_the_same_bytes() -> None:
    run = played()
    plan, roster = run.context.plan, run.roster
    bodies = sorted((roster.group_of(name), 1, body) for name, body in run.contributions.items())
    whole = MASKED.fold_groups(plan, None, bodies)
    assert MASKED.fold_groups(plan, MASKED.fold_groups(plan, None, bodies[:5]), bodies[5:]) == whole
    assert MASKED.merge(plan, [MASKED.fold_groups(plan, None, part) for part in (bodies[:4], bodies[4:])]) == whole
    assert MASKED.merge(plan, []) == MASKED.fold_groups(plan, None, [])
    with pytest.raises(ParameterError, match="ascending order"):
        MASKED.fold_groups(plan, None, bodies[::-1])
    with pytest.raises(ParameterError, match="by group"):
        MASKED.fold(plan, None, [])
    with pytest.raises(CodecError, match="bytes"):
        MASKED.fold_groups(plan, whole[:-1], [])
    one = [bodies[0]] * 6
    with pytest.raises(BudgetError, match="5 contributions"):
        MASKED.fold_groups(plan, None, one)


def test_a_liar_moves_its_own_group_only_which_is_left_out() -> None:
    vectors = vectors_of(15, np.random.default_rng(1))
    honest = played(vectors=vectors)
    liar = MaskedRun.contribute

    def lie(self: MaskedRun, without: object = ()) -> MaskedRun:
        encoded = self.encoded
        self.encoded = lambda name: encoded(name) + np.uint32(2**27) * (name == "c_07")
        return liar(self, without)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaskedRun, "contribute", lie)
        spoilt = played(vectors=vectors)
    names = [
        name for name in vectors if name != "c_02" and spoilt.roster.group_of(name) != spoilt.roster.group_of("c_07")
    ]
    expected = np.sum([vectors[name] for name in names], axis=0) * 14 / len(names)
    np.testing.assert_allclose(spoilt.total[:4], expected[:4], atol=2 * spoilt.context.plan.predicted_error)
    assert np.abs(honest.total).max() < 15


def aggregate(plan: MaskedPlan, sums: list[list[float]], clients: list[int]) -> bytes:
    """The released bytes of groups whose sums are stated here."""
    parts = []
    for one, count in zip(sums, clients, strict=True):
        elements = np.concatenate([ring.encode(np.array(one)[span], 1e6)[0] for ring, span in plan.places[0]])
        parts.append(count.to_bytes(8, "little") + elements.astype("<u4").tobytes())
    return b"".join(parts)


def opened(sums: list[list[float]], clients: list[int], tau: float = 2.0) -> np.ndarray:
    plan = plan_of(tau=tau)
    return MASKED.open(plan, aggregate(plan, sums, clients), sum(clients), None)


def test_the_record_of_a_round_says_how_far_each_group_is() -> None:
    plan, fine, near, far = plan_of(), [1.0] * 4 + [2.0] * 2, [1.5] * 4 + [2.0] * 2, [4.0] * 4 + [2.0] * 2
    report = MASKED.open_groups(plan, aggregate(plan, [fine, near, far], [5, 5, 5]), 15).report()
    assert (report["groups"], report["groups_used"]) == (3.0, 2.0)
    assert report["group_3_distance"] > plan.parameters.tau > report["group_1_distance"]
    assert report["group_2_distance"] == 1.0  # no segment differs from the median there
    garbage = [9.0, 0, 0, 0, 0, 0]
    report = MASKED.open_groups(plan, aggregate(plan, [fine, fine, garbage], [5, 5, 5]), 15).report()
    of_each = {
        f"group_{group}_{what}": value for group in (1, 2) for what, value in (("distance", 1.0), ("limited", 0.0))
    }
    assert report == {"groups": 3.0, "groups_used": 2.0, "smallest_group": 5.0, **of_each}


def test_members_are_told_of_groups() -> None:
    assert "split into 3 groups" in " ".join(plan_of().trust(15))
    assert "groups" not in " ".join(make_plan({}, LAYOUT, 15).trust(15))


def test_sums_that_no_honest_clients_have_are_left_out_and_the_majority_must_be_possible() -> None:
    fine, garbage = [1.0, 1.0, 1.0, 1.0, 2.0, 2.0], [9.0, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(opened([fine, fine, garbage], [5, 5, 5]), 1.5 * 2 * np.array(fine))
    for clients in ([5, 5, 0], [6, 5, 4], [5, 5, 6]):
        with pytest.raises(CodecError, match="other contributions"):
            opened([fine] * 3, clients)
    with pytest.raises(CodecError, match="2 of 3 groups"):
        opened([fine, garbage, garbage], [5, 5, 5])
    with pytest.raises(CodecError, match="has"):
        MASKED.open(plan_of(), b"\0" * 9, 15, None)


def test_attack_all_that_help_a_lying_server_are_in_one_group() -> None:
    """Anybody can compute who is with whom, so a server can ask those that help it beside a victim: k, t and quorum of
    a group allow for all of them there, and groups of which they could be most are refused."""
    for clients, groups in ((999, 3), (1000, 5)):
        plan = make_plan({"groups": groups}, LAYOUT, clients)
        own, helpers = plan.neighbourhood(clients), corrupt_clients(0.05, clients)
        assert own.clients == clients // groups
        assert own.corrupt * own.clients >= helpers
        assert 2 * plan.quorum(clients) > own.clients + helpers
    with pytest.raises(ParameterError, match="in one of which 100 may collude"):
        make_plan({"groups": 10}, LAYOUT, 2000).check_cohort(2000)


def test_each_group_needs_its_floor_and_its_quorum() -> None:
    plan = plan_of(corrupt=0.1)
    assert plan.neighbourhood(15).clients == 5
    assert plan.quorum(15) == (5 + 1) // 2 + 1
    with pytest.raises(ThresholdError):
        run_masked_sum(plan, vectors_of(15, np.random.default_rng(1)), {f"c_{i:02d}": "confirm" for i in range(9)})
    run = played()
    with pytest.raises(RefusalError, match="in a group, the round asks 5 clients"):
        client.advertise(run.context, "c_00", run.identities["c_00"], ClientPolicy(min_cohort=6))
    other = replace(run.context, plan=make_plan({**GIVEN, "groups": 4, "dropout": 0.0}, LAYOUT, 16))
    with pytest.raises(ParameterError, match="15 clients cannot be split into 4 equal groups"):
        open_roster(other, run.roster.whole)


def test_what_cannot_be_split_is_refused() -> None:
    for given, layout, clients, text in (
        ({"groups": 2}, LAYOUT, 15, "from 3 on"),
        ({"groups": 4}, LAYOUT, 15, "cohort_size 12 or 16"),
        ({"groups": 3}, VectorLayout(LAYOUT.blocks, sum_class=REPEATED_ROWS), 15, "same rows"),
        (
            {"groups": 3},
            VectorLayout((*LAYOUT.blocks, Block("b", (Segment("v", 1, 1.0),))), sum_class=TRAINED),
            15,
            "levels",
        ),
    ):
        with pytest.raises(ParameterError, match=text):
            make_plan(given, layout, clients)
    assert CKKS.plan({}, LAYOUT, 15).groups == 1
    measured = make_plan(GIVEN, VectorLayout(LAYOUT.blocks, sum_class=REPEATED_HELD_OUT), 15)
    assert measured.groups == 1 and measured.most_in_sum == 15


def test_terms_without_groups_are_what_they_were() -> None:
    """Terms with groups state tau, too: parties with another default would make other models of the same sums."""
    assert not {"groups", "tau"} & MaskedParameters().model_dump().keys()
    assert MaskedParameters(groups=3).model_dump(mode="json")["tau"] == TAU
    assert MaskedParameters(groups=3, tau=1.7).model_dump(mode="json")["tau"] == 1.7
    with pytest.raises(ValueError, match="set groups, too"):
        MaskedParameters(tau=1.7)


def test_no_more_members_sign_than_a_client_downloads_signatures_of() -> None:
    clients = 190_000
    assert b64length(confirmations_bytes(clients)) < 2**24 - 2**19
    signed, trusted = (make_plan({"mode": mode}, LAYOUT, clients + 1) for mode in ("semi-malicious", "curious"))
    for plan in (signed, trusted):
        plan.check_cohort(clients)
    trusted.check_cohort(clients + 1)
    with pytest.raises(ParameterError, match=r"signatures of all, and accepts those of 190,000 at most"):
        signed.check_cohort(clients + 1)
    assert [plan.parameters.works(clients + 1, 1) for plan in (signed, trusted)] == [False, True]


def test_the_advised_groups_are_as_many_as_a_plan_takes() -> None:
    """Of 100 no number of equal groups has neighbours enough; a few clients more do."""
    works, found = MaskedParameters().works, {}
    for clients in (89, 90, 100, 108, 300, 1000):
        found[clients] = advised_cohort(clients, clients, works)
    assert {clients: split and split.groups for clients, split in found.items()} == {
        89: None, 90: 3, 100: None, 108: 3, 300: 5, 1000: 8
    }  # fmt: skip
    for split in filter(None, found.values()):
        plan = make_plan({"groups": split.groups}, LAYOUT, split.clients)
        for clients in (split.clients, split.min_clients * split.groups):
            plan.check_cohort(clients)
        assert split.clients // split.groups / 2 <= split.min_clients
    assert advised_cohort(100, 943, works)[:2] == (3, 102)
    assert advised_cohort(100, 101, works) is None
    assert advised_cohort(50, 50, works) is None


def contributed() -> MaskedRun:
    """A round of 15 in three groups whose contributions are in; each client wants four in a group."""
    plan, vectors = plan_of(), vectors_of(15, np.random.default_rng(1))
    keys = {name: Ed25519PrivateKey.generate() for name in vectors}
    encoded = {name: plan.encode(1, [vector]) for name, vector in vectors.items()}

    def entry(name: str, advertisement: bytes) -> RosterEntry:
        return entry_of(keys[name], name, advertisement)

    policy, context = ClientPolicy(min_cohort=4), round_context(plan, 15)
    run = MaskedRun(context, keys, policy, encoded.__getitem__, entry, is_member, checks=False)
    return run.advertise().share().contribute()


def test_attack_a_lying_server_cannot_make_one_group_small() -> None:
    """Survivors of whom one group is below the floor are signed by nobody, in no group: a small sum is one of few."""
    run = contributed()
    of_group = [name for name in run.contributed if run.roster.group_of(name) == 1]
    for name in of_group[:2]:
        del run.contributions[name]
    for name, state in run.contributed.items():
        if name not in of_group[:2]:
            with pytest.raises(RefusalError, match="3"):
                client.confirm(state, run.survivors)


def test_attack_two_sets_of_survivors_for_two_groups_open_no_group_twice() -> None:
    """Each client signs one set, and a group opens with a quorum of its own members for it."""
    run = contributed()
    first = run.survivors
    left_out = next(name for name in run.contributed if run.roster.group_of(name) == 2)
    own = {
        name: state for name, state in run.contributed.items() if run.roster.group_of(name) == 2 and name != left_out
    }
    kept = dict(run.contributions)
    del run.contributions[left_out]
    second = run.survivors
    run.contributions = kept
    halves = dict(zip(own, (first, first, second, second), strict=True))
    signed = {name: client.confirm(state, halves[name]) for name, state in own.items()}
    run.confirmations = {name: body for name, (_, body) in signed.items()}
    for state, _ in signed.values():
        with pytest.raises(ThresholdError):
            client.unmask(state, server.confirmations(run.roster, run.confirmations))


def test_attack_members_of_another_roster_have_other_neighbours_and_sign_no_set_of_this_one() -> None:
    """Groups are the same in every round; who is a neighbour within one follows from the digest of the roster."""
    run, other = contributed(), contributed()  # fresh keys
    assert run.roster.digest != other.roster.digest
    assert np.array_equal(run.roster.groups, other.roster.groups)
    with pytest.raises(RefusalError):
        client.confirm(run.contributed["c_00"], run.roster.encode_set({"c_01", "c_02"}))
