"""Small tasks on a real aggregator for the SDK's tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk import Operator, task_request
from client_sdk.rounds.certificates import CertificateSource
from protocols.crypto.certificates import CertifiedRole
from protocols.messages import Schedule
from tests.support.organiser import TRIAL

__all__ = ["ITEMS", "SmallTask", "interactions", "small_task"]

ITEMS = 60


def interactions(users: int, each: int = 6) -> list[NDArray[np.int32]]:
    """`each` distinct items for every user, the same in every run."""
    rng = np.random.default_rng(7)
    return [rng.choice(ITEMS, each, replace=False).astype(np.int32) for _ in range(users)]


@dataclass
class SmallTask:
    """A task with what its clients need to join."""

    operator: Operator
    task_id: str
    name: str
    invitation: str
    holder_invitation: str | None
    certified: bool

    @property
    def certificate(self) -> CertificateSource | None:
        """What a member joins with."""
        return TRIAL.source() if self.certified else None

    @property
    def holder_certificate(self) -> CertificateSource | None:
        """What the key holder joins with."""
        return TRIAL.source("holder") if self.certified else None

    @property
    def certificates(self) -> Callable[[CertifiedRole], CertificateSource] | None:
        """What a fleet enrols with."""
        return TRIAL.source if self.certified else None


def small_task(
    operator: Operator,
    name: str,
    *,
    users: int,
    recipe: str = "colr",
    mechanism: str = "plain",
    mechanism_parameters: dict[str, Any] | None = None,
    data_set: str | None = None,
    certified: bool | None = None,
    seed: bytes | None = None,
    **schedule: Any,
) -> SmallTask:
    """A task over 60 items with factors of length 8, whose cohort is everybody unless told otherwise.

    certified: whether it has the tests' organiser; plain tasks have none unless told otherwise.
    """
    parameters: dict[str, Any] = {"items": ITEMS, "dim": 8, "clip": 2.0} | ({} if recipe == "fedmf" else {"rank": 4})
    plan = Schedule(**{"rounds": 2, "cohort_size": users, "start_clients": users, **schedule})
    certified = mechanism != "plain" if certified is None else certified
    organiser = TRIAL.pin if certified else None
    request = task_request(
        name, recipe, mechanism, plan, parameters, mechanism_parameters, seed, data_set=data_set, organiser=organiser
    )
    view = operator.create_task(request)
    keyed = mechanism in ("ckks", "paillier")
    return SmallTask(
        operator,
        view.task_id,
        name,
        operator.invite(view.task_id, uses=users + 5).invitation,
        operator.invite(view.task_id, role="holder").invitation if keyed else None,
        certified,
    )
