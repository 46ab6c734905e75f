"""SASRec (Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018) in PyTorch, and its training.

    item sequence s_1 .. s_n:   h = sqrt(d) E[s] + P,   h = block(h) for each block,   r = norm(h)
    block:                      h + attention(norm(h), h, h), then h + feed_forward(norm(h)); causal
    score of item j after s_t:  r_t . E[j]

The loss is that of the paper, section 3.5: binary cross-entropy of the next item against a negative drawn for each
position. Dropout draws from a generator that is an argument, so that training is a function of its arguments and
clients may train in several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from client_sdk.torch import arrays_of, load_arrays
from examples.sasrec_torch.fedavg import Arrays, Histories

BATCH: Final = 32
"""Histories in a batch of central training; each gives several windows."""


@dataclass(frozen=True)
class Settings:
    """Settings of the model and of a client's training, stochastic gradient descent on the device."""

    dim: int = 32
    blocks: int = 2
    length: int = 50
    """Items of a history that the model sees, the newest."""
    dropout: float = 0.2
    negatives: int = 1
    """Drawn for each position."""
    rate: float = 4.0
    epochs: int = 4
    ordered: bool = True
    """Whether the order of a history means anything; if not, every epoch takes a new random order."""


class Block(nn.Module):
    """Causal self-attention with one head, and a feed-forward layer applied to each position."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.inner, self.outer = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, hidden: Tensor, allowed: Tensor | None, drop: Drop) -> Tensor:
        """Return (users, length, dim). allowed: bool (users, length, length), or None where only time forbids."""
        seen = self.norm1(hidden)
        query, key, value = self.query(seen), self.key(hidden), self.value(hidden)
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, is_causal=allowed is None
        )
        hidden = hidden + drop(attended)
        return hidden + drop(self.outer(drop(functional.relu(self.inner(self.norm2(hidden))))))


class Drop:
    """Inverted dropout from a generator of its own; does nothing without one."""

    def __init__(self, share: float, generator: torch.Generator | None) -> None:
        self._share, self._generator = share, generator

    def __call__(self, values: Tensor) -> Tensor:
        if self._generator is None or not self._share:
            return values
        kept = torch.rand(values.shape, generator=self._generator) >= self._share
        return values * kept / (1.0 - self._share)


class SASRec(nn.Module):
    """The model. Items are numbered from 0; `items.weight` (items, dim) is the only embedding of items."""

    def __init__(self, items: int, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.items = nn.Embedding(items, settings.dim)
        self.places = nn.Embedding(settings.length, settings.dim)
        self.blocks = nn.ModuleList(Block(settings.dim) for _ in range(settings.blocks))
        self.norm = nn.LayerNorm(settings.dim)
        nn.init.normal_(self.items.weight, std=settings.dim**-0.5 / 4)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(
        self, sequences: Tensor, padded: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return r, (users, n, dim). sequences: int64 (users, n), n <= length, the newest item last.

        padded: bool (users, n), true in front of short sequences. generator: of dropout, None when not training.
        """
        count, drop = sequences.shape[1], Drop(self.settings.dropout, generator)
        hidden = self.items(sequences) * self.settings.dim**0.5 + self.places.weight[-count:]
        hidden, allowed = drop(hidden), None
        if padded is not None:
            past = torch.ones(count, count, dtype=torch.bool).tril()
            allowed = past & ~padded[:, None, :] | torch.eye(count, dtype=torch.bool)
        for block in self.blocks:
            hidden = block(hidden, allowed, drop)
        return self.norm(hidden)

    def loss(
        self, sequences: Tensor, drawn: Tensor, padded: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the mean loss over positions. sequences: (users, n + 1). drawn: negatives (users, n, k)."""
        padded = None if padded is None else padded[:, :-1]
        states = self(sequences[:, :-1], padded, generator)
        right = (states * self.items(sequences[:, 1:])).sum(-1)
        wrong = (states.unsqueeze(2) * self.items(drawn)).sum(-1)
        losses = functional.softplus(-right) + functional.softplus(wrong).mean(-1)
        return losses.mean() if padded is None else losses[~padded].mean()


class SASRecLearner:
    """SASRec as the federation sees it (`Learner`): arrays in, arrays out."""

    def __init__(self, items: int, settings: Settings, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.items, self.settings = items, settings
        self._template = SASRec(items, settings)

    @property
    def rows(self) -> tuple[str, ...]:
        """The table of item embeddings: a client changes rows of its items and of the negatives that it drew."""
        return ("items.weight",)

    def initial(self) -> Arrays:
        """Return the values of round 0."""
        return arrays_of(self._template)

    def module(self, arrays: Arrays) -> SASRec:
        """Return a module with these values."""
        made = deepcopy(self._template)
        load_arrays(made, arrays)
        return made

    def train(self, arrays: Arrays, items: NDArray[np.int32], seed: Sequence[int]) -> tuple[Arrays, int]:
        """Return the arrays after local training on one history, oldest item first, and the number of positions."""
        model, rng = self.module(arrays), np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        optimiser = torch.optim.SGD(model.parameters(), lr=self.settings.rate)
        for _ in range(self.settings.epochs):
            windows, padded, drawn = training_windows([items], self.items, self.settings, rng)
            optimiser.zero_grad()
            model.loss(windows, drawn, padded, generator).backward()
            optimiser.step()
        return arrays_of(model), items.size - 1

    def scores(self, arrays: Arrays, histories: Histories) -> NDArray[np.float32]:
        """Return the score of every item as the next one of each history, float32 (histories, items)."""
        model = self.module(arrays)
        with torch.no_grad():
            window, padded = padded_windows(histories, self.settings.length)
            states = model(window, padded)[:, -1]
            return np.asarray((states @ model.items.weight.T).numpy())


def training_windows(
    histories: Histories, items: int, settings: Settings, rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Return all of the histories in windows of `length` + 1 items, what is padding, and negatives for each position.

    The borders of windows are drawn, so that they differ from epoch to epoch. Neighbouring windows share an item: it is
    predicted in the first and input only in the second. The negatives are items that the user does not have. Returns
    int64 (windows, length + 1), bool of the same shape, and int64 (windows, length, negatives).
    """
    parts, drawn, length = [], [], settings.length
    for history in histories:
        own = history if settings.ordered else rng.permutation(history)
        others = np.setdiff1d(np.arange(items), history)
        first_end = own.size - int(rng.integers(min(length, own.size - 1)))
        for end in {own.size, *range(first_end, 1, -length)}:
            parts.append(own[max(0, end - length - 1) : end])
            drawn.append(rng.choice(others, (length, settings.negatives)))
    windows, padded = padded_windows(parts, length + 1)
    return windows, padded, torch.from_numpy(np.stack(drawn))


def padded_windows(histories: Histories, length: int) -> tuple[Tensor, Tensor]:
    """Return the newest `length` items of each history, int64 (histories, length), and what is padding, bool."""
    window = np.zeros((len(histories), length), np.int64)
    padded = np.ones(window.shape, bool)
    for row, items in enumerate(histories):
        newest = items[-length:]
        window[row, length - newest.size :] = newest
        padded[row, length - newest.size :] = False
    return torch.from_numpy(window), torch.from_numpy(padded)


def train_centrally(
    learner: SASRecLearner,
    histories: Histories,
    epochs: int,
    on_epoch: Callable[[int, Arrays], None],
    rate: float = 2e-3,
    seed: int = 0,
) -> None:
    """Train with all histories in one place: Adam with mini-batches, as in the paper, from the values of round 0.

    on_epoch: called with the number of each epoch and the arrays after it.
    """
    model, settings = learner.module(learner.initial()), learner.settings
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98))
    for epoch in range(1, epochs + 1):
        order = rng.permutation(len(histories))
        for start in range(0, order.size, BATCH):
            batch = [histories[user] for user in order[start : start + BATCH]]
            windows, padded, drawn = training_windows(batch, learner.items, settings, rng)
            optimiser.zero_grad()
            model.loss(windows, drawn, padded, generator).backward()
            optimiser.step()
        on_epoch(epoch, arrays_of(model))
