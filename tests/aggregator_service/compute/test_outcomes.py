"""Reports of jobs on other machines: honest ones come back as they were, false ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aggregator_service.compute.jobs import BlobRef, FoldJob, fold_batch
from aggregator_service.compute.outcomes import (
    JobFailedError,
    OutcomeError,
    blob_lengths,
    longest_outcome,
    read_outcome,
    write_failure,
    write_outcome,
)
from aggregator_service.storage.blobs import BlobDamagedError, BlobsUnavailableError, new_key
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.tasks.plans import TaskTerms, plan_task
from protocols.errors import AtFaultError, ThresholdError
from protocols.recipes.base import RoundSpec

DIGEST = "0" * 64


@pytest.fixture
def job(tmp_path: Path) -> FoldJob:
    terms = TaskTerms("fedmf", '{"clip":0.1,"dim":2,"items":10}', "plain", "{}", 4)
    return FoldJob(DirectoryBlobs(tmp_path), "t1", terms, RoundSpec(3, bytes(32), 1), None, ())


def report(**outcome: Any) -> bytes:
    return b"O" + json.dumps(outcome, separators=(",", ":")).encode()


def test_an_outcome_comes_back_and_its_blob_has_the_planned_length(job: FoldJob) -> None:
    outcome = BlobRef(new_key("partials", "t1", 3), DIGEST)
    assert read_outcome(fold_batch, job, write_outcome(fold_batch, outcome)) == outcome
    assert blob_lengths(job, outcome) == {outcome.key: plan_task(job.terms).sum_plan.partial_bytes}
    assert len(write_outcome(fold_batch, outcome)) < longest_outcome(job)


@pytest.mark.parametrize(
    ("raised", "read"),
    [
        (BlobDamagedError("gone"), BlobDamagedError),
        (BlobsUnavailableError("full"), BlobsUnavailableError),
        (RuntimeError("bad\nline"), JobFailedError),
    ],
)
def test_failures_come_back(job: FoldJob, raised: Exception, read: type[Exception]) -> None:
    with pytest.raises(read) as found:
        read_outcome(fold_batch, job, write_failure(raised))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("raised", [ThresholdError("unmasking", 3, 2, "c1"), AtFaultError(("c1",))])
def test_a_fold_names_no_member(job: FoldJob, raised: Exception) -> None:
    """Only jobs that remove masks can have such a failure: a worker must not retire whom it likes."""
    with pytest.raises(OutcomeError):
        read_outcome(fold_batch, job, write_failure(raised))


KEY = "partials/t1-3-0123456789abcdef"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"O",
        b"X{}",
        b"\x80\x04.",
        b"O" + b"[" * 100_000,
        report(key=KEY),
        report(key=KEY, digest=1),
        report(key=KEY, digest=DIGEST, more=1),
        report(key=KEY, digest="0"),
        report(key="aggregates/t1-3-0123456789abcdef", digest=DIGEST),
        report(key="partials/t2-3-0123456789abcdef", digest=DIGEST),
        report(key="partials/t1-4-0123456789abcdef", digest=DIGEST),
        report(key="partials/t1-3-../../etc/passwd", digest=DIGEST),
        b"F" + b'{"error":"other"}',
        b"F" + b'{"error":"any","text":"","needed":0,"present":0,"whose":null,"clients":[]}',
    ],
)
def test_false_reports_are_refused(job: FoldJob, body: bytes) -> None:
    with pytest.raises(OutcomeError):
        read_outcome(fold_batch, job, body)
