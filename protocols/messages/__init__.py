"""The JSON bodies of the HTTP API as pydantic models, validated by both the service and the SDK."""

from __future__ import annotations

from protocols.messages.base import ProblemDocument as ProblemDocument
from protocols.messages.members import CertificateRequest as CertificateRequest
from protocols.messages.members import Enrolment as Enrolment
from protocols.messages.members import EnrolmentRequest as EnrolmentRequest
from protocols.messages.members import Invitation as Invitation
from protocols.messages.members import InvitationPage as InvitationPage
from protocols.messages.members import InvitationRequest as InvitationRequest
from protocols.messages.members import InvitationView as InvitationView
from protocols.messages.members import IssuedCertificate as IssuedCertificate
from protocols.messages.members import Member as Member
from protocols.messages.members import MemberPage as MemberPage
from protocols.messages.members import OperatorPage as OperatorPage
from protocols.messages.members import OperatorRequest as OperatorRequest
from protocols.messages.members import OperatorRole as OperatorRole
from protocols.messages.members import OperatorToken as OperatorToken
from protocols.messages.members import OperatorView as OperatorView
from protocols.messages.members import OrganiserView as OrganiserView
from protocols.messages.members import Role as Role
from protocols.messages.rounds import Attestation as Attestation
from protocols.messages.rounds import AttestationPage as AttestationPage
from protocols.messages.rounds import CohortView as CohortView
from protocols.messages.rounds import Evaluation as Evaluation
from protocols.messages.rounds import Extension as Extension
from protocols.messages.rounds import LedgerEntry as LedgerEntry
from protocols.messages.rounds import LedgerPage as LedgerPage
from protocols.messages.rounds import RefusalNotice as RefusalNotice
from protocols.messages.rounds import RefusalReason as RefusalReason
from protocols.messages.rounds import RoundPage as RoundPage
from protocols.messages.rounds import RoundView as RoundView
from protocols.messages.rounds import SnapshotView as SnapshotView
from protocols.messages.rounds import SumView as SumView
from protocols.messages.rounds import UploadReceipt as UploadReceipt
from protocols.messages.stages import BadShares as BadShares
from protocols.messages.stages import CommitteeMemberView as CommitteeMemberView
from protocols.messages.stages import CommitteeView as CommitteeView
from protocols.messages.tasks import MechanismChoice as MechanismChoice
from protocols.messages.tasks import OrganiserPin as OrganiserPin
from protocols.messages.tasks import RecipeChoice as RecipeChoice
from protocols.messages.tasks import Schedule as Schedule
from protocols.messages.tasks import TaskPage as TaskPage
from protocols.messages.tasks import TaskRequest as TaskRequest
from protocols.messages.tasks import TaskView as TaskView
