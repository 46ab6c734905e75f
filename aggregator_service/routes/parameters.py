"""Forecast of a masked round, for choosing parameters before a task is created."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query

from aggregator_service.access.tokens import new_id
from aggregator_service.http.authentication import PrincipalOf
from aggregator_service.routes.common import guarded
from aggregator_service.routes.late_route import api_router
from aggregator_service.services import ServicesOf
from protocols.errors import ParameterError
from protocols.messages import MaskedForecast
from protocols.sums.masked import messages
from protocols.sums.masked.packing import packed_bytes
from protocols.sums.masked.parameters import MaskedParameters, Mode, Neighbourhood, choose_neighbourhood

__all__ = ["router"]

router = api_router("/v1/parameters", tag="tasks")

_DEFAULT: Final = MaskedParameters()
_ENTRY_BYTES: Final = 1 + len(new_id("c")) + 3 * messages.KEY_BYTES + messages.ADVERTISEMENT_BYTES
"""Bytes of one member in a roster; ids have the length of those that this server assigns."""


def _search(
    clients: int, corrupt: float, dropout: float, mode: Mode, sigma: int, eta: int
) -> Neighbourhood | ParameterError:
    """Return the neighbourhood, or the refusal, which takes as long to compute."""
    try:
        return choose_neighbourhood(clients, corrupt, dropout, mode, sigma, eta)
    except ParameterError as error:
        return error


@router.get("/masked", summary="Forecast a masked round", responses=guarded())
async def masked(
    services: ServicesOf,
    _principal: PrincipalOf,
    clients: Annotated[int, Query(description="Number of clients that take part.", ge=3, le=1_000_000, examples=[100])],
    corrupt: Annotated[float, Query(description="Fraction of clients that may collude.", ge=0, lt=1)] = (
        _DEFAULT.corrupt
    ),
    dropout: Annotated[float, Query(description="Fraction of clients that drop out.", ge=0, lt=1)] = _DEFAULT.dropout,
    mode: Annotated[Mode, Query(description="Trust in the server: curious or semi-malicious.")] = _DEFAULT.mode,
    sigma: Annotated[
        int, Query(description="-log2 of the chance of a privacy failure.", ge=20, le=80)
    ] = _DEFAULT.sigma,
    eta: Annotated[int, Query(description="-log2 of the chance of a failed round.", ge=10, le=80)] = _DEFAULT.eta,
    values: Annotated[int, Query(description="Number of values in the vector.", ge=1, le=2**40)] = 1,
    bits: Annotated[int, Query(description="Bits of each value.", ge=16, le=64)] = _DEFAULT.bits,
) -> MaskedForecast:
    """Return degree, threshold, failure probabilities and message sizes of a masked round.

    422 if no number of neighbours meets the targets; the detail says which parameters would.
    """
    asked = clients, corrupt, dropout, mode, sigma, eta
    found = await services.neighbourhoods.get(asked, lambda: _search(*asked))
    if isinstance(found, ParameterError):
        raise found.with_traceback(None)
    facts, degree = found.describe(), found.degree
    confirms = mode == "semi-malicious"
    return MaskedForecast.model_validate(
        {
            **{name: facts[name] for name in MaskedForecast.model_fields if name in facts},
            "sent": {
                "advertise": messages.ADVERTISEMENT_BYTES,
                "share": messages.share_bytes(degree),
                "contribute": packed_bytes(values, bits),
                **({"confirm": messages.CONFIRMATION_BYTES} if confirms else {}),
                "unmask": messages.reply_bytes(degree),
            },
            "received": {
                "roster": 4 + _ENTRY_BYTES * clients,
                "inbox": messages.inbox_bytes(clients, degree),
                "survivors": messages.set_bytes(clients),
                **({"confirmations": messages.confirmations_bytes(clients)} if confirms else {}),
            },
        }
    )
