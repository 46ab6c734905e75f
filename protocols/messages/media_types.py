"""Media types of raw bodies. A body without a type, or with the general one, is accepted too."""

from __future__ import annotations

from typing import Final

from protocols.messages.stages import StageMessage

__all__ = ["CONTRIBUTION", "OCTETS", "PARTIAL_UPLOAD", "STAGE_TYPES", "handout_type"]

OCTETS: Final = "application/octet-stream"
_PREFIX: Final = "application/vnd.hushrec."
CONTRIBUTION: Final = _PREFIX + "contribution"
PARTIAL_UPLOAD: Final = "application/partial-upload"
"""Of a chunk of a resumable upload (draft-ietf-httpbis-resumable-upload)."""
STAGE_TYPES: Final[dict[StageMessage, str]] = {
    "advertise": _PREFIX + "advertisement",
    "share": _PREFIX + "shares",
    "confirm": _PREFIX + "confirmation",
    "unmask": _PREFIX + "reply",
}


def handout_type(what: str) -> str:
    """Return the media type of what the server hands out in a stage: roster, inbox, survivors, ..."""
    return _PREFIX + what
