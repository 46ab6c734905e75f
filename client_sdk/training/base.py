"""The client side of a recipe: how a client trains on its data, and what it keeps on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.store.states import ClientState, GivenData
from protocols.errors import ParameterError
from protocols.layout import SumClass
from protocols.recipes.base import Contribution, ModelState, Recipe, RoundSpec
from protocols.recipes.factors import BiasedParameters

Rng = np.random.Generator
"""For draws that need not be secret."""


@dataclass(frozen=True)
class LocalResult:
    """The result of one round on a client."""

    contribution: Contribution
    """What is sent."""
    client_state: ClientState
    """State to store when the server has accepted the contribution."""
    loss: float
    """Mean training loss, NaN for recipes that do not train."""
    samples: int
    """Number of training samples."""
    finish: Callable[[], ClientState] | None = None
    """Training that can run after the contribution has been sent, or None; it returns the state to store instead of
    `client_state`."""
    failure: str | None = None
    """Why training failed, None if it did not; the contribution is zeros then (`client_sdk.rounds.contribution.train`).
    """

    @property
    def blocks(self) -> Sequence[NDArray[np.float64]]:
        """Those of the contribution."""
        return self.contribution.blocks


@dataclass(frozen=True)
class TrainingConfig:
    """Base class of the training settings that a client chooses itself. Each family of recipes has its own class.

    Raises `ParameterError` for a number of epochs, samples or negatives below 1, and a learning rate that is not
    positive.
    """

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in ("epochs", "batch_size", "negatives") and value < 1:
                raise ParameterError(f"{name} must be at least 1, got {value}")
            if name.endswith("learning_rate") and not value > 0:
                raise ParameterError(f"{name} must be positive, got {value}")


C = TypeVar("C", bound=TrainingConfig)


def refuse_settings(
    recipe: Recipe, training: TrainingConfig | None = None, graph_filter: str | None = None, why: str = ""
) -> None:
    """Raise `ParameterError` if the user gave settings that the recipe does not have.

    why: why it has no training settings, with the recipe's name in place of {}; "" where it has some.
    """
    if graph_filter is not None:
        raise ParameterError(f"recipe {recipe.name!r} has no graph filter: leave it out")
    if training is not None and why:
        raise ParameterError(f"{why.format(repr(recipe.name))}: leave out the training settings")


def task_training(recipe: Recipe, given: TrainingConfig | None, kind: type[C], graph_filter: str | None) -> C:
    """Return `given`, or the training settings of the task's parameters, with `kind`'s defaults for the others.

    Raises `ParameterError` for settings of another class, and for a graph filter.
    """
    refuse_settings(recipe, graph_filter=graph_filter)
    if given is None:
        p = recipe.parameters
        return kind(**p.training_settings()) if isinstance(p, BiasedParameters) else kind()
    if not isinstance(given, kind):
        raise ParameterError(f"recipe {recipe.name!r} needs a {kind.__name__}, not a {type(given).__name__}")
    return given


class ClientSide(ABC):
    """The client side of one recipe; a subclass has `contribute`, and what else differs from these defaults.

    `history` is the client's own interactions.
    """

    in_application: ClassVar[bool] = False
    """Whether the application can train in a loop of its own: it has a turn before each round (`ask`) and after it."""

    def read(self, interactions: object) -> History | None:
        """Return `interactions` as a `History` where they are neither item numbers nor ratings, which have None.

        Raises `ParameterError` for what this client side cannot use.
        """
        return None

    def check(self, history: History) -> None:
        """Raise the error that `contribute` would raise for `history`, if any, before the first round."""
        del history

    def why_abstain(self, spec: RoundSpec, history: History, client_state: ClientState | None) -> str | None:
        """Return why this client must not contribute to a sum; None if it may. Counts: see `why_abstain` below."""
        return None

    def ask(self, spec: RoundSpec, state: ModelState, history: History) -> object | None:
        """Return the round that asks the application for its update, for a `Turn`; None if `contribute` has it."""
        return None

    def initial_client_state(self, rng: Rng) -> ClientState:
        """Return the state of a client that has not taken part yet: by default nothing is kept on the device."""
        return {}

    @abstractmethod
    def contribute(
        self, spec: RoundSpec, client_id: str, state: ModelState, history: History, client_state: ClientState, rng: Rng
    ) -> LocalResult:
        """Train and return the contribution to the round. No argument is changed.

        spec: the round's sum. client_id: the client's id, "" if it has none. state: the newest model. Raises
        `ParameterError` for a client without interactions, or without ratings if the recipe needs them, and if training
        diverges.
        """

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: Rng) -> ClientState:
        """Train a client that never took part, so that it can compute recommendations. Nothing is sent.

        Returns the client state for `scores`, which is stored like that of `contribute`: it has every array of
        `initial_client_state`, and those that training does not set are unchanged. Raises `ParameterError` as
        `contribute` does. By default nothing is trained.
        """
        return self.initial_client_state(rng)

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """Return a score for each item, float32 (items,); higher is better.

        Raises `ParameterError` for a model that scores no items, or not yet.
        """
        raise ParameterError("this model scores no items")

    def known(self, state: ModelState) -> NDArray[np.bool_] | None:
        """Return which items the model was made of data about, bool (items,); None where it does not say.

        The other items' scores are predicted from their labels, where the task's catalogue has labels.
        """
        return None


def why_abstain(
    sum_class: SumClass, spec: RoundSpec, state: ModelState, history: History, given: GivenData, task_id: str
) -> str | None:
    """Return why a client must not contribute to a sum of class `once`; None if it may, and for other sums.

    A contribution without data would count towards `min_clients`, and the sum would be over fewer clients than that.
    The same data in two sums could be computed from their difference. So a client abstains if it has no interactions,
    if another sum of the data set has its data, and if the first sum is asked for again although `state` shows that it
    was released. After a failed round the client contributes again to the same sum.
    """
    if not sum_class.once:
        return None
    if not len(history):
        return "this client has no interactions, so it has nothing to count"
    if spec.sum_index == 1 and state.round_number > 0:
        return "the server repeats sum 1, which it has released before"
    return given.why_not_counted(task_id, spec.sum_index)


# --- the distinct values of short arrays of small integers, counted instead of sorted --------------------------------

_SPARSE: Final = 8
"""Possible values for each element, above which sorting the elements is faster than counting the values."""


def distinct(values: NDArray[np.integer], bound: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Return the distinct values, ascending, the place of each element among them, and how often each occurs.

    values: integers (n,) in 0..bound-1. The result is that of `np.unique` with inverse and counts.
    """
    if bound > _SPARSE * values.size:
        found, places, times = np.unique(values, return_inverse=True, return_counts=True)
        return found.astype(np.intp), places, times
    counts = np.bincount(values)
    used = counts.nonzero()[0]
    place_of = np.empty(counts.size, dtype=np.intp)
    place_of[used] = np.arange(used.size)
    return used, place_of[values], counts[used]
