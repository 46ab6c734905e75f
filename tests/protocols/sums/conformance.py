"""Tests that every sum mechanism must pass: a new mechanism inherits `MechanismConformance`.

class TestMine(MechanismConformance):
    mechanism = MINE
    parameters = {...}

One whose contributions need a round (`interactive`) brings a subclass here whose `seal` leaves out what the round adds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols.crypto.keys import Keyring
from protocols.errors import BudgetError, CodecError, ContributionError, KeyringError, ParameterError, RoutingError
from protocols.layout import TRAINED, Block, Route, Segment, VectorLayout, whole_route
from protocols.messages.tasks import OtherPlanView
from protocols.sums.base import Mechanism, SumPlan
from protocols.sums.run import run_sum, split_along

LAYOUT = VectorLayout(
    (
        Block("left", (Segment("values", 70, 0.1), Segment("touched", 30, 1.0, integral=True))),
        Block("right", (Segment("values", 70, 0.1), Segment("touched", 30, 1.0, integral=True))),
        Block("alone", (Segment("values", 20, 2.0),)),
    ),
    sum_class=TRAINED,
)
ROUTES: tuple[Route, ...] = (3, 1, 2, 3, 0)
CLIENTS = 5
Sealed = list[tuple[Route, NDArray[np.float64], bytes]]


def one_block(*segments: Segment) -> VectorLayout:
    return VectorLayout((Block("b", segments),), sum_class=TRAINED)


def opened(
    summing: Mechanism, plan: SumPlan, sent: Sequence[bytes | tuple[Route, bytes]], keyring: Keyring | None = None
) -> NDArray[np.float64]:
    """Return the opened sum of contributions, along the whole route unless they come with theirs."""
    pieces = [body if isinstance(body, tuple) else (whole_route(plan.layout), body) for body in sent]
    return summing.open(plan, summing.release(plan, summing.fold(plan, None, pieces)), len(sent), keyring)


def vector_along(route: Route, rng: np.random.Generator, layout: VectorLayout = LAYOUT) -> NDArray[np.float64]:
    """Return values within their clips, half of them equal to the clip, and counts 0 or 1."""
    parts = []
    for block in layout.contribution_blocks(route):
        values = block.bounds() * np.clip(rng.uniform(-2, 2, block.length), -1, 1)
        parts.append(np.where(block.integral_mask(), rng.integers(0, 2, block.length), values))
    return np.concatenate(parts) if parts else np.zeros(0)


class MechanismConformance:
    """The conformance tests; a subclass sets `mechanism` and its parameters."""

    mechanism: ClassVar[Mechanism]
    parameters: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture(scope="class")
    @classmethod
    def plan(cls) -> SumPlan:
        return cls.mechanism.plan(cls.parameters, LAYOUT, CLIENTS)

    @pytest.fixture(scope="class")
    @classmethod
    def keyring(cls, plan: SumPlan) -> Keyring | None:
        return cls.mechanism.generate_keyring(plan) if cls.mechanism.needs_keyring else None

    @pytest.fixture(scope="class")
    @classmethod
    def sealed(cls, plan: SumPlan, keyring: Keyring | None) -> Sealed:
        rng = np.random.default_rng(7)
        out = []
        for route in ROUTES:
            vector = vector_along(route, rng)
            out.append((route, vector, cls.mechanism.seal(plan, route, split_along(plan, route, vector), keyring)))
        return out

    @pytest.fixture(scope="class")
    @classmethod
    def body(cls, sealed: Sealed) -> bytes:
        """Return a valid contribution along the whole route."""
        return sealed[0][2]

    def close(self, plan: SumPlan, opened: NDArray[np.float64], truth: NDArray[np.float64]) -> None:
        integral = np.concatenate([block.integral_mask() for block in plan.layout.blocks])
        assert opened.dtype == np.float64
        assert np.abs(opened - truth)[~integral].max() <= plan.predicted_error
        assert opened[integral].tolist() == np.rint(truth[integral]).tolist()

    def test_plans_follow_from_the_task_alone(self, plan: SumPlan) -> None:
        again = self.mechanism.plan(dict(self.parameters), LAYOUT, CLIENTS)
        assert again == plan
        assert hash(again) == hash(plan)
        assert isinstance(plan, SumPlan)
        assert plan.mechanism == self.mechanism.name
        facts = json.loads(json.dumps(plan.describe()))
        assert OtherPlanView.model_validate(facts).mechanism == self.mechanism.name
        assert facts["predicted_error"] == plan.predicted_error
        assert facts.get("segment_errors") == getattr(plan, "segment_errors", None)

    def test_a_body_may_be_overwritten_when_the_next_one_is_taken(self, plan: SumPlan, sealed: Sealed) -> None:
        """Workers read all contributions into one buffer."""
        buffer = bytearray(max(len(body) for _, _, body in sealed))

        def overwriting() -> Iterator[tuple[Route, memoryview]]:
            for route, _, body in sealed:
                buffer[: len(body)] = body
                yield route, memoryview(buffer)[: len(body)].toreadonly()
                buffer[:] = b"\xff" * len(buffer)

        apart = self.mechanism.fold(plan, None, [(route, body) for route, _, body in sealed])
        assert self.mechanism.fold(plan, None, overwriting()) == apart

    def test_vectors_sum_within_the_predicted_error_up_to_the_largest(self, plan: SumPlan) -> None:
        bounds = np.concatenate([block.bounds() for block in LAYOUT.blocks])
        counts = np.concatenate([block.integral_mask() for block in LAYOUT.blocks])
        rng = np.random.default_rng(0)
        for vectors in (
            [vector_along(whole_route(LAYOUT), rng) for _ in range(CLIENTS)],
            [bounds] * CLIENTS,
            [np.where(counts, bounds, -bounds)] * CLIENTS,  # counts are not negative
        ):
            self.close(plan, run_sum(self.mechanism, plan, vectors).total, np.sum(vectors, axis=0))

    def test_contributions_to_some_of_the_blocks(self, plan: SumPlan, keyring: Keyring | None, sealed: Sealed) -> None:
        truth = sum(LAYOUT.scatter(route, split_along(plan, route, vector)) for route, vector, _ in sealed)
        self.close(plan, opened(self.mechanism, plan, [(route, body) for route, _, body in sealed], keyring), truth)
        self.close(plan, opened(self.mechanism, plan, [], keyring), np.zeros(LAYOUT.length))  # no contributions: zeros

    def test_batches_restarts_and_merges_make_no_difference(self, plan: SumPlan, sealed: Sealed) -> None:
        """In any order, at any depth, and with empty batches."""
        pieces = [(route, memoryview(body)) for route, _, body in sealed]
        at_once = self.mechanism.fold(plan, None, iter(pieces))
        for cut in (0, 2, len(pieces)):
            first = self.mechanism.fold(plan, None, pieces[:cut])
            assert self.mechanism.fold(plan, bytearray(first), pieces[cut:]) == at_once
        batches = ([3, 0], [], [4, 1, 2])
        partials = [self.mechanism.fold(plan, None, [pieces[i] for i in batch]) for batch in batches]
        assert self.mechanism.merge(plan, iter(map(memoryview, partials))) == at_once
        assert self.mechanism.merge(plan, map(bytearray, reversed(partials))) == at_once
        two_levels = [self.mechanism.merge(plan, partials[:1]), self.mechanism.merge(plan, partials[1:])]
        assert self.mechanism.merge(plan, two_levels) == at_once
        assert self.mechanism.merge(plan, []) == self.mechanism.fold(plan, None, [])

    def test_counts_add_up_and_keep_to_the_plan(self, plan: SumPlan, body: bytes) -> None:
        piece = (ROUTES[0], body)
        two, three = (self.mechanism.fold(plan, None, [piece] * times) for times in (2, 3))
        full = self.mechanism.merge(plan, [two, three])
        assert full == self.mechanism.fold(plan, None, [piece] * CLIENTS)
        for too_many in (
            lambda: self.mechanism.merge(plan, [three, three]),
            lambda: self.mechanism.fold(plan, full, [piece]),
            lambda: self.mechanism.fold(plan, None, [piece] * (CLIENTS + 1)),
        ):
            with pytest.raises(BudgetError, match=f"{CLIENTS} contributions"):
                too_many()
        with pytest.raises(ParameterError):
            self.mechanism.open(plan, bytes(plan.aggregate_bytes), CLIENTS + 1, None)

    def test_lengths_are_the_planned_ones_and_no_others(
        self, plan: SumPlan, keyring: Keyring | None, sealed: Sealed, body: bytes
    ) -> None:
        for route, _, along in sealed:
            assert len(along) == plan.contribution_bytes(route)
            self.mechanism.check(plan, route, memoryview(bytearray(along)))
        made = self.mechanism.fold(plan, None, [(ROUTES[0], body)])
        assert (len(made), len(self.mechanism.release(plan, made))) == (plan.partial_bytes, plan.aggregate_bytes)
        for change, wrong in ((-1, body[:-1]), (1, body + b"\0")):
            with pytest.raises(ContributionError, match=f"{len(body)} bytes"):
                self.mechanism.check(plan, ROUTES[0], wrong)
            partial, aggregate = bytes(plan.partial_bytes + change), bytes(plan.aggregate_bytes + change)
            for refuse in (
                lambda wrong=wrong: self.mechanism.fold(plan, None, [(ROUTES[0], wrong)]),
                lambda partial=partial: self.mechanism.fold(plan, partial, []),
                lambda partial=partial: self.mechanism.merge(plan, [partial]),
                lambda partial=partial: self.mechanism.release(plan, partial),
                lambda aggregate=aggregate: self.mechanism.open(plan, aggregate, 1, keyring),
            ):
                with pytest.raises(CodecError):
                    refuse()

    def test_values_out_of_bounds_and_other_shapes_are_not_sealed(self, plan: SumPlan, keyring: Keyring | None) -> None:
        for bad in (np.nan, np.inf, -0.1001, 0.1001):
            vector = np.zeros(LAYOUT.length)
            vector[3] = bad
            with pytest.raises(BudgetError, match="'left'"):
                self.mechanism.seal(plan, ROUTES[0], split_along(plan, ROUTES[0], vector), keyring)
        with pytest.raises(ParameterError, match="2 were given"):
            self.mechanism.seal(plan, ROUTES[0], [np.zeros(100), np.zeros(100)], keyring)
        with pytest.raises(ParameterError, match="100 values"):
            self.mechanism.seal(plan, ROUTES[0], [np.zeros(100), np.zeros(99), np.zeros(20)], keyring)

    def test_a_route_that_does_not_exist_and_a_foreign_plan_are_refused(self, plan: SumPlan, body: bytes) -> None:
        class Foreign:
            mechanism = "foreign"

        for route in (4, -1):
            with pytest.raises(RoutingError):
                self.mechanism.check(plan, route, body)
            with pytest.raises(RoutingError):
                self.mechanism.fold(plan, None, [(route, body)])
        with pytest.raises(ParameterError, match="foreign"):
            self.mechanism.check(Foreign(), ROUTES[0], body)

    def test_parameters_and_cohorts_that_do_not_fit_are_refused_with_what_fits(self) -> None:
        with pytest.raises(ParameterError, match="wholly_unknown|takes no parameters"):
            self.mechanism.plan({**self.parameters, "wholly_unknown": 1}, LAYOUT, CLIENTS)
        with pytest.raises(ParameterError, match=r"at least [13]"):
            self.mechanism.plan(self.parameters, LAYOUT, 0)
        with pytest.raises(BudgetError, match=r"at most \d+ contributions fit") as refusal:
            self.mechanism.plan(self.parameters, LAYOUT, 2**50)
        most = int(str(refusal.value).split("at most ")[1].split()[0])
        assert self.mechanism.plan(self.parameters, LAYOUT, most).max_contributions == most
        with pytest.raises(BudgetError):
            self.mechanism.plan(self.parameters, LAYOUT, most + 1)

    def test_keys_are_needed_where_there_are_keys(self, plan: SumPlan, keyring: Keyring | None, body: bytes) -> None:
        assert self.mechanism.needs_keyring == (keyring is not None)
        if keyring is None:
            return
        aggregate = self.mechanism.release(plan, self.mechanism.fold(plan, None, [(ROUTES[0], body)]))
        for missing in (None, replace(keyring, secret_key=b"")):
            with pytest.raises(KeyringError):
                self.mechanism.open(plan, aggregate, 1, missing)
        for wrong, text in (
            (None, "needs the task's keyring"),
            (replace(keyring, mechanism="another"), "belongs to 'another'"),
            (replace(keyring, parameter_id=bytes(32)), "another ring degree, modulus or key size"),
        ):
            with pytest.raises(KeyringError, match=text):
                self.mechanism.seal(plan, 1, [np.zeros(100)], wrong)
