"""The privacy block of a task, what the server says of it, and what its number promises in plain words.

These sentences are the only ones: the API, the warnings of a task, the commands and the dashboard show them.
"""

from __future__ import annotations

from math import exp, floor, log
from typing import Final, Literal

from pydantic import Field

from protocols.messages.base import Message

_SUMS: Final = (
    "Most sums of the task that one client contributes to, failed rounds included; null: two more than the task needs, "
    "which is the schedule's rounds, or as many sums as the recipe ends after, if they are fewer. A client that "
    "reached it abstains. Where all sums are over one cohort, less than the default is refused."
)


class Privacy(Message):
    """Differential privacy of what a task releases, by noise that every client adds before it seals its contribution.

    The noise follows: it is so large that the honest clients of the smallest allowed round alone reach the target.
    Neighbours: one client's contributions to all sums of the task are replaced by zeros.
    """

    epsilon: float = Field(gt=0, le=1000, description="Cost to a client of all its contributions to the task together.")
    delta: float = Field(gt=0, lt=0.01, description="Probability in the guarantee; below 1 / members.")
    clip: float = Field(
        default=1.0,
        gt=0,
        le=1e6,
        description="L2 bound on a client's update in sums that train, in which it adapts from this value on. Other "
        "sums have a bound that follows from what they sum.",
    )
    quantile: float | None = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="Share of the clients whose updates shall be within the bound, to which it adapts; null: it stays.",
    )
    most_items: int = Field(
        default=100,
        ge=1,
        le=1_000_000,
        description="Most items of a client that a sum of counts counts; of more, so many are drawn at random.",
    )
    rounds: int | None = Field(default=None, ge=1, le=1_000_000, description=_SUMS)
    corrupt: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Share of a cohort that may collude with the server or leave its noise out: it is not counted on.",
    )


class SumNoiseView(Message):
    """The noise in one sum. Steps: whole numbers, in which such sums are computed."""

    sum_index: int = Field(ge=1)
    bound: float = Field(gt=0, description="L2 norm of a contribution, in steps, at most.")
    share_variance: float = Field(gt=0, description="Variance of each client's noise in a value, in steps^2.")
    deviation: float = Field(
        gt=0, description="Standard deviation of the noise in a value of the sum of the fewest clients, in steps."
    )


class PrivacyView(Message):
    """What a task with a privacy block promises, and how much of it is used."""

    terms: Privacy
    honest_clients: int = Field(ge=1, description="Clients of the smallest round whose noise is counted on.")
    multiplier: float = Field(gt=0, description="Deviation of their noise, in units of the L2 bound of a sum.")
    most_sums: int = Field(ge=1, description="Sums that one client contributes to at most.")
    released_sums: int = Field(ge=0, description="Sums released so far.")
    largest_epsilon: float = Field(
        ge=0, description="Cost so far, at the block's delta, to a client that was asked most often."
    )
    spent_members: int = Field(ge=0, description="Members that reached `most_sums` and are not asked any more.")
    sums: list[SumNoiseView] = Field(description="The kinds of sums: the first one and the main one.")
    against: list[str] = Field(description="Whom the guarantee holds against, and its conditions, in plain words.")


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
    parties = f"the server together with up to {floor(corrupt * cohort_size)} of the {cohort_size} clients of a cohort"
    if committee is None:
        hidden = "masks hide each contribution, under the conditions that the task's other warnings state"
        return f"It holds against {parties}: {hidden}."
    members, colluding = committee
    return (
        f"It holds against {parties} and {colluding} of the {members} members of the committee: more of them can open "
        "a single contribution, which carries one client's share of the noise only."
    )


def default_delta(clients: int) -> float:
    """Return the delta of a task whose maker names none: clients^-1.1, and at most 1e-5. clients: that are expected.

    The probability of a failure must be well below one client in all. More members than expected may enrol, and a small
    cohort says little about them: hence the second bound, which matters below 35,000 clients.
    """
    return min(_LARGEST_DELTA, exp(-1.1 * log(max(clients, 1))))
