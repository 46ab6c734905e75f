"""A recipe with federated evaluation: some contributions also carry how well the model predicts held-out rows.

`Evaluated` wraps any recipe whose model every client can score with. It appends a few values to the layout of every
k-th training sum, so they are summed by the task's own mechanism, over the same clients and with the same floor. A
contribution measures the model that its client has just downloaded: the state before the sum.

| recipe | values, each in [0, 1] and a mean over the client's held-out rows |
|---|---|
| ranks items | HR@10, NDCG@10, and both for the ranking by item counts if the model has them |
| predicts ratings | squared error / range^2, absolute error / range |

The count of clients that measured is summed beside them. Each client counts once, however many rows it holds out. The
sums of all measurements are part of the model state, so whoever may see the state may see the curve.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.errors import CodecError, ParameterError
from protocols.layout import Block, Route, Segment, VectorLayout
from protocols.messages.evaluation import Evaluation
from protocols.recipes.base import (
    ItemParameters,
    ModelState,
    Recipe,
    RecipeParameters,
    RoundSpec,
    SingleGroupRecipe,
)
from protocols.recipes.evaluation_curve import MEASURES, Curve, CurvePoint
from protocols.recipes.item_counts import BiasedParameters

__all__ = ["Evaluated", "EvaluatedState", "MAX_POINTS", "evaluated_state", "with_evaluation"]

MAX_POINTS: Final = 1000
"""Most measurements of a task: their sums are part of every snapshot."""
_POINT_HEAD: Final = struct.Struct("<QQd")
"""Round of the measured model, round of the sum, clients that measured."""


@dataclass(frozen=True)
class EvaluatedState(ModelState):
    """model: the state of the wrapped recipe. points: the measurements so far, oldest first."""

    model: ModelState
    points: tuple[CurvePoint, ...]

    @property
    def sums(self) -> int:
        """Those of the model."""
        return self.model.sums

    def freeze(self) -> None:
        """Make every array of the model read-only."""
        self.model.freeze()


def evaluated_state(state: ModelState) -> EvaluatedState:
    """Return `state` as the state of an evaluated task; `ParameterError` for a state of another recipe."""
    if not isinstance(state, EvaluatedState):
        raise ParameterError(f"this state holds no measurements: it is a {type(state).__name__}")
    return state


@dataclass(frozen=True)
class Evaluated(SingleGroupRecipe):
    """`inner`, a recipe with one device group, whose model is measured. rounds: sums of the task's schedule."""

    inner: Recipe
    evaluation: Evaluation
    rounds: int

    @property
    def name(self) -> str:
        """The name of the wrapped recipe."""
        return self.inner.name

    @property
    def parameters(self) -> RecipeParameters:
        """The parameters of the wrapped recipe."""
        return self.inner.parameters

    @property
    def by_snapshot(self) -> bool:
        """That of the wrapped recipe."""
        return self.inner.by_snapshot

    @property
    def main_sum(self) -> int:
        """The first training sum, which is also the first that measures."""
        return self.inner.main_sum

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the summed values, in order: a key of `MEASURES`."""
        from protocols.recipes.rfrec.recipe import RFRec  # recipes load with their tasks, and only some tasks measure

        if isinstance(self.inner, RFRec):
            return MEASURES["ratings"]
        p = self.inner.parameters
        return MEASURES["ranking with popularity" if isinstance(p, BiasedParameters) and p.has_counts else "ranking"]

    def curve(self, state: ModelState) -> Curve:
        """Return the measurements in `state`."""
        return Curve(self.measures, evaluated_state(state).points)

    def measures_in(self, sum_index: int) -> bool:
        """Return whether contributions to sum `sum_index` measure the model."""
        past = sum_index - self.main_sum
        return 0 <= past < self._measured_sums and past % self.evaluation.every == 0

    def trains_on_all(self, sum_index: int) -> bool:
        """Return whether clients train on the held-out rows too in sum `sum_index`."""
        return sum_index > self.rounds - self.evaluation.final_rounds

    @property
    def _measured_sums(self) -> int:
        return self.rounds - self.evaluation.final_rounds - self.main_sum + 1

    def points_after(self, sum_index: int) -> int:
        """Return how many measurements a state after `sum_index` sums has."""
        past = min(sum_index - self.main_sum, self._measured_sums - 1)
        return 0 if past < 0 else past // self.evaluation.every + 1

    # --- sums ----------------------------------------------------------------------------------------------------

    def layout(self, sum_index: int = 1) -> VectorLayout:
        """Return the wrapped recipe's layout; in a sum that measures, with the measured values at its end.

        They are part of the only block, or a block of their own where there are several: ciphertexts are not shared
        between blocks.
        """
        inner = self.inner.layout(sum_index)
        if not self.measures_in(sum_index):
            return inner
        own = (Segment("evaluated", 1, 1.0, integral=True), Segment("measured", len(self.measures), 1.0))
        if len(inner.blocks) == 1:
            (block,) = inner.blocks
            return VectorLayout((Block(block.name, block.segments + own),), sum_class=inner.sum_class)
        return VectorLayout((*inner.blocks, Block("evaluation", own)), sum_class=inner.sum_class)

    def longest_vector(self) -> int:
        """Return the largest number of values of any sum."""
        return self.inner.longest_vector() + 1 + len(self.measures)

    def round_spec(self, task_seed: bytes, number: int, sum_index: int | None = None) -> RoundSpec:
        """Return the wrapped recipe's broadcast."""
        return self.inner.round_spec(task_seed, number, sum_index)

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        """Return the wrapped recipe's route, with the block of the evaluation if there is one."""
        route, blocks = self.inner.route(spec, client_id), len(self.inner.layout(spec.sum_index).blocks)
        return (*route, (blocks,)) if self.measures_in(spec.sum_index) and blocks > 1 else route

    def attach(
        self, spec: RoundSpec, blocks: list[NDArray[np.float64]], measured: NDArray[np.float64] | None
    ) -> list[NDArray[np.float64]]:
        """Return the blocks of a contribution to a sum that measures.

        blocks: those of the wrapped recipe. measured: float64 (measures,), each in [0, 1]; None for a client without
        held-out rows, which is not counted. Raises `ParameterError` for other values.
        """
        values = np.zeros(1 + len(self.measures))
        if measured is not None:
            if measured.shape != (len(self.measures),) or not ((measured >= 0) & (measured <= 1)).all():
                raise ParameterError(f"a measurement is {len(self.measures)} values in [0, 1], got {measured}")
            values[0], values[1:] = 1.0, measured
        if len(self.inner.layout(spec.sum_index).blocks) == 1:
            return [np.concatenate([blocks[0], values])]
        return [*blocks, values]

    def absorb(
        self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int
    ) -> EvaluatedState:
        """Return the state after the round: the wrapped recipe's, and the measurement of the state before."""
        before, points = evaluated_state(state), evaluated_state(state).points
        if self.measures_in(spec.sum_index):
            total, values = np.split(total, [total.size - 1 - len(self.measures)])
            sums = tuple(map(float, values[1:]))
            points = (*points, CurvePoint(before.round_number, spec.number, float(values[0]), sums))
        model = self.inner.absorb(before.model, spec, total, contributions)
        return EvaluatedState(spec.number, model, points)

    def left_out(self, state: ModelState, spec: RoundSpec) -> EvaluatedState:
        """Return the state of a member that cannot use the sum of a round: as it was, under the round's number.

        A sum that should have measured counts as a measurement of no clients, so that all members' states after a round
        have one length.
        """
        own, points = evaluated_state(state), evaluated_state(state).points
        if self.measures_in(spec.sum_index):
            points = (*points, CurvePoint(own.round_number, spec.number, 0.0, (0.0,) * len(self.measures)))
        return EvaluatedState(spec.number, own.model, points)

    # --- states --------------------------------------------------------------------------------------------------

    def initial_state(self, task_seed: bytes) -> EvaluatedState:
        """Return the wrapped recipe's initial state, without measurements."""
        return EvaluatedState(0, self.inner.initial_state(task_seed), ())

    @property
    def _point_bytes(self) -> int:
        return _POINT_HEAD.size + 8 * len(self.measures)

    def state_bytes(self, sum_index: int) -> int:
        """Return the wrapped recipe's length and that of the measurements after `sum_index` sums."""
        return self.inner.state_bytes(sum_index) + self._point_bytes * self.points_after(sum_index)

    def longest_state_bytes(self) -> int:
        """Return the length of the state after the last round of the schedule."""
        return self.inner.longest_state_bytes() + self._point_bytes * self.points_after(self.rounds)

    def encode_state(self, state: ModelState) -> bytes:
        """Return the wrapped recipe's encoding, then each measurement: rounds (uint64), clients and sums (float64)."""
        own = evaluated_state(state)
        points = b"".join(
            _POINT_HEAD.pack(point.model_round, point.round, point.clients)
            + np.array(point.sums, dtype="<f8").tobytes()
            for point in own.points
        )
        return self.inner.encode_state(own.model) + points

    def decode_state(self, round_number: int, body: bytes) -> EvaluatedState:
        """Decode the bytes of `encode_state`; `CodecError` unless the length and every value are valid."""
        length = self.inner.state_bytes(1)
        count, rest = divmod(len(body) - length, self._point_bytes)
        if rest or not 0 <= count <= self.points_after(self.rounds):
            raise CodecError("a model state has another length than its model and whole measurements")
        view = exact(body, length + count * self._point_bytes, "a model state")
        places = (length + number * self._point_bytes for number in range(count))
        points = tuple(self._point(view[start : start + self._point_bytes]) for start in places)
        rounds = [number for point in points for number in (point.model_round, point.round)]
        if rounds != sorted(rounds) or any(point.model_round == point.round for point in points):
            raise CodecError("the measurements of a model state are out of order")
        if rounds and rounds[-1] > round_number:
            raise CodecError(f"a model state of round {round_number} has a measurement of round {rounds[-1]}")
        return EvaluatedState(round_number, self.inner.decode_state(round_number, bytes(view[:length])), points)

    def _point(self, view: memoryview) -> CurvePoint:
        model_round, number, clients = _POINT_HEAD.unpack_from(view)
        sums = np.frombuffer(view, "<f8", offset=_POINT_HEAD.size)
        if not (np.isfinite(clients) and np.isfinite(sums).all()):
            raise CodecError("a measurement holds values that are not finite")
        return CurvePoint(model_round, number, clients, tuple(map(float, sums)))

    def report(self, state: ModelState) -> dict[str, float]:
        """Return the wrapped recipe's figures and, after a sum that measured, those of the measurement."""
        own = evaluated_state(state)
        figures = self.inner.report(own.model)
        if own.points and own.points[-1].round == state.round_number:
            figures |= self.curve(state).figures()
        return figures

    def is_done(self, state: ModelState) -> bool:
        """Return whether the wrapped recipe is done, or the metric has not improved for `stop_after` measurements."""
        patience = self.evaluation.stop_after
        stopped = patience is not None and self.curve(state).since_best >= patience
        return stopped or self.inner.is_done(evaluated_state(state).model)

    def warnings(self) -> tuple[str, ...]:
        """Return the wrapped recipe's warnings, and what the measurements tell."""
        return (*self.inner.warnings(), _WARNING)


_WARNING: Final = (
    "Sums also carry how well the model predicts the cohort's held-out rows: everyone who can open a sum learns the "
    "cohort's mean, and nothing about one client."
)


def with_evaluation(recipe: Recipe, evaluation: Evaluation | None, rounds: int) -> Recipe:
    """Return `recipe`, measured as `evaluation` says; `recipe` itself if None. rounds: those of the schedule.

    Raises `ParameterError` for a recipe whose model cannot be measured this way, and for too many or no measurements.
    """
    if evaluation is None:
        return recipe
    why = _why_not(recipe)
    if why is not None:
        raise ParameterError(f"recipe {recipe.name!r} has no federated evaluation: {why}")
    made = Evaluated(recipe, evaluation, rounds)
    points = made.points_after(rounds)
    if not points:
        raise ParameterError(f"no sum of {rounds} rounds would measure the model: choose fewer final_rounds")
    if points > MAX_POINTS:
        least = made.points_after(rounds) * evaluation.every // MAX_POINTS + 1
        raise ParameterError(f"{points:,} measurements are more than {MAX_POINTS:,}: choose every >= {least}")
    return made


def _why_not(recipe: Recipe) -> str | None:
    if not isinstance(recipe.parameters, ItemParameters):
        return "its clients measure their model themselves"
    if recipe.layout(recipe.main_sum).sum_class.repeated:
        return "its model is complete after its last sum only, so no sum can measure it"
    if not isinstance(recipe, SingleGroupRecipe):
        return (
            "each sum is over one device group, which trains on its view, so no sum measures the model of all clients"
        )
    if any(getattr(recipe.parameters, name, None) is not None for name in ("noise", "ldp")):
        return "clients add noise to what they send, and the measured values would be sent without"
    if recipe.layout(recipe.main_sum).chosen:
        return "its contributions choose their blocks; set support to 'shared'"
    return None
