"""The choices and fields of the form for a new task, and the task request that its values make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from protocols.combinations import check_combination
from protocols.errors import CodecError, ParameterError
from protocols.messages import Evaluation, OrganiserPin, Schedule, TaskRequest
from protocols.parameter_text.first_fault import first_fault
from protocols.parameter_text.named_values import named_values
from protocols.parameter_text.parameter_rows import ParameterRow, parameter_rows
from protocols.recipes.recommended import RECOMMENDED, parameters_for
from protocols.recipes.registry import recipe_entry, recipes
from protocols.sums.registry import mechanisms, parameters_of

__all__ = ["FieldGroup", "field_groups", "mechanism_texts", "recipe_texts", "requested_task", "require_choice"]

_RECIPE_TEXTS: Final[Mapping[str, str]] = {
    "arrays": "named arrays of a model of your own",
    "colr": "low-rank change of the item factors (CoLR)",
    "fair": "NeuMF on devices of unequal memory (FAIR)",
    "fedmf": "whole change of the item factors (FedMF)",
    "pfedclr": "shared item factors, personalised on the device (PFedCLR)",
    "privirec": "graph filters from the item-item matrix (PriviRec)",
    "privirec-k": "graph filters from the leading item factors (PriviRec-k)",
    "rfrec": "ratings, with item factors of each client's own (RFRec)",
    "rfrecf": "ratings, with rounds without communication (RFRecF)",
    "scolr": "low-rank change, with a rank of each client's own (SCoLR)",
    "svd": "truncated SVD of the change: a baseline for plain sums",
    "topk": "largest values of the change",
}
_MECHANISM_TEXTS: Final[Mapping[str, str]] = {
    "masked": "masks that cancel: no keys, clients stay for several stages",
    "oneshot": "one message a client, and a committee takes the masks off",
    "ckks": "CKKS ciphertexts: members share a key",
    "paillier": "Paillier ciphertexts, for small vectors",
    "plain": "no protection: the server sees every contribution",
}
_SCHEDULE_FIRST: Final = ("rounds", "cohort_size", "min_clients")
_EVALUATION: Final = ("every", "keep")
_BY_COMMAND: Final = ("start_from", "start_weight")
"""Parameters that only `hushrec-server task create --start-from` can set."""

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class FieldGroup:
    """Fields under one heading. prefix: of their names in the form. folded: shown only when it is opened."""

    title: str
    prefix: str
    rows: Sequence[ParameterRow]
    folded: bool = True


def recipe_texts() -> dict[str, str]:
    """Return name -> what it is, of every recipe that is installed."""
    return {name: _RECIPE_TEXTS.get(name) or recipe_entry(name).source or name for name in recipes()}


def mechanism_texts() -> dict[str, str]:
    """Return name -> what it is, of every mechanism that is installed; ours first, in order of recommendation."""
    return {name: _MECHANISM_TEXTS.get(name, name) for name in dict.fromkeys((*_MECHANISM_TEXTS, *mechanisms()))}


def require_choice(recipe: str, mechanism: str) -> None:
    """Raise `ParameterError` unless the recipe and the mechanism exist and fit together."""
    if recipe not in recipes() or mechanism not in mechanisms():
        raise ParameterError("choose a recipe and a mechanism from the lists")
    check_combination(recipe, mechanism)


def field_groups(recipe: str, mechanism: str) -> list[FieldGroup]:
    """Return the fields for a recipe and a mechanism: what must be chosen first, then what has a default."""
    rows = parameter_rows(recipe_entry(recipe).parameters, RECOMMENDED.get(recipe))
    own = [row for row in rows if row.name not in _BY_COMMAND]
    schedule = parameter_rows(Schedule)
    required = [row for row in own if row.default == "required"]
    sums = parameters_of(mechanism)
    groups = [
        FieldGroup("Data", "recipe", required, folded=False),
        FieldGroup("Rounds", "schedule", [row for row in schedule if row.name in _SCHEDULE_FIRST], folded=False),
        FieldGroup(f"Recipe {recipe}", "recipe", [row for row in own if row not in required]),
        FieldGroup(f"Mechanism {mechanism}", "mechanism", [] if sums is None else parameter_rows(sums)),
        FieldGroup("Schedule", "schedule", [row for row in schedule if row.name not in _SCHEDULE_FIRST]),
        FieldGroup(
            "Evaluation by the clients",
            "evaluation",
            [row for row in parameter_rows(Evaluation) if row.name in _EVALUATION],
        ),
    ]
    return [group for group in groups if group.rows]


def requested_task(form: Mapping[str, str]) -> TaskRequest:
    """Return the request that a form's values make; empty fields keep their defaults or recommended values.

    Raises `ParameterError`, whose text names the field.
    """
    recipe, mechanism, name = form.get("recipe", ""), form.get("mechanism", ""), form.get("name", "").strip()
    require_choice(recipe, mechanism)
    evaluation = _values(form, "evaluation")
    key = form.get("organiser", "").strip()
    return _checked(
        TaskRequest,
        {
            "name": name,
            "recipe": {"name": recipe, "parameters": parameters_for(recipe, _values(form, "recipe"))},
            "mechanism": {"name": mechanism, "parameters": _values(form, "mechanism")},
            "schedule": _checked(Schedule, _values(form, "schedule"), "schedule: "),
            "data_set": form.get("data_set", "").strip() or None,
            "organiser": _organiser(key, form.get("scope", "").strip() or name) if key else None,
            "evaluation": _checked(Evaluation, evaluation, "evaluation: ") if evaluation else None,
        },
    )


def _values(form: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """Return the values of the fields of one group that are not empty."""
    return named_values(f"{name}={value}" for name, value in _filled(form, f"{prefix}."))


def _filled(form: Mapping[str, str], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in form.items():
        if name.startswith(prefix) and value.strip():
            yield name.removeprefix(prefix), value.strip()


def _organiser(key: str, scope: str) -> OrganiserPin:
    try:
        return OrganiserPin(key=key, scope=scope)
    except (ValidationError, CodecError):
        raise ParameterError("the organiser's public key is what hushrec organiser init printed") from None


def _checked(kind: type[Model], values: Mapping[str, Any], before: str = "") -> Model:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ParameterError(f"{before}{first_fault(error, kind.model_fields)}") from None
