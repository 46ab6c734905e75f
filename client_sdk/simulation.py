"""A federation in one process, without HTTP: every client trains, every contribution is sealed, folded and opened.

What the fidelity benchmarks run, and what a researcher runs to try a recipe. The sums are the protocols' own; only
the network and the storage between the parties are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import LeaveOneOut
from client_sdk.training.base import LocalResult, Memory
from client_sdk.training.factors import USER_FACTOR
from client_sdk.training.mf import MFConfig
from client_sdk.training.registry import client_half
from protocols.domain import derive_seed
from protocols.layout import Route
from protocols.recipes.base import ModelState, Recipe, RoundSpec
from protocols.recipes.registry import check_combination
from protocols.recipes.registry import recipe as make_recipe
from protocols.sums.base import SumPlan
from protocols.sums.registry import mechanism as find_mechanism

__all__ = ["FOLD_BATCH", "Federation", "SimulatedRound"]

FOLD_BATCH: Final = 16
"""Contributions folded at a time, as a server would."""


@dataclass(frozen=True)
class SimulatedRound:
    """What one round did and cost. Seconds are sums over the cohort; bytes are of one average contribution."""

    number: int
    survivors: int
    loss: float
    clipped: int
    bytes_up: float
    train_seconds: float
    seal_seconds: float
    fold_seconds: float
    open_seconds: float


@dataclass
class Federation:
    """All clients of one data set, one recipe over one mechanism.

    Cohorts go round-robin over one shuffle, as in the released CoLR code: everyone takes part once in users/cohort
    rounds. `seed` fixes the shuffle, the task seed and each client's training draws, so that two mechanisms can be
    compared on the same run; the HE library's own randomness is never fixed. `excluded` (users, k) are items that a
    user never draws as a training negative, -1 for none: only the papers' own protocol needs it.
    """

    data: LeaveOneOut
    recipe_name: str
    recipe_parameters: Mapping[str, Any]
    mechanism_name: str = "plain"
    mechanism_parameters: Mapping[str, Any] = field(default_factory=dict)
    training: MFConfig = field(default_factory=MFConfig)
    cohort_size: int = 60
    seed: int = 0
    excluded: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        check_combination(self.recipe_name, self.mechanism_name)
        self.recipe: Recipe = make_recipe(self.recipe_name, self.recipe_parameters)
        self.mechanism = find_mechanism(self.mechanism_name)
        self.plan = self.mechanism.plan(self.mechanism_parameters, self.recipe.layout(), self.cohort_size)
        self.keyring = self.mechanism.generate_keyring(self.plan) if self.mechanism.needs_keyring else None
        self.task_seed = derive_seed(str(self.seed).encode(), "simulation task")
        self.state: ModelState = self.recipe.initial_state(self.task_seed)
        self.half = client_half(self.recipe, self.training)
        users = self.data.train.n_users
        draws = np.random.default_rng([self.seed, 1])
        self.memories: list[Memory] = [self.half.first_memory(draws) for _ in range(users)]
        self.order = np.random.default_rng([self.seed, 42]).permutation(users)

    @property
    def user_factors(self) -> NDArray[np.float32]:
        """Every user's own factor, float32 (users, dim), for recipes that have one."""
        return np.stack([memory[USER_FACTOR] for memory in self.memories])

    def cohort(self, number: int) -> NDArray[np.int64]:
        """The users asked in round `number` (from 1)."""
        start = (number - 1) * self.cohort_size
        return self.order[np.arange(start, start + min(self.cohort_size, self.order.size)) % self.order.size]

    def run(self, rounds: int) -> Iterator[SimulatedRound]:
        """Run `rounds` more rounds, one at a time; `state` and `memories` hold the model in between."""
        for number in range(self.state.round_number + 1, self.state.round_number + rounds + 1):
            yield self._round(number)

    def _round(self, number: int) -> SimulatedRound:
        spec = self.recipe.plan(self.task_seed, number)
        plan = self._plan(spec.step)
        partial: bytes | None = None
        waiting: list[tuple[Route, bytes]] = []
        cohort = self.cohort(number)
        clock = {"train": 0.0, "seal": 0.0, "fold": 0.0}
        losses, clipped, sent = [], 0, 0
        for user in cohort:
            started = perf_counter()
            local = self._train(spec, int(user))
            trained = perf_counter()
            route = self.recipe.route(spec, str(user))
            body = self.mechanism.seal(plan, route, local.blocks, self.keyring)
            sealed = perf_counter()
            self.mechanism.check(plan, route, body)
            waiting.append((route, body))
            if len(waiting) == FOLD_BATCH or user == cohort[-1]:
                partial = self.mechanism.fold(plan, partial, waiting)
                waiting = []
            folded = perf_counter()
            clock["train"] += trained - started
            clock["seal"] += sealed - trained
            clock["fold"] += folded - sealed
            losses.append(local.loss)
            clipped += local.clipped
            sent += len(body)
        opened = self._absorb(spec, partial or b"", cohort.size)
        return SimulatedRound(
            number, cohort.size, float(np.mean(losses)), clipped, sent / cohort.size,
            clock["train"], clock["seal"], clock["fold"], opened,
        )  # fmt: skip

    def _plan(self, step: int) -> SumPlan:
        layout = self.recipe.layout(step)
        if layout != self.plan.layout:
            self.plan = self.mechanism.plan(self.mechanism_parameters, layout, self.cohort_size)
        return self.plan

    def _train(self, spec: RoundSpec, user: int) -> LocalResult:
        rng = np.random.default_rng([self.seed, 2, user, spec.number])
        excluded = None if self.excluded is None else self.excluded[user]
        positives = self.data.train.positives(user)
        local = self.half.contribute(spec, str(user), self.state, positives, self.memories[user], rng, excluded)
        self.memories[user] = local.memory
        return local

    def _absorb(self, spec: RoundSpec, partial: bytes, survivors: int) -> float:
        started = perf_counter()
        plan = self._plan(spec.step)
        aggregate = self.mechanism.release(plan, partial)
        total = self.mechanism.open(plan, aggregate, survivors, self.keyring)
        self.state = self.recipe.absorb(self.state, spec, total, survivors)
        return perf_counter() - started
