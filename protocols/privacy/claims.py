"""What papers state about the privacy of their Laplace noise, and why it is not the privacy cost of a user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

__all__ = ["PAPER_CLAIMS", "PaperClaim"]


@dataclass(frozen=True)
class PaperClaim:
    """A paper's statement about its privacy.

    dim: length of an item's factor in the paper's experiments. clip: bound on each value, None if the paper bounds
    something else or gives no number. scale: of the Laplace noise. formula: the paper's epsilon in words. per: what
    that epsilon is for. objections: why the statement does not hold, or does not mean what a reader may think.
    """

    system: str
    source: str
    dim: int
    clip: float | None
    scale: float
    formula: str
    per: Literal["coordinate", "round"]
    objections: tuple[str, ...]

    @property
    def epsilon(self) -> float | None:
        """The epsilon that the paper states or that follows from its formula; None if it gives no number."""
        return None if self.clip is None else 2 * self.clip / self.scale


_RFREC_OBJECTIONS: Final = (
    "A client sends items x dim coordinates that all follow from its own data, in every round. Their costs add up, and "
    "the paper adds none.",
    "The released code draws one Laplace number a client and adds it to every entry. The difference between any two "
    "entries is then sent without noise: that is no local differential privacy, for any epsilon.",
    "The released code has other values than the text, clip 0.4 with scale 0.1 and 0.2 with 0.08, and its noise "
    "is commented out.",
)
PAPER_CLAIMS: Final[Mapping[str, PaperClaim]] = MappingProxyType(
    {
        "pfedclr": PaperClaim(
            system="PFedCLR",
            source="section 4, appendix B.4 (eq. 35, 36, lemma B.7) and D.7",
            dim=16,
            clip=None,
            scale=0.5,
            formula="S_u / lambda, with S_u at most 2 p_u eta C",
            per="round",
            objections=(
                "p_u is the weight of the client in the server's mean, so S_u is the sensitivity of the mean. The "
                "noise is local: it is added to Q_u, whose sensitivity has no p_u in it.",
                "S_u is that of a single gradient step with rate eta. Training is 10 epochs of Adam, which divides "
                "gradients by their own size: clipping them bounds no change of Q_u by eta C.",
                "C bounds a norm of the whole gradient, and which one is not said. Laplace noise needs the sum of the "
                "absolute values; for the Euclidean norm that is up to sqrt(items x dim) times as much.",
                "Neither C nor a value of epsilon is given, and what 100 rounds cost together is not asked.",
            ),
        ),
        "rfrec": PaperClaim(
            system="RFRec",
            source="section 3.4 (eq. 9) and RQ6",
            dim=20,
            clip=0.2,
            scale=0.04,
            formula="2 delta / s, with clip delta and scale s",
            per="coordinate",
            objections=_RFREC_OBJECTIONS,
        ),
        "rfrecf": PaperClaim(
            system="RFRecF",
            source="section 3.4 (eq. 9) and RQ6",
            dim=20,
            clip=0.2,
            scale=0.06,
            formula="2 delta / s, with clip delta and scale s",
            per="coordinate",
            objections=_RFREC_OBJECTIONS,
        ),
    }
)
"""Name of the recipe -> the paper's statement."""
