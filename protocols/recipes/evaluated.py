"""A recipe with federated evaluation: some sums of the task are of how well the model predicts held-out rows.

`Evaluated` wraps any recipe whose model every client can score with. After the sums that count, every (k+1)-th sum is a
*measurement*: a sum of its own, by the task's own mechanism, which changes no model. It measures the state before it.

| recipe | values, each in [0, 1] and a mean over the client's held-out rows |
|---|---|
| ranks items | HR@10, NDCG@10 |
| ranks items, with item counts | in the first measurement also both for the ranking by item counts |
| predicts ratings | squared error / range^2, absolute error / range |

Measurements are functions of the same held-out rows, for models that the server publishes. A server that chose models
and cohorts freely would solve for a client's values. So these sums are of class `repeated` (`protocols.layout`):
one cohort, drawn in the first measurement among those that have held-out rows, that only shrinks; and the metrics of
the ranking by item counts, which are constants of a client, enter the first measurement only. A client without held-out
rows abstains, so `min_clients` counts clients that measure. The sums of all measurements are part of the model state,
so whoever may see the state may see the curve.

A measurement whose cohort has become too small is abandoned: the curve then has a point of no clients.

**The gate.** With `gate` a model is adopted only if its measurement is not clearly below that of the model that was
adopted last. Otherwise training goes on from that one, which is part of the state. Recommendations are made with the
model that was adopted last. So whatever the contributions to a sum were, a model that measures worse is not used; but
the measuring clients can lie, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Final

import numpy as np

from protocols.errors import CodecError, ParameterError
from protocols.layout import REPEATED_HELD_OUT, Block, Floats, Route, Segment, VectorLayout
from protocols.messages.rounds import Evaluation
from protocols.recipes.around import RecipeAround
from protocols.recipes.base import Contribution, ItemParameters, Local, ModelState, Recipe, RoundSpec, check_follows
from protocols.recipes.bounds import Reach, Sensitivity
from protocols.recipes.evaluation_curve import ADOPTED_ROUND, MEASURES, POPULARITY, Curve, CurvePoint
from protocols.recipes.factors import BiasedParameters
from protocols.recipes.state import state_as

MAX_POINTS: Final = 1000  # most measurements of a task: their sums are part of every snapshot


@dataclass(frozen=True)
class EvaluatedState(ModelState):
    """A model and its measurements."""

    model: ModelState
    """The state of the wrapped recipe."""
    points: tuple[CurvePoint, ...]
    """The measurements so far, oldest first."""
    popularity: tuple[float, ...] = ()
    """The sums of the first one for the ranking by item counts; () without a measurement or without counts."""
    adopted: ModelState | None = None
    """With a gate and after the first measurement, the model that was adopted last; otherwise None."""

    @property
    def sums(self) -> int:
        return self.model.sums

    @property
    def used(self) -> ModelState:
        """The model that recommendations are made with."""
        return self.model if self.adopted is None else self.adopted

    def freeze(self) -> None:
        self.model.freeze()
        if self.adopted is not None:
            self.adopted.freeze()


@dataclass(frozen=True)
class Evaluated(RecipeAround):
    """`inner`, a recipe with one device group, whose model is measured."""

    inner: Recipe
    evaluation: Evaluation
    rounds: int
    """Sums of the task's schedule."""

    @property
    def main_sum(self) -> int:
        """The first sum that trains, which is the one after the first measurement."""
        return self.inner.main_sum + 1

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the values that every measurement sums, in order: a key of `MEASURES`."""
        return MEASURES["ratings" if self.predicts_ratings else "ranking"]

    @property
    def constants(self) -> tuple[str, ...]:
        """Names of the values that the first measurement sums as well: those of the ranking by item counts."""
        p = self.inner.parameters
        counts = isinstance(p, BiasedParameters) and p.has_counts
        return tuple(POPULARITY + name for name in self.measures) if counts else ()

    def curve(self, state: ModelState) -> Curve:
        """Return the measurements in `state`."""
        own = state_as(state, EvaluatedState)
        return Curve(self.measures, own.points, dict(zip(self.constants, own.popularity, strict=False)))

    def measures_in(self, sum_index: int) -> bool:
        """Return whether sum `sum_index` is a measurement."""
        past = sum_index - self.inner.main_sum
        return 0 <= past < self._measured_sums and past % self._period == 0

    def trains_on_all(self, sum_index: int) -> bool:
        """Return whether clients train on the held-out rows too in sum `sum_index`."""
        return sum_index > self.rounds - self.evaluation.final_rounds

    @property
    def _period(self) -> int:
        return self.evaluation.every + 1

    @property
    def _measured_sums(self) -> int:
        return self.rounds - self.evaluation.final_rounds - self.inner.main_sum + 1

    def points_after(self, sum_index: int) -> int:
        """Return how many measurements a state after `sum_index` sums has."""
        past = min(sum_index - self.inner.main_sum, self._measured_sums - 1)
        return 0 if past < 0 else past // self._period + 1

    def inner_spec(self, spec: RoundSpec) -> RoundSpec:
        """Return the wrapped recipe's specification of a sum: its index counts the recipe's own sums only.

        For a measurement, that of the recipe's last sum before it.
        """
        return replace(spec, sum_index=self._inner_index(spec.sum_index))

    def _inner_index(self, sum_index: int) -> int:
        return max(1, sum_index - self.points_after(sum_index))

    # --- sums ----------------------------------------------------------------------------------------------------

    def layout(self, sum_index: int = 1, size: tuple[int, ...] = ()) -> VectorLayout:
        """Return the wrapped recipe's layout; for a measurement the number of clients that measured, and its values."""
        if not self.measures_in(sum_index):
            return self.inner.layout(self._inner_index(sum_index), size)
        segments = (Segment("evaluated", 1, 1.0, integral=True), Segment("measured", len(self._values(sum_index)), 1.0))
        return VectorLayout((Block("evaluation", segments),), sum_class=REPEATED_HELD_OUT)

    def _values(self, sum_index: int) -> tuple[str, ...]:
        """Names of the values of measurement `sum_index`."""
        return self.measures + (self.constants if self.measures_constants(sum_index) else ())

    def measures_constants(self, sum_index: int) -> bool:
        """Return whether measurement `sum_index` also sums the metrics of the ranking by item counts: the first one."""
        return self.points_after(sum_index) == 1

    def sensitivity(self, sum_index: int) -> Sensitivity:
        """Return the wrapped recipe's; for a measurement the norm of a 1 and as many values of at most 1."""
        if not self.measures_in(sum_index):
            return self.inner.sensitivity(self._inner_index(sum_index))
        return Sensitivity(l2=sqrt(1 + len(self._values(sum_index))))

    def sum_kinds(self) -> tuple[int, ...]:
        """Return those of the wrapped recipe before it is measured, two measurements, and the first sum that trains."""
        first = self.inner.main_sum
        counting = tuple(sum_index for sum_index in self.inner.sum_kinds() if sum_index < first)
        again = (first + self._period,) if self.points_after(self.rounds) > 1 else ()
        return (*counting, first, self.main_sum, *again)

    def longest_vector(self) -> int:
        return max(self.inner.longest_vector(), 1 + len(self.measures) + len(self.constants))

    def most_levels(self, sum_index: int) -> int:
        return 0 if self.measures_in(sum_index) else self.inner.most_levels(self._inner_index(sum_index))

    def levels_in_use(self, spec: RoundSpec, clients: Sequence[str], min_clients: int) -> tuple[int, ...]:
        if self.measures_in(spec.sum_index):
            return ()
        return self.inner.levels_in_use(self.inner_spec(spec), clients, min_clients)

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        return 1 if self.measures_in(spec.sum_index) else self.inner.route(self.inner_spec(spec), client_id)

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return the contribution to a sum of the wrapped recipe, or to a measurement.

        local: for a measurement its values, float64 (values,), each in [0, 1]; `ParameterError` for others.
        """
        if not self.measures_in(spec.sum_index):
            return self.inner.contribute(state_as(state, EvaluatedState).model, self.inner_spec(spec), local)
        measured, count = local.update, len(self._values(spec.sum_index))
        if measured.shape != (count,) or not ((measured >= 0) & (measured <= 1)).all():
            raise ParameterError(f"a measurement is {count} values in [0, 1], got {measured}")
        return Contribution([np.concatenate([[1.0], measured])])

    def absorb(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> EvaluatedState:
        """Return the state after the round: the wrapped recipe's, or one measurement more of the state before.

        A measurement between the state's and this sum was abandoned; it counts as one of no clients.
        """
        own = self._filled(state_as(state, EvaluatedState), spec, self.points_after(spec.sum_index - 1))
        if not self.measures_in(spec.sum_index):
            model = self.inner.absorb(own.model, self.inner_spec(spec), total, contributions)
            return replace(own, round_number=spec.number, model=model)
        check_follows(own, spec)
        clients, sums = float(total[0]), tuple(map(float, total[1:]))
        point = CurvePoint(own.round_number, spec.number, clients, sums[: len(self.measures)])
        popularity = sums[len(self.measures) :] if self.measures_constants(spec.sum_index) else own.popularity
        return self._gated(replace(_later(own, spec), points=(*own.points, point), popularity=popularity))

    def _gated(self, state: EvaluatedState) -> EvaluatedState:
        """Return the state after a measurement, with the model that the gate lets pass; without a gate as it is."""
        gate, newest = self.evaluation.gate, state.points[-1]
        if gate is None:
            return state
        if state.adopted is None or self.curve(state).adopted(gate) is newest:
            return replace(state, adopted=state.model)
        if newest.clients < 1:
            return state
        kept = replace(state.adopted, round_number=state.model.round_number)
        return replace(state, model=kept, adopted=kept)

    def left_out(self, state: ModelState, spec: RoundSpec) -> EvaluatedState:
        """Return the state of a member that cannot use the sum of a round: as it was, under the round's number.

        A measurement counts as one of no clients, so that all members' states after a round have one length.
        """
        return _later(self._filled(state_as(state, EvaluatedState), spec, self.points_after(spec.sum_index)), spec)

    def _filled(self, state: EvaluatedState, spec: RoundSpec, count: int) -> EvaluatedState:
        """Return `state` with measurements of no clients until it has `count`."""
        missing = count - len(state.points)
        if missing <= 0:
            return state
        point = CurvePoint(state.round_number, spec.number, 0.0, (0.0,) * len(self.measures))
        popularity = state.popularity or (0.0,) * len(self.constants)
        adopted = state.adopted if self.evaluation.gate is None else state.used
        return replace(state, points=state.points + (point,) * missing, popularity=popularity, adopted=adopted)

    # --- states --------------------------------------------------------------------------------------------------

    def initial_state(self, task_seed: bytes) -> EvaluatedState:
        return EvaluatedState(0, self.inner.initial_state(task_seed), ())

    @property
    def _point(self) -> np.dtype[Any]:
        """A measurement in a state: rounds of the measured model and of the sum, clients that measured, and sums."""
        sums = ("sums", "<f8", len(self.measures))
        return np.dtype([("model_round", "<u8"), ("round", "<u8"), ("clients", "<f8"), sums])

    def _measured_bytes(self, points: int) -> int:
        return self._point.itemsize * points + (8 * len(self.constants) + self._adopted_bytes if points else 0)

    @property
    def _adopted_bytes(self) -> int:
        """Length of the adopted model in a state with measurements."""
        return 0 if self.evaluation.gate is None else self.inner.state_bytes(1)

    def state_bytes(self, sum_index: int, size: tuple[int, ...] = ()) -> int:
        return self.inner.state_bytes(self._inner_index(sum_index)) + self._measured_bytes(self.points_after(sum_index))

    def longest_state_bytes(self) -> int:
        return self.inner.longest_state_bytes() + self._measured_bytes(self.points_after(self.rounds))

    def encode_state(self, state: ModelState) -> bytes:
        """Return the wrapped recipe's encoding, the sums for the ranking by item counts, then each measurement.

        The sums are float64; of a measurement: rounds (uint64), clients and sums (float64). With a gate and
        measurements the encoding of the adopted model comes last.
        """
        own = state_as(state, EvaluatedState)
        popularity = np.array(own.popularity, "<f8")
        points = np.array([(one.model_round, one.round, one.clients, one.sums) for one in own.points], self._point)
        adopted = b"" if own.adopted is None else self.inner.encode_state(own.adopted)
        return self.inner.encode_state(own.model) + popularity.tobytes() + points.tobytes() + adopted

    def decode_state(self, round_number: int, body: bytes) -> EvaluatedState:
        length = self.inner.state_bytes(1)
        constants = 8 * len(self.constants) if len(body) > length else 0
        adopted = self._adopted_bytes if len(body) > length else 0
        count, rest = divmod(len(body) - length - constants - adopted, self._point.itemsize)
        if rest or not 0 <= count <= self.points_after(self.rounds) or ((constants or adopted) and not count):
            raise CodecError("a model state has another length than its model and whole measurements")
        popularity = np.frombuffer(body, "<f8", constants // 8, length)
        measured = np.frombuffer(body, self._point, count, length + constants)
        if not all(np.isfinite(part).all() for part in (popularity, measured["clients"], measured["sums"])):
            raise CodecError("a measurement holds values that are not finite")
        points = tuple(
            CurvePoint(model_round, number, clients, tuple(sums.tolist()))
            for model_round, number, clients, sums in measured.tolist()
        )
        # several measurements in a row that were abandoned have the same rounds, and so may the next one
        rounds = [number for point in points if point.clients for number in (point.model_round, point.round)]
        if rounds != sorted(rounds) or any(point.model_round >= point.round for point in points):
            raise CodecError("the measurements of a model state are out of order")
        last = max((point.round for point in points), default=0)
        if last > round_number:
            raise CodecError(f"a model state of round {round_number} has a measurement of round {last}")
        model = self.inner.decode_state(round_number, bytes(body[:length]))
        last_adopted = self.inner.decode_state(round_number, bytes(body[-adopted:])) if adopted else None
        return EvaluatedState(round_number, model, points, tuple(popularity.tolist()), last_adopted)

    def require_reachable(self, state: ModelState, reach: Reach) -> None:
        own = state_as(state, EvaluatedState)
        for model in (own.model, own.used):
            self.inner.require_reachable(model, reach)

    def report(self, state: ModelState) -> dict[str, float]:
        own = state_as(state, EvaluatedState)
        figures = self.inner.report(own.model)
        if own.points and own.points[-1].round == state.round_number:
            figures |= self.curve(state).figures()
            if self.evaluation.gate is not None and (adopted := self.curve(state).adopted(self.evaluation.gate)):
                figures[ADOPTED_ROUND] = float(adopted.model_round)
        return figures

    def is_done(self, state: ModelState) -> bool:
        """Return whether the wrapped recipe is done, or `stop_after` measurements are clearly below the best one."""
        patience = self.evaluation.stop_after
        stopped = patience is not None and self.curve(state).fallen >= patience
        return stopped or self.inner.is_done(state_as(state, EvaluatedState).model)

    def warnings(self) -> tuple[str, ...]:
        return (*self.inner.warnings(), _WARNING)


def _later(state: EvaluatedState, spec: RoundSpec) -> EvaluatedState:
    """Return an unchanged state under the number of a later round."""
    return replace(state, round_number=spec.number, model=replace(state.model, round_number=spec.number))


_WARNING: Final = (
    "Some sums are of how well the model predicts held-out rows: everyone who can open a sum learns the mean over one "
    "cohort that only shrinks, for each model that is measured. A server that chooses the models learns as many means "
    "over the cohort as there are measurements; each client's policy limits their number (max_measurements)."
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
        least = points * (evaluation.every + 1) // MAX_POINTS
        raise ParameterError(f"{points:,} measurements are more than {MAX_POINTS:,}: choose every >= {least}")
    return made


def _why_not(recipe: Recipe) -> str | None:
    if not isinstance(recipe.parameters, ItemParameters):
        return "its clients measure their model themselves"
    if recipe.layout(recipe.main_sum).sum_class.repeated:
        return "its model is complete after its last sum only, so no sum can measure it"
    if recipe.trains_on_views:
        return (
            "each sum is over one device group, which trains on its view, so no sum measures the model of all clients"
        )
    if recipe.own.adds_noise:
        return "clients add noise to what they send, and the measured values would be sent without"
    if recipe.layout(recipe.main_sum).chosen:
        return "its contributions choose their blocks; set support to 'shared'"
    return None
