"""A client's masked round whose vector is given instead of trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk.api.wire import Program
from client_sdk.rounds.masked import MaskedRound

__all__ = ["GivenElements"]


@dataclass
class GivenElements(MaskedRound):
    """A round that has begun, with `spec` and `context`. elements: called once, when the client contributes."""

    elements: Callable[[], NDArray[np.unsignedinteger[Any]]] = field(kw_only=True)

    def _elements(self) -> Program[NDArray[np.unsignedinteger[Any]]]:
        yield from ()
        return self.elements()
