"""The terms of a task as a whole: whether recipe and mechanism fit, and the digest of what its parties must agree on.

*Combination.* What the recipe needs, the mechanism must carry.

*Binding.* The parties of a masked or one-shot round agree on the task's terms, the sum and the model, of which each
computes the digest itself. The masks of a client with other terms or another model do not cancel against any other
client's, so a crafted model for one client reveals nothing (model inconsistency attack).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from protocols.codec import canonical_json, pack
from protocols.crypto.http_signature import parse_digests
from protocols.errors import CodecError, CombinationError
from protocols.messages import TaskView
from protocols.plugins import Capability
from protocols.recipes.base import Recipe
from protocols.recipes.private import Private
from protocols.recipes.registry import recipe, recipe_entry
from protocols.sums.base import OpenedBy
from protocols.sums.masked.plan import RoundContext, model_digest
from protocols.sums.registry import mechanism_entry, mechanisms, resolved_parameters


def carriers(recipe: str, *more: Capability) -> frozenset[str]:
    """Return the names of the mechanisms that can carry a recipe (the table of the architecture page).

    more: capabilities that are needed too, such as "noise". Raises `ParameterError` for an unknown recipe.
    """
    needs = recipe_entry(recipe).needs.union(more)
    return frozenset(name for name in mechanisms() if needs <= mechanism_entry(name).carries)


def check_combination(what: Recipe | str, mechanism: str) -> None:
    """Raise `CombinationError` with the reason if the recipe cannot be combined with the mechanism.

    what: a recipe's name, checked by its capabilities alone, or a recipe, checked with its parameters too: they
    determine the length of the sum and whether routes are public. Raises `ParameterError` for unknown names.
    """
    name = what if isinstance(what, str) else what.name
    own, carrier = recipe_entry(name), mechanism_entry(mechanism)
    missing = sorted(own.needs - carrier.carries)
    if missing:
        why = own.why_not or f"it needs {', '.join(missing)}, which this mechanism does not carry"
        raise CombinationError(
            f"recipe {name!r} cannot be combined with {mechanism!r}: {why}; choose one of: "
            f"{', '.join(sorted(carriers(name)))}"
        )
    if isinstance(what, str):
        return
    if isinstance(what, Private) and "noise" not in carrier.carries:
        raise CombinationError(
            f"a task with a privacy block cannot use {mechanism!r}: the server would see each contribution with one "
            f"client's share of the noise; choose one of: {', '.join(sorted(carriers(name, 'noise')))}"
        )
    counting = what.main_sum - 1
    if counting > 1 and what.layout(2).sum_class.once and "clear contributions" not in carrier.carries:
        raise CombinationError(
            f"recipe {name!r} cannot be combined with {mechanism!r} with count_sums {counting}: a client is counted "
            "once, so a later sum would hold the items of the few clients that no earlier one counted; set count_sums "
            "to 1"
        )
    layout = what.layout(what.main_sum)
    if layout.chosen and "chosen blocks" not in carrier.carries:
        raise CombinationError(
            f"recipe {name!r} cannot be combined with {carrier.name!r} with these parameters: contributions choose "
            "their positions, and this mechanism adds vectors position by position; set support to 'shared', or choose "
            f"one of: {', '.join(sorted(carriers(name, 'chosen blocks')))}"
        )
    size, most = (len(layout.blocks), carrier.most_chosen) if layout.chosen else (layout.length, carrier.most_values)
    if most is not None and size > most:
        unit = "blocks that share no ciphertext" if layout.chosen else "values"
        raise CombinationError(
            f"recipe {name!r} with these parameters sums {size:,} {unit}; {carrier.too_large or 'this is too large'}, "
            f"up to {most:,}: lower the rank or share, set support to 'shared', or choose one of: "
            f"{', '.join(sorted(carriers(name) - {carrier.name}))}"
        )


ROUND_BINDING: Final = "round-binding"
"""The header of an advertisement that states the digests of its parts, in lower case. It is not signed."""

_PARTS: Final[dict[str, str]] = {
    "terms": "the task's terms differ: recipe or mechanism, or the defaults of their parameters, schedule, seed, "
    "organiser, evaluation, item catalogue, privacy block or receipt key, or their canonical JSON form",
    "broadcast": "the model differs, the index of the sum, or the levels in use: the snapshot of the newest complete "
    "round, or the word initial before the first one",
    "round": "the round's facts differ: task id, round number, round seed, cohort, bits or length of the sum",
}
"""The parts in the order in which they are compared, and what it means when they differ."""


def bound_terms(task: TaskView) -> bytes:
    """Return the canonical JSON (RFC 8785) of the terms of `task` that all parties are bound to.

    They have every parameter of recipe and mechanism, with this party's own defaults where the task states none: masks
    of a party with other defaults do not cancel. Raises `ParameterError` for parameters that are invalid here.
    """
    own_recipe = recipe(task.recipe.name, task.recipe.parameters, noisy=task.privacy is not None).parameters
    own_mechanism = resolved_parameters(task.mechanism.name, task.mechanism.parameters)
    terms: dict[str, Any] = {
        "task": task.task_id,
        "recipe": {**task.recipe.model_dump(mode="json"), "parameters": own_recipe.model_dump(mode="json")},
        "mechanism": {**task.mechanism.model_dump(mode="json"), "parameters": own_mechanism},
    }
    others = {"schedule", "seed", "organiser", "evaluation", "catalogue_digest", "privacy", "receipt_key"}
    stated = task.model_dump(mode="json", include=others)
    return canonical_json(terms | {name: value for name, value in stated.items() if value is not None})


def states_chain(recipe: Recipe, interactive: bool, opened_by: OpenedBy) -> bool:
    """Return whether contributions state the chain of the aggregates before them (`protocols.crypto.aggregate_chain`).

    True where each contribution is hidden from the server: where only members can open the sums, and where they are
    masked or one-shot (`interactive`). A device that trains on a view, not on the state, cannot compute what the next
    state is; members of such tasks state a chain only if they replay the sums, which the server cannot open.
    """
    return opened_by == "members" or (interactive and not recipe.own.trains_on_views)


def model_of_round(snapshot_round: int, digest: bytes) -> bytes | None:
    """Return what stands for the model that a round starts from in `broadcast_digest`: None for the state of round 0.

    That state follows from the terms, also where the server stores it as a snapshot (`start_from`, `initial`).
    snapshot_round: the round after which the model is in this state. digest: SHA-256 (32 bytes) of the state.
    """
    return digest if snapshot_round else None


def broadcast_bytes(sum_index: int, model: bytes | None, levels: Sequence[int]) -> bytes:
    """Return the bytes that stand for sum `sum_index`, the levels in use and the model; see `broadcast_digest`."""
    state = b"initial" if model is None else model
    used = b"levels:%s\n" % ",".join(map(str, levels)).encode() if levels else b""
    return b"step:%d\n" % sum_index + used + state


def broadcast_digest(task: TaskView, sum_index: int, model: bytes | None, levels: Sequence[int]) -> bytes:
    """Return the digest (32 bytes) of a round that computes sum `sum_index` of `task`.

    model: `model_of_round` of the model state after the newest complete round, as the server publishes it and clients
    use it; None while no round is complete. levels: the levels in use, as the server announces them with the round;
    empty for recipes without levels.
    """
    return model_digest(bound_terms(task), broadcast_bytes(sum_index, model, levels))


def differing_part(
    stated: str,
    task: TaskView,
    model: bytes | None,
    sum_index: int,
    own: RoundContext,
    levels: Sequence[int],
) -> str:
    """Return a sentence that names the first part in which a header `ROUND_BINDING` differs from this party's own.

    Returns "" where all parts agree, or the header is missing or malformed: then its sender's signature is wrong.
    """
    try:
        theirs = parse_digests(stated)
    except CodecError:
        return ""
    ours = binding_digests(task, model, sum_index, own, levels)
    return next((text for part, text in _PARTS.items() if part in theirs and theirs[part] != ours[part]), "")


def binding_digests(
    task: TaskView, model: bytes | None, sum_index: int, context: RoundContext, levels: Sequence[int]
) -> dict[str, bytes]:
    """Return the SHA-256 of each part that an advertisement is bound to, by name: what `ROUND_BINDING` states.

    The header only serves to find out why a server refuses an advertisement: no party may take its own binding from it.
    """
    facts = (context.task_id, context.round_number, context.cohort, context.plan.bits, context.plan.layout.length)
    parts = {
        "terms": bound_terms(task),
        "broadcast": broadcast_bytes(sum_index, model, levels),
        "round": pack(*(str(fact).encode() for fact in facts), context.round_seed),
    }
    return {name: sha256(part).digest() for name, part in parts.items()}
