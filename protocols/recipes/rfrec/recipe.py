"""RFRec and RFRecF: every client trains its own item factors, with a penalty on their distance from the average.

Liu et al., "Efficient and Robust Regularized Federated Recommendation" (CIKM 2024). Client i has a user factor u_i and
item factors V_i, and minimises (eq. 5)

    |R_i - u_i^T V_i|^2 + lambda_u |u_i|^2 + lambda/2 |V_i - V|^2,      V = 1/n sum_i V_i

over its ratings R_i. The server only averages. The model of a user is its own u_i with the average V.

RFRec (Algorithm 1): training steps and sums alternate. RFRecF (Algorithm 2): a coin toss decides whether an iteration
trains or averages, so that fewer iterations need a sum (`protocols.recipes.rfrec.coins`).

**What is sent** is V_i - V, with V from the last sum. The mean of the differences plus V is the mean of the V_i,
whichever clients are missing, and the differences are smaller than the V_i. The contribution is dense: it includes
items without a rating. All clients have the same weight, and the mean is over the clients in the sum.

Noise (eq. 9) is optional: an independent draw for each value of the difference. The paper clips V_i itself, which
bounds the whole model by that clip.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.crypto.domain import SEED_BYTES, derive_seed
from protocols.crypto.public_random import normals
from protocols.errors import CodecError, ParameterError
from protocols.layout import TRAINED, Block, Route, Segment, VectorLayout, clip_to_bounds, whole_route
from protocols.privacy.laplace import privatise
from protocols.recipes.base import MOVES_ALIKE, FactorState, ModelState, RoundSpec, SingleGroupRecipe
from protocols.recipes.entry import RecipeEntry
from protocols.recipes.factors import decode_factors, encode_factors, round_spec
from protocols.recipes.rfrec.coins import Stretch, stretches
from protocols.recipes.rfrec.means import means_layout
from protocols.recipes.rfrec.parameters import RFRecFParameters, RFRecParameters

__all__ = [
    "INITIAL_STD",
    "RFREC",
    "RFRECF",
    "RFRec",
    "RFRecF",
    "RFRecFState",
    "RFRecMeansState",
    "RFRecState",
    "rfrec_state",
]

INITIAL_STD: Final = 0.01
"""Standard deviation of the initial average: N(0, 10^-4), Algorithm 1, line 3."""
_SUM_INDEX: Final = struct.Struct("<I")


@dataclass(frozen=True)
class RFRecState(FactorState):
    """The average after `sum_index` sums: item_factors float32 (items, dim)."""

    sum_index: int

    @property
    def sums(self) -> int:
        """All of them: a client takes the local steps of each that it missed."""
        return self.sum_index


@dataclass(frozen=True)
class RFRecFState(RFRecState):
    """The state of RFRecF. coins: 32 public bytes, the seed of the task's coin tosses."""

    coins: bytes


@dataclass(frozen=True)
class RFRecMeansState(RFRecState):
    """The state of a task with item means. item_totals: float32 (2, items), how many rated an item, and the sum of
    their ratings minus 1/2."""

    item_totals: NDArray[np.float32]


def rfrec_state(state: ModelState) -> RFRecState:
    """Return `state` as a state of RFRec or RFRecF; `ParameterError` for a state of another recipe."""
    if not isinstance(state, RFRecState):
        raise ParameterError(f"this state holds no average of item factors: it is a {type(state).__name__}")
    return state


@dataclass(frozen=True)
class RFRec(SingleGroupRecipe):
    """RFRec: one block of N*d values, the same for every sum."""

    parameters: RFRecParameters
    name: str = "rfrec"

    by_snapshot: Final = False

    @property
    def count_sums(self) -> int:
        """Number of first sums that are of ratings; 0 without item means."""
        return self.parameters.counting

    @property
    def main_sum(self) -> int:
        """The index of the first sum that trains."""
        return 1 + self.count_sums

    def layout(self, sum_index: int = 1) -> VectorLayout:
        """Return one block: V_i - V, row-major; in the first sums of a task with item means, its ratings."""
        p = self.parameters
        if sum_index <= p.counting:
            return means_layout(p.items)
        return VectorLayout((Block("items", (Segment("difference", p.items * p.dim, p.bound),)),), sum_class=TRAINED)

    def round_spec(self, task_seed: bytes, number: int, sum_index: int | None = None) -> RoundSpec:
        """Return the round's broadcast; nothing is drawn from its seed."""
        return round_spec(task_seed, number, sum_index)

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        """Return the route to the one block, the same for every client."""
        return whole_route(self.layout(spec.sum_index))

    def stretch(self, state: ModelState, sum_index: int) -> Stretch:
        """Return the iterations of sum `sum_index`: one local step before it, or none before a sum of ratings."""
        counting = self.parameters.counting
        return Stretch(0, 0, 0) if sum_index <= counting else Stretch(1, 0, sum_index - counting)

    def contribute(
        self, state: ModelState, own_items: NDArray[np.float32], entropy: Callable[[int], bytes] = os.urandom
    ) -> tuple[list[NDArray[np.float64]], int]:
        """Return the contribution's one block, and how many values were clipped.

        own_items: the client's item factors V_i, float32 (items, dim). entropy: n -> n secret random bytes for the
        noise, different in every call. Raises `ParameterError` for values that are not finite: training diverged.
        """
        difference = np.subtract(own_items, rfrec_state(state).item_factors, dtype=np.float64).ravel()
        if self.parameters.ldp is not None:
            noisy, clipped = privatise(difference, self.parameters.ldp, entropy)
            return [noisy], clipped
        held, clipped = clip_to_bounds(self.layout(self.main_sum).blocks[0], difference)
        return [held], clipped

    def absorb(self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int) -> RFRecState:
        """Return the state whose average is V + total / contributions: the mean of the V_i in the sum.

        Sums between the state's and this one were abandoned; they changed nothing.
        """
        old, p = rfrec_state(state), self.parameters
        if spec.number <= old.round_number or spec.sum_index <= old.sum_index:
            raise ParameterError(
                f"sum {spec.sum_index} of round {spec.number} does not follow a state of sum {old.sum_index}, round "
                f"{old.round_number}"
            )
        if spec.sum_index <= p.counting:
            before = np.frombuffer(self._extra(old), "<f4")
            extra = (before + total).astype("<f4").tobytes()
            return self._state(spec.number, spec.sum_index, old.item_factors, extra)
        moved = old.item_factors + (total / contributions).reshape(p.items, p.dim)
        return self._state(spec.number, spec.sum_index, moved.astype(np.float32), self._extra(old))

    def initial_state(self, task_seed: bytes) -> RFRecState:
        """Return the state of round 0: an average N(0, 10^-4), from the task's seed."""
        p = self.parameters
        flat = INITIAL_STD * normals(task_seed, "initial item factors", p.items * p.dim)
        return self._state(0, 0, flat.reshape(p.items, p.dim).astype(np.float32), self._first_extra(task_seed))

    def state_bytes(self, sum_index: int) -> int:
        """Return 4 bytes for the sum index, 4 per factor entry, 32 for RFRecF's seed, 8 per item for means."""
        return _SUM_INDEX.size + self._extra_bytes + 4 * self.parameters.items * self.parameters.dim

    def encode_state(self, state: ModelState) -> bytes:
        """Return the sum index (uint32), RFRecF's seed or the item totals (float32) if any, and the average (float32).

        All are little-endian.
        """
        own = rfrec_state(state)
        return _SUM_INDEX.pack(own.sum_index) + self._extra(own) + encode_factors(own)

    def decode_state(self, round_number: int, body: bytes) -> RFRecState:
        """Decode the bytes of `encode_state`; `CodecError` unless the length and every value are valid."""
        view = exact(body, self.state_bytes(0), "a model state")
        (sum_index,) = _SUM_INDEX.unpack_from(view)
        if sum_index > round_number:
            raise CodecError(f"a model state of round {round_number} claims {sum_index} sums")
        extra, rest = (
            view[_SUM_INDEX.size : _SUM_INDEX.size + self._extra_bytes],
            view[_SUM_INDEX.size + self._extra_bytes :],
        )
        factors = decode_factors(round_number, bytes(rest), self.parameters)
        return self._state(round_number, sum_index, factors.item_factors, bytes(extra))

    def report(self, state: ModelState) -> dict[str, float]:
        """Return the number of iterations that are complete."""
        return {"iterations": float(max(0, rfrec_state(state).sum_index - self.parameters.counting))}

    def is_done(self, state: ModelState) -> bool:
        """Return False: the schedule alone ends training."""
        return False

    def warnings(self) -> tuple[str, ...]:
        """Return that changes are alike from round to round; of a task with noise the privacy cost."""
        p = self.parameters
        if p.ldp is None:
            return (MOVES_ALIKE,)
        values = p.items * p.dim
        return (
            f"local differential privacy of this task costs epsilon {p.ldp.epsilon:g} for each uploaded value and "
            f"{p.ldp.epsilon * values:,.0f} for the {values:,} values of one round, and adds up over rounds",
        )

    @property
    def _extra_bytes(self) -> int:
        return 8 * self.parameters.items if self.parameters.counting else 0

    def _first_extra(self, task_seed: bytes) -> bytes:
        return bytes(self._extra_bytes)

    def _extra(self, state: RFRecState) -> bytes:
        return state.item_totals.astype("<f4").tobytes() if isinstance(state, RFRecMeansState) else b""

    def _state(self, number: int, sum_index: int, factors: NDArray[np.float32], extra: bytes) -> RFRecState:
        if not self.parameters.counting:
            return RFRecState(number, factors, sum_index)
        totals = np.frombuffer(extra, "<f4").reshape(2, self.parameters.items).astype(np.float32)
        if not np.isfinite(totals).all():
            raise CodecError("a model state holds values that are not finite")
        return RFRecMeansState(number, factors, sum_index, totals)


@dataclass(frozen=True)
class RFRecF(RFRec):
    """RFRecF: RFRec with one sum per stretch of the coin tosses; the task is done after the last stretch."""

    parameters: RFRecFParameters
    name: str = "rfrecf"

    def stretches(self, state: ModelState) -> tuple[Stretch, ...]:
        """Return the stretches of the task, one per sum; `ParameterError` for a state of another recipe."""
        if not isinstance(state, RFRecFState):
            raise ParameterError(f"this state has no coins: it is a {type(state).__name__}")
        p = self.parameters
        return stretches(state.coins, p.iterations, p.chance, p.moves_by)

    def stretch(self, state: ModelState, sum_index: int) -> Stretch:
        """Return the stretch of sum `sum_index`, which is empty after the last one: that one was abandoned then.

        Raises `ParameterError` for an index below 1.
        """
        found = self.stretches(state)
        if sum_index < 1:
            raise ParameterError(f"sums are numbered from 1, there is no sum {sum_index}")
        return found[sum_index - 1] if sum_index <= len(found) else Stretch(0, 0, found[-1].until)

    def initial_state(self, task_seed: bytes) -> RFRecState:
        """Return the state of round 0; `ParameterError` if no iteration of the task trains."""
        made = super().initial_state(task_seed)
        if not self.stretches(made):
            raise ParameterError("no iteration of this task trains: choose more iterations or another seed")
        return made

    def report(self, state: ModelState) -> dict[str, float]:
        """Return the number of complete iterations, the sums so far, and the sums in total."""
        own, found = rfrec_state(state), self.stretches(state)
        until = self.stretch(state, own.sum_index).until if own.sum_index else 0
        return {"iterations": float(until), "sums": float(own.sum_index), "sums_in_all": float(len(found))}

    def is_done(self, state: ModelState) -> bool:
        """Return whether the last stretch is complete."""
        return rfrec_state(state).sum_index >= len(self.stretches(state))

    @property
    def _extra_bytes(self) -> int:
        return SEED_BYTES

    def _first_extra(self, task_seed: bytes) -> bytes:
        return derive_seed(task_seed, "rfrecf coins")

    def _extra(self, state: RFRecState) -> bytes:
        if not isinstance(state, RFRecFState):
            raise ParameterError(f"this state has no coins: it is a {type(state).__name__}")
        return state.coins

    def _state(self, number: int, sum_index: int, factors: NDArray[np.float32], extra: bytes) -> RFRecState:
        return RFRecFState(number, factors, sum_index, extra)


RFREC: Final = RecipeEntry(
    name="rfrec",
    parameters=RFRecParameters,
    make=RFRec,
    half="client_sdk.training.rfrec:half",
    source="Liu et al., CIKM 2024, Algorithm 1. Guide: [RFRec](recipes.md#rfrec)",
)
RFRECF: Final = RecipeEntry(
    name="rfrecf",
    parameters=RFRecFParameters,
    make=RFRecF,
    half="client_sdk.training.rfrec:half",
    source="Liu et al., CIKM 2024, Algorithm 2. Guide: [RFRec](recipes.md#rfrec)",
)
