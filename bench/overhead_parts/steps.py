"""The measured values of one row and one way: the steps of a client and of the server, and the size on the wire.

Times are processor seconds. Every step runs in one thread and never waits, so on an idle machine they equal wall time,
and on a busy machine they are still correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from statistics import median
from time import process_time
from typing import Final, Protocol

from bench._report import Figure
from bench.overhead_parts.rows import Row

__all__ = ["KB", "Measure", "Steps", "Way", "figures_of", "medians", "published_figures", "steps_in"]

KB: Final = 1024


@dataclass(frozen=True)
class Steps:
    """Seconds of a client's steps in a round, of the server's for one client, and bytes of one contribution.

    seal: from the float64 vector to the bytes of a contribution. open: from the bytes of the sum to its values.
    fold: from the bytes of a contribution until it is added, checks included. scaled: measured on a sample of the
    values and multiplied.
    """

    seal: float
    open: float
    fold: float
    ciphertext_bytes: int
    scaled: bool = False

    @property
    def client(self) -> float:
        """Sum of the client's steps in seconds."""
        return self.seal + self.open


def medians(
    steps: Mapping[str, Callable[[], object]], repetitions: int, calls: int = 1, warm: bool = True
) -> dict[str, float]:
    """Median processor seconds of one call of every step.

    All steps take turns in every repetition, each called `calls` times. warm: run one repetition first that does not
    count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repetition in range(repetitions + warm):
        for name, step in steps.items():
            start = process_time()
            for _ in range(calls):
                step()
            elapsed = process_time() - start
            if repetition >= warm:
                seconds[name].append(elapsed / calls)
    return {name: median(values) for name, values in seconds.items()}


class Measure(Protocol):
    """Measures a row for a sum over `clients` contributions; called once per row."""

    def __call__(self, row: Row, clients: int, repetitions: int, /) -> Steps: ...


@dataclass(frozen=True)
class Way:
    """One way of making the sums: its name in the JSON keys, the families it can carry, and its measurement."""

    key: str
    families: frozenset[str]
    measure: Measure


def figures_of(row: Row, way: str, steps: Steps) -> dict[str, Figure]:
    """Flat figures `<row>.<way>.<figure>`; sizes in KB of 1,024 bytes, as in the paper."""
    prefix = f"{row.key}.{way}"
    return {
        f"{prefix}.client_seal_seconds": steps.seal,
        f"{prefix}.client_open_seconds": steps.open,
        f"{prefix}.client_seconds": steps.client,
        f"{prefix}.server_seconds": steps.fold,
        f"{prefix}.ciphertext_kb": steps.ciphertext_bytes / KB,
        f"{prefix}.plaintext_kb": row.plaintext_bytes / KB,
        f"{prefix}.ratio": steps.ciphertext_bytes / row.plaintext_bytes,
        f"{prefix}.scaled": steps.scaled,
    }


def published_figures(rows: Iterable[Row]) -> dict[str, Figure]:
    """The paper's table under `<row>.paper.<figure>`."""
    return {
        f"{row.key}.paper.{field.name}": asdict(row.published)[field.name]
        for row in rows
        for field in fields(row.published)
    }


def steps_in(figures: Mapping[str, Figure], row: Row, way: str) -> Steps | None:
    """The inverse of `figures_of`; None if this row was not measured in this way."""
    prefix = f"{row.key}.{way}"
    if f"{prefix}.client_seconds" not in figures:
        return None
    names = ("client_seal_seconds", "client_open_seconds", "server_seconds", "ciphertext_kb")
    seal, opening, fold, size = (float(figures[f"{prefix}.{name}"] or 0.0) for name in names)
    return Steps(seal, opening, fold, round(size * KB), scaled=bool(figures[f"{prefix}.scaled"]))
