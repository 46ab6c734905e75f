"""Messages, and task bindings, whose every term is in model_digest.json and catalogue.json of tests/vectors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from protocols.codec import b64encode
from protocols.crypto.http_signature import format_digests
from protocols.errors import ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.messages import ProblemDocument, Schedule, TaskRequest, TaskView
from protocols.messages.base import Key32, Signature64, problem_uri
from protocols.recipes.rows import NormalisedParameters
from protocols.sums.masked.parameters import MaskedParameters
from protocols.sums.masked.plan import MASKED, RoundContext
from protocols.task_terms import binding_digests, bound_terms, broadcast_digest, differing_part

REQUEST: dict[str, Any] = {"name": "movies", "recipe": {"name": "fedmf"}, "mechanism": {"name": "plain"}}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        *(({"name": name}, "name") for name in ("", "Movies", "-movies", "a b", "m" * 64)),
        ({"shedule": {}}, "shedule"),
        ({"schedule": {"rounds": 0}}, r"schedule\.rounds"),  # the place of a fault in a message is kept
    ],
)
def test_requests_that_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        TaskRequest.model_validate(REQUEST | changes)


def test_more_survivors_than_the_cohort_has_cannot_be_asked_for() -> None:
    assert Schedule(cohort_size=4, min_clients=4).min_clients == 4
    with pytest.raises(ParameterError, match="min_clients is greater than cohort_size"):
        Schedule(cohort_size=4, min_clients=5)


@pytest.mark.parametrize(("kind", "length"), [(Key32, 32), (Signature64, 64)])
def test_keys_and_signatures_have_their_length_and_one_form(kind: Any, length: int) -> None:
    adapter: TypeAdapter[str] = TypeAdapter(kind)
    text = b64encode(bytes(length))
    assert adapter.validate_python(text) == text
    for bad in (b64encode(bytes(length - 1)), b64encode(bytes(length + 1)), text[:-1] + "B", text[:-1] + "=", ""):
        with pytest.raises(ValidationError):
            adapter.validate_python(bad)


def test_a_problem_document_knows_its_slug() -> None:
    conflict, blank = (
        ProblemDocument(type=uri, title="t", status=409) for uri in (problem_uri("conflict"), "about:blank")
    )
    assert (conflict.slug, conflict.fault, blank.slug) == ("conflict", "client", "about:blank")


SNAPSHOT = bytes(range(32))


def task(**changes: Any) -> TaskView:
    counts = dict.fromkeys(("members", "keyed_members", "completed_rounds", "failed_rounds"), 0)
    fields: dict[str, Any] = {
        "recipe": {"name": "fedmf", "parameters": {"items": 30, "dim": 4}},
        "mechanism": {"name": "masked", "parameters": {"bits": 32}},
        "schedule": {"cohort_size": 5, "rounds": 10},
        **{"task_id": "t_1", "name": "movies", "state": "open", "seed": b64encode(bytes(32)), "plan": {}},
        **{"opened_by": "anyone", **counts},
    }
    return TaskView.model_validate(fields | changes)


def test_the_digest_is_the_same_for_everyone_with_the_same_terms_and_model() -> None:
    counters = {"members": 7, "keyed_members": 5, "completed_rounds": 3, "state": "closed", "plan": {"bits": 32}}
    assert broadcast_digest(task(), 2, SNAPSHOT, ()) == broadcast_digest(task(**counters), 2, SNAPSHOT, ())


def test_parameters_that_a_task_leaves_out_are_bound_with_their_defaults() -> None:
    """Parties with other defaults, such as another release, have masks that do not cancel."""
    for of, stated in (("recipe", {"items": 30, "dim": 4, "clip": 4}), ("mechanism", {"bits": 32, "sigma": 64})):
        same = task(**{of: {"name": getattr(task(), of).name, "parameters": stated}})
        assert bound_terms(same) == bound_terms(task())
    terms = json.loads(bound_terms(task()))
    assert terms["recipe"]["parameters"].keys() == NormalisedParameters.model_fields.keys()
    masked = MaskedParameters.model_fields.keys() - MaskedParameters.left_out.keys()
    assert terms["mechanism"]["parameters"].keys() == masked
    with pytest.raises(ParameterError, match="mechanism 'masked': bits"):
        bound_terms(task(mechanism={"name": "masked", "parameters": {"bits": 8}}))


def context(number: int) -> RoundContext:
    layout = VectorLayout((Block("values", (Segment("values", 6, 1.0),)),), sum_class=TRAINED)
    return RoundContext("t_1", number, bytes(32), MASKED.plan({"dropout": 0.0}, layout, 5), bytes(32), 5)


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ((task(), SNAPSHOT, 2, context(1)), ""),
        ((task(seed=b64encode(bytes([1]) + bytes(31))), SNAPSHOT, 2, context(1)), "the task's terms differ"),
        ((task(), None, 2, context(1)), "the model differs"),
        ((task(), SNAPSHOT, 1, context(1)), "the model differs"),
        ((task(), SNAPSHOT, 2, context(2)), "the round's facts differ"),
    ],
    ids=["the same", "terms", "model", "sum", "round"],
)
def test_the_part_that_differs_is_named(theirs: tuple[TaskView, bytes | None, int, RoundContext], words: str) -> None:
    told = differing_part(format_digests(binding_digests(*theirs, ())), task(), SNAPSHOT, 2, context(1), ())
    assert told.startswith(words)
    assert bool(told) is bool(words)


def test_a_malformed_or_missing_binding_names_nothing() -> None:
    for stated in ("", "terms", "terms=:AAAA:"):
        assert differing_part(stated, task(), SNAPSHOT, 2, context(1), ()) == ""
