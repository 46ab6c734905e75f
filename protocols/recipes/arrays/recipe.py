"""Recipe `arrays`: federated averaging of any named arrays, with weights, rows and server optimisers.

The sum is that of the clients' changes, as in FedAvg (McMahan et al., AISTATS 2017) and FedOpt (Reddi et al., ICLR
2021). The mean of an array is over all contributions, or over their weights; that of a row of an array summed by rows
is over those that touched the row, as FedMF does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import CodecError
from protocols.layout import VectorLayout
from protocols.recipes.arrays import state as states
from protocols.recipes.arrays.optimisers import step
from protocols.recipes.arrays.parameters import ArraysParameters
from protocols.recipes.arrays.state import ArraysState
from protocols.recipes.arrays.update import LEAST_WEIGHT, block_of, contribution, touched_name, weight_name
from protocols.recipes.base import (
    Contribution,
    Local,
    ModelState,
    PartOfSum,
    RoundSpec,
    SingleGroupRecipe,
    check_follows,
)
from protocols.recipes.entry import RecipeEntry
from protocols.recipes.state import StateField, StateFields, decode, state_as
from protocols.recipes.weighted import WEIGHTS_WARNING
from protocols.sum_classes import TRAINED

__all__ = ["ENTRY", "Arrays", "ArraysParameters"]

PIECE: Final = 1 << 16
"""Values whose mean and step are computed at a time, so that temporary arrays stay small beside a large model."""


@dataclass(frozen=True)
class Arrays(SingleGroupRecipe):
    """One block: every array, counts or weights of touched rows, and the weight."""

    parameters: ArraysParameters
    name: str = "arrays"

    state_class = ArraysState

    def layout(self, sum_index: int = 1) -> VectorLayout:
        """Return the one block, the same for every sum."""
        return VectorLayout((block_of(self.parameters),), sum_class=TRAINED)

    def initial_state(self, task_seed: bytes) -> ArraysState:
        """Return the state of round 0; `ParameterError` for a task whose initial values were uploaded."""
        return states.initial_state(self.parameters, task_seed)

    def state_fields(self, sum_index: int) -> StateFields:
        """Return the values, and the vectors that the optimiser remembers."""
        p = self.parameters
        return tuple(
            StateField(name, "<f4", (p.values if p.slots >= slot else 0,))
            for slot, name in enumerate(("values", "first", "second"))
        )

    def decode_state(self, round_number: int, body: bytes) -> ArraysState:
        """Decode the bytes of `encode_state`; `CodecError` unless the length and every value are valid.

        The arrays are read-only views of `body`.
        """
        found = ArraysState(round_number, **decode(self.state_fields(0), body, copy=False))
        if found.second.size and found.second.min() < 0:
            raise CodecError("a model state holds a negative mean of squares")
        return found

    def arrays(self, state: ModelState) -> dict[str, NDArray[np.float32]]:
        """Return read-only views of the arrays of `state`, by name."""
        return states.arrays_of(self.parameters, state)

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return the contribution of `local.update`, an `Update` of arrays; see `contribution`."""
        return contribution(self.parameters, local.update, local.examples)

    def absorb(self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int) -> ArraysState:
        """Return the state after one step of the optimiser with the mean update.

        A value of the mean is at most its clip, whatever the error of the sum. Raises `ParameterError` if `state` is of
        this round or a later one.
        """
        return self.absorb_parts(state, spec, lambda start, stop: total[start:stop], contributions)

    def absorb_parts(self, state: ModelState, spec: RoundSpec, total: PartOfSum, contributions: int) -> ArraysState:
        """Return what `absorb` returns; see `protocols.recipes.base.AbsorbsByParts`."""
        own, p = state_as(state, ArraysState), self.parameters
        check_follows(own, spec)
        after = ArraysState(spec.number, own.values.copy(), own.first.copy(), own.second.copy())
        segments = block_of(p).segments
        edges = pairwise(accumulate((segment.length for segment in segments), initial=0))
        spans = {segment.name: span for segment, span in zip(segments, edges, strict=True)}
        for name, array in p.places().items():
            for start, mean in self._means(name, spans, total, contributions):
                place = slice(array.start + start, array.start + start + mean.size)
                np.clip(mean, -p.clip_of(name), p.clip_of(name), out=mean)
                step(p, after.values[place], after.first[place], after.second[place], mean)
        return after

    def _means(
        self, name: str, spans: Mapping[str, tuple[int, int]], total: PartOfSum, contributions: int
    ) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """Yield the mean of an array in pieces, float64, each after its place in the array.

        spans: where the segments are in the sum.

        A sum of weights is at least the smallest weight, or 0 and an error: below half the smallest nobody is in it,
        and the mean is 0.
        """
        p, (first, last) = self.parameters, spans[name]
        least = LEAST_WEIGHT / (2.0 * (p.max_weight or LEAST_WEIGHT))
        if name not in p.rows:
            divisor = float(contributions if p.max_weight is None else total(*spans[weight_name])[0])
            for start in range(first, last, PIECE):
                piece = total(start, min(start + PIECE, last))
                yield start - first, (piece / divisor if divisor >= least else np.zeros(piece.size))
            return
        touched, end = spans[touched_name(name)]
        width = (last - first) // (end - touched)
        rows = max(1, PIECE // width)
        for row in range(0, end - touched, rows):
            counts = total(touched + row, min(touched + row + rows, end))[:, np.newaxis]
            start = first + row * width
            sums = total(start, start + counts.size * width).reshape(-1, width)
            yield row * width, np.where(counts >= least, sums / np.maximum(counts, least), 0.0).ravel()

    def warnings(self) -> tuple[str, ...]:
        """Return what the sums of touched rows and of weights reveal."""
        p, found = self.parameters, []
        if p.rows:
            what = "how many clients" if p.max_weight is None else "with which total weight the clients"
            found.append(
                f"The sum shows {what} touched each row of {', '.join(sorted(p.rows))}: a row that one client touched "
                "is that client's own, and rows that a client touches in every round tell clients apart."
            )
        return (*found, WEIGHTS_WARNING) if p.reveal_weights else tuple(found)


ENTRY: Final = RecipeEntry(
    name="arrays",
    parameters=ArraysParameters,
    make=Arrays,
    half="client_sdk.training.arrays:half",
    source="McMahan et al., AISTATS 2017; Reddi et al., ICLR 2021. Guide: [your own model](own-model.md)",
)
