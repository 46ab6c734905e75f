"""What the benchmarks must show: one place, which the scripts, the page and a test of bench/README.md read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from bench._report import Figure

__all__ = ["TARGETS", "Target", "verdicts"]


@dataclass(frozen=True)
class Target:
    """A figure and the bound that it must keep. `what`: in words, for the page.

    `optional`: only some runs of the script have it, and nothing is said of it where it is missing.
    """

    key: str
    sign: Literal["<=", ">="]
    bound: float
    what: str
    optional: bool = False

    @property
    def words(self) -> str:
        """Like `>= 40` or `<= 1e-6`."""
        bound = f"{self.bound:g}" if self.bound >= 1e-3 else f"{self.bound:.0e}".replace("e-0", "e-")
        return f"{self.sign} {bound}"

    def met(self, value: float) -> bool:
        """Whether `value` keeps the bound."""
        return value <= self.bound if self.sign == "<=" else value >= self.bound

    def margin(self, value: float) -> float:
        """How many times better than the bound: 1 at the bound, below it when missed."""
        if self.sign == ">=":
            return value / self.bound
        return self.bound / value if value > 0 else float("inf")


def _at_most(key: str, bound: float, what: str) -> Target:
    return Target(key, "<=", bound, what)


def _at_least(key: str, bound: float, what: str) -> Target:
    return Target(key, ">=", bound, what)


def _paillier(bits: int) -> tuple[Target, ...]:
    return (
        _at_least(f"bits{bits}.encrypt_speedup_table", 400, f"{bits}-bit key: encryption with a fixed-base table"),
        _at_least(f"bits{bits}.encrypt_speedup_pool", 4000, f"{bits}-bit key: encryption from a filled pool"),
        _at_least(f"bits{bits}.bytes_ratio", 40, f"{bits}-bit key: times fewer bytes"),
        _at_least(f"bits{bits}.fold_speedup", 50, f"{bits}-bit key: the server's fold"),
        _at_least(f"bits{bits}.decrypt_speedup", 40, f"{bits}-bit key: decryption"),
    )


def _round1000(optional: bool) -> tuple[Target, ...]:
    return (
        Target("round1000.exact", ">=", 1, "1,000 clients over HTTP: the sum is exact", optional),
        Target("round1000.peak_rss_ratio", "<=", 1.2, "server memory, 1,000 clients / 200 clients", optional),
    )


TARGETS: Final[dict[str, tuple[Target, ...]]] = {
    "ckks": (
        _at_most("upload_ratio_compact", 1.1, "upload / float32 plaintext, set compact"),
        _at_most("upload_ratio_standard", 1.4, "upload / float32 plaintext, set standard"),
        _at_most("upload_ratio_public", 4.0, "upload / float32 plaintext, public key"),
        _at_least("encrypt_speedup_seeded", 8.0, "client beside TenSEAL, seeded"),
        _at_least("encrypt_speedup_public", 4.0, "client beside TenSEAL, public key"),
        _at_least("fold_speedup_expanded", 30.0, "server beside TenSEAL, expanded"),
        _at_least("fold_speedup_seeded", 3.0, "server beside TenSEAL, seeded"),
        _at_most("max_error_standard", 1e-6, "largest error of the sum, set standard"),
        _at_most("predicted_error_standard", 1e-6, "its bound"),
        _at_most("max_error_compact", 1e-4, "largest error of the sum, set compact"),
        _at_most("predicted_error_compact", 1e-4, "its bound"),
    ),
    "memory": (_at_most("peak_rss_ratio", 1.2, "server memory, 500 clients / 50 clients"),),
    "service": (
        _at_least("ingest_fraction", 0.6, "ingest of 4 MB contributions / bare server discarding them"),
        _at_least("control_fraction", 0.5, "polls a second / bare FastAPI route"),
        _at_least("round10k.exact", 1, "10,000 clients, one encrypted round: the sum is right"),
        _at_most("round10k.peak_rss_ratio", 1.2, "server memory, 10,000 clients / 1,000 clients"),
    ),
    "overhead": (
        _at_most("fedmf.ours.ratio", 1.4, "upload / float32 plaintext, the full matrix"),
        _at_most("seconds", 600, "seconds that the whole table takes"),
    ),
    "paillier": (*_paillier(2048), *_paillier(3072)),
    "masked": (
        _at_least("server_speedup_vs_flower", 30, "server side of a round, beside Flower"),
        _at_least("share_speedup_vs_flower", 10, "a client's share stage, beside Flower"),
        _at_most("bytes_per_value", 4.1, "upload, bytes a value at 32 bits"),
        _at_least("mask_fraction_of_aes", 0.6, "masking / raw AES-CTR"),
        _at_least("quantise_speedup_vs_flower", 5, "a client's quantisation, beside Flower"),
        *_round1000(optional=True),
    ),
    "masked_round": _round1000(optional=False),
    "training": (
        _at_most("client_round_ms", 5, "a client's round, all 64 columns, ms"),
        _at_most("client_round_ms_colr4", 5, "a client's round, CoLR at rank 4, ms"),
        _at_most("colr1000.seconds", 600, "60 clients x 1,000 rounds of CoLR in one process, seconds"),
    ),
}
"""By script, which is also the name of its results file."""


def verdicts(script: str, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """`key (bound)` -> the figure, marked when it is missed or not there: what a script prints at its end."""
    rows: dict[str, Figure] = {}
    for target in TARGETS[script]:
        value = figures.get(target.key)
        if isinstance(value, int | float):
            rows[f"{target.key} ({target.words})"] = f"{value:.4g}{'' if target.met(value) else '   MISSED'}"
        elif not target.optional:
            rows[f"{target.key} ({target.words})"] = "not measured"
    return rows
