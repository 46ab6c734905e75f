"""SASRec trained to tell the next item from all others: cross-entropy over all items in place of drawn negatives.

Klenitskiy and Vasilev (RecSys 2023) show that this loss is what SASRec lacked beside later models.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from examples.sasrec_torch.sasrec import SASRec, SASRecLearner, Settings


class OfAllItems(SASRec):
    """The model with that loss."""

    def loss(
        self, sequences: Tensor, drawn: Tensor, padded: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the mean loss over positions. sequences, padded: as of `SASRec.loss`. drawn: not used."""
        known = torch.ones_like(sequences, dtype=torch.bool) if padded is None else ~padded
        states = self(sequences[:, :-1], None if padded is None else padded[:, :-1], generator)
        inside = known[:, :-1]
        return functional.cross_entropy(states[inside] @ self.items.weight.T, sequences[:, 1:][inside])


class OfAllItemsLearner(SASRecLearner):
    """SASRec with that loss, from the same values of round 0."""

    def __init__(self, items: int, settings: Settings, seed: int = 0) -> None:
        super().__init__(items, settings, seed)
        torch.manual_seed(seed)
        self._template = OfAllItems(items, settings)
