"""A two-tower recommender: user and item towers over one table of item embeddings, with gradients by hand.

    user u of items I:  h = mean of E[i] for i in I;  u = U h + a
    item j:             v_j = V E[j] + b
    score of j:         u . v_j

Arrays: "items" (n, d) is E, "user.weight", "item.weight" (d, d) are U and V, "user.bias", "item.bias" (d,) are a and b.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]


def shapes(items: int, dim: int) -> dict[str, list[int]]:
    """Return the shapes of the arrays, as a task needs them."""
    square, line = [dim, dim], [dim]
    return {"items": [items, dim], "user.weight": square, "user.bias": line, "item.weight": square, "item.bias": line}


def _towers(arrays: Arrays, mine: NDArray[np.int32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return h, the mean embedding of the user's items, and the user's vector u."""
    mean = arrays["items"][mine].mean(axis=0)
    return mean, arrays["user.weight"] @ mean + arrays["user.bias"]


def scores(arrays: Arrays, mine: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the user's score of every item, float32 (n,)."""
    _, user = _towers(arrays, mine)
    found = (arrays["items"] @ arrays["item.weight"].T + arrays["item.bias"]) @ user
    return np.asarray(found, dtype=np.float32)


def train(
    arrays: Arrays, mine: NDArray[np.int32], rng: np.random.Generator, epochs: int = 2, rate: float = 0.2
) -> tuple[Arrays, float]:
    """Return the arrays after local training on the items `mine`, and the mean loss. `arrays` is not changed.

    For each item of the user, the others are the user's history, and the loss is the softmax over the item and eight
    items that the user does not have.
    """
    new = {name: array.copy() for name, array in arrays.items()}
    others = np.setdiff1d(np.arange(len(new["items"])), mine)
    losses = []
    for _ in range(epochs):
        for place in rng.permutation(mine.size):
            drawn = rng.choice(others, 8)
            losses.append(_step(new, np.delete(mine, place), np.append(mine[place], drawn), rate))
    return new, float(np.mean(losses))


def _step(new: Arrays, history: NDArray[np.int32], candidates: NDArray[np.int64], rate: float) -> float:
    """Change `new` by one step of gradient descent; the first of `candidates` is the right one. Return the loss."""
    mean, user = _towers(new, history)
    embedded = new["items"][candidates]
    vectors = embedded @ new["item.weight"].T + new["item.bias"]
    logits = vectors @ user
    share = np.exp(logits - logits.max())
    share /= share.sum()
    loss = -float(np.log(share[0] + 1e-12))
    share[0] -= 1.0  # d loss / d logits
    to_user, to_vectors = share @ vectors, np.outer(share, user)
    to_mean, to_embedded = new["user.weight"].T @ to_user, to_vectors @ new["item.weight"]
    new["user.weight"] -= rate * np.outer(to_user, mean)
    new["user.bias"] -= rate * to_user
    new["item.weight"] -= rate * to_vectors.T @ embedded
    new["item.bias"] -= rate * to_vectors.sum(axis=0)
    np.subtract.at(new["items"], history, rate * to_mean / history.size)
    np.subtract.at(new["items"], candidates, rate * to_embedded)
    return loss
