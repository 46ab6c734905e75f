"""Messages about tasks, and the plan of a sum as the API states it: clients compare it with their own.

A task is a recipe, a mechanism and a schedule, fixed when it is created.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self, dataclass_transform

from pydantic import ConfigDict, Field, ValidationError, model_validator

from protocols.crypto.certificates import LONGEST_SCOPE
from protocols.errors import ParameterError
from protocols.messages.base import HexDigest, Key32, Message, Name, SparseMessage
from protocols.messages.privacy import Privacy
from protocols.messages.rounds import LONGEST_STAGE, Evaluation, ResolvedTask
from protocols.parameter_text import first_fault

BySegment = Annotated[dict[str, float], Field(description="By `block/segment`.")]


class PlanView(Message):
    """What every plan states."""

    security_bits: int = Field(ge=0, description="Classical security of a contribution; 0 for plain sums.")
    max_contributions: int = Field(
        ge=1, description="Most contributions that a sum may have: the task's `cohort_size`."
    )
    bytes_per_value: float | None = Field(default=None, gt=0, description="Bytes of a contribution for each value.")
    aggregate_bytes: int = Field(ge=1, description="Length of a released aggregate.")
    predicted_error: float = Field(
        ge=0, description="Bound on |opened sum - true sum|, in the unit of the widest segment."
    )


class OtherPlanView(PlanView):
    """What the plan of a mechanism of another package states at least."""

    model_config = ConfigDict(extra="allow")

    mechanism: str


class SegmentedPlanView(PlanView):
    """What plans with a fixed-point form state."""

    segment_scales: BySegment = Field(description="Steps per 1.0, by `block/segment`.")
    segment_errors: BySegment = Field(description="Bound on the error in the segment's own unit, by `block/segment`.")


class PlainPlanView(PlanView):
    """Values are sent as float32."""

    mechanism: Literal["plain"]


class NeighbourhoodView(Message):
    """Neighbours and threshold of a masked round of a full cohort."""

    clients: int
    degree: int = Field(description="k: neighbours of each client.")
    threshold: int = Field(description="t: shares that reconstruct a secret.")
    corrupt: float
    dropout: float
    mode: Literal["curious", "semi-malicious"]
    sigma: int
    eta: int
    log2_disconnected: float | None
    log2_too_many_corrupt: float | None
    log2_too_few_survivors: float | None


_TAU: Final = "Times the median distance that the sum of a group may be away to be used; 0: all are."


class MaskedPlanView(SegmentedPlanView):
    """Ring elements of `bits` bits under pairwise masks."""

    mechanism: Literal["masked"]
    bits: int
    mode: Literal["curious", "semi-malicious"]
    corrupt: float
    dropout: float
    sigma: int
    eta: int
    groups: int = Field(default=1, ge=1, description="Groups of a roster that have a sum each.")
    tau: float | None = Field(default=None, ge=0, description=_TAU)
    spare: int = Field(default=0, ge=0, description="Bits of a ring element that sums leave free.")
    garbage_passes: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Probability that garbage in one value of a sum has a size that it can have.",
    )
    neighbourhood: NeighbourhoodView = Field(description="Of a full cohort; with groups, of a group of it.")


class OneshotPlanView(SegmentedPlanView):
    """Values in the coefficients of ring-LWE samples."""

    mechanism: Literal["oneshot"]
    bits: int
    committee: int
    corrupt: int
    groups: int = Field(default=1, ge=1, description="Groups of the survivors that have a sum each.")
    tau: float | None = Field(default=None, ge=0, description=_TAU)
    threshold: int = Field(description="t: members that open a sum.")
    degree: int = Field(description="N: degree of the ring.")
    primes: list[int] = Field(description="Factors of the modulus q, descending.")
    log2_q: int
    values_per_coefficient: int
    ticket_bytes: int = Field(description="Bytes before the contribution in an upload.")
    upload_bytes: int


class CkksPlanView(SegmentedPlanView):
    """Complex slots of CKKS ciphertexts."""

    mechanism: Literal["ckks"]
    set: Literal["compact", "standard", "precise"]
    wire: Literal["seeded", "expanded"]
    ring_degree: int
    modulus_bits: int
    scale_bits: int = Field(description="log2 of the scale of values divided by their clip.")
    ciphertexts: int
    bytes_per_value_seeded: float
    bytes_per_value_expanded: float


class PaillierPlanView(SegmentedPlanView):
    """Slots of Paillier plaintexts."""

    mechanism: Literal["paillier"]
    key_bits: int
    value_bits: int
    slot_bits: dict[str, int] = Field(description="Width of a slot, by `block/segment`.")
    ciphertexts: int
    values_per_ciphertext: float
    names_public_key: bool


PLANS: Final[dict[str, type[PlanView]]] = {
    "ckks": CkksPlanView,
    "masked": MaskedPlanView,
    "oneshot": OneshotPlanView,
    "paillier": PaillierPlanView,
    "plain": PlainPlanView,
}
"""Mechanism -> the form of its plan."""


TaskState = Literal["open", "closed", "complete", "failed"]


class _Choice(SparseMessage):
    """A recipe or a mechanism by name, with the version that the server and the clients must have."""

    left_out: ClassVar[Mapping[str, Any]] = {"version": 1}
    name: Name
    version: int = Field(default=1, ge=1, description="Version of its package entry; left out if it is 1.")


class RecipeChoice(_Choice):
    """The recipe of a task, which determines what is summed."""

    parameters: dict[str, Any] = Field(default_factory=dict, description="Validated by the recipe itself.")


class MechanismChoice(_Choice):
    """The mechanism of a task, which determines how contributions are summed."""

    parameters: dict[str, Any] = Field(default_factory=dict, description="Validated by the mechanism itself.")


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
class _RaisesParameterError(type(Message)):  # type: ignore[misc]
    """Metaclass: the constructor raises `ParameterError`. Validation of messages still raises `ValidationError`."""

    def __call__(cls, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except ValidationError as error:
            raise ParameterError(f"schedule: {first_fault(error, cls.model_fields)}") from None


class Schedule(SparseMessage, metaclass=_RaisesParameterError):
    """The number of rounds, the clients asked in each and the deadlines. Raises `ParameterError` for invalid values."""

    left_out: ClassVar[Mapping[str, Any]] = {"follows": None}
    rounds: int = Field(
        default=100, ge=1, le=1_000_000, description="Rounds to complete; failed rounds are not counted."
    )
    cohort_size: int = Field(default=20, ge=2, le=1_000_000, description="Clients asked in each round.")
    min_clients: int = Field(
        default=3,
        ge=2,
        le=1_000_000,
        description="Privacy floor: a round with fewer survivors releases nothing. Applies to each device group.",
    )
    start_clients: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Members that must be enrolled (and have the keys) before round 1; 0: `cohort_size` in each group.",
    )
    sampling: Literal["uniform", "round-robin"] = Field(
        default="round-robin",
        description="round-robin: clients in turn, in an order shuffled once, so that cohorts are the same as long as "
        "the members are; uniform: a new random cohort each round, whose sums together say more of each client.",
    )
    collect_seconds: float = Field(
        default=600.0, gt=0, le=LONGEST_STAGE, description="Deadline for contributions, in seconds."
    )
    stage_seconds: float = Field(
        default=60.0, gt=0, le=LONGEST_STAGE, description="Deadline for each other stage of a masked round, in seconds."
    )
    min_difference: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Smallest number of clients by which two released sums over a frozen cohort may differ, unless "
        "they are over the same clients; null: `min_clients`.",
    )
    max_failed_rounds: int = Field(default=5, ge=1, le=1000, description="Failed rounds in a row that end the task.")
    follows: str | None = Field(
        default=None,
        min_length=1,
        max_length=40,
        description="Id of the earlier task that this one follows: its members enrol without an invitation. It has the "
        "same organiser and data_set. Left out if it follows none.",
    )

    @model_validator(mode="after")
    def _check_min_clients(self) -> Self:
        if self.min_clients > self.cohort_size:
            raise ValueError("min_clients is greater than cohort_size: no round could complete")
        return self


class OrganiserPin(Message):
    """Who certifies the members of a task; never the aggregator itself."""

    key: Key32 = Field(description="Ed25519 public key of the organiser.")
    scope: str = Field(
        min_length=1, max_length=LONGEST_SCOPE, description="Name that the certificates are for: this task, or several."
    )


class _OptionalTerms(SparseMessage):
    """A message with terms that not every task has: an item catalogue, and a privacy block."""

    left_out: ClassVar[Mapping[str, Any]] = {"catalogue_digest": None, "privacy": None}


class TaskRequest(_OptionalTerms):
    """An operator's request to create a task."""

    name: Name
    recipe: RecipeChoice
    mechanism: MechanismChoice
    schedule: Schedule = Schedule()
    seed: Key32 | None = Field(
        default=None,
        description="Public seed, to repeat an experiment; it also determines the cohorts. Null: a random seed.",
    )
    data_set: Name | None = Field(
        default=None,
        description="Label of the data that is summed. `min_difference` holds across all tasks with the same label.",
    )
    organiser: OrganiserPin | None = Field(
        default=None,
        description="Members need a certificate of this organiser. Null: anyone with an invitation is a member, and "
        "clients trust the server to say who the members are, which they do only by name.",
    )
    evaluation: Evaluation | None = Field(
        default=None, description="How the clients measure the model. Null: they do not."
    )
    catalogue_digest: HexDigest | None = Field(
        default=None,
        description="SHA-256 (hex) of the item catalogue, which is uploaded after the task is created and which round "
        "1 waits for. Null: clients speak of items by number.",
    )
    privacy: Privacy | None = Field(
        default=None, description="Differential privacy of the sums, by noise that every client adds. Null: no noise."
    )


class TaskView(_OptionalTerms):
    """A task. `plan` and `resolved` follow from the parameters: clients compute them too."""

    left_out: ClassVar[Mapping[str, Any]] = {**_OptionalTerms.left_out, "receipt_key": None}
    task_id: str
    name: Name
    state: TaskState
    recipe: RecipeChoice
    mechanism: MechanismChoice
    schedule: Schedule
    seed: Key32 = Field(
        description="32 public random bytes, from which the initial model and every round's seed are derived."
    )
    data_set: Name | None = Field(default=None, description="Label of the data that is summed.")
    organiser: OrganiserPin | None = Field(default=None, description="Who certifies the members; null: nobody.")
    evaluation: Evaluation | None = Field(
        default=None, description="How the clients measure the model; null: they do not."
    )
    catalogue_digest: HexDigest | None = Field(
        default=None, description="SHA-256 (hex) of the item catalogue; left out if the task has none."
    )
    privacy: Privacy | None = Field(default=None, description="The privacy block; left out if the task has none.")
    receipt_key: Key32 | None = Field(
        default=None,
        description="Ed25519 public key with which the server signs acknowledgements and the ends of rounds; left out "
        "if it signs none.",
    )
    best_round: int | None = Field(
        default=None,
        description="Round after which the model was best, as far as the server can open the sums; null: not known.",
    )
    plan: dict[str, Any] = Field(description="Lengths, budget, predicted error and security of the sum.")
    resolved: ResolvedTask | None = Field(
        default=None, description="Parameters with defaults, layout and plan, as this server computes them."
    )
    opened_by: Literal["anyone", "members"] = Field(
        description="Who can open the sums: anyone, server included; or all keyed members."
    )
    members: int = Field(ge=0, description="Enrolled clients.")
    keyed_members: int = Field(ge=0, description="Members for whom the mailbox holds a keyring envelope.")
    able_members: list[int] = Field(
        default_factory=list, description="Members that can contribute, one number per device group."
    )
    completed_rounds: int = Field(ge=0)
    abandoned_sums: int = Field(
        default=0, ge=0, description="Sums that could not be opened, and without which the task went on."
    )
    failed_rounds: int = Field(ge=0)
    waiting_for: str | None = Field(
        default=None,
        description="What the next round waits for, besides more members: a catalogue, a committee, a key holder, or a "
        "first member.",
    )
    warnings: list[str] = Field(default_factory=list, description="What the task reveals, in plain words.")


class DeletedTask(Message):
    """What was deleted with a task, and what of it is kept."""

    task_id: str
    members: int = Field(ge=0, description="Members that were deleted with it.")
    blobs: int = Field(ge=0, description="Aggregates, snapshots and other blobs that were deleted.")
    released_sums: int = Field(ge=0, description="Sums that it had released.")
    ledger_digest: str = Field(
        description="SHA-256 (hex) of its ledger: each entry as JSON with sorted keys, and a line feed; it is kept."
    )
    kept_sets: int = Field(
        ge=0,
        description="Sets of survivors that are kept, as digests of identity keys, because later sums over the same "
        "data set must not differ from them by a few clients. 0 without a data set label.",
    )


class TaskPage(Message):
    """A page of tasks, newest first."""

    tasks: list[TaskView]
