"""Vectors of a privacy block: the noise sampler, rounding within a norm, the accountant, and whole contributions."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Any, Final

import numpy as np

from protocols.crypto.domain import digest
from protocols.crypto.random import Randomness, expanded
from protocols.messages.privacy import Privacy
from protocols.privacy.noise import MAX_VARIANCE, NoiseTerms, largest_skellam, round_within, skellam, skellam_table
from protocols.privacy.renyi import ORDERS, Sensitive, epsilon_of, sampled_curve, skellam_curve, smallest_multiplier
from protocols.recipes.base import Contribution
from protocols.recipes.private import Private, with_privacy
from protocols.recipes.registry import recipe
from tests.vectors.common import SEED, error_of, failures

__all__ = ["privacy"]

_KINDS: Final[list[Sensitive]] = [(4096.0, 64.0), (16.0, 4.0)]
_CONTRIBUTIONS: Final[tuple[tuple[str, dict[str, Any], int, list[float]], ...]] = (
    ("fedmf", {"items": 3, "dim": 2, "item_bias": "counts"}, 1, [1.0, 0.0, 1.0]),
    ("fedmf", {"items": 3, "dim": 2, "item_bias": "counts"}, 2, [0.25, 0.0, -0.125, 0.0, 0.0, 0.1]),
    ("arrays", {"shapes": {"w": [4]}}, 1, [3.0, -4.0, 0.0, 0.5]),
    ("privirec-k", {"items": 3, "components": 2, "iterations": 1}, 2, [0.5, 0.25, 0.0, 0.0, -0.5, 0.1]),
)


def _drawn(label: str) -> bytes:
    return digest("vector privacy", label)


def _from(label: str) -> Randomness:
    """Made-up randomness: the keystream of digest("vector privacy", label)."""
    return expanded(lambda _: _drawn(label))


def _sampler() -> dict[str, Any]:
    cases = []
    for variance in (0.5, 40.0, 3060.5):
        words = _from(f"sampler {variance:g}")(8 * 12)
        table = skellam_table(variance)
        cases.append(
            {
                "variance": variance,
                "entries": len(table),
                "first": [str(entry) for entry in table[:6]],
                "sha256": sha256(np.array(table, "<u8").tobytes()).hexdigest(),
                "words": words.hex(),
                "samples": skellam(12, variance, lambda count, words=words: words[:count]).tolist(),  # type: ignore[misc]
            }
        )
    wrong = [0.0, -1.0, MAX_VARIANCE * 2]
    return {
        "table": {"variance": 0.5, "entries": [str(entry) for entry in skellam_table(0.5)]},
        "cases": cases,
        "failing": [{"variance": v, "error": error_of(partial(skellam_table, v))} for v in wrong],
    }


def _rounding() -> dict[str, Any]:
    given = (
        ("within", [1.5, 0.0, -2.25, 7.0, 0.125], 64.0),
        ("scaled", [30.0, -40.5, 0.0, 12.25], 20.0),
        ("whole", [3.0, 4.0, 0.0], 5.0),
        ("counts", [1.0, 1.0, 1.0, 0.0], 3**0.5),
    )
    cases = []
    for label, values, bound in given:
        steps, scale = round_within(np.array(values), bound, _from(f"rounding {label}"))
        cases.append({"label": label, "values": values, "bound": bound, "steps": steps.tolist(), "scale": scale})
    small = partial(round_within, np.full(100, 0.5), 1.0, _from("small"))
    up = partial(round_within, np.full(4, 0.5), 1.9, bytes)
    return {
        "cases": cases,
        "failing": failures(
            {
                "100 values of 0.5 within a norm of 1": small,
                "4 values of 0.5 within a norm of 1.9, from zero bytes: 128 tries": up,
            }
        ),
    }


def _accountant() -> dict[str, Any]:
    curves = []
    for (l1, l2), variance in ((_KINDS[0], 16384.0), (_KINDS[1], 100.0), ((1.0, 1.0), 0.5)):
        curve = skellam_curve((l1, l2), variance)
        curves.append(
            {
                "l1": l1,
                "l2": l2,
                "variance": variance,
                "curve": curve.tolist(),
                "epsilon": {f"{sums} sums, 1e-{d}": epsilon_of(sums * curve, 10.0**-d) for sums, d in ((1, 5), (9, 6))},
                "sampled_at_0.1": sampled_curve(curve, 0.1)[:8].tolist(),
            }
        )
    shares = []
    for epsilon, sums, cohort, fewest in ((1.0, 1, 10, 10), (4.0, 100, 50, 40), (8.0, 5, 1000, 1000)):
        terms = NoiseTerms.of(epsilon, 1e-6, sums, 0.1, cohort, fewest)
        multiplier = terms.multiplier(_KINDS)
        noise = [terms.noise(kind, multiplier) for kind in _KINDS]
        shares.append(
            {
                "epsilon": epsilon,
                "delta": 1e-6,
                "sums": sums,
                "corrupt": 0.1,
                "cohort_size": cohort,
                "min_clients": fewest,
                "honest": terms.honest,
                "multiplier": multiplier,
                "shares": [each.share for each in noise],
                "largest": [each.largest for each in noise],
            }
        )
    failing = {
        "no honest client: corrupt 0.1 of 100, min_clients 10": partial(NoiseTerms.of, 1.0, 1e-6, 1, 0.1, 100, 10),
        "epsilon 0": partial(smallest_multiplier, _KINDS, 1, 0.0, 1e-6),
        "epsilon 0.001 at delta 1e-9": partial(smallest_multiplier, _KINDS, 1, 0.001, 1e-9),
        "delta 1": partial(epsilon_of, skellam_curve((1.0, 1.0), 1.0), 1.0),
        "variance 0": partial(skellam_curve, (1.0, 1.0), 0.0),
        "a sampling rate of 0": partial(sampled_curve, skellam_curve((1.0, 1.0), 1.0), 0.0),
    }
    return {
        "orders": list(ORDERS),
        "kinds": _KINDS,
        "curves": curves,
        "shares": shares,
        "failing": failures(failing),
    }


def _contributions() -> dict[str, Any]:
    block = Privacy(epsilon=8.0, delta=1e-5, clip=2.0, most_items=2)
    cases = []
    for name, parameters, sum_index, vector in _CONTRIBUTIONS:
        made = with_privacy(recipe(name, parameters, noisy=True), block, 3, 1000, 1000)
        assert isinstance(made, Private)
        noise, secret = made.noise(sum_index), _drawn(f"contribution {name} {sum_index}")
        given = Contribution(made.inner.layout(sum_index).split(np.array(vector)))
        spec = made.round_spec(SEED, sum_index)
        sent = made.noised(made.initial_state(SEED), spec, given, lambda _, secret=secret: secret)  # type: ignore[misc]
        cases.append(
            {
                "recipe": name,
                "parameters": parameters,
                "sum_index": sum_index,
                "vector": vector,
                "secret": secret.hex(),
                "l1": noise.l1,
                "l2": noise.bound,
                "share": noise.share,
                "entries": largest_skellam(noise.share),
                "largest": noise.largest,
                "sent": sent.vector.astype(int).tolist(),
                "clipped": sent.clipped,
                "scaled": sent.scaled,
            }
        )

    def not_finite() -> object:
        made = with_privacy(recipe("arrays", {"shapes": {"w": [1]}}), block, 3, 1000, 1000)
        assert isinstance(made, Private)
        wrong = Contribution([np.array([np.nan])])
        return made.noised(made.initial_state(SEED), made.round_spec(SEED, 1), wrong, lambda _: _drawn("wrong"))

    failing = {
        "a recipe without a bound": lambda: with_privacy(recipe("topk", {"items": 9}), block, 3, 1000, 1000),
        "no honest client": lambda: with_privacy(recipe("fedmf", {"items": 9}), block, 3, 1000, 100),
        "a value that is not finite": not_finite,
    }
    return {
        "privacy": block.model_dump(),
        "schedule": {"rounds": 3, "cohort_size": 1000, "min_clients": 1000},
        "cases": cases,
        "failing": failures(failing),
    }


def privacy() -> dict[str, Any]:
    """The noise sampler, rounding, the accountant, and contributions with noise."""
    secret = _drawn("keystream")
    return {
        "about": "See docs/wire/privacy.md. Randomness is the keystream of digest('vector privacy', label); of sampler "
        "and rounding, the label is 'sampler VARIANCE' or 'rounding LABEL'. sampler: first, sha256: of the table's "
        "entries, uint64 little-endian. rounding, contributions: steps, sent: whole numbers. accountant: epsilon of so "
        "many equal sums at a delta; sampled_at_0.1: the first orders; shares: for both kinds (L1, L2) of sums. "
        "contributions: vector is the recipe's own, secret the 32 random bytes.",
        "keystream": {"secret": secret.hex(), "bytes": expanded(lambda _: secret)(40).hex()},
        "sampler": _sampler(),
        "rounding": _rounding(),
        "accountant": _accountant(),
        "contributions": _contributions(),
    }
