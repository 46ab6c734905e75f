"""The newest model of a task on a device, and its uses: recommendations, arrays, the curve of measurements."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.api.wire import Program, work
from client_sdk.errors import ConnectionFailed, GaveUp, ModelUnavailable, Unauthenticated, Unavailable, UntrustedServer
from client_sdk.history import History, OnUnknown, check_on_unknown
from client_sdk.model.follow import curve_of, ends_with_best
from client_sdk.rounds.events import ModelBehind, Progress, ignore_event
from client_sdk.rounds.part import Part
from client_sdk.rounds.polling import is_over
from protocols.catalogue import Catalogue
from protocols.errors import ParameterError
from protocols.recipes.base import ModelState
from protocols.recipes.evaluation_curve import Curve

_AS_ASKED: Final = "no update was asked for"
_LOG = logging.getLogger(__name__)


def newest_model(part: Part, snapshot_wait: float = 0.0, progress: Progress = ignore_event) -> Program[ModelState]:
    """Return the model after the last completed round, as this client's device group sees it.

    When a task that keeps its best model is over, that model is returned; in tasks whose sums the server cannot open,
    the newest one where this device has not kept the best. snapshot_wait: see `ModelFollower.follow`. progress:
    receives `AggregateRejected` and `ModelMeasured`. Raises `ModelUnavailable`.
    """
    member, follower = part.member, part.follower
    state = yield from _followed(part, snapshot_wait, progress)
    if ends_with_best(member.terms.recipe) and (yield from member.calls.task(member.task_id)).state != "open":
        try:
            part.final = state = yield from follower.final(state)
        except ModelUnavailable as error:
            if member.terms.opened_by == "anyone":
                raise
            progress(ModelBehind(f"{error}; the newest one is used"))
    return follower.view(state)


def _followed(part: Part, snapshot_wait: float, progress: Progress) -> Program[ModelState]:
    yield from part.ready()
    current = yield from part.member.calls.current_round(part.member.task_id)
    upto = 0 if current is None else current.view.number - (not is_over(current.view))
    caught_up = yield from part.follower.follow(upto, snapshot_wait)
    part.report_followed(caught_up, progress)
    return caught_up.state


def evaluation(part: Part) -> Program[Curve]:
    """Return the measurements of the task so far; see `Task.evaluation`."""
    curve = curve_of(part.member.terms.recipe, (yield from _followed(part, 0.0, ignore_event)))
    if curve is None:
        raise ParameterError(f"task {part.member.terms.name!r} has no federated evaluation")
    return curve


def named_arrays(part: Part) -> Program[dict[str, NDArray[np.float32]]]:
    """Return the newest arrays; see `Task.arrays`."""
    from protocols.recipes.arrays import Arrays  # which only `arrays` tasks need

    recipe = part.member.terms.recipe.own
    if not isinstance(recipe, Arrays):
        raise ParameterError(f"the model of recipe {recipe.name!r} has no named arrays: use model()")
    state = yield from newest_model(part)
    return {name: array.copy() for name, array in recipe.arrays(state).items()}


# --- recommendations, computed on the device from scores that never leave it -----------------------------------------


@dataclass(frozen=True, eq=False)
class Recommendations:
    """The best items for one user."""

    items: NDArray[np.int32]
    """int32 (k,), item numbers, best first."""
    scores: NDArray[np.float32]
    """float32 (k,), the recipe's scores (logits q_i . p for factor models)."""
    ids: tuple[str, ...] | None = None
    titles: tuple[str, ...] | None = None
    """The app's own of each item, in tasks with an item catalogue.

    Iterating yields pairs of item and score: the item's id where it has one, otherwise its number.
    """

    def __len__(self) -> int:
        return int(self.items.size)

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        return iter(zip(self.ids or self.items.tolist(), self.scores.tolist(), strict=True))

    def named(self, catalogue: Catalogue) -> Recommendations:
        """Return these items with their ids and titles in `catalogue`."""
        numbers = self.items.tolist()
        ids, titles = (tuple(of[number] for number in numbers) for of in (catalogue.ids, catalogue.titles))
        return replace(self, ids=ids, titles=titles)


def top_items(
    scores: NDArray[np.float32],
    seen: NDArray[np.int32],
    k: int,
    places: int = 0,
    predicted: NDArray[np.bool_] | None = None,
) -> Recommendations:
    """Return the `k` items of highest score that are not in `seen`; the lower item number wins a tie.

    scores: float32 (items,). seen: int32, distinct item numbers. places: how many of the k are `predicted` ones, bool
    (items,), at least, as far as there are so many. Raises `ParameterError` unless 1 <= k <= number of items that are
    not seen, unless 0 <= places <= k, and when the score of an item that is not seen is NaN.
    """
    unseen = np.delete(np.arange(scores.size, dtype=np.int32), seen)
    try:
        count = index(k)
    except TypeError:  # not a whole number
        count = 0
    if not 1 <= count <= unseen.size:
        raise ParameterError(f"k must be in 1..{unseen.size} (the number of items not seen yet), got {k!r}")
    if not 0 <= places <= count:
        raise ParameterError(f"the places for new items must be in 0..{count} (k), got {places!r}")
    found = scores[unseen].astype(np.float32)
    unknown = np.isnan(found)
    if unknown.any():
        raise ParameterError(
            f"the scores of {np.count_nonzero(unknown)} items are NaN, the first is that of item "
            f"{unseen[unknown.argmax()]}: the model, or this device's training, has diverged; the task's operator "
            "chooses a smaller learning rate or clip"
        )
    ranked = np.argsort(-found, kind="stable")
    chosen = np.zeros(ranked.size, bool)
    if predicted is not None:
        chosen[np.flatnonzero(predicted[unseen[ranked]])[:places]] = True
    chosen[np.flatnonzero(~chosen)[: count - np.count_nonzero(chosen)]] = True
    best = ranked[chosen]
    return Recommendations(unseen[best], found[best])


def recommend(
    part: Part,
    k: int,
    interactions: object | None,
    refresh: bool,
    progress: Progress = ignore_event,
    new: int = 0,
    on_unknown: OnUnknown = "error",
) -> Program[Recommendations]:
    """Return the `k` best items for this user among those not in `interactions`, at least `new` of them new ones.

    interactions: None for those of the last `take_part`. refresh: whether to update the model first; without, no
    request is made. Without, while the server cannot be reached, and once this membership was revoked, the newest model
    on the device is used. progress: receives `ModelBehind` with the age of that model. The factor of a user that never
    took part comes from local training, of which nothing is sent. Raises `ModelUnavailable` before round 1 is complete,
    unless the task starts from another task's model; when the best model of a task that ended is that of round 0, it is
    used.
    """
    check_on_unknown(on_unknown)
    given = part.seen if interactions is None else interactions
    if given is None:
        raise ParameterError("interactions are required: call recommend(k, interactions=...)")
    if refresh:
        state = yield from _newest_or_stored(part, progress)
    else:
        state = _stored(part, _AS_ASKED, progress)
    if state.round_number == 0 and part.final is None and part.member.terms.recipe.parameters.start_digest is None:
        raise ModelUnavailable(
            0, "no round of this task has completed yet, so there is no trained model to recommend from"
        )
    yield from part.load_catalogue()  # which is there: round 1 waits for it, and a start is created with it
    seen = History.of(given, part.member.terms.n_items, part.numbers, on_unknown)
    scores, predicted = yield from work(lambda: _with_new(part, state, own_scores(part, state, seen)))
    found = top_items(scores, seen.items, k, new, predicted)
    return found if part.catalogue is None else found.named(part.catalogue)


def _newest_or_stored(part: Part, progress: Progress) -> Program[ModelState]:
    """Return the newest model; the one on the device, if there is one, where the server does not answer or knows this
    client no more.
    """
    try:
        return (yield from newest_model(part, progress=progress))
    except (ConnectionFailed, GaveUp, Unauthenticated, Unavailable) as error:
        if isinstance(error, UntrustedServer) or part.follower.current() is None:
            raise
        return _stored(part, str(error), progress)


def _stored(part: Part, reason: str, progress: Progress) -> ModelState:
    """Return the model on the device, and say how old it is. reason: why it is not updated."""
    state, followed = part.follower.at_hand(), part.follower.current()
    at = None if followed is None else followed.stored_at
    since = "" if at is None else f", stored {_ago(time.time() - at)} ago,"
    event = ModelBehind(f"the model of round {state.round_number}{since} is used: {reason}")
    level = logging.INFO if reason == _AS_ASKED else logging.WARNING
    _LOG.log(level, "task %s: %s", part.member.terms.name, event.reason)
    progress(event)
    return part.follower.view(part.final or state)


def _ago(seconds: float) -> str:
    """Return a duration in its largest unit, such as "3 hours"."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{max(0, int(seconds))} seconds"


def own_scores(part: Part, state: ModelState, history: History) -> NDArray[np.float32]:
    """Return this user's score of every item, float32 (items,), from its device group's view of the model.

    What a device trained on later models does not fit the best one: there it trains for itself again.
    """
    client_state = part.client_state()
    is_final = part.final is not None and state.round_number == part.final.round_number
    if client_state is None or is_final:
        spec = part.member.terms.recipe.round_spec(part.member.terms.seed, max(1, state.round_number))
        client_state = part.client_side.prepare(spec, state, history, part.rng)
    if part.client_state() is None:
        part.keep_client_state(client_state)
    return part.client_side.scores(state, client_state, history)


def _with_new(
    part: Part, state: ModelState, scores: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
    """Return the scores, with those that labels predict for items that the model does not know, and which these are."""
    known = part.client_side.known(state)
    if part.catalogue is None or known is None or known.all():
        return scores, None
    from client_sdk.training.labels import ItemLabels  # which only catalogues with labels need

    labels = ItemLabels.of(part.catalogue.labels)
    return labels.completed(scores[None], known)[0], labels.predictable(known)
