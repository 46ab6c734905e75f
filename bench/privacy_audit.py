"""Audit the privacy of noisy sums: what an attacker shows about epsilon, beside what the task claims.

    .venv/bin/python -m bench.privacy_audit [--quick] [--json FILE]

**Canaries.** Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run" (NeurIPS 2023). Each canary is a
client that contributes, to every sum of a task, the longest vector that is allowed, along a direction of its own; or
zeros, as a coin decides. Their sums are computed by the real masked protocol, with the contributions of
`protocols.recipes.private`, and a tenth of each cohort is corrupt and adds no noise. The attacker knows all but the
coins, guesses those it is surest of, and the number of right guesses bounds epsilon from below (`epsilon_at_least`).
Tasks run until there are enough canaries. A canary is in one task only, so all tasks together cost what one costs.

**Variance.** The sum of zeros of many values shows the variance of the noise, and so a share that is missing. The
variance that it is below, with a confidence of 99.9 %, gives an epsilon that the accountant computes from it.

Both are repeated where the defence is broken: no noise, no bound on the norm, one client's noise too little.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import scipy
from numpy.typing import NDArray

from bench._report import Figure, arguments, bars
from bench.figures import run
from protocols.advice import NOISY
from protocols.contribution import plan_of_task
from protocols.crypto.keys import derive_seed
from protocols.crypto.random import Randomness
from protocols.errors import CodecError
from protocols.messages.privacy import Privacy
from protocols.privacy.noise import SumNoise, epsilon_of, skellam_curve
from protocols.recipes.base import Contribution, ModelState, RoundSpec, main_layout
from protocols.recipes.private import Private, with_privacy
from protocols.recipes.registry import recipe
from protocols.sums.masked.plan import MASKED, MaskedPlan
from protocols.sums.masked.run import run_masked_sum

EPSILON: Final = 4.0
DELTA: Final = 1e-5
CONFIDENCE: Final = 0.95
_OF_VARIANCE: Final = 0.999
_LONG: Final = 10
"""Factor by which a canary is longer than its bound, where nobody clips it."""


# --- the lower bound ------------------------------------------------------------------------------------------------


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the largest probability of at least so many right guesses, if the mechanism is (epsilon, delta)-private.

    Theorem 5.2 of Steinke et al., computed as in their appendix D: beta + 2 m delta alpha. beta: the probability that a
    binomial of r trials, each right with e^epsilon / (1 + e^epsilon), reaches v. alpha: the largest mean over i of its
    probabilities of v - i .. v - 1.
    """
    chance = 1 / (1 + math.exp(-epsilon))
    below = scipy.stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, chance)
    alpha = float(np.max(np.cumsum(below) / np.arange(1, right + 1))) if right else 0.0
    return min(1.0, float(scipy.stats.binom.sf(right - 1, guesses, chance)) + 2 * canaries * delta * alpha)


def epsilon_at_least(
    canaries: int, guesses: int, right: int, delta: float = DELTA, confidence: float = CONFIDENCE
) -> float:
    """Return the epsilon that the mechanism exceeds at `delta`, with this confidence; 0.0 if the guesses show none.

    canaries: m, each of them included by a coin of its own. guesses: r of them. right: v of the guesses.
    """

    def excess(epsilon: float) -> float:
        return p_value(canaries, guesses, right, epsilon, delta) - (1 - confidence)

    return 0.0 if excess(0.0) >= 0 else float(scipy.optimize.brentq(excess, 0.0, 50.0, xtol=1e-12))


def best_guesses(canaries: int, distance: float) -> int:
    """Return how many guesses are expected to give the highest bound; an even number.

    distance: between the means of the scores with and without a canary, in their deviations, which follows from the
    task's terms. Nothing that was measured is used, so the bound holds.
    """
    rng, choices = np.random.default_rng(1), [max(2, 2 * round(canaries * share / 2)) for share in _SHARES]
    coins = rng.integers(0, 2, canaries).astype(bool)
    scores = rng.standard_normal(canaries) + distance * (coins - 0.5)
    return max(choices, key=lambda r: epsilon_at_least(canaries, r, _right(scores, coins, r)))


_SHARES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)


def _right(scores: NDArray[np.float64], coins: NDArray[np.bool_], guesses: int) -> int:
    """Return the right guesses: in for the highest `guesses` / 2 scores, out for as many of the lowest."""
    order, half = np.argsort(scores), guesses // 2
    return int(coins[order[order.size - half :]].sum() + (~coins[order[:half]]).sum())


# --- tasks ----------------------------------------------------------------------------------------------------------


class Noiseless(Private):
    """A recipe whose clients add no noise: a share of next to no variance."""

    def noise(self, sum_index: int) -> SumNoise:
        """Return the noise of the wrapped recipe, without noise."""
        return replace(super().noise(sum_index), share=1e-9)


class Unclipped(Private):
    """A recipe whose clients keep no bound: what they have is sent `_LONG` times as long, with the planned noise."""

    def noise(self, sum_index: int) -> SumNoise:
        """Return the noise, and room for the long contributions in the layout."""
        planned = super().noise(sum_index)
        return replace(planned, bound=_LONG * planned.bound)

    def noised(
        self, state: ModelState, spec: RoundSpec, contribution: Contribution, random: Randomness
    ) -> Contribution:
        """Return the contribution of a client that has nothing, and the long vector."""
        none = Contribution([np.zeros(contribution.values)])
        sent, unit = super().noised(state, spec, none, random).vector, self._unit(spec.sum_index, state)
        sent[: contribution.values] += np.rint(_LONG * contribution.vector / unit)
        return Contribution(self.layout(spec.sum_index).split(sent))


@dataclass(frozen=True)
class Case:
    """A recipe that is audited: `sums` sums of a task."""

    name: str
    recipe: str
    parameters: Callable[[int], Mapping[str, Any]]
    sums: int
    width: int = 1
    """Values per item, of which a canary uses the first."""
    pairs: bool = False
    """Whether the sum is of pairs of items."""

    def private(self, clients: int, items: int, corrupt: float, kind: type[Private] = Private) -> Private:
        """Return the recipe under a block whose noise is for exactly the honest clients. items: its size."""
        privacy = Privacy(epsilon=EPSILON, delta=DELTA, most_items=1, rounds=self.sums, corrupt=corrupt)
        inner = recipe(self.recipe, dict(self.parameters(items)), noisy=True)
        made = with_privacy(inner, privacy, self.sums, clients, clients)
        assert isinstance(made, Private)
        return kind(made.inner, made.privacy, made.terms)


def _rows(items: int) -> dict[str, Any]:
    return {"items": items, "dim": 4, "item_bias": "counts"}


def _spectrum(items: int) -> dict[str, Any]:
    return {"items": items, **NOISY["privirec-k"]}


CASES: Final = (
    Case("counts", "colr", lambda items: {**_rows(items), "rank": 2}, 1),
    Case("colr", "colr", lambda items: {**_rows(items), "rank": 2}, 2, width=2),
    Case("fedmf", "fedmf", _rows, 2, width=4),
    Case("arrays", "arrays", lambda items: {"shapes": {"w": [items]}}, 2),
    Case("privirec-k", "privirec-k", lambda items: {**_spectrum(items), "components": 2, "iterations": 2}, 2, width=2),
    Case("privirec", "privirec", lambda items: {**_spectrum(items), "components": 1, "iterations": 0}, 1, pairs=True),
)


@dataclass
class Task:
    """One task of a case, all sums of it over the real masked protocol."""

    private: Private
    sums: int
    clients: int
    corrupt: int
    """Colluding clients, the last ones of the cohort."""
    noiseless: int = 0
    """Further clients, the last of the honest ones, that leave their noise out although it is counted on."""
    seed: bytes = field(default_factory=lambda: os.urandom(32))

    @cached_property
    def plans(self) -> dict[int, MaskedPlan]:
        found = {}
        for number in range(1, self.sums + 1):
            plan = plan_of_task(MASKED, {}, self.private.layout(number), self.clients, main_layout(self.private))
            assert isinstance(plan, MaskedPlan)
            found[number] = plan
        return found

    def run(self, vector: Callable[[int, int, float], NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Return the opened sums, in steps. vector(sum, client, length): of an honest client, in the recipe's units."""
        state, opened = self.private.initial_state(derive_seed(self.seed, "simulation task")), []
        for number, plan in self.plans.items():
            spec = self.private.round_spec(self.seed, number)
            own = self.private.inner.sensitivity(number)
            length = 1.0 if own.counts else state.l2_clip if own.l2 is None else own.l2
            sent = {}
            for client in range(self.clients):
                if client < self.clients - self.corrupt - self.noiseless:
                    given = Contribution([vector(number, client, length)])
                    sent[f"client {client}"] = self.private.noised(state, spec, given, os.urandom).vector
                else:
                    sent[f"client {client}"] = np.zeros(plan.layout.length)
            total = run_masked_sum(plan, sent).total
            opened.append(total)
            try:
                state = self.private.absorb(state, spec, total, self.clients)
            except CodecError:  # canaries are no rows of clients, so their sum without noise is refused; but it is out
                state = self.private.absorb(state, spec, np.zeros_like(total), self.clients)
        return opened


def canary_bound(
    case: Case, kind: type[Private], tasks: int, clients: int, tick: Callable[[], object] = lambda: None
) -> float:
    """Return the lower bound on epsilon from `tasks` tasks, each with a canary in all but a tenth of its clients."""
    corrupt = clients // 10
    honest = clients - corrupt
    planned = case.private(clients, honest, corrupt / clients)
    task = Task(case.private(clients, honest, corrupt / clients, kind), case.sums, clients, corrupt)
    rng = np.random.default_rng(int.from_bytes(os.urandom(8)))
    kinds = [planned.inner.sensitivity(number) for number in task.plans]
    steps = {n: 1 if own.counts else planned.l2_bound(n) for n, own in enumerate(kinds, start=1)}
    variances = {number: planned.noise(number).share * honest for number in task.plans}
    lengths = {number: planned.inner.layout(number).length for number in task.plans}
    scores, coins = [], []
    for _ in range(tasks):
        included = rng.integers(0, 2, honest).astype(bool)

        def vector(number: int, client: int, length: float, included: NDArray[np.bool_] = included) -> Any:
            made = np.zeros(lengths[number])
            made[client * (lengths[number] // honest)] = length * included[client]
            return made

        score = np.zeros(honest)
        for number, total in enumerate(task.run(vector), start=1):
            stride = lengths[number] // honest
            own = total[: honest * stride : stride]
            score += (own * steps[number] - steps[number] ** 2 / 2) / variances[number]
        scores.append(score)
        coins.append(included)
        tick()
    distance = math.sqrt(sum(steps[number] ** 2 / variances[number] for number in task.plans))
    if kind is not Private:
        distance = math.inf  # whoever breaks a defence knows it
    guesses = best_guesses(tasks * honest, min(distance, 100.0))
    right = _right(np.concatenate(scores), np.concatenate(coins), guesses)
    return epsilon_at_least(tasks * honest, guesses, right)


def variance_epsilon(case: Case, values: int, noiseless: int) -> tuple[float, float]:
    """Return the epsilon that follows from the variance of a sum of zeros, and how many deviations it is off the plan.

    Four honest clients, of whom `noiseless` add no noise. values: of the sum, at least.
    """
    honest, items = 4, math.isqrt(2 * values) if case.pairs else values // case.width
    private = case.private(honest, items, 0.0)
    task = Task(private, case.sums, honest, 0, noiseless)
    totals = task.run(lambda number, _, __: np.zeros(private.inner.layout(number).length))
    last, planned = case.sums, private.noise(case.sums).share * honest
    noise = totals[-1][: private.inner.layout(last).length]
    spread = math.sqrt((2 + 1 / planned) / noise.size)  # the fourth central moment of Skellam noise is 3 V^2 + V
    ratio = float(np.mean(noise**2)) / planned
    most = ratio / (1 - scipy.stats.norm.ppf(_OF_VARIANCE) * spread)
    kinds = [private.noise(number) for number in range(1, case.sums + 1)]
    curve = np.sum([skellam_curve((kind.l1, kind.bound), kind.share * honest * most) for kind in kinds], axis=0)
    return epsilon_of(curve, DELTA), (ratio - 1) / spread


def audit(quick: bool) -> dict[str, Figure]:
    """Return the figures of all cases, whose claim is epsilon 4 at delta 1e-5."""
    clients, tasks, values = (10, 32, 8_000) if quick else (20, 112, 40_000)
    broken = 32 if quick else 24  # tasks with a defence broken
    canaries = tasks * (clients - clients // 10)
    figures: dict[str, Figure] = {"epsilon": EPSILON, "delta": DELTA, "canaries": canaries}
    with bars() as progress:
        bar = progress.add_task("run tasks", total=len(CASES) * (tasks + 2 * broken))

        def bound(case: Case, kind: type[Private], tasks: int) -> float:
            return canary_bound(case, kind, tasks, clients, lambda: progress.advance(bar))

        for case in CASES:
            figures[f"{case.name}.lower_bound"] = bound(case, Private, tasks)
            figures[f"{case.name}.no_noise_lower_bound"] = bound(case, Noiseless, broken)
            figures[f"{case.name}.no_clip_lower_bound"] = bound(case, Unclipped, broken)
            for name, noiseless in (("variance", 0), ("missing_share", 1)):
                epsilon, off = variance_epsilon(case, values, noiseless)
                figures |= {f"{case.name}.{name}_epsilon": epsilon, f"{case.name}.{name}_deviations": off}
    return figures


if __name__ == "__main__":
    run("privacy_audit", arguments(__doc__), lambda options: audit(options.quick))
