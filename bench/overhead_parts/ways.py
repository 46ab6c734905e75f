"""The ways of making the sums of a row. A new mechanism adds an entry here."""

from __future__ import annotations

from bench.overhead_parts import ckks
from bench.overhead_parts.masked import masked
from bench.overhead_parts.paillier import Paillier
from bench.overhead_parts.phe_usual import KEY_BITS, PheUsual
from bench.overhead_parts.steps import Way

__all__ = ["KEY_BITS", "ways"]

_DENSE = frozenset({"fedmf", "colr"})
_TOPK = frozenset({"topk"})


def ways(phe_sample: int | None) -> tuple[Way, ...]:
    """All ways, in the order of the tables. phe_sample: number of values that phe is measured on, None for all."""
    return (
        Way("usual", _DENSE, ckks.tenseal_usual),
        Way("usual", _TOPK, PheUsual(phe_sample)),
        Way("ours", _DENSE, ckks.ours),
        Way("ours", _TOPK, Paillier()),
        Way("masked", _DENSE | _TOPK, masked),
    )
