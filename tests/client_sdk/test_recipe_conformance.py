"""Every recipe of the package passes the public battery, and the battery finds what it is for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.testing import RecipeConformance
from client_sdk.training.arrays import ArraysRound
from client_sdk.training.base import LocalResult
from client_sdk.training.mf import MFConfig
from protocols.errors import BudgetError
from protocols.recipes.base import Contribution, ModelState, Recipe, RoundSpec
from protocols.recipes.colr import FedMF
from protocols.recipes.registry import OWN

SMALL = {"items": 30, "dim": 4}


class MovesAlike:
    """Adam from zero moments moves a value by nearly the same amount in every round: a limit that the task's warnings
    and docs/security.md state."""

    def test_sums_of_training_hold_no_constant_of_a_client(self) -> None:
        with pytest.raises(AssertionError, match="are the same in two rounds|that are the same"):
            super().test_sums_of_training_hold_no_constant_of_a_client()
        assert any("nearly the same change in every round" in text for text in self.make().warnings())


class TestArrays(RecipeConformance):
    name = "arrays"
    parameters: ClassVar[Any] = {
        "shapes": {"w": [6, 4], "b": [4], "t": [9, 2]}, "rows": ["t"], "max_weight": 5,
        "reveal_rows": True, "reveal_weights": True, "optimiser": "yogi",
    }  # fmt: skip
    reveals: ClassVar[Any] = {"t touched": "reveal_rows", " weight": "reveal_weights"}

    def interactions(self, made: Recipe, client: int) -> object:
        def trainer(asked: ArraysRound) -> None:
            rng = np.random.default_rng([client, asked.number])
            change = {name: rng.uniform(-1, 1, array.shape) for name, array in asked.arrays().items()}
            asked.contribute(change, **({"weight": 1.0 + client} if self.reveals else {}))

        return trainer


class TestArraysByMean(TestArrays):
    """Without weights and rows, with a bound on the whole update; also over Paillier."""

    parameters: ClassVar[Any] = {"shapes": {"w": [6, 4], "one": []}, "l2_clip": 0.5}
    reveals: ClassVar[Any] = {}
    mechanisms = ("ckks", "paillier")


class TestColr(RecipeConformance):
    name = "colr"
    parameters: ClassVar[Any] = {**SMALL, "rank": 2}
    training = MFConfig(epochs=1)


class TestColrWithCounts(TestColr):
    parameters: ClassVar[Any] = {**SMALL, "rank": 2, "item_bias": "counts", "count_sums": 2}


class TestFair(RecipeConformance):
    name = "fair"
    parameters: ClassVar[Any] = {**SMALL, "capacities": [0, 2]}
    mechanisms = ()  # its groups share a ring degree, which a task must name


class TestFedmf(RecipeConformance):
    name = "fedmf"
    parameters: ClassVar[Any] = SMALL
    training = MFConfig(epochs=1)


class TestPfedclr(MovesAlike, RecipeConformance):
    name = "pfedclr"
    parameters: ClassVar[Any] = SMALL


class TestPrivirec(RecipeConformance):
    name = "privirec"
    parameters: ClassVar[Any] = {"items": 30, "components": 2, "iterations": 2, "reveal_gram": True, "min_owners": 1}
    sums = 4


class TestPrivirecK(RecipeConformance):
    name = "privirec-k"
    parameters: ClassVar[Any] = {"items": 30, "components": 2, "iterations": 2, "reveal_gram": True, "min_owners": 1}


class TestValidated(TestPrivirecK):
    parameters: ClassVar[Any] = {**TestPrivirecK.parameters, "validation": 1.0}
    sums = 4


class TestNext(TestPrivirecK):
    parameters: ClassVar[Any] = {**TestPrivirecK.parameters, "next_vectors": 2, "validation": 1.0}
    sums = 5


class TestRfrec(MovesAlike, RecipeConformance):
    name = "rfrec"
    parameters: ClassVar[Any] = SMALL


class TestRfrecf(MovesAlike, RecipeConformance):
    name = "rfrecf"
    parameters: ClassVar[Any] = {**SMALL, "iterations": 12, "probability": 0.5}


class TestScolr(RecipeConformance):
    name = "scolr"
    parameters: ClassVar[Any] = {**SMALL, "rank": 2}
    training = MFConfig(epochs=1)


class TestSvd(RecipeConformance):
    name = "svd"
    parameters: ClassVar[Any] = {**SMALL, "rank": 2}
    training = MFConfig(epochs=1)


class TestTopk(RecipeConformance):
    name = "topk"
    parameters: ClassVar[Any] = {**SMALL, "share": 0.2}
    training = MFConfig(epochs=1)


class TestOwnTopk(TestTopk):
    parameters: ClassVar[Any] = {
        **SMALL, "share": 0.1, "support": "own", "reveal_indices": True, "error_feedback": True,
    }  # fmt: skip

    reveals: ClassVar[Any] = {"sent": "reveal_indices"}


def test_every_recipe_is_tested() -> None:
    assert {kind.name for kind in RecipeConformance.__subclasses__()} >= set(OWN)


@dataclass(frozen=True)
class Faulty(FedMF):
    """FedMF with the faults that a first recipe has."""

    def absorb(self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int) -> ModelState:
        total += 1.0  # changes its argument
        return super().absorb(state, spec, total, contributions)

    def encode_state(self, state: ModelState) -> bytes:
        return super().encode_state(state) + b"!"

    def round_spec(self, task_seed: bytes, number: int, sum_index: int | None = None) -> RoundSpec:
        made = super().round_spec(task_seed, number, sum_index)
        return replace(made, seed=np.random.default_rng().bytes(32))

    def report(self, state: ModelState) -> dict[str, float]:
        return {"loss": float("nan")}

    def warnings(self) -> tuple[str, ...]:
        return ("",)


@dataclass(frozen=True)
class Careless:
    """A client side that does not clip, and scores only some items."""

    own: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def contribute(self, *arguments: Any) -> LocalResult:
        made: LocalResult = self.own.contribute(*arguments)
        return replace(made, contribution=Contribution([1e6 * values for values in made.blocks]))

    def scores(self, *arguments: Any) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self.own.scores(*arguments)
        return found[:-1]


@pytest.mark.parametrize(
    "test",
    [
        "test_all_parties_compute_the_same_layouts_routes_and_rounds",
        "test_a_state_has_its_stated_length_and_survives_encoding",
        "test_absorbing_is_a_function_of_its_arguments_and_a_round_is_absorbed_once",
        "test_the_report_holds_numbers_and_warnings_are_sentences",
    ],
)
def test_the_battery_finds_faults(test: str) -> None:
    class Tested(TestFedmf):
        def make(self) -> Recipe:
            return Faulty(super().make().parameters)

    with pytest.raises(AssertionError):
        getattr(Tested(), test)()


@pytest.mark.parametrize(
    ("name", "parameters", "segment"),
    [
        ("fedmf", {"normalise": "touched", "reveal_touched": True}, "touched"),
        ("topk", {"support_from": "vote", "reveal_touched": True, "share": 0.2}, "votes"),
        ("fair", {"max_interactions": 100, "reveal_weights": True, "capacities": [0]}, "weight"),
    ],
)
def test_the_battery_finds_constants_that_nobody_was_asked_about(name: str, parameters: Any, segment: str) -> None:
    """With touch counts, votes and weights, the layouts that every task once had do not pass."""

    class Tested(RecipeConformance):
        def interactions(self, made: Recipe, client: int) -> object:
            return History(np.arange(client, 5 + 3 * client, dtype=np.int32))

    Tested.name, Tested.parameters = name, {**SMALL, **parameters}
    with pytest.raises(AssertionError, match=f"'{segment}'.* are the same in two rounds"):
        Tested().test_sums_of_training_hold_no_constant_of_a_client()


@pytest.mark.parametrize(
    ("test", "error"),
    [
        ("test_contributions_fit_their_route_and_keep_their_clips", (AssertionError, BudgetError)),
        ("test_scores_are_one_number_an_item_or_refused", AssertionError),
    ],
)
def test_the_battery_finds_faults_of_a_client_side(test: str, error: Any) -> None:
    class Tested(TestFedmf):
        sums = 1 if test.startswith("test_contributions") else 0

        def client_side(self, made: Recipe) -> Any:
            return Careless(super().client_side(made))

    with pytest.raises(error):
        getattr(Tested(), test)()
