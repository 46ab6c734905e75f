"""What a job on another machine reports: a short JSON document, checked against the job. Never a pickle.

A worker writes the report as a blob under a key that the server chose. The first byte is `O`, then the outcome follows,
or `F`, then a failure. The server takes from it only what it can check: the keys and lengths of the blobs follow from
the job and its plan. A worker can still report a wrong sum, or that a job failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

from pydantic import TypeAdapter, ValidationError

from aggregator_service.compute.jobs import (
    BlobRef,
    FoldJob,
    MergeJob,
    Released,
    ReleaseJob,
    UnmaskJob,
    fold_batch,
    merge_partials,
    release_sum,
    unmask_some,
)
from aggregator_service.compute.oneshot_unmasking import OneshotMasks, SumUnopenedError
from aggregator_service.compute.unmasking import Masks, SomeMasks
from aggregator_service.storage.blobs import BlobDamagedError, BlobsUnavailableError
from aggregator_service.tasks.plans import TaskPlan, plan_task
from protocols.errors import AtFaultError, ThresholdError
from protocols.sums.masked.server import BadShare

__all__ = [
    "Job",
    "JobFailedError",
    "OutcomeError",
    "blob_lengths",
    "longest_outcome",
    "read_outcome",
    "write_failure",
    "write_outcome",
]

Job = FoldJob | MergeJob | UnmaskJob | ReleaseJob

_SHORT: Final = 64 * 1024
_BAD_SHARE_BYTES: Final = 128
_MOST_FIGURES: Final = 64
_MOST_LETTERS: Final = 400
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_RANDOM: Final = re.compile(r"[0-9a-f]{16}")
_NOT_PRINTABLE: Final = re.compile(r"[^ -~]")


class OutcomeError(Exception):
    """A worker's report is not one that its job can have: the worker is broken or compromised."""


class JobFailedError(Exception):
    """A job raised, on a worker of another machine, an exception that is not part of its contract."""


@dataclass(frozen=True)
class _Failure:
    """An exception of a job. needed, present, whose: of a `ThresholdError`. clients: of an `AtFaultError`."""

    error: Literal["damaged", "unavailable", "threshold", "at fault", "unopened", "other"]
    text: str
    needed: int = 0
    present: int = 0
    whose: str | None = None
    clients: tuple[str, ...] = ()


_FAILURES: Final = TypeAdapter(_Failure)
_OUTCOMES: Final[dict[Callable[..., Any], TypeAdapter[Any]]] = {
    fold_batch: TypeAdapter(BlobRef),
    merge_partials: TypeAdapter(BlobRef),
    unmask_some: TypeAdapter(tuple[BlobRef, tuple[BadShare, ...]]),
    release_sum: TypeAdapter(Released),
}


def longest_outcome(job: Job) -> int:
    """Return the most bytes that the report of a job may have."""
    return _SHORT + _BAD_SHARE_BYTES * len(_members(job)) ** 2


def _members(job: Job) -> frozenset[str]:
    """Return the clients whose masks a job removes."""
    masks = job.masks if isinstance(job, UnmaskJob | ReleaseJob) else None
    return frozenset(masks.sharers) if isinstance(masks, Masks | SomeMasks) else frozenset()


def _committee(job: Job) -> frozenset[str]:
    """Return the members of the committee whose summed shares a job uses."""
    masks = job.masks if isinstance(job, ReleaseJob) else None
    return frozenset(masks.members) if isinstance(masks, OneshotMasks) else frozenset()


def write_outcome(work: Callable[..., Any], outcome: Any) -> bytes:
    """On a worker: return the report of a job that returned `outcome`."""
    return b"O" + _OUTCOMES[work].dump_json(outcome)


def write_failure(error: Exception) -> bytes:
    """On a worker: return the report of a job that raised `error`."""
    text = str(error)[:_MOST_LETTERS]
    if isinstance(error, ThresholdError):
        failure = _Failure("threshold", text, error.needed, error.present, error.whose)
    elif isinstance(error, AtFaultError):
        failure = _Failure("at fault", text, clients=error.clients)
    elif isinstance(error, SumUnopenedError):
        failure = _Failure("unopened", text)
    elif isinstance(error, BlobDamagedError):
        failure = _Failure("damaged", text)
    elif isinstance(error, BlobsUnavailableError):
        failure = _Failure("unavailable", text)
    else:
        failure = _Failure("other", f"{type(error).__name__}: {text}")
    return b"F" + _FAILURES.dump_json(failure)


def read_outcome(work: Callable[..., Any], job: Job, report: bytes) -> Any:
    """Return the outcome that a worker reported; raise the failure that it reported.

    Raises `OutcomeError` for a report that the job cannot have; `ThresholdError`, `AtFaultError`, `SumUnopenedError`,
    `BlobDamagedError` and `BlobsUnavailableError` as the job does; `JobFailedError` for any other exception of the job.
    """
    kind, body = report[:1], report[1:]
    adapter = {b"O": _OUTCOMES[work], b"F": _FAILURES}.get(kind)
    if adapter is None:
        raise OutcomeError("the report is neither an outcome nor a failure")
    try:
        found = adapter.validate_json(body, strict=True)
    except (ValidationError, RecursionError):  # the text of the error would repeat the worker's
        raise OutcomeError("the report does not have the form of this job's outcome") from None
    if adapter.dump_json(found) != body:  # also excludes further members, and numbers that are not finite
        raise OutcomeError("the report has more than this job's outcome")
    if isinstance(found, _Failure):
        _raise(job, found)
    _check(job, found)
    return found


def _raise(job: Job, failure: _Failure) -> NoReturn:
    text, members = _NOT_PRINTABLE.sub("?", failure.text[:_MOST_LETTERS]), _members(job)
    if failure.error == "threshold":
        if failure.whose not in members or not 0 <= failure.present <= failure.needed <= len(members):
            raise OutcomeError("the report names a threshold that this job does not have")
        raise ThresholdError("unmasking", failure.needed, failure.present, failure.whose)
    if failure.error == "at fault":
        if not failure.clients or not members.issuperset(failure.clients):
            raise OutcomeError("the report names clients that are not in the round")
        raise AtFaultError(failure.clients)
    if failure.error == "unopened":
        if not _committee(job):
            raise OutcomeError("the report says that masks stay, but this job has none")
        raise SumUnopenedError(text)
    if failure.error == "damaged":
        raise BlobDamagedError(text)
    if failure.error == "unavailable":
        raise BlobsUnavailableError(text)
    raise JobFailedError(f"a job failed on a Dask worker: {text}")


def _check(job: Job, outcome: Any) -> None:
    """Raise `OutcomeError` unless the job can have this outcome. `blob_lengths` names what remains to be checked."""
    if isinstance(outcome, BlobRef):
        _check_blob(job, "partials", outcome.key, outcome.digest)
    elif isinstance(job, ReleaseJob):
        _check_blob(job, "aggregates", outcome.aggregate.key, outcome.aggregate.digest)
        _check_states(job, outcome)
        _check_bad_shares(job, outcome.bad_shares)
        if not _committee(job).issuperset(outcome.wrong_members):
            raise OutcomeError("the report names members that are not in the committee")
    else:
        correction, bad_shares = outcome
        _check_blob(job, "partials", correction.key, correction.digest)
        _check_bad_shares(job, bad_shares)


def _check_blob(job: Job, kind: str, key: str, digest: str, *parts: int) -> None:
    """Raise `OutcomeError` unless a worker makes such a key for this job: it cannot name a blob of another round."""
    start = f"{kind}/{'-'.join(map(str, (job.task_id, job.spec.number, *parts)))}-"
    if not (key.startswith(start) and _RANDOM.fullmatch(key[len(start) :]) and _DIGEST.fullmatch(digest)):
        raise OutcomeError("the report names a blob that is not this job's")


def _check_states(job: ReleaseJob, released: Released) -> None:
    groups = _plan(job).recipe.device_groups
    views = groups if job.absorb and groups > 1 else 0
    if (released.state is not None) != job.absorb or len(released.views) != views:
        raise OutcomeError("the report has a model state that this job does not make, or lacks one")
    if not job.absorb and (released.is_done or released.report):
        raise OutcomeError("the report tells of a model state that this job does not make")
    if len(released.report) > _MOST_FIGURES or any(len(name) > _MOST_LETTERS for name in released.report):
        raise OutcomeError("the report has too many figures of the model state")
    if released.state is not None:
        _check_blob(job, "snapshots", released.state.blob_key, released.state.digest)
    for group, view in enumerate(released.views):
        _check_blob(job, "views", view.blob_key, view.digest, group)


def _check_bad_shares(job: Job, bad_shares: tuple[BadShare, ...]) -> None:
    members = _members(job)
    if len(set(bad_shares)) < len(bad_shares) or not all({bad.owner, bad.holder} <= members for bad in bad_shares):
        raise OutcomeError("the report names wrong shares that this job does not have")


def _plan(job: FoldJob | MergeJob | ReleaseJob) -> TaskPlan:
    return plan_task(job.terms, job.spec.sum_index)


def blob_lengths(job: Job, outcome: Any) -> dict[str, int]:
    """Return the length in bytes that each blob of an outcome must have, by key, as the job's plan says.

    Raises `OutcomeError` when the outcome states another length.
    """
    if isinstance(job, ReleaseJob):
        return _released_lengths(job, outcome)
    if isinstance(job, UnmaskJob):
        return {outcome[0].key: job.masks.context.plan.partial_bytes}
    return {outcome.key: _plan(job).sum_plan.partial_bytes}


def _released_lengths(job: ReleaseJob, released: Released) -> dict[str, int]:
    task, sums = _plan(job), job.spec.sum_index
    stated = {released.aggregate.key: released.aggregate_bytes}
    planned = {released.aggregate.key: task.sum_plan.aggregate_bytes}
    if released.state is not None:
        stated[released.state.blob_key] = released.state.bytes
        planned[released.state.blob_key] = task.recipe.state_bytes(sums)
    for group, view in enumerate(released.views):
        stated[view.blob_key], planned[view.blob_key] = view.bytes, task.recipe.view_bytes(sums, group)
    if stated != planned:
        raise OutcomeError("the report states other lengths than the plan")
    return planned
