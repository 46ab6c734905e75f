"""The rows of the table and their published values.

Nguyen et al., "Towards Efficient Communication and Secure Federated Recommendation System via Low-rank Training"
(WWW 2024), Table 3: MovieLens-1M, item factors of 3706 x 64 values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["DIM", "ITEMS", "ROWS", "SOURCE", "Published", "Row"]

ITEMS: Final = 3706
DIM: Final = 64
SOURCE: Final = "Nguyen et al., WWW 2024, Table 3"


@dataclass(frozen=True)
class Published:
    """One row of the paper's table: overheads in seconds, sizes in KB of 1,024 bytes."""

    client_seconds: float
    server_seconds: float
    ciphertext_kb: int
    plaintext_kb: int
    ratio: float


@dataclass(frozen=True)
class Row:
    """One row: `share` sixty-fourths of the item factors, as low-rank rows (CoLR) or as single entries (Top-K)."""

    key: str
    label: str
    family: Literal["fedmf", "topk", "colr"]
    share: int
    published: Published

    @property
    def values(self) -> int:
        """Number of values of one contribution, as the paper counts them: without touch counts."""
        return ITEMS * self.share

    @property
    def plaintext_bytes(self) -> int:
        """Size in bytes: 4 per value, 8 per entry of Top-K (value and index)."""
        return self.values * (8 if self.family == "topk" else 4)


def _topk(share: int, *published: float) -> Row:
    return Row(f"topk{share}", f"Top-K@{share}/64", "topk", share, _published(published))


def _colr(rank: int, *published: float) -> Row:
    return Row(f"colr{rank}", f"CoLR@{rank}", "colr", rank, _published(published))


def _published(numbers: tuple[float, ...]) -> Published:
    client, server, ciphertext, plaintext, ratio = numbers
    return Published(client, server, int(ciphertext), int(plaintext), ratio)


ROWS: Final = (
    Row("fedmf", "FedMF", "fedmf", DIM, Published(0.93, 2.39, 24587, 927, 26.52)),
    _topk(1, 88.20, 88.06, 3028, 29, 103.09),
    _topk(2, 182.02, 185.59, 6056, 58, 103.83),
    _topk(4, 353.25, 364.67, 12112, 116, 104.20),
    _topk(8, 723.45, 750.98, 24225, 232, 104.40),
    _topk(16, 1449.90, 1483.91, 48448, 464, 104.49),
    _colr(1, 0.07, 0.24, 3073, 15, 206.31),
    _colr(2, 0.07, 0.25, 3073, 29, 104.63),
    _colr(4, 0.07, 0.25, 3073, 58, 52.69),
    _colr(8, 0.08, 0.25, 3073, 116, 26.44),
    _colr(16, 0.15, 0.51, 6147, 232, 26.49),
    _colr(32, 0.30, 1.03, 12293, 464, 26.51),
)
"""In the paper's order."""
