from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from protocols.codec import b64encode
from protocols.errors import ParameterError
from protocols.messages import MechanismChoice, ProblemDocument, RecipeChoice, Schedule, TaskRequest
from protocols.messages.base import Key32, Signature64
from protocols.messages.problem import PROBLEM_TYPES, problem_uri

REQUEST: dict[str, Any] = {"name": "movies", "recipe": {"name": "fedmf"}, "mechanism": {"name": "plain"}}


def test_what_a_request_leaves_out_has_its_default() -> None:
    request = TaskRequest.model_validate(REQUEST)
    assert request.recipe == RecipeChoice(name="fedmf")
    assert request.mechanism == MechanismChoice(name="plain")
    assert request.schedule == Schedule()


@pytest.mark.parametrize("name", ["", "Movies", "-movies", "a b", "m" * 64])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="name"):
        TaskRequest.model_validate(REQUEST | {"name": name})


def test_a_misspelt_field_is_refused() -> None:
    with pytest.raises(ValidationError, match="shedule"):
        TaskRequest.model_validate(REQUEST | {"shedule": {}})


def test_more_survivors_than_the_cohort_has_cannot_be_asked_for() -> None:
    assert Schedule(cohort_size=4, min_clients=4).min_clients == 4
    with pytest.raises(ParameterError, match="min_clients is greater than cohort_size"):
        Schedule(cohort_size=4, min_clients=5)
    with pytest.raises(ValidationError, match=r"schedule\.rounds"):  # the place of a fault in a message is kept
        TaskRequest.model_validate(REQUEST | {"schedule": {"rounds": 0}})


@pytest.mark.parametrize(("kind", "length"), [(Key32, 32), (Signature64, 64)])
def test_keys_and_signatures_have_their_length_and_one_form(kind: Any, length: int) -> None:
    adapter: TypeAdapter[str] = TypeAdapter(kind)
    text = b64encode(bytes(length))
    assert adapter.validate_python(text) == text
    for bad in (b64encode(bytes(length - 1)), b64encode(bytes(length + 1)), text[:-1] + "B", text[:-1] + "=", ""):
        with pytest.raises(ValidationError):
            adapter.validate_python(bad)


def test_a_problem_document_knows_its_slug() -> None:
    def document(uri: str) -> ProblemDocument:
        return ProblemDocument(type=uri, title="t", status=409)

    assert document(problem_uri("conflict")).slug == "conflict"
    assert document("about:blank").slug == "about:blank"
    assert document(problem_uri("conflict")).fault == "client"


def test_problem_types_are_errors_with_titles_of_their_own() -> None:
    assert all(400 <= status <= 599 for status, _ in PROBLEM_TYPES.values())
    assert len({title for _, title in PROBLEM_TYPES.values()}) == len(PROBLEM_TYPES)
