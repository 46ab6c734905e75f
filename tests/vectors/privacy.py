"""Vectors of a privacy block: the noise sampler, rounding within a norm, the accountant, and whole contributions."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from io import BytesIO
from typing import Any, Final

import numpy as np

from protocols.crypto.keys import digest
from protocols.crypto.random import Randomness, expanded
from protocols.messages.privacy import Privacy
from protocols.privacy.noise import (
    ORDERS,
    NoiseTerms,
    Sensitive,
    epsilon_of,
    largest_skellam,
    round_within,
    skellam,
    skellam_curve,
    skellam_table,
    smallest_multiplier,
)
from protocols.recipes.base import Contribution
from protocols.recipes.private import Private, with_privacy
from protocols.recipes.registry import recipe as recipe_of
from tests.vectors.common import SEED, Outputs, facts, vectors

FILE: Final = "privacy.json"


def _drawn(label: str) -> bytes:
    return digest("vector privacy", label)


def bytes_of(*parts: bytes) -> Randomness:
    """Return a source that gives the bytes of `parts`, one after the other."""
    return BytesIO(b"".join(parts)).read


@vectors(FILE, "keystream")
def _keystream() -> Outputs:
    secret = _drawn("keystream")
    return {"secret": secret, "bytes": expanded(lambda _: secret)(40)}


@vectors(FILE, "sampler.table")
def _table(variance: float) -> Outputs:
    return {"variance": variance, "entries": [str(entry) for entry in skellam_table(variance)]}


@vectors(FILE, "sampler.cases")
def _sampled(variance: float) -> Outputs:
    stream, table = expanded(lambda _: _drawn(f"sampler {variance:g}")), skellam_table(variance)
    words = stream(8 * 12)
    return {
        "entries": len(table),
        "first": [str(entry) for entry in table[:6]],
        "sha256": sha256(b"".join(entry.to_bytes(16, "little") for entry in table)).digest(),
        "words": words,
        "samples": skellam(12, variance, bytes_of(words, bytes(8 * 12))),
    }


@vectors(FILE, "sampler.second_words")
def _second_words(variance: float, entry: int) -> Outputs:
    """Words whose 63 bits are those of an entry, or of its neighbours; second words around the rest of the entry."""
    high, low = divmod(skellam_table(variance)[entry], 2**64)
    cases = [
        (high, low),
        (high, low - 1),
        (high, 2**64 - 1),
        (high, 0),
        (high - 1, low),
        (high + 1, low),
        (high % 2**20, 0),
    ]
    words = b"".join((2 * first + place % 2).to_bytes(8, "little") for place, (first, _) in enumerate(cases))
    near = b"".join(second.to_bytes(8, "little") for first, second in cases if first % 2**20 == high % 2**20)
    return {"words": words, "second": near, "samples": skellam(len(cases), variance, bytes_of(words, near))}


@vectors(FILE, "sampler.failing")
def _no_table(variance: float) -> None:
    skellam_table(variance)


@vectors(FILE, "rounding.cases")
def _rounded(label: str, values: list[float], bound: float) -> Outputs:
    steps, scale = round_within(np.array(values), bound, expanded(lambda _: _drawn(f"rounding {label}")))
    return {"steps": steps, "scale": scale}


@vectors(FILE, "rounding.failing")
def _not_rounded(what: str) -> None:
    if what.startswith("100 values of 0.5 within a norm of 1"):
        round_within(np.full(100, 0.5), 1.0, expanded(lambda _: _drawn("small")))
    elif what.startswith("4 values of 0.5 within a norm of 1.9, from zero bytes"):
        round_within(np.full(4, 0.5), 1.9, bytes)


@vectors(FILE, "accountant")
def _orders() -> Outputs:
    return {"orders": list(ORDERS)}


@vectors(FILE, "accountant.curves")
def _curve(l1: float, l2: float, variance: float) -> Outputs:
    curve = skellam_curve((l1, l2), variance)
    return {
        "curve": curve,
        "epsilon": {f"{sums} sums, 1e-{d}": epsilon_of(sums * curve, 10.0**-d) for sums, d in ((1, 5), (9, 6))},
    }


@vectors(FILE, "accountant.shares")
def _shares(
    kinds: list[Sensitive], epsilon: float, delta: float, sums: int, corrupt: float, cohort_size: int, min_clients: int
) -> Outputs:
    terms = NoiseTerms.of(epsilon, delta, sums, corrupt, cohort_size, min_clients)
    pairs = [(l1, l2) for l1, l2 in kinds]
    multiplier = terms.multiplier(pairs)
    noise = [terms.noise(pair, multiplier) for pair in pairs]
    return {
        "honest": terms.honest,
        "multiplier": multiplier,
        "shares": [each.share for each in noise],
        "largest": [each.largest for each in noise],
    }


@vectors(FILE, "accountant.failing")
def _not_accounted(what: str) -> None:
    kinds: list[Sensitive] = [(4096.0, 64.0), (16.0, 4.0)]
    curve = skellam_curve((1.0, 1.0), 1.0)
    {
        "no honest client: corrupt 0.1 of 100, min_clients 10": partial(NoiseTerms.of, 1.0, 1e-6, 1, 0.1, 100, 10),
        "epsilon 0": partial(smallest_multiplier, tuple(kinds), 1, 0.0, 1e-6),
        "epsilon 0.001 at delta 1e-9": partial(smallest_multiplier, tuple(kinds), 1, 0.001, 1e-9),
        "delta 1": partial(epsilon_of, curve, 1.0),
        "an L2 norm of 0": partial(skellam_curve, (1.0, 0.0), 1.0),
        "variance 0": partial(skellam_curve, (1.0, 1.0), 0.0),
    }[what]()


def _private(name: str, parameters: Any, privacy: Any, schedule: Any, *, noisy: bool = False) -> Private:
    block, (rounds, cohort, fewest) = Privacy.model_validate(privacy), schedule.values()
    return with_privacy(recipe_of(name, parameters, noisy=noisy), block, rounds, cohort, fewest)


@vectors(FILE, "contributions.cases")
def _contribution(
    privacy: Any, schedule: Any, recipe: str, parameters: Any, sum_index: int, vector: list[float]
) -> Outputs:
    made, secret = (
        _private(recipe, parameters, privacy, schedule, noisy=True),
        _drawn(f"contribution {recipe} {sum_index}"),
    )
    noise, given = made.noise(sum_index), Contribution(made.inner.layout(sum_index).split(np.array(vector)))
    sent = made.noised(made.initial_state(SEED), made.round_spec(SEED, sum_index), given, lambda _: secret)
    return {
        "secret": secret,
        "l2": noise.bound,
        "entries": largest_skellam(noise.share),
        "sent": sent.vector.astype(int),
        **facts(noise, "l1 share largest"),
        **facts(sent, "clipped scaled"),
    }


@vectors(FILE, "contributions.failing")
def _no_contribution(privacy: Any, schedule: Any, what: str) -> None:
    if what == "a recipe without a bound":
        _private("topk", {"items": 9}, privacy, schedule)
    elif what == "no honest client":
        _private("fedmf", {"items": 9}, privacy, schedule | {"min_clients": 100})
    elif what == "a value that is not finite":
        made = _private("arrays", {"shapes": {"w": [1]}}, privacy, schedule)
        wrong = Contribution([np.array([np.nan])])
        made.noised(made.initial_state(SEED), made.round_spec(SEED, 1), wrong, lambda _: _drawn("wrong"))
