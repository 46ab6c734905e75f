"""The evaluation block of a task: how its clients measure the model, and what follows from the curve."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from protocols.messages.base import Message

__all__ = ["Evaluation"]

Share = Annotated[float, Field(gt=0, le=0.5)]


class Evaluation(Message):
    """Federated evaluation: each client holds out rows and scores the model on them; the cohort's metrics are summed.

    The metrics follow from the recipe: HR@10 and NDCG@10 where it ranks items, squared and absolute error where it
    predicts ratings. A measurement is a sum of its own, one of the schedule's `rounds`: the first after the sums that
    count, then one after every `every` training sums. All are over one cohort that only shrinks.
    """

    every: int = Field(ge=1, le=1_000_000, description="Training sums between two measurements.")
    holdout: Literal["last"] | Share = Field(
        default="last",
        description="What each client holds out: its last row in its own order, or the last share of its rows.",
    )
    negatives: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Items drawn on the device against which a held-out item is ranked; null: all items.",
    )
    keep: Literal["best", "last"] = Field(
        default="last", description="The model that the task ends with: the best measured one, or the newest."
    )
    stop_after: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Measurements in a row below the best one by more than half its standard error, after which "
        "the task ends; null: never. Only where the server can open the sums.",
    )
    final_rounds: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Last rounds in which clients train on the held-out rows too; nothing is measured in them.",
    )

    @model_validator(mode="after")
    def _check_final_rounds(self) -> Self:
        if self.final_rounds and (self.keep == "best" or self.stop_after is not None):
            raise ValueError(
                "final_rounds needs keep 'last' and no stop_after: a model that trained on the held-out rows cannot be "
                "measured on them"
            )
        return self
