"""The JSON bodies of the HTTP API as pydantic models, validated by both the service and the SDK."""

from __future__ import annotations

from protocols.messages.attestations import Attestation, AttestationPage
from protocols.messages.certificates import CertificateRequest, IssuedCertificate, OrganiserView
from protocols.messages.committee import BadShares, CommitteeMemberView, CommitteeView
from protocols.messages.enrolment import (
    Enrolment,
    EnrolmentRequest,
    Invitation,
    InvitationPage,
    InvitationRequest,
    InvitationView,
    Member,
    MemberPage,
    Role,
)
from protocols.messages.evaluation import Evaluation
from protocols.messages.ledger import LedgerEntry, LedgerPage
from protocols.messages.operators import (
    OperatorPage,
    OperatorRequest,
    OperatorRole,
    OperatorToken,
    OperatorView,
)
from protocols.messages.problem import ProblemDocument
from protocols.messages.rounds import (
    CohortView,
    Extension,
    RefusalNotice,
    RefusalReason,
    RoundPage,
    RoundView,
    SnapshotView,
    UploadReceipt,
)
from protocols.messages.sums import SumView
from protocols.messages.tasks import (
    MechanismChoice,
    OrganiserPin,
    RecipeChoice,
    Schedule,
    TaskPage,
    TaskRequest,
    TaskView,
)

__all__ = [
    "Attestation",
    "AttestationPage",
    "BadShares",
    "CertificateRequest",
    "CohortView",
    "CommitteeMemberView",
    "CommitteeView",
    "Enrolment",
    "EnrolmentRequest",
    "Evaluation",
    "Extension",
    "Invitation",
    "InvitationPage",
    "InvitationRequest",
    "InvitationView",
    "IssuedCertificate",
    "LedgerEntry",
    "LedgerPage",
    "MechanismChoice",
    "Member",
    "MemberPage",
    "OperatorPage",
    "OperatorRequest",
    "OperatorRole",
    "OperatorToken",
    "OperatorView",
    "OrganiserPin",
    "OrganiserView",
    "ProblemDocument",
    "RecipeChoice",
    "Role",
    "RefusalNotice",
    "RefusalReason",
    "RoundPage",
    "SumView",
    "RoundView",
    "Schedule",
    "SnapshotView",
    "TaskPage",
    "TaskRequest",
    "TaskView",
    "UploadReceipt",
]
