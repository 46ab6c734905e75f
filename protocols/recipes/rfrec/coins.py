"""RFRecF's coin tosses: which iterations train, which average, and how many sums they need.

Toss k is for averaging with probability p (Liu et al., CIKM 2024, eq. 7 and Algorithm 2). It determines what every
client does in iteration k: train on its own data, or move towards the average, V_i <- V_i + a (V - V_i), V the mean of
all V_i.

    mean of (V_i + a (V - V_i)) = (1 - a) V + a V = V

A move does not change the mean, so several moves in a row need the average only once: m moves are
V_i <- V + (1 - a)^m (V_i - V). Only training changes the mean, and training needs no average. Iterations are therefore
grouped into *stretches*, a run of training followed by a run of moves, and each stretch needs ONE sum: every client
sends its V_i after the training and makes the moves with the mean. Moves before any training have no effect, since all
V_i are equal. Training at the very end is summed as well, although no move follows, so that the model is the average of
what all clients learned.

With n iterations this takes about p (1 - p) n sums instead of n (Lemma 3.9 counts upload and download separately:
2 p (1-p) n). The tosses are derived from the task's public seed: nobody chooses them, and everybody knows them in
advance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from protocols.crypto.public_random import uniforms
from protocols.recipes.rfrec.parameters import Moves

__all__ = ["Stretch", "stretches", "tosses"]


@dataclass(frozen=True)
class Stretch:
    """The iterations that belong to one sum.

    local: local training steps before the sum. moves: moves towards the average after it. until: number of the task's
    iterations that are complete after the moves.
    """

    local: int
    moves: int
    until: int


def tosses(seed: bytes, iterations: int, probability: float) -> tuple[bool, ...]:
    """Return for each iteration whether its toss is for averaging (which has this probability)."""
    return tuple((uniforms(seed, "rfrecf coins", iterations) <= probability).tolist())


@lru_cache(maxsize=16)
def stretches(seed: bytes, iterations: int, probability: float, moves: Moves) -> tuple[Stretch, ...]:
    """Return the stretches of a task, one per sum; empty if no toss is for training.

    moves: with `coin`, every toss for averaging is a move. With `run`, Algorithm 2 is followed literally: a toss for
    averaging makes the server average, and the clients move in the next iteration with the other toss instead of
    training in it.
    """
    return _stretches(_actions(tosses(seed, iterations, probability), moves))


def _actions(for_average: Sequence[bool], moves: Moves) -> list[str]:
    """Return what clients do in each iteration: "train", "move", or "" for nothing."""
    if moves == "coin":
        return ["move" if average else "train" for average in for_average]
    before = [False, *for_average[:-1]]
    return ["" if now else "move" if last else "train" for last, now in zip(before, for_average, strict=True)]


def _stretches(actions: Sequence[str]) -> tuple[Stretch, ...]:
    made: list[Stretch] = []
    place = 0
    for trains, actions_in_run in groupby(actions, key="train".__eq__):
        run = list(actions_in_run)
        place += len(run)
        if trains:
            made.append(Stretch(len(run), 0, place))
        elif made:
            last = made.pop()
            made.append(Stretch(last.local, run.count("move"), place))
    return tuple(made)
