"""When clients come to a server that expects many: a small population arrives together, a large one spread out.

Bonawitz et al., "Towards Federated Learning at Scale: System Design", MLSys 2019, section 2.3 (pace steering).

A server computes both times and a client obeys them, as seconds of Retry-After. Nothing is kept: the place of a client
in the window of a round follows from the round's seed.
"""

from __future__ import annotations

from typing import Final

from protocols.crypto.keys import digest

TOGETHER_SECONDS: Final = 10.0
"""As many clients as a server serves in this time arrive together: they wait less than they would for a window."""
LONGEST_REST: Final = 600.0
"""No client is told to stay away for longer, nor does one obey."""
SHORTEST_REST: Final = 5.0


def spread(clients: int, rate: float, stage_seconds: float) -> float:
    """Return the seconds over which the first messages of a round arrive; 0: at once.

    clients: of the cohort. rate: clients that the servers serve in a second; 0: no windows. stage_seconds: until the
    deadline of these messages, of which half is left to the last client.
    """
    if clients <= rate * TOGETHER_SECONDS or not rate:
        return 0.0
    return min(clients / rate, _longest(stage_seconds))


def window(seed: bytes, client_id: str, clients: int, rate: float, stage_seconds: float) -> float:
    """Return the seconds from the opening of a round until a client of its cohort begins; seed: of the round."""
    return spread(clients, rate, stage_seconds) * _unit(seed, client_id)


def rest(members: int, rate: float, stage_seconds: float, unit: float) -> float:
    """Return the seconds after which a client asks again whose poll found no room to wait.

    members: of the task. unit: uniform in [0, 1). All members together then ask `rate` times a second, unless a round
    would be half over before they hear of it.
    """
    mean = min(members / rate, _longest(stage_seconds) / 1.5) if rate else 0.0
    return max(SHORTEST_REST, mean * (0.5 + unit))


def _longest(stage_seconds: float) -> float:
    return min(stage_seconds / 2, LONGEST_REST)


def _unit(seed: bytes, client_id: str) -> float:
    """Return a number in [0, 1): 53 bits of a digest."""
    return (int.from_bytes(digest("window", seed, client_id)[:8], "big") >> 11) / 2**53
