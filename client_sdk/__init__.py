"""The Python SDK: join a task, train locally, contribute under encryption, recommend on the device.

from client_sdk import Client, Identity

with Client(url, identity=Identity.load("me.key")) as client:
    task = client.join("movies", invitation=..., certificate=...)
    task.take_part(interactions)
    print(task.recommend(10))
"""

from __future__ import annotations

from client_sdk.agreement.policy import Policy
from client_sdk.api.drivers import Timeouts
from client_sdk.api.retry import RetryPolicy
from client_sdk.client import AsyncClient, Client
from client_sdk.errors import (
    ApiError,
    ClientFault,
    ClientSDKError,
    ConnectionFailed,
    GaveUp,
    NotEnrolled,
    PolicyRefused,
    ServerFault,
)
from client_sdk.local_state.identity import Identity
from client_sdk.local_state.store import DirectoryStore, Membership, MemoryStore
from client_sdk.model.recommendation import Recommendations
from client_sdk.operator import Operator, task_request
from client_sdk.participation.certificates import CertificateSource, Issuer
from client_sdk.participation.enroller import ClientOptions
from client_sdk.participation.events import RoundMissed, RoundReport
from client_sdk.participation.ledger import OwnLedger
from client_sdk.participation.participant import AsyncKeyHolder, AsyncParticipant, KeyHolder, Participant
from client_sdk.simulation.fleet import Fleet
from client_sdk.simulation.fleet_options import FleetOptions
from client_sdk.simulation.fleet_rounds import FleetRound
from client_sdk.training.mf import MFConfig

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncKeyHolder",
    "AsyncParticipant",
    "CertificateSource",
    "Client",
    "ClientFault",
    "ClientOptions",
    "ClientSDKError",
    "ConnectionFailed",
    "DirectoryStore",
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
    "RoundMissed",
    "RoundReport",
    "ServerFault",
    "Timeouts",
    "task_request",
]
