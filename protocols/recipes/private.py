"""A recipe with a privacy block: its sums are of whole numbers, within an L2 bound, with each client's share of noise.

`Private` wraps any recipe that states the sensitivity of its sums. A client's part of a sum is

1. limited: at most `most_items` of its counts, drawn at random; otherwise scaled as a whole to the L2 bound, so that
   sums and the weights that they are divided by keep their ratio;
2. counted in steps and rounded at random, so that the bound holds for the whole numbers;
3. added to Skellam noise (`protocols.privacy.noise`), before any mechanism sees it.

`absorb` gives the wrapped recipe the sum in its own units, and the deviation of the noise as `RoundSpec.noise`.

**The bound adapts in sums that train.** Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with
Adaptive Clipping" (NeurIPS 2021), algorithm 1: each client also says whether its update is within the bound C, and
C <- C exp(-0.2 (share - quantile)). That value is part of the same vector, has a tenth of the weight of the update and
the same noise, so that one bound and one cost hold for both. C is part of the model state (`ModelState.l2_clip`).

Which clients are in a sum is public, and so is how many.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, isfinite, log2, sqrt
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.random import Randomness, expanded
from protocols.errors import CodecError, ParameterError
from protocols.layout import CLIP_SLACK, Block, Floats, Segment, VectorLayout, norm_of
from protocols.messages.privacy import Privacy
from protocols.privacy.noise import (
    NoiseTerms,
    RenyiCurve,
    Sensitive,
    SumNoise,
    bound_in_steps,
    round_within,
    skellam,
    within_steps,
)
from protocols.recipes.around import RecipeAround
from protocols.recipes.base import Contribution, Local, ModelState, Recipe, RoundSpec
from protocols.recipes.bounds import Reach, Sensitivity
from protocols.recipes.evaluated import Evaluated

FAILED_SUMS: Final = 2
"""Sums that may fail before the members of a task have spent what its sums need: a client pays for what it sent."""
_RATE: Final = 0.2  # how fast the bound adapts: the value of Andrew et al., section 3
_CLIP: Final = struct.Struct("<d")
M = TypeVar("M", bound=ModelState)


@dataclass(frozen=True)
class Private(RecipeAround):
    """`inner`, a recipe with one device group, under the noise of a privacy block.

    Raises `ParameterError` for a recipe without sensitivities, and for noise that cannot be drawn.
    """

    inner: Recipe
    privacy: Privacy
    terms: NoiseTerms
    """What the noise follows from."""

    def __post_init__(self) -> None:
        for sum_index in self.inner.sum_kinds():
            self.noise(sum_index)

    @property
    def ends_after(self) -> int | None:
        return self.inner.ends_after

    # --- noise ---------------------------------------------------------------------------------------------------

    @cached_property
    def multiplier(self) -> float:
        """The deviation of the honest clients' noise in units of the L2 bound, the same in all sums."""
        kinds = self.inner.sum_kinds()
        exact = self.terms.with_exact_delta(max(self.inner.layout(sum_index).length for sum_index in kinds) + 1)
        return exact.multiplier([self._sensitive(sum_index) for sum_index in kinds])

    def noise(self, sum_index: int) -> SumNoise:
        """Return the noise in sum `sum_index`."""
        return self.terms.noise(self._sensitive(sum_index), self.multiplier)

    def cost(self, contributions: int) -> RenyiCurve:
        """Return what so many contributions of a client cost at most, whichever sums they are in."""
        kinds = [self.noise(sum_index).curve(self.terms.honest) for sum_index in self.inner.sum_kinds()]
        return np.asarray(contributions * np.max(kinds, axis=0))

    def _adapts(self, sum_index: int) -> bool:
        own = self.inner.sensitivity(sum_index)
        return own.l2 is None and not own.counts and self.privacy.quantile is not None

    def _sensitive(self, sum_index: int) -> Sensitive:
        """Return the L1 and the L2 norm of a contribution, in steps, at most: of whole numbers, L1 <= L2^2."""
        own, values = self.inner.sensitivity(sum_index), self.inner.layout(sum_index).length
        if own.counts:
            most = min(self.privacy.most_items, values)
            return float(most), sqrt(most)
        bound = self.l2_bound(sum_index)
        l1 = min(sqrt(values) * bound, float(bound**2))
        if not self._adapts(sum_index):
            return l1, float(bound)
        said = within_steps(bound)
        return l1 + said, sqrt(bound**2 + said**2)

    def l2_bound(self, sum_index: int) -> int:
        """Return the L2 bound in steps of an update, or of what else is not counts; without the value by which it
        adapts."""
        values, each = self.inner.layout(sum_index).length, self.inner.sensitivity(sum_index).per_item
        return bound_in_steps(min(values, self.privacy.most_items * each) if each else values)

    def _unit(self, sum_index: int, state: ModelState) -> float:
        """Return how much of the recipe's own unit a step is."""
        own = self.inner.sensitivity(sum_index)
        if own.counts:
            return 1.0
        return (state.l2_clip if own.l2 is None else own.l2) / self.l2_bound(sum_index)

    def noised(
        self, state: ModelState, spec: RoundSpec, contribution: Contribution, random: Randomness
    ) -> Contribution:
        """Return the contribution within its bound, in steps, with this client's share of noise.

        state: the model before the sum. contribution: of the wrapped recipe. random: n -> n secret random bytes,
        `os.urandom` on devices; asked for 32, which are expanded. Also for a client that has nothing to add: its zeros
        carry noise like every other contribution. Raises `ParameterError` for values that are not finite.
        """
        random = expanded(random)
        limited = self.limited(state, spec, contribution, random)
        share = skellam(limited.values, self.noise(spec.sum_index).share, random)
        return replace(limited, blocks=self._split(spec, limited.vector + share))

    def limited(
        self, state: ModelState, spec: RoundSpec, contribution: Contribution, random: Randomness
    ) -> Contribution:
        """Return the contribution within its bound, in steps, without noise, which must not leave a device.

        Simulations add the noise of all clients in one draw. Arguments and errors: of `noised`.
        """
        vector, clipped = contribution.vector, contribution.clipped
        if self.inner.sensitivity(spec.sum_index).counts:
            steps, left_out = _limited(vector, min(self.privacy.most_items, vector.size), random)
            clipped, scale = clipped + left_out, 1.0
        else:
            bound, unit = self.l2_bound(spec.sum_index), self._unit(spec.sum_index, state)
            within = norm_of(vector) <= bound * unit
            steps, scale = round_within(vector / unit, bound, random)
            if self._adapts(spec.sum_index):
                steps = np.append(steps, within_steps(bound) * within)
        blocks = self._split(spec, steps.astype(np.float64))
        return replace(contribution, blocks=blocks, clipped=clipped, scaled=contribution.scaled * scale)

    def _split(self, spec: RoundSpec, vector: Floats) -> list[Floats]:
        edges = np.cumsum([block.length for block in self.layout(spec.sum_index).blocks])[:-1]
        return np.split(vector, edges)

    def in_own_units(
        self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int
    ) -> tuple[Floats, RoundSpec]:
        """Return the opened sum in the wrapped recipe's units, and its spec with the deviation of the noise."""
        unit = self._unit(spec.sum_index, state)
        deviation = self.noise(spec.sum_index).deviation(contributions) * unit
        values = total[: self.inner.layout(spec.sum_index).length] * unit
        return values, replace(spec, noise=deviation)

    # --- sums ----------------------------------------------------------------------------------------------------

    def layout(self, sum_index: int = 1, size: tuple[int, ...] = ()) -> VectorLayout:
        """Return the wrapped recipe's blocks in steps and, where the bound adapts, one value more.

        Sums with noise have one size: `size` is ().
        """
        inner, noise = self.inner.layout(sum_index), self.noise(sum_index)
        if inner.chosen:
            raise ParameterError(
                "privacy: contributions that choose their blocks reveal the choice, with noise or without"
            )
        blocks = [
            Block(
                block.name,
                tuple(_in_steps(segment.name, segment.length, noise, segment.row) for segment in block.segments),
            )
            for block in inner.blocks
        ]
        if self._adapts(sum_index):
            blocks.append(Block("within", (_in_steps("within", 1, noise),)))
        return VectorLayout(tuple(blocks), sum_class=inner.sum_class)

    def longest_vector(self) -> int:
        return self.inner.longest_vector() + 1  # the value by which the bound adapts

    def sensitivity(self, sum_index: int) -> Sensitivity:
        return self.inner.sensitivity(sum_index)

    def sum_kinds(self) -> tuple[int, ...]:
        return self.inner.sum_kinds()

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        return self.noised(state, spec, self.inner.contribute(state, spec, local), local.entropy)

    def zeros(self, spec: RoundSpec, client_id: str) -> Contribution:
        return self.inner.zeros(spec, client_id)

    def left_out(self, state: ModelState, spec: RoundSpec) -> ModelState:
        return replace(self.inner.left_out(state, spec), l2_clip=state.l2_clip)

    def absorb(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> ModelState:
        values, noisy = self.in_own_units(state, spec, total, contributions)
        after = self.inner.absorb(state, noisy, values, contributions)
        clip = state.l2_clip
        if self._adapts(spec.sum_index):
            most = within_steps(self.l2_bound(spec.sum_index)) * contributions
            share = float(np.clip(total[values.size] / most, 0.0, 1.0))
            clip = self._rounded(clip * exp(-_RATE * (share - (self.privacy.quantile or 0.0))))
        return replace(after, l2_clip=clip)

    def _rounded(self, clip: float) -> float:
        """Return the bound with 24 bits, so that all members have the same one, and within 2^-40 to 2^40 of the first.

        The last bit of `exp` may differ between machines.
        """
        nearest = float(np.float32(clip))
        return min(max(nearest, self.privacy.clip * 2.0**-40), self.privacy.clip * 2.0**40)

    def report(self, state: ModelState) -> dict[str, float]:
        return self.inner.report(state) | ({"l2_clip": state.l2_clip} if self._adapts(self.main_sum) else {})

    def is_done(self, state: ModelState) -> bool:
        return self.inner.is_done(state)

    def warnings(self) -> tuple[str, ...]:
        """Return what the noise covers, in place of what the sums would show without."""
        p, t = self.privacy, self.terms
        return (
            f"Differential privacy: all contributions of a client to this task together cost epsilon {p.epsilon:g} at "
            f"delta {p.delta:g}, if at least {t.honest} clients of each sum add their noise and it is in at most "
            f"{t.sums} sums. Who takes part is not hidden.",
        )

    # --- states --------------------------------------------------------------------------------------------------

    def require_reachable(self, state: ModelState, reach: Reach) -> None:
        """Check the bound, which a sum changes by a factor of exp(-0.2) to exp(0.2), and the wrapped recipe's state."""
        quantile, adapts = self.privacy.quantile or 0.0, self.privacy.quantile is not None
        slack = CLIP_SLACK ** (1 + reach.sums)  # a sum rounds it to 24 bits
        least = self.privacy.clip * exp(-_RATE * (1.0 - quantile) * reach.sums * adapts) / slack
        most = self.privacy.clip * exp(_RATE * quantile * reach.sums * adapts) * slack
        if not least <= state.l2_clip <= most:
            raise CodecError(f"a model state holds a bound of {state.l2_clip:g}, which {reach.sums} sums cannot make")
        unit = self._unit(self.main_sum, replace(state, l2_clip=most))
        self.inner.require_reachable(state, replace(reach, largest=self.noise(self.main_sum).largest * unit))

    def initial_state(self, task_seed: bytes) -> ModelState:
        return self.starting(self.inner.initial_state(task_seed))

    def starting(self, state: M) -> M:
        """Return a state of round 0 of the wrapped recipe with the block's bound."""
        return replace(state, l2_clip=self.privacy.clip)

    def state_bytes(self, sum_index: int, size: tuple[int, ...] = ()) -> int:
        return self.inner.state_bytes(sum_index) + (_CLIP.size if sum_index else 0)

    def longest_state_bytes(self) -> int:
        return self.inner.longest_state_bytes() + _CLIP.size

    def same_state(self, own: ModelState, other: ModelState) -> bool:
        return self.inner.same_state(own, other)

    def encode_state(self, state: ModelState) -> bytes:
        """Return the wrapped recipe's encoding; after round 0 followed by the bound, float64."""
        body = self.inner.encode_state(state)
        return body + _CLIP.pack(state.l2_clip) if state.round_number else body

    def decode_state(self, round_number: int, body: bytes) -> ModelState:
        if not round_number:
            return self.starting(self.inner.decode_state(0, body))
        if len(body) < _CLIP.size:
            raise CodecError("a model state of a task with a privacy block ends with the bound, 8 bytes")
        (clip,) = _CLIP.unpack_from(body, len(body) - _CLIP.size)
        if not (isfinite(clip) and clip > 0 and abs(log2(clip / self.privacy.clip)) <= 40):
            raise CodecError("a model state holds a bound that no task with this privacy block has")
        return replace(self.inner.decode_state(round_number, bytes(body[: -_CLIP.size])), l2_clip=clip)


def _in_steps(name: str, length: int, noise: SumNoise, row: int | None = None) -> Segment:
    """Return a segment of whole numbers, of the norm of a whole contribution at most, with its share of noise."""
    largest, deviation = float(noise.largest), sqrt(noise.share)
    return Segment(name, length, largest, integral=True, signed=True, norm=noise.bound, noise=deviation, row=row)


def _limited(counts: Floats, most: int, random: Randomness) -> tuple[NDArray[np.int64], int]:
    """Return counts of 0 and 1 with at most `most` ones, drawn at random, and how many ones were left out."""
    steps = counts.astype(np.int64)
    if not ((steps == counts) & (steps >= 0) & (steps <= 1)).all():
        raise ParameterError("a contribution to a sum of counts holds a value that is neither 0 nor 1")
    ones = np.flatnonzero(steps)
    if ones.size <= most:
        return steps, 0
    order = np.argsort(np.frombuffer(random(8 * ones.size), "<u8"), kind="stable")
    steps[ones[order[most:]]] = 0
    return steps, ones.size - most


def with_privacy(recipe: Recipe, privacy: Privacy | None, rounds: int, cohort_size: int, min_clients: int) -> Recipe:
    """Return `recipe` under the noise of a privacy block; `recipe` itself if None. The numbers: of the schedule.

    Where the block does not say to how many sums a client contributes, it is to all that the task needs, and to
    `FAILED_SUMS` more. Raises `ParameterError` for a recipe that cannot be trained with noise, for noise that cannot be
    drawn, and if no honest client is left in the smallest round.
    """
    if privacy is None:
        return recipe
    if isinstance(recipe, Evaluated) and recipe.evaluation.gate is not None:
        raise ParameterError(
            "a gate compares measurements without noise, and a privacy block adds noise to them: leave out the gate"
        )
    sums = privacy.rounds or sums_needed(recipe, rounds) + FAILED_SUMS
    terms = NoiseTerms.of(privacy.epsilon, privacy.delta, sums, privacy.corrupt, cohort_size, min_clients)
    return Private(recipe, privacy, terms)


def sums_needed(recipe: Recipe, rounds: int) -> int:
    """Return how many sums complete a task of so many rounds: fewer where the recipe ends by itself."""
    return min(rounds, recipe.ends_after or rounds)
