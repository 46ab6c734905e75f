"""Scores of items that a model does not know, from the labels that the task's catalogue gives them.

An item that joined after the sums, or that few members have, has no row in the model. A ridge regression of a user's
scores of the known items on their labels predicts its score: with x_i = 1 for each label of item i, less the mean over
the known items, and s their scores,

    w = (X^T X + 10 I)^-1 X^T (s - mean s)        score of a new item = mean s + x . w

Scores are linear in an item's factors, so this is the map from attributes to factors of Gantner et al. ("Learning
attribute-to-feature mappings for cold-start recommendations", ICDM 2010), with a map that is linear. It is made on the
device; labels are public, and nothing is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.catalogue import MOST_LABELS
from protocols.layout import Floats

_RIDGE: Final = 10.0


@dataclass(frozen=True, eq=False)
class ItemLabels:
    """The labels that two items or more have, by number: at most `MOST_LABELS`, the most frequent."""

    of_items: tuple[NDArray[np.intp], ...]
    """For each item the numbers of its labels."""
    count: int
    """How many labels there are."""

    @classmethod
    def of(cls, labels: Sequence[Sequence[str]]) -> ItemLabels:
        """Return those of a catalogue, or of any list of the labels of each item."""
        counts = Counter(chain.from_iterable(map(set, labels)))
        shared = sorted((label for label, count in counts.items() if count > 1), key=lambda one: (-counts[one], one))
        numbers = {label: number for number, label in enumerate(shared[:MOST_LABELS])}
        found = (sorted({numbers[label] for label in own if label in numbers}) for own in labels)
        return cls(tuple(np.array(own, np.intp) for own in found), len(numbers))

    def predictable(self, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the items that are not `known`, (m,), have predictions: those that have labels."""
        found: NDArray[np.bool_] = ~known & np.array([own.size > 0 and bool(known.any()) for own in self.of_items])
        return found

    def completed(self, scores: NDArray[np.float32], known: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return `scores`, (users, m), with predictions for the items that are not `known`, (m,), and have labels."""
        new = np.flatnonzero(self.predictable(known))
        if not new.size:
            return scores
        both, mean = self._products(known)
        own = scores[:, known].astype(np.float64)
        level = own.mean(axis=1, keepdims=True)
        right = np.zeros((len(scores), self.count))
        for column, item in enumerate(np.flatnonzero(known).tolist()):
            right[:, self.of_items[item]] += own[:, column, None]
        right -= own.sum(axis=1, keepdims=True) * mean
        weights = np.linalg.solve(both, right.T)
        start, found = level[:, 0] - mean @ weights, scores.copy()
        for item in new.tolist():
            found[:, item] = start + weights[self.of_items[item]].sum(axis=0)
        return found

    def _products(self, known: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Return X^T X + 10 I over the known items, float64 (labels, labels), and the mean of their rows, (labels,)."""
        items, both = np.flatnonzero(known), np.zeros((self.count, self.count))
        for item in items:
            own = self.of_items[item]
            both[own[:, None], own] += 1.0
        mean = np.diag(both) / items.size
        both -= items.size * np.outer(mean, mean)
        both[np.diag_indices_from(both)] += _RIDGE
        return both, mean
