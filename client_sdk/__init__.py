"""The Python SDK: join a task, train locally, contribute under encryption, recommend on the device.

from client_sdk import Client

with Client(url, home="~/.movieapp") as client:
    task = client.join("movies", invitation=..., certificate=...)
    task.take_part(interactions)
    print(task.recommend(10))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from client_sdk.agreement.policy import Policy as Policy
    from client_sdk.agreement.terms import TaskTerms as TaskTerms
    from client_sdk.api.http import AsyncDriver as AsyncDriver
    from client_sdk.api.http import SyncDriver as SyncDriver
    from client_sdk.api.http import Timeouts as Timeouts
    from client_sdk.api.retry import RetryPolicy as RetryPolicy
    from client_sdk.api.wire import Traffic as Traffic
    from client_sdk.client import AsyncClient as AsyncClient
    from client_sdk.client import Client as Client
    from client_sdk.errors import Abstained as Abstained
    from client_sdk.errors import AggregateMismatch as AggregateMismatch
    from client_sdk.errors import ApiError as ApiError
    from client_sdk.errors import BadContribution as BadContribution
    from client_sdk.errors import BadDigest as BadDigest
    from client_sdk.errors import BadRequest as BadRequest
    from client_sdk.errors import BadSignature as BadSignature
    from client_sdk.errors import BodyTooLong as BodyTooLong
    from client_sdk.errors import BodyTooShort as BodyTooShort
    from client_sdk.errors import ClientFault as ClientFault
    from client_sdk.errors import ClientSDKError as ClientSDKError
    from client_sdk.errors import ClocksDiffer as ClocksDiffer
    from client_sdk.errors import Conflict as Conflict
    from client_sdk.errors import ConnectionFailed as ConnectionFailed
    from client_sdk.errors import ContractBroken as ContractBroken
    from client_sdk.errors import ContributionConflict as ContributionConflict
    from client_sdk.errors import DigestMismatch as DigestMismatch
    from client_sdk.errors import Equivocation as Equivocation
    from client_sdk.errors import FalseModel as FalseModel
    from client_sdk.errors import Forbidden as Forbidden
    from client_sdk.errors import ForeignAnswer as ForeignAnswer
    from client_sdk.errors import GaveUp as GaveUp
    from client_sdk.errors import Gone as Gone
    from client_sdk.errors import InconsistentLength as InconsistentLength
    from client_sdk.errors import InternalError as InternalError
    from client_sdk.errors import InvalidParameters as InvalidParameters
    from client_sdk.errors import LengthRequired as LengthRequired
    from client_sdk.errors import LocalFileError as LocalFileError
    from client_sdk.errors import MethodNotAllowed as MethodNotAllowed
    from client_sdk.errors import ModelUnavailable as ModelUnavailable
    from client_sdk.errors import NotAttested as NotAttested
    from client_sdk.errors import NotEnrolled as NotEnrolled
    from client_sdk.errors import NotFound as NotFound
    from client_sdk.errors import NotInCohort as NotInCohort
    from client_sdk.errors import OffsetMismatch as OffsetMismatch
    from client_sdk.errors import PolicyRefused as PolicyRefused
    from client_sdk.errors import RoundClosed as RoundClosed
    from client_sdk.errors import RoundLost as RoundLost
    from client_sdk.errors import ServerFault as ServerFault
    from client_sdk.errors import StaleSignature as StaleSignature
    from client_sdk.errors import TaskFailed as TaskFailed
    from client_sdk.errors import TooManyRequests as TooManyRequests
    from client_sdk.errors import Unauthenticated as Unauthenticated
    from client_sdk.errors import Unavailable as Unavailable
    from client_sdk.errors import UnsupportedMediaType as UnsupportedMediaType
    from client_sdk.errors import UntrustedServer as UntrustedServer
    from client_sdk.errors import UploadTimeout as UploadTimeout
    from client_sdk.history import History as History
    from client_sdk.operator import Operator as Operator
    from client_sdk.operator import task_request as task_request
    from client_sdk.rounds.events import AggregateRejected as AggregateRejected
    from client_sdk.rounds.events import ClientsNamed as ClientsNamed
    from client_sdk.rounds.events import ClipWarning as ClipWarning
    from client_sdk.rounds.events import CommitteeRefused as CommitteeRefused
    from client_sdk.rounds.events import Event as Event
    from client_sdk.rounds.events import KeyringDelivered as KeyringDelivered
    from client_sdk.rounds.events import KeyringRefused as KeyringRefused
    from client_sdk.rounds.events import ModelBehind as ModelBehind
    from client_sdk.rounds.events import ModelMeasured as ModelMeasured
    from client_sdk.rounds.events import Progress as Progress
    from client_sdk.rounds.events import RoundAbstained as RoundAbstained
    from client_sdk.rounds.events import RoundMissed as RoundMissed
    from client_sdk.rounds.events import RoundReport as RoundReport
    from client_sdk.rounds.events import ServerBack as ServerBack
    from client_sdk.rounds.events import ServerRestored as ServerRestored
    from client_sdk.rounds.events import ServerUnreachable as ServerUnreachable
    from client_sdk.rounds.events import ShareSent as ShareSent
    from client_sdk.rounds.events import SnapshotPublished as SnapshotPublished
    from client_sdk.rounds.events import SurvivorsConfirmed as SurvivorsConfirmed
    from client_sdk.rounds.events import TaskEnded as TaskEnded
    from client_sdk.rounds.events import TrainingFailed as TrainingFailed
    from client_sdk.rounds.events import Waiting as Waiting
    from client_sdk.rounds.join import ClientOptions as ClientOptions
    from client_sdk.rounds.ledger import Budget as Budget
    from client_sdk.rounds.ledger import OwnLedger as OwnLedger
    from client_sdk.rounds.ledger import TaskCost as TaskCost
    from client_sdk.rounds.member import CertificateSource as CertificateSource
    from client_sdk.rounds.member import Issuer as Issuer
    from client_sdk.rounds.newest import Recommendations as Recommendations
    from client_sdk.store import DirectoryStore as DirectoryStore
    from client_sdk.store import MemoryStore as MemoryStore
    from client_sdk.store import Store as Store
    from client_sdk.store.identity import Identity as Identity
    from client_sdk.store.identity import Membership as Membership
    from client_sdk.task import AsyncOpenRound as AsyncOpenRound
    from client_sdk.task import AsyncTask as AsyncTask
    from client_sdk.task import OpenRound as OpenRound
    from client_sdk.task import Task as Task
    from client_sdk.training.arrays import ArraysRound as ArraysRound
    from client_sdk.training.base import TrainingConfig as TrainingConfig
    from client_sdk.training.fair import FairConfig as FairConfig
    from client_sdk.training.mf import MFConfig as MFConfig
    from client_sdk.training.pfedclr import PFedCLRConfig as PFedCLRConfig
    from protocols.catalogue import Catalogue as Catalogue
    from protocols.errors import CodecError as CodecError
    from protocols.errors import HushRecError as HushRecError
    from protocols.errors import ParameterError as ParameterError
    from protocols.errors import RefusalError as RefusalError
    from protocols.messages import Invitation as Invitation
    from protocols.messages import InvitationView as InvitationView
    from protocols.messages import IssuedCertificate as IssuedCertificate
    from protocols.messages import LedgerEntry as LedgerEntry
    from protocols.messages import OrganiserPin as OrganiserPin
    from protocols.messages import RoundView as RoundView
    from protocols.messages import Schedule as Schedule
    from protocols.messages import TaskRequest as TaskRequest
    from protocols.messages import TaskView as TaskView
    from protocols.messages.privacy import Privacy as Privacy
    from protocols.messages.privacy import PrivacyView as PrivacyView
    from protocols.messages.rounds import Evaluation as Evaluation
    from protocols.recipes.arrays_update import Rows as Rows
    from protocols.recipes.base import ModelState as ModelState
    from protocols.recipes.evaluation_curve import Curve as Curve

# Where each public name is: it is imported when it is first used, so that commands start quickly.
_NAMES: Final = {
    "client_sdk.agreement.policy": "Policy",
    "client_sdk.agreement.terms": "TaskTerms",
    "client_sdk.api.http": "AsyncDriver SyncDriver Timeouts",
    "client_sdk.api.retry": "RetryPolicy",
    "client_sdk.api.wire": "Traffic",
    "client_sdk.client": "AsyncClient Client",
    "client_sdk.errors": (
        "Abstained AggregateMismatch ApiError BadContribution BadDigest BadRequest BadSignature BodyTooLong "
        "BodyTooShort ClientFault ClientSDKError ClocksDiffer Conflict ConnectionFailed ContractBroken "
        "ContributionConflict DigestMismatch Equivocation FalseModel Forbidden ForeignAnswer GaveUp Gone "
        "InconsistentLength "
        "InternalError InvalidParameters LengthRequired LocalFileError MethodNotAllowed ModelUnavailable "
        "NotAttested NotEnrolled NotFound NotInCohort OffsetMismatch PolicyRefused RoundClosed RoundLost "
        "ServerFault StaleSignature TaskFailed TooManyRequests Unauthenticated Unavailable "
        "UnsupportedMediaType UntrustedServer UploadTimeout"
    ),
    "client_sdk.history": "History",
    "client_sdk.operator": "Operator task_request",
    "client_sdk.rounds.events": (
        "AggregateRejected ClientsNamed ClipWarning CommitteeRefused Event KeyringDelivered KeyringRefused "
        "ModelBehind ModelMeasured Progress RoundAbstained RoundMissed RoundReport ServerBack ServerRestored "
        "ServerUnreachable ShareSent SnapshotPublished SurvivorsConfirmed TaskEnded TrainingFailed Waiting"
    ),
    "client_sdk.rounds.join": "ClientOptions",
    "client_sdk.rounds.ledger": "Budget OwnLedger TaskCost",
    "client_sdk.rounds.member": "CertificateSource Issuer",
    "client_sdk.rounds.newest": "Recommendations",
    "client_sdk.store": "DirectoryStore MemoryStore Store",
    "client_sdk.store.identity": "Identity Membership",
    "client_sdk.task": "AsyncOpenRound AsyncTask OpenRound Task",
    "client_sdk.training.arrays": "ArraysRound",
    "client_sdk.training.base": "TrainingConfig",
    "client_sdk.training.fair": "FairConfig",
    "client_sdk.training.mf": "MFConfig",
    "client_sdk.training.pfedclr": "PFedCLRConfig",
    "protocols.catalogue": "Catalogue",
    "protocols.errors": "CodecError HushRecError ParameterError RefusalError",
    "protocols.messages": (
        "Invitation InvitationView IssuedCertificate LedgerEntry OrganiserPin RoundView Schedule TaskRequest TaskView"
    ),
    "protocols.messages.privacy": "Privacy PrivacyView",
    "protocols.messages.rounds": "Evaluation",
    "protocols.recipes.arrays_update": "Rows",
    "protocols.recipes.base": "ModelState",
    "protocols.recipes.evaluation_curve": "Curve",
}
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_MODULES, key=lambda name: (name[0].islower(), name))  # noqa: PLE0605 - a list of strings


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
