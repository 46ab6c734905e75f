"""A federation in one process, without HTTP: every client trains, every contribution is sealed, folded and opened.

The fidelity benchmarks use it, and researchers use it to try a recipe. The sums are computed by the protocols; only the
network and the storage between the parties are omitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.whole import Cohort, WholeRatings, can_train_whole, noise_of_all, noisy_whole_sum, whole_sum
from client_sdk.store.states import ClientState, GivenData
from client_sdk.training import client_side
from client_sdk.training.base import LocalResult, TrainingConfig, why_abstain
from client_sdk.training.factors import USER_FACTOR
from protocols.cohorts import places_in_turn
from protocols.contribution import Made, TaskSum, make, plan_of_task, without_participation
from protocols.crypto.keys import derive_seed
from protocols.errors import ParameterError
from protocols.layout import Route, SumClass, VectorLayout
from protocols.messages.privacy import Privacy
from protocols.messages.rounds import Evaluation
from protocols.recipes.base import ModelState, Recipe, RoundSpec, main_layout
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.private import Private, with_privacy
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.registry import recipe as make_recipe
from protocols.recipes.spectral_start import Source, start_parameters, start_state
from protocols.sums.base import SumPlan, new_keyring
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.run import run_masked_elements
from protocols.sums.registry import mechanism as find_mechanism
from protocols.sums.wire import pack
from protocols.task_terms import check_combination

FOLD_BATCH: Final = 16
"""Contributions folded at a time, as on the server."""

Sampling = Literal["turns", "uniform"]
"""How cohorts are drawn: in turn from one shuffle ("turns"), or uniformly in each round ("uniform")."""


@dataclass(frozen=True)
class SimulatedRound:
    """The outcome and the cost of one round."""

    number: int
    survivors: int
    loss: float
    """Mean training loss."""
    clipped: int
    """Values clipped by the whole cohort."""
    bytes_up: float
    """Mean bytes of a contribution."""


@dataclass
class _Tally:
    """The running costs of one round."""

    losses: list[float] = field(default_factory=list)
    clipped: int = 0
    bytes: int = 0

    def round(self, number: int, survivors: int) -> SimulatedRound:
        """Return the figures of the whole round."""
        return SimulatedRound(number, survivors, float(np.mean(self.losses)), self.clipped, self.bytes / survivors)


@dataclass
class Federation:
    """All clients of one data set, with one recipe over one mechanism.

    Raises `ParameterError` for parameters that do not fit, and when a device group has no users.
    """

    train: Interactions
    """Every user's interactions."""
    recipe_name: str
    recipe_parameters: Mapping[str, Any]
    mechanism_name: str = "plain"
    mechanism_parameters: Mapping[str, Any] = field(default_factory=dict)
    training: TrainingConfig | None = None
    """Training parameters; None for the recipe's defaults."""
    cohort_size: int = 60
    """Clients per round."""
    seed: int = 0
    """Fixes the shuffle, the task seed and each client's training draws, so that two mechanisms can be compared on the
    same run. The randomness of the HE library is never fixed."""
    user_groups: NDArray[np.int64] | None = None
    """int64 (users,), the device group of each user; None puts everyone in group 0."""
    sampling: Sampling = "turns"
    """"turns" draws cohorts round-robin from one shuffle, as the released CoLR code and the server do, in as few as
    `cohort_size` allows, and the same ones in every turn (`protocols.cohorts`); "uniform" draws each cohort
    independently. Sums of class `repeated` have one cohort in every round."""
    masks: bool = True
    """Whether masked rounds run with all their stages.

    False adds the same ring elements without masks, which would cancel: the sum has the same bits, and a round takes
    about as long as a plain one.
    """
    evaluation: Evaluation | None = None
    """How the clients measure the model on rows that they hold out; None for no federated evaluation."""
    schedule_rounds: int = 100
    """Rounds of the task, on which the last rounds of an evaluation depend."""
    start: Source | None = None
    """The `privirec-k` task from which this one starts; None for the start from the seed."""
    privacy: Privacy | None = None
    """The privacy block, whose noise follows from a cohort; None for no noise."""

    def __post_init__(self) -> None:
        noisy = self.privacy is not None
        plain = make_recipe(self.recipe_name, self.recipe_parameters, noisy=noisy)
        if self.start is not None:
            parameters, _ = start_parameters(plain, self.recipe_parameters, "simulation", b"", self.start)
            plain = make_recipe(self.recipe_name, parameters, noisy=noisy)
        measured = with_evaluation(plain, self.evaluation, self.schedule_rounds)
        size = self.cohort_size
        self.recipe: Recipe = with_privacy(measured, self.privacy, self.schedule_rounds, size, size)
        check_combination(self.recipe, self.mechanism_name)
        self.mechanism = find_mechanism(self.mechanism_name)
        self._plans: dict[VectorLayout, SumPlan] = {}
        self._kinds: dict[int, tuple[SumClass, int]] = {}
        self.task_seed = derive_seed(str(self.seed).encode(), "simulation task")
        main = self.recipe.main_sum
        self.plan = self._plan(self.recipe.round_spec(self.task_seed, main, main))
        self.keyring = new_keyring(self.mechanism, self.plan)
        self.state: ModelState = (
            self.recipe.initial_state(self.task_seed) if self.start is None else start_state(self.recipe, self.start)
        )
        self._view = self.state
        self._whole: WholeRatings | None = None
        self.client_side = client_side(self.recipe, self.training)
        users = self.train.n_users
        draws = np.random.default_rng([self.seed, 1])
        self.given = [GivenData()] * users
        self.client_states: list[ClientState] = [self.client_side.initial_client_state(draws) for _ in range(users)]
        self._held = self._held_items()
        self.took_part = np.zeros(users, dtype=bool)
        order = np.random.default_rng([self.seed, 42]).permutation(users)
        order = order[self.train.user_degrees()[order] > 0]  # a user without a row has nothing to contribute
        self._group_of = np.zeros(users, np.int64) if self.user_groups is None else self.user_groups
        self.orders = [
            order[self._group_of[order] == device_group] for device_group in range(self.recipe.device_groups)
        ]
        if not all(members.size for members in self.orders):
            raise ParameterError(
                f"each of the recipe's {self.recipe.device_groups} device groups needs at least one user"
            )

    @property
    def user_factors(self) -> NDArray[np.float32]:
        """Every user's factor, float32 (users, dim), for recipes that have one."""
        return np.stack([client_state[USER_FACTOR] for client_state in self.client_states])

    def _held_items(self) -> NDArray[np.int64]:
        """Return the item that each user keeps out of the sums of a task with validation, int64 (users,); -1: none."""
        recipe = self.recipe.own
        if not (isinstance(recipe, PriviRecK) and recipe.parameters.validation):
            return np.full(self.train.n_users, -1)
        return np.array([-1 if one is None else one for one in map(self._held_out, range(self.train.n_users))])

    def scores(self, users: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return what each user's device scores with the newest model, float32 (users, items).

        A user who never took part trains for itself first, as its device would. Raises `ParameterError` as the recipe's
        client side does, for example for a model that cannot score yet.
        """
        from client_sdk.training.privirec import PriviRecSide  # which other recipes do not need

        if self._whole is not None:
            return self._whole.scores(self.state, users)
        if isinstance(self.client_side, PriviRecSide):
            orders = [self._order(int(user)) for user in users]
            return self.client_side.scores_of(self.state, interaction_rows(self.train)[users], orders)
        spec = self.recipe.round_spec(self.task_seed, max(1, self.state.round_number))
        views = [self.recipe.view(self.state, device_group) for device_group in range(self.recipe.device_groups)]
        return np.stack([self._scores(int(user), spec, views[self._group_of[user]]) for user in users])

    def history(self, user: int) -> History:
        """Return the user's rows; with an evaluation by time where the data has times, to hold out the last."""
        found = self.train.history(user)
        if self.evaluation is None or found.times is None:
            return found
        order = np.argsort(found.times, kind="stable")
        return History(
            found.items[order], None if found.ratings is None else found.ratings[order], times=found.times[order]
        )

    def _held_out(self, user: int) -> int | None:
        from client_sdk.training.privirec import held_item

        return held_item(self.recipe, self.train.history(user), self.client_states[user])

    def _order(self, user: int) -> NDArray[np.int32] | None:
        """Return a user's items in the order of their times, as its device of a PriviRec task has them."""
        from client_sdk.training.privirec import in_order

        return in_order(self.recipe, self.train.history(user), self.client_states[user])

    def _scores(self, user: int, spec: RoundSpec, view: ModelState) -> NDArray[np.float32]:
        history, client_state = self.history(user), self.client_states[user]
        if not self.took_part[user]:
            rng = np.random.default_rng([self.seed, 4, user, spec.number])
            client_state = self.client_side.prepare(spec, view, history, rng)
        return self.client_side.scores(view, client_state, history)

    def cohort(self, spec: RoundSpec) -> NDArray[np.int64]:
        """Return the users asked in a round, int64; the same in all rounds if the recipe's cohort is frozen.

        Device groups take turns: each is asked every `recipe.device_groups` rounds.
        """
        members, kind = self.orders[self.recipe.device_group_of(spec.sum_index)], self._kind(spec.sum_index)
        if kind[0].repeated:
            return np.asarray(members[: self.cohort_size])
        if self.sampling == "uniform":
            draws = np.random.default_rng([self.seed, 3, spec.number])
            return np.asarray(draws.choice(members, min(self.cohort_size, members.size), replace=False))
        turn = sum(self._kind(index) == kind for index in range(1, spec.sum_index))
        return np.concatenate([members[some] for some in places_in_turn(members.size, turn, self.cohort_size)])

    def _kind(self, sum_index: int) -> tuple[SumClass, int]:
        """Return the class and the device group of a sum; the cohorts of sums that share both take turns."""
        if sum_index not in self._kinds:
            group = self.recipe.device_group_of(sum_index)
            self._kinds[sum_index] = self.recipe.layout(sum_index).sum_class, group
        return self._kinds[sum_index]

    def run(self, rounds: int) -> Iterator[SimulatedRound]:
        """Run up to `rounds` more rounds and yield each; `state` and `client_states` hold the model in between.

        Clients abstain from counts as on their devices. Ends earlier when the recipe's model is done. Raises
        `ParameterError` for a sum of counts in which every client was counted before.
        """
        for number in range(self.state.round_number + 1, self.state.round_number + rounds + 1):
            if self.recipe.is_done(self.state):
                return
            yield self._round(number)

    def _round(self, number: int) -> SimulatedRound:
        spec = replace(self.recipe.round_spec(self.task_seed, number), size=self.recipe.size_after(self.state))
        plan, tally = self._plan(spec), _Tally()
        self._view = self.recipe.view(self.state, self.recipe.device_group_of(spec.sum_index))
        cohort = np.array([user for user in self.cohort(spec) if not self._abstains(spec, int(user))], np.int64)
        if not cohort.size:
            raise ParameterError(
                f"round {number} counts, and every client of its cohort was counted before: choose fewer count_sums"
            )
        at_once = self._sum_at_once(plan, spec, cohort)
        if at_once is not None:
            total, tally.clipped = at_once
            self.took_part[cohort] = True
            tally.losses.append(nan)
            tally.bytes = cohort.size * plan.contribution_bytes(self.recipe.route(spec, ""))
        elif isinstance(plan, MaskedPlan) and (self.masks or plan.groups > 1):  # masks are within groups
            total = self._sum_masked(plan, spec, cohort, tally)
        else:
            total = self._sum_sealed(plan, spec, cohort, tally)
            if isinstance(self.recipe, Private) and not self._each_adds_noise(plan):
                total += noise_of_all(self.recipe, spec, total.size, cohort.size, self._noise_draws(spec))
        self.state = self.recipe.absorb(self.state, replace(spec, rounding=plan.predicted_error), total, cohort.size)
        return tally.round(number, cohort.size)

    def _abstains(self, spec: RoundSpec, user: int) -> bool:
        """Whether a user has nothing to add to a sum, as its device would decide."""
        sum_class, given = self.recipe.layout(spec.sum_index).sum_class, self.given[user]
        if why_abstain(sum_class, spec, self._view, self.history(user), given, "") is not None:
            return True
        return self.client_side.why_abstain(spec, self.history(user), self.client_states[user]) is not None

    def _sum_at_once(
        self, plan: SumPlan, spec: RoundSpec, cohort: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], int] | None:
        """Return what the clients' contributions add up to, computed for all at once, and how many values were clipped.

        None where each client computes its own. PriviRec clips nothing. Devices of `WholeRatings` take their steps at
        once in plain sums over everybody, from the first one on.
        """
        recipe = self.recipe.own
        if isinstance(recipe, PriviRecK):
            if isinstance(plan, MaskedPlan) and self.masks:
                return None
            whole = Cohort(self.train, cohort, self._held, self._order)
            if isinstance(self.recipe, Private):
                return noisy_whole_sum(self.recipe, spec, self._view, whole, self._noise_draws(spec)), 0
            return whole_sum(recipe, plan, spec, self._view, whole), 0
        everybody = cohort.size == self.train.active_users.size
        if self.mechanism_name != "plain" or not everybody or not can_train_whole(self.recipe, self.train):
            return None
        if spec.sum_index == 2:
            self._whole = WholeRatings(self.train, self.recipe, self.state, self.user_factors)
        return None if self._whole is None else self._whole.sum(self.state)

    def _sum_sealed(
        self, plan: SumPlan, spec: RoundSpec, cohort: NDArray[np.int64], tally: _Tally
    ) -> NDArray[np.float64]:
        """Seal every contribution, fold in batches, and open the sum; float64 (values of the recipe's layout,)."""
        partial: bytes | None = None
        waiting: list[tuple[Route, bytes]] = []
        for user in cohort:
            made, route = self._made(plan, spec, int(user), tally), self.recipe.route(spec, str(user))
            # of masked sums the ring elements without masks
            body = pack(made.elements, plan.bits) if isinstance(plan, MaskedPlan) else made.message
            self.mechanism.check(plan, route, body)
            waiting.append((route, body))
            if len(waiting) == FOLD_BATCH or user == cohort[-1]:
                partial = self.mechanism.fold(plan, partial, waiting)
                waiting = []
            tally.bytes += len(body)
        aggregate = self.mechanism.release(plan, partial or b"")
        total = self.mechanism.open(plan, aggregate, cohort.size, self.keyring)
        return without_participation(plan, total)

    def _sum_masked(
        self, plan: MaskedPlan, spec: RoundSpec, cohort: NDArray[np.int64], tally: _Tally
    ) -> NDArray[np.float64]:
        """Run all stages of a masked round without dropouts; float64 (layout.length,)."""
        run = run_masked_elements(
            plan, {str(user): self._made(plan, spec, int(user), tally).elements for user in cohort}
        )
        tally.bytes += sum(map(len, run.contributions.values()))
        return run.total

    def _each_adds_noise(self, plan: SumPlan) -> bool:
        """Whether clients add their shares of noise, as devices do; else a sum gets that of all in one draw."""
        return self.masks or not isinstance(plan, MaskedPlan) or plan.groups > 1

    def _noise_draws(self, spec: RoundSpec) -> np.random.Generator:
        return np.random.default_rng([self.seed, 4, spec.number])

    def _plan(self, spec: RoundSpec) -> SumPlan:
        layout = self.recipe.layout(spec.sum_index, spec.size)
        if layout not in self._plans:
            parameters, main = self.mechanism_parameters, main_layout(self.recipe)
            self._plans[layout] = plan_of_task(self.mechanism, parameters, layout, self.cohort_size, main)
        return self._plans[layout]

    def _made(self, plan: SumPlan, spec: RoundSpec, user: int, tally: _Tally) -> Made:
        """Return what a user sends, which trains first."""
        local, of = self._train(spec, user), TaskSum(self.recipe, self.mechanism, plan, spec)
        without_noise = not self._each_adds_noise(plan)
        made = make(of, self._view, str(user), local.contribution, self.keyring, simulated_noise=without_noise)
        tally.losses.append(local.loss)
        tally.clipped += made.contribution.clipped
        return made

    def _train(self, spec: RoundSpec, user: int) -> LocalResult:
        rng = np.random.default_rng([self.seed, 2, user, spec.number])
        history = self.history(user)
        local = self.client_side.contribute(spec, str(user), self._view, history, self.client_states[user], rng)
        self.client_states[user] = local.client_state if local.finish is None else local.finish()
        if self.recipe.layout(spec.sum_index).sum_class.once:
            self.given[user] = self.given[user].with_counted("", spec.sum_index)
        self.took_part[user] = True
        return local
