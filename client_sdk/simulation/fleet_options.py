"""The options of a fleet: how its clients train, what they agree to, and how many of them drop out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from client_sdk.agreement.policy import Policy
from client_sdk.local_state.identity import Identity
from client_sdk.participation.enroller import ClientOptions
from client_sdk.participation.events import Progress
from client_sdk.participation.follow_rounds import Outage
from client_sdk.training.base import TrainingConfig
from protocols.errors import ParameterError
from protocols.messages.stages import MASKED_STATES

__all__ = ["FleetOptions"]


def _any_mechanism() -> Policy:
    return Policy(mechanisms=frozenset({"ckks", "masked", "oneshot", "paillier", "plain"}))


@dataclass(frozen=True, eq=False)
class FleetOptions:
    """Options of a `Fleet`. Raises `ParameterError` for values out of range.

    training: training parameters; None uses the defaults of the task's recipe.
    policy: every client's policy; by default it allows every mechanism.
    seed: fixes the training draws of every client; None draws fresh randomness.
    workers: worker threads, each with one connection.
    downloads: "each": every client downloads and checks all that it would need alone; "once": only the watcher does.
    dropout: share of each cohort that drops out, 0 <= dropout < 1. The round then waits for its deadline.
    dropout_rng: decides which clients drop out; only its `random(size)` method is called.
    dropout_stage: first stage of a masked round to which these clients send no message.
    identities: one per client; None generates fresh ones. A task with the same seed asks the same identities in the
    same rounds.
    device_groups: the device group of each client. Required when the recipe has several groups.
    client: retries, timeouts and chunk size of every client.
    patience: seconds for which an unreachable server is waited for, each time; None waits as long as it takes.
    progress: receives `ServerUnreachable` and `ServerBack`, from the workers' threads.
    """

    training: TrainingConfig | None = None
    policy: Policy = field(default_factory=_any_mechanism)
    seed: int | None = None
    workers: int = 2
    downloads: Literal["each", "once"] = "each"
    dropout: float = 0.0
    dropout_rng: np.random.Generator = field(default_factory=np.random.default_rng, repr=False)
    dropout_stage: str = "collecting"
    identities: Sequence[Identity] | None = field(default=None, repr=False)
    device_groups: Sequence[int] | None = None
    client: ClientOptions = field(default_factory=ClientOptions)
    patience: float | None = None
    progress: Progress | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        Outage(self.patience)  # checks it
        if self.workers < 1:
            raise ParameterError(f"workers must be at least 1, got {self.workers}")
        if not 0.0 <= self.dropout < 1.0:
            raise ParameterError(f"dropout must be at least 0 and less than 1, got {self.dropout}")
        if self.dropout_stage not in MASKED_STATES:
            raise ParameterError(f"dropout_stage must be one of {', '.join(MASKED_STATES)}; got {self.dropout_stage!r}")

    def check_size(self, clients: int) -> None:
        """Raise `ParameterError` unless `clients` is positive and equals the number of identities and groups given."""
        if clients < 1:
            raise ParameterError("a fleet needs at least one client")
        for name, given in (("identities", self.identities), ("device_groups", self.device_groups)):
            if given is not None and len(given) != clients:
                raise ParameterError(f"{name} must have one entry per client: expected {clients}, got {len(given)}")
