"""The Python SDK: join a task, train locally, contribute under encryption, recommend on the device.

from client_sdk import Client, Identity

with Client(url, identity=Identity.load("me.key")) as client:
    task = client.join("movies", invitation=..., certificate=...)
    task.take_part(interactions)
    print(task.recommend(10))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from client_sdk.agreement.policy import Policy
    from client_sdk.api.http import Timeouts
    from client_sdk.api.retry import RetryPolicy
    from client_sdk.client import AsyncClient, Client
    from client_sdk.committee.service import AsyncCommitteeMember, CommitteeMember
    from client_sdk.errors import (
        ApiError,
        ClientFault,
        ClientSDKError,
        ConnectionFailed,
        Equivocation,
        GaveUp,
        NotEnrolled,
        PolicyRefused,
        ServerFault,
    )
    from client_sdk.lab.fleet import Fleet
    from client_sdk.lab.fleet_rounds import FleetOptions, FleetRound
    from client_sdk.model.best import Recommendations
    from client_sdk.operator import Operator, task_request
    from client_sdk.rounds.certificates import CertificateSource, Issuer
    from client_sdk.rounds.events import RoundAbstained, RoundMissed, RoundReport
    from client_sdk.rounds.join import ClientOptions
    from client_sdk.rounds.ledger import OwnLedger
    from client_sdk.rounds.task import AsyncKeyHolder, AsyncParticipant, KeyHolder, Participant
    from client_sdk.store.client_store import Membership
    from client_sdk.store.identity import Identity
    from client_sdk.store.stores import DirectoryStore, MemoryStore
    from client_sdk.training.arrays import ArraysRound
    from client_sdk.training.mf import MFConfig
    from protocols.recipes.arrays.update import Rows

__all__ = [
    "ApiError",
    "ArraysRound",
    "AsyncClient",
    "AsyncCommitteeMember",
    "AsyncKeyHolder",
    "AsyncParticipant",
    "CertificateSource",
    "Client",
    "ClientFault",
    "ClientOptions",
    "ClientSDKError",
    "CommitteeMember",
    "ConnectionFailed",
    "DirectoryStore",
    "Equivocation",
    "Fleet",
    "FleetOptions",
    "FleetRound",
    "GaveUp",
    "Identity",
    "Issuer",
    "KeyHolder",
    "MFConfig",
    "Membership",
    "MemoryStore",
    "NotEnrolled",
    "Operator",
    "OwnLedger",
    "Participant",
    "Policy",
    "PolicyRefused",
    "Recommendations",
    "RetryPolicy",
    "RoundAbstained",
    "RoundMissed",
    "RoundReport",
    "Rows",
    "ServerFault",
    "Timeouts",
    "task_request",
]

# A name is imported when it is first used, so that commands start quickly.
_MODULES: Final = {
    "ApiError": "client_sdk.errors",
    "ArraysRound": "client_sdk.training.arrays",
    "AsyncClient": "client_sdk.client",
    "AsyncCommitteeMember": "client_sdk.committee.service",
    "AsyncKeyHolder": "client_sdk.rounds.task",
    "AsyncParticipant": "client_sdk.rounds.task",
    "CertificateSource": "client_sdk.rounds.certificates",
    "Client": "client_sdk.client",
    "ClientFault": "client_sdk.errors",
    "ClientOptions": "client_sdk.rounds.join",
    "ClientSDKError": "client_sdk.errors",
    "CommitteeMember": "client_sdk.committee.service",
    "ConnectionFailed": "client_sdk.errors",
    "DirectoryStore": "client_sdk.store.stores",
    "Equivocation": "client_sdk.errors",
    "Fleet": "client_sdk.lab.fleet",
    "FleetOptions": "client_sdk.lab.fleet_rounds",
    "FleetRound": "client_sdk.lab.fleet_rounds",
    "GaveUp": "client_sdk.errors",
    "Identity": "client_sdk.store.identity",
    "Issuer": "client_sdk.rounds.certificates",
    "KeyHolder": "client_sdk.rounds.task",
    "MFConfig": "client_sdk.training.mf",
    "Membership": "client_sdk.store.client_store",
    "MemoryStore": "client_sdk.store.stores",
    "NotEnrolled": "client_sdk.errors",
    "Operator": "client_sdk.operator",
    "OwnLedger": "client_sdk.rounds.ledger",
    "Participant": "client_sdk.rounds.task",
    "Policy": "client_sdk.agreement.policy",
    "PolicyRefused": "client_sdk.errors",
    "Recommendations": "client_sdk.model.best",
    "RetryPolicy": "client_sdk.api.retry",
    "RoundAbstained": "client_sdk.rounds.events",
    "RoundMissed": "client_sdk.rounds.events",
    "RoundReport": "client_sdk.rounds.events",
    "Rows": "protocols.recipes.arrays.update",
    "ServerFault": "client_sdk.errors",
    "Timeouts": "client_sdk.api.http",
    "task_request": "client_sdk.operator",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
