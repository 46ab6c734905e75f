"""RFRecF's coin: which iterations train, which average, and what of it costs a communication.

Toss k is for averaging with probability p (Liu et al., CIKM 2024, eq. 7 and Algorithm 2). It says what every client
does in iteration k: train on its own data, or move to the average, V_i <- V_i + a (V - V_i), V the mean of all V_i.

    mean of (V_i + a (V - V_i)) = (1 - a) V + a V = V

A move leaves the mean where it is, so however many follow each other, the average that the first one needs serves them
all: m of them are V_i <- V + (1 - a)^m (V_i - V). Only training moves the mean, and training needs no average. So
iterations fall into *stretches*, a run of training and the run of moves after it, and a stretch needs ONE sum: after
its training every client sends its V_i, and with the mean it makes the moves. Moves before any training find all V_i
equal and do nothing. Training at the very end is summed too, though no move follows: the model is to be the average of
what everyone learned.

With n iterations that is about p (1 - p) n sums instead of n (Lemma 3.9 counts upload and download apart: 2 p (1-p) n).
The tosses follow from the task's public seed, so nobody chooses them and everybody knows them beforehand.
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
    """What one sum stands for: so many local steps before it, so many moves after it.

    until: how many of the task's iterations are over after the moves.
    """

    local: int
    moves: int
    until: int


def tosses(seed: bytes, iterations: int, probability: float) -> tuple[bool, ...]:
    """Of each iteration, whether its toss is for averaging."""
    return tuple((uniforms(seed, "rfrecf coins", iterations) <= probability).tolist())


@lru_cache(maxsize=16)
def stretches(seed: bytes, iterations: int, probability: float, moves: Moves) -> tuple[Stretch, ...]:
    """The stretches of a task, one a sum; empty where no toss is for training.

    moves: `coin` makes a move of every toss for averaging. `run` is Algorithm 2 to the letter: tosses for averaging
    have the server average, and the clients move in the next iteration that is not one of them, instead of training.
    """
    return _stretches(_actions(tosses(seed, iterations, probability), moves))


def _actions(for_average: Sequence[bool], moves: Moves) -> list[str]:
    """What clients do in each iteration: "train", "move", or "" for nothing."""
    if moves == "coin":
        return ["move" if average else "train" for average in for_average]
    before = [False, *for_average[:-1]]
    return ["" if now else "move" if last else "train" for last, now in zip(before, for_average, strict=True)]


def _stretches(actions: Sequence[str]) -> tuple[Stretch, ...]:
    made: list[Stretch] = []
    place = 0
    for trains, device_group in groupby(actions, key="train".__eq__):
        run = list(device_group)
        place += len(run)
        if trains:
            made.append(Stretch(len(run), 0, place))
        elif made:
            last = made.pop()
            made.append(Stretch(last.local, run.count("move"), place))
    return tuple(made)
