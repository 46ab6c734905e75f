"""The evaluation protocol of PFedCLR and its sibling code bases. It leaks, and is here for comparison only.

The released code of PFedRec and of FedEM (by PFedCLR's authors) draws training negatives from the items that a user
never interacted with. The held-out item is an interaction, so it is never drawn, while the 99 items that it is ranked
against come from that very pool and are drawn again and again. Whatever remembers what was a negative finds the
held-out item: "the fewer times drawn, the better" needs no learning and reaches an HR@10 above 0.99 on MovieLens-100K
(`client_sdk.evaluation.drawn`). Original NCF leaves out the training items only, and so does this project elsewhere.

Not to be confused with the released CoLR code, which leaves out the held-out item AND its 99 opponents: none of the
hundred is favoured, so that is no leak.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import LeaveOneOut

__all__ = ["LEAK_WARNING", "PaperProtocol", "paper_protocol"]

LEAK_WARNING: Final = (
    "paper_protocol LEAKS the held-out items: they alone are never drawn as training negatives, so a model that only "
    "remembers what it was told is negative ranks them first. Its figures compare with papers that do the same and say "
    "nothing about recommending; beside them belong those of the clean protocol and of the control that learns nothing."
)
"""What must be shown beside every figure under `paper_protocol`."""

_log = logging.getLogger(__name__)


class PaperProtocol(NamedTuple):
    """What the leaky protocol needs, and what has to be said about it."""

    excluded: NDArray[np.int32]
    """int32 (n_users, 1): what a user never draws as a negative besides its training items; -1 for nothing."""
    warning: str
    """`LEAK_WARNING`; to be shown wherever the figures are."""


def paper_protocol(data: LeaveOneOut) -> PaperProtocol:
    """Exclusions for `Federation(excluded=...)` under which negatives avoid all a user ever interacted with.

    Training items are left out in any case, so these are the held-out items. Logs `LEAK_WARNING` as a warning.
    """
    _log.warning(LEAK_WARNING)
    return PaperProtocol(data.test_items[:, None].copy(), LEAK_WARNING)
