"""The client side of recipe `arrays`: the application trains its own model, in a function or in a loop of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from client_sdk.errors import RoundLost
from client_sdk.history import History
from client_sdk.store.states import ClientState
from client_sdk.training.base import ClientSide, LocalResult, Rng, TrainingConfig, refuse_settings
from protocols.errors import ParameterError
from protocols.recipes.arrays import Arrays
from protocols.recipes.arrays_update import ArraysUpdate
from protocols.recipes.base import Contribution, Local, ModelState, RoundSpec


class ArraysRound:
    """Round `number`, which asks this client for an update."""

    def __init__(self, recipe: Arrays, spec: RoundSpec, state: ModelState) -> None:
        self.number = spec.number
        self._recipe, self._spec, self._state = recipe, spec, state
        self._made: Contribution | None = None
        self._weight = 1.0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.number}>"

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return the arrays of the newest model, float32, by name: copies that may be changed."""
        return {name: array.copy() for name, array in self._recipe.arrays(self._state).items()}

    def contribute(self, update: ArraysUpdate, weight: float | None = None) -> None:
        """Set this client's update: the change of each array, by name, such as new minus `arrays()`.

        An array that is summed by rows may be given as `Rows`, or whole: rows of zeros are then not touched. weight:
        number of examples, in tasks with `max_weight`. Clipped values are counted in the round's report. Raises
        `ParameterError`, naming the array, for an unknown name, a missing array, another shape, a dtype that is not
        floating, and values that are masked or not finite, and for a weight that is no number of at least 1; nothing is
        sealed then, and another update may be given. Raises `RoundLost` when called a second time.
        """
        self._give(self._checked(update, weight), weight)

    def _checked(self, update: ArraysUpdate, weight: float | None) -> Contribution:
        if self._made is not None:
            raise RoundLost(f"an update was given for round {self.number} already")
        return self._recipe.contribute(self._state, self._spec, Local(update, examples=weight))

    def _give(self, made: Contribution, weight: float | None) -> None:
        self._made, self._weight = made, 1.0 if weight is None else weight

    def result(self, client_state: ClientState) -> LocalResult:
        """Return the update as the result of a round; `RoundLost` if none was given."""
        if self._made is None:
            raise RoundLost(f"no update was given for round {self.number}")
        return LocalResult(self._made, client_state, nan, round(self._weight))


Trainer = Callable[[ArraysRound], None]
"""Trains on `round.arrays()` and calls `round.contribute`. If it raises, the contribution is zeros.

In `plain` tasks its error ends the client's part in the task (`client_sdk.rounds.contribution.train`)."""


@dataclass(frozen=True, eq=False)
class OwnTrainer(History):
    """A trainer in place of interactions: the application keeps its data to itself."""

    items: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    trainer: Trainer | None = field(kw_only=True, default=None)
    """None if the application trains in a loop of its own: it has a turn in each round, before the round's training is
    asked for (`ask`)."""
    _asked: list[ArraysRound] = field(default_factory=list, init=False)

    def __len__(self) -> int:
        return 1  # something to train on, of which only the application knows how much

    def __repr__(self) -> str:
        return "OwnTrainer()"

    def ask(self, recipe: Arrays, spec: RoundSpec, state: ModelState) -> ArraysRound:
        """Return the round of `spec`, which asks the application for an update of the arrays in `state`."""
        self._asked[:] = [ArraysRound(recipe, spec, state)]
        return self._asked[0]

    def trained(self, recipe: Arrays, spec: RoundSpec, state: ModelState) -> ArraysRound:
        """Return the round after the application has had its turn."""
        if self.trainer is None:
            return self._asked[0] if self._asked else self.ask(recipe, spec, state)
        asked = self.ask(recipe, spec, state)
        self.trainer(asked)
        return asked


@dataclass(frozen=True)
class ArraysSide(ClientSide):
    """Calls the application's trainer. Nothing is kept on the device."""

    in_application: ClassVar[bool] = True
    recipe: Arrays

    def read(self, interactions: object) -> OwnTrainer:
        """Return what `take_part` was given, which must be a function; `ParameterError` for anything else."""
        if isinstance(interactions, OwnTrainer):
            return interactions
        if not callable(interactions):
            raise ParameterError(
                "a task of recipe 'arrays' trains the application's own model: pass a function that takes a round, or "
                "use task.rounds()"
            )
        return OwnTrainer(trainer=interactions)

    def ask(self, spec: RoundSpec, state: ModelState, history: History) -> ArraysRound | None:
        own = self.read(history)
        return own.ask(self.recipe, spec, state) if own.trainer is None else None

    def contribute(
        self, spec: RoundSpec, client_id: str, state: ModelState, history: History, client_state: ClientState, rng: Rng
    ) -> LocalResult:
        """Return the update that the trainer gives; `RoundLost` if it gives none."""
        return self.read(history).trained(self.recipe, spec, state).result(client_state)

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """Raise `ParameterError`: only the application knows what its arrays mean."""
        raise ParameterError("the arrays are the application's own model: take them with task.arrays()")


def client_side(recipe: Arrays, training: TrainingConfig | None = None, graph_filter: str | None = None) -> ClientSide:
    refuse_settings(recipe, training, graph_filter, "the application itself trains in recipe {}")
    return ArraysSide(recipe)
