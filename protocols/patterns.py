"""Which clients of a sum contribute to which of its blocks, and how many have that in common.

A sum has a value of its own for each block, and whoever sees it can compare them: where the blocks of a client's route
are the first ones of the layout, the difference of two neighbouring blocks comes from the clients of one route. So a
sum may only be released if each route is that of no client, or of at least `min_clients` (`short_routes`). The counts
of all blocks are sums over routes, so they keep to the same floor. In a sum without routes all clients have one.

Clients whose resources differ draw levels; `levels_in_use` lowers some of them before a round, so that each level has
enough clients, with room for dropouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from protocols.errors import ParameterError, RefusalError
from protocols.layout import Route

__all__ = ["check_levels", "lowered", "levels_in_use", "refuse_short_routes", "short_routes"]


def levels_in_use(drawn: Iterable[int], min_clients: int) -> tuple[int, ...]:
    """Return the levels, ascending from 1, to which clients that drew the levels `drawn` (from 1) are lowered.

    From the highest level down, a level is used if at least `least` clients are left for it: those that drew it or a
    higher one that is not used. `least` is min_clients, a quarter more and one, since some may drop out. The lowest
    level used above 1 is given up if too few are left for level 1.
    """
    least, counts, waiting = min_clients + min_clients // 4 + 1, Counter(drawn), 0
    used: list[int] = []
    for level in sorted((level for level in counts if level > 1), reverse=True):
        waiting += counts[level]
        if waiting >= least:
            used.append(level)
            waiting = 0
    if used and 0 < waiting + counts[1] < least:
        used.pop()
    return (1, *reversed(used))


def lowered(level: int, used: tuple[int, ...]) -> int:
    """Return the largest of the levels `used` that is not above `level`; `level` itself where `used` is empty."""
    return max((each for each in used if each <= level), default=level)


def check_levels(used: tuple[int, ...], most: int) -> None:
    """Raise `ParameterError` unless these are levels in use: from 1, ascending, at most `most`; none if most is 0."""
    if most == 0 and not used:
        return
    if not used or used[0] != 1 or used[-1] > most or list(used) != sorted(set(used)):
        stated = ", ".join(map(str, used)) or "none"
        raise ParameterError(f"the levels in use are {stated}: 1 and others up to {most} were expected, ascending")


def short_routes(routes: Iterable[Route], min_clients: int) -> list[int]:
    """Return the number of clients of each route that fewer than `min_clients` have, ascending; empty if none has."""
    return sorted(count for count in Counter(routes).values() if count < min_clients)


def refuse_short_routes(clients: Iterable[str], route: Callable[[str], Route], min_clients: int, what: str) -> None:
    """Raise `RefusalError` if fewer than `min_clients` of these clients, but not none, have a route in common.

    route: returns the route of a client. what: which clients these are, such as "the roster".
    """
    short = short_routes(map(route, clients), min_clients)
    if short:
        raise RefusalError(
            f"{what} has {short[0]} clients that contribute to the same blocks of the sum, and {min_clients} are "
            "needed: the sum would show what these few sent"
        )
