"""A federation in one process, without HTTP: every client trains, every contribution is sealed, folded and opened.

The fidelity benchmarks use it, and researchers use it to try a recipe. The sums are computed by the protocols; only the
network and the storage between the parties are omitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import Interactions
from client_sdk.local_state.client_state import ClientState
from client_sdk.training.base import LocalResult, TrainingConfig
from client_sdk.training.factors import USER_FACTOR
from client_sdk.training.registry import client_half
from protocols.crypto.domain import derive_seed
from protocols.errors import ParameterError
from protocols.layout import Route
from protocols.recipes.base import ModelState, Recipe, RoundSpec
from protocols.recipes.registry import check_combination
from protocols.recipes.registry import recipe as make_recipe
from protocols.sums.base import SumPlan
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.run import run_masked_sum
from protocols.sums.registry import mechanism as find_mechanism

__all__ = ["FOLD_BATCH", "Federation", "Sampling", "SimulatedRound"]

FOLD_BATCH: Final = 16
"""Contributions folded at a time, as on the server."""

Sampling = Literal["turns", "uniform"]
"""How cohorts are drawn: in turn from one shuffle ("turns"), or uniformly in each round ("uniform")."""


@dataclass(frozen=True)
class SimulatedRound:
    """The outcome and the cost of one round.

    loss: mean training loss. clipped: values clipped by the whole cohort. bytes_up: mean bytes of a contribution. The
    seconds are sums over the cohort.
    """

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
class _Tally:
    """The running costs of one round."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("train", "seal", "fold", "open"), 0.0))
    losses: list[float] = field(default_factory=list)
    clipped: int = 0
    bytes: int = 0

    @contextmanager
    def clock(self, work: str) -> Iterator[None]:
        """Add the time spent in the block to `seconds[work]`."""
        started = perf_counter()
        yield
        self.seconds[work] += perf_counter() - started

    def round(self, number: int, survivors: int) -> SimulatedRound:
        """Return the figures of the whole round."""
        s = self.seconds
        return SimulatedRound(
            number, survivors, float(np.mean(self.losses)), self.clipped, self.bytes / survivors,
            s["train"], s["seal"], s["fold"], s["open"],
        )  # fmt: skip


@dataclass
class Federation:
    """All clients of one data set, with one recipe over one mechanism.

    train: every user's interactions. training: training parameters; None for the recipe's defaults.
    cohort_size: clients per round.
    seed: fixes the shuffle, the task seed and each client's training draws, so that two mechanisms can be compared on
    the same run. The randomness of the HE library is never fixed.
    excluded: int32 (users, k), items that a user never draws as a training negative, padded with -1. Only the protocol
    of the papers needs it.
    user_groups: int64 (users,), the device group of each user; None puts everyone in group 0.
    sampling: "turns" draws cohorts round-robin from one shuffle, as the released CoLR code does, so that every user
    takes part once in users/cohort_size rounds; "uniform" draws each cohort independently. A recipe with a frozen
    cohort has the same cohort in every round.

    Raises `ParameterError` for parameters that do not fit, and when a device group has no users.
    """

    train: Interactions
    recipe_name: str
    recipe_parameters: Mapping[str, Any]
    mechanism_name: str = "plain"
    mechanism_parameters: Mapping[str, Any] = field(default_factory=dict)
    training: TrainingConfig | None = None
    cohort_size: int = 60
    seed: int = 0
    excluded: NDArray[np.int32] | None = None
    user_groups: NDArray[np.int64] | None = None
    sampling: Sampling = "turns"

    def __post_init__(self) -> None:
        self.recipe: Recipe = make_recipe(self.recipe_name, self.recipe_parameters)
        check_combination(self.recipe, self.mechanism_name)
        self.mechanism = find_mechanism(self.mechanism_name)
        self.plan = self.mechanism.plan(self.mechanism_parameters, self.recipe.layout(), self.cohort_size)
        self.keyring = self.mechanism.generate_keyring(self.plan) if self.mechanism.needs_keyring else None
        self.task_seed = derive_seed(str(self.seed).encode(), "simulation task")
        self.state: ModelState = self.recipe.initial_state(self.task_seed)
        self._view = self.state
        self.half = client_half(self.recipe, self.training)
        users = self.train.n_users
        draws = np.random.default_rng([self.seed, 1])
        self.client_states: list[ClientState] = [self.half.initial_client_state(draws) for _ in range(users)]
        order = np.random.default_rng([self.seed, 42]).permutation(users)
        if self.recipe.frozen_cohort:  # a user without a row has nothing to add to sums over everyone's
            order = order[self.train.user_degrees()[order] > 0]
        device_group_of = np.zeros(users, np.int64) if self.user_groups is None else self.user_groups
        self.orders = [
            order[device_group_of[order] == device_group] for device_group in range(self.recipe.device_groups)
        ]
        if not all(members.size for members in self.orders):
            raise ParameterError(
                f"each of the recipe's {self.recipe.device_groups} device groups needs at least one user"
            )

    @property
    def user_factors(self) -> NDArray[np.float32]:
        """Every user's factor, float32 (users, dim), for recipes that have one."""
        return np.stack([client_state[USER_FACTOR] for client_state in self.client_states])

    def cohort(self, spec: RoundSpec) -> NDArray[np.int64]:
        """Return the users asked in a round, int64; the same in all rounds if the recipe's cohort is frozen.

        Device groups take turns: each is asked every `recipe.device_groups` rounds.
        """
        members = self.orders[self.recipe.device_group_of(spec.sum_index)]
        turn = (spec.number - 1) // self.recipe.device_groups
        if self.sampling == "uniform" and not self.recipe.frozen_cohort:
            draws = np.random.default_rng([self.seed, 3, spec.number])
            return np.asarray(draws.choice(members, min(self.cohort_size, members.size), replace=False))
        start = 0 if self.recipe.frozen_cohort else turn * self.cohort_size
        asked = np.arange(start, start + min(self.cohort_size, members.size))
        return np.asarray(members[asked % members.size])

    def run(self, rounds: int) -> Iterator[SimulatedRound]:
        """Run up to `rounds` more rounds and yield each; `state` and `client_states` hold the model in between.

        Ends earlier when the recipe's model is done.
        """
        for number in range(self.state.round_number + 1, self.state.round_number + rounds + 1):
            if self.recipe.is_done(self.state):
                return
            yield self._round(number)

    def _round(self, number: int) -> SimulatedRound:
        spec = self.recipe.round_spec(self.task_seed, number)
        plan, cohort, tally = self._plan(spec.sum_index), self.cohort(spec), _Tally()
        self._view = self.recipe.view(self.state, self.recipe.device_group_of(spec.sum_index))
        if isinstance(plan, MaskedPlan):
            total = self._sum_masked(plan, spec, cohort, tally)
        else:
            total = self._sum_sealed(plan, spec, cohort, tally)
        self.state = self.recipe.absorb(self.state, spec, total, cohort.size)
        return tally.round(number, cohort.size)

    def _sum_sealed(
        self, plan: SumPlan, spec: RoundSpec, cohort: NDArray[np.int64], tally: _Tally
    ) -> NDArray[np.float64]:
        """Seal every contribution, fold in batches, and open the sum; float64 (layout.length,)."""
        partial: bytes | None = None
        waiting: list[tuple[Route, bytes]] = []
        for user in cohort:
            local = self._train(spec, int(user), tally)
            route = self.recipe.route(spec, str(user))
            with tally.clock("seal"):
                body = self.mechanism.seal(plan, route, local.blocks, self.keyring)
            with tally.clock("fold"):
                self.mechanism.check(plan, route, body)
                waiting.append((route, body))
                if len(waiting) == FOLD_BATCH or user == cohort[-1]:
                    partial = self.mechanism.fold(plan, partial, waiting)
                    waiting = []
            tally.bytes += len(body)
        with tally.clock("open"):
            aggregate = self.mechanism.release(plan, partial or b"")
            return self.mechanism.open(plan, aggregate, cohort.size, self.keyring)

    def _sum_masked(
        self, plan: MaskedPlan, spec: RoundSpec, cohort: NDArray[np.int64], tally: _Tally
    ) -> NDArray[np.float64]:
        """Run all stages of a masked round without dropouts; float64 (layout.length,).

        The time counts as sealing, because the parties' shares of it cannot be separated.
        """
        vectors = {}
        for user in cohort:
            local = self._train(spec, int(user), tally)
            vectors[str(user)] = plan.layout.scatter(self.recipe.route(spec, str(user)), local.blocks)
        with tally.clock("seal"):
            transcript = run_masked_sum(plan, vectors)
        tally.bytes += sum(map(len, transcript.contributions.values()))
        return transcript.total

    def _plan(self, sum_index: int) -> SumPlan:
        layout = self.recipe.layout(sum_index)
        if layout != self.plan.layout:
            self.plan = self.mechanism.plan(self.mechanism_parameters, layout, self.cohort_size)
        return self.plan

    def _train(self, spec: RoundSpec, user: int, tally: _Tally) -> LocalResult:
        rng = np.random.default_rng([self.seed, 2, user, spec.number])
        excluded = None if self.excluded is None else self.excluded[user]
        history = self.train.history(user)
        with tally.clock("train"):
            local = self.half.contribute(spec, str(user), self._view, history, self.client_states[user], rng, excluded)
            self.client_states[user] = local.client_state if local.finish is None else local.finish()
        tally.losses.append(local.loss)
        tally.clipped += local.clipped
        return local
