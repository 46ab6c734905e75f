"""The sum of seeded CKKS ciphertexts: SEAL expands each seed to the second polynomial, and adds both polynomials.

A seeded ciphertext is given to SEAL in its own uncompressed form, through a file in memory: SEAL's load expands the
seed. Expansion is most of the time of a fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from protocols.sums.ckks.planner import SEED_BYTES, CkksPlan
from protocols.sums.ckks.seal_io import MemoryFile, SealContext, seal_context

__all__ = ["SeededSum"]


class SeededSum:
    """Sums of a plan's ciphertexts, each None until the first one is added to it."""

    def __init__(self, plan: CkksPlan) -> None:
        self._plan = plan
        self._context: SealContext = seal_context(plan.parameters.set, plan.degree)
        self._sums: dict[int, Any] = {}
        self._expanded = sealapi.Ciphertext()
        self._given, self._saved = MemoryFile(), MemoryFile()
        prefix = self._context.ciphertext_prefix(plan.scale, 1)
        suffix = self._context.seed_marker() + bytes(SEED_BYTES)
        stream = self._context.stream(prefix, np.zeros(plan.degree, np.uint64), suffix)
        self._given.write(stream)
        self._seed_at = len(stream) - SEED_BYTES
        self._residues_at = len(stream) - len(suffix) - 8 * plan.degree

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._given.close()
        self._saved.close()

    def add(self, places: Sequence[int], residues: NDArray[np.uint64], seed: memoryview) -> None:
        """Add one ciphertext, given by the residues (degree, below q) and the seed, to those at `places`."""
        self._given.overwrite(residues.data, self._residues_at)
        self._given.overwrite(seed, self._seed_at)
        fresh = [place for place in places if place not in self._sums]
        for place in fresh:
            self._sums[place] = self._load(sealapi.Ciphertext())
        if len(fresh) < len(places):
            self._load(self._expanded)
            for place in places:
                if place not in fresh:
                    self._context.evaluator.add_inplace(self._sums[place], self._expanded)

    def _load(self, ciphertext: Any) -> Any:
        ciphertext.load(self._context.seal, self._given.path)
        return ciphertext

    def take(self, index: int) -> NDArray[np.uint64]:
        """Return the residues (2 * degree) of ciphertext `index` and free it; zeros if nothing was added to it.

        They are valid until the next call.
        """
        plan, found = self._plan, self._sums.pop(index, None)
        if found is None:
            return np.zeros(2 * plan.degree, np.uint64)
        prefix = self._context.ciphertext_prefix(plan.scale, 2)
        return self._saved.saved(found, prefix, 2 * plan.degree, 0)[0]
