"""What the number of a privacy block promises, in plain words: whom it holds against, and what it leaves visible.

These sentences are the only ones: the API, the warnings of a task, the commands and the dashboard show them.
"""

from __future__ import annotations

from math import exp, floor, log
from typing import Final, Literal

__all__ = ["NOT_HIDDEN", "RELEASED", "default_delta", "holds_against"]

RELEASED: Final = (
    "It holds for the released sums and for everything computed from them, models and recommendations too, whoever "
    "sees them."
)
NOT_HIDDEN: Final = "It does not hide who takes part, and how often."
_LARGEST_DELTA: Final = 1e-5


def holds_against(
    opened_by: Literal["anyone", "members"], cohort_size: int, corrupt: float, committee: tuple[int, int] | None
) -> str:
    """Return whom the guarantee of a privacy block holds against while a sum is made.

    opened_by: who can open a sum of the mechanism. corrupt: share of a cohort of `cohort_size` whose noise is not
    counted on. committee: of one-shot sums, its members and how many of them may collude with the server; else None.
    """
    if opened_by == "members":
        return (
            "It holds against the server, and against each member, as long as no member, the key holder included, "
            "colludes with the server: every member has the key that opens a single contribution, which carries one "
            "client's share of the noise only."
        )
    together = f"the server together with up to {floor(corrupt * cohort_size)} of the {cohort_size} clients of a cohort"
    if committee is None:
        hidden = "masks hide each contribution, under the conditions that the task's other warnings state"
        return f"It holds against {together}: {hidden}."
    members, colluding = committee
    return (
        f"It holds against {together} and {colluding} of the {members} members of the committee: more of them can open "
        "a single contribution, which carries one client's share of the noise only."
    )


def default_delta(clients: int) -> float:
    """Return the delta of a task whose maker names none: clients^-1.1, and at most 1e-5. clients: that are expected.

    The probability of a failure must be well below one client in all. More members than expected may enrol, and a small
    cohort says little about them: hence the second bound, which matters below 35,000 clients.
    """
    return min(_LARGEST_DELTA, exp(-1.1 * log(max(clients, 1))))
