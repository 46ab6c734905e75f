"""The evaluation protocol of PFedCLR and related code. It leaks the held-out items; use it only for comparison.

The released code of PFedRec and of FedEM (by PFedCLR's authors) draws training negatives from the items that a user
never interacted with. The user did interact with the held-out item, so it is never drawn, while the 99 items that it is
ranked against are drawn many times. A model that memorises its negatives therefore ranks the held-out item first.
Ranking items by how seldom they are drawn, without a model, reaches an HR@10 above 0.99 on MovieLens-100K
(`client_sdk.evaluation.drawn`). The original NCF code excludes only the training items, as this project does elsewhere.

The released CoLR code is different: it excludes the held-out item AND the 99 items that it is ranked against. None of
the hundred is favoured, so it does not leak.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import LeaveOneOut

__all__ = ["LEAK_WARNING", "PaperProtocol", "paper_protocol"]

LEAK_WARNING: Final = (
    "paper_protocol LEAKS the held-out items: they are never drawn as training negatives, so a model that only "
    "memorises its negatives ranks them first. Use its figures only for comparison with papers that do the same; they "
    "do not show how well a model recommends. Report the figures of the clean protocol and of the controls next to "
    "them."
)
"""The warning to show next to every figure under `paper_protocol`."""

_log = logging.getLogger(__name__)


class PaperProtocol(NamedTuple):
    """The exclusions of the leaky protocol, and its warning."""

    excluded: NDArray[np.int32]
    """int32 (n_users, 1): the item that a user never draws as a negative besides its training items; -1 for none."""
    warning: str
    """`LEAK_WARNING`, to be shown wherever the figures are."""


def paper_protocol(data: LeaveOneOut) -> PaperProtocol:
    """Return the held-out items as exclusions for `Federation(excluded=...)`, and log `LEAK_WARNING` as a warning.

    Training items are always excluded, so with these no item that a user interacted with is drawn as a negative.
    """
    _log.warning(LEAK_WARNING)
    return PaperProtocol(data.test_items[:, None].copy(), LEAK_WARNING)
