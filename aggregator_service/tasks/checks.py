"""Checks and warnings for a task's choice of recipe, mechanism and schedule."""

from __future__ import annotations

from collections.abc import Sequence

from aggregator_service.settings import Signatures
from aggregator_service.tasks.plans import TaskPlan
from protocols.errors import ParameterError
from protocols.messages import Schedule
from protocols.sums.masked.plan import MaskedPlan

__all__ = ["check_sums", "task_warnings"]


def check_sums(plans: Sequence[TaskPlan], schedule: Schedule) -> None:
    """Check that the sums of all device groups can be made; plans: one for each group.

    Raises `ParameterError` when a masked round over `cohort_size` or `min_clients` cannot work, when the groups' sums
    need different encryption keys, or when a recipe has several groups and a frozen cohort.
    """
    if len(plans) > 1 and plans[0].recipe.frozen_cohort:
        raise ParameterError("this recipe has several device groups and a frozen cohort: a task cannot have both")
    for plan in plans:
        _check_cohort_sizes(plan, schedule)
    keys = {getattr(plan.sum_plan, "parameter_id", b"") for plan in plans}
    if len(keys) > 1:
        degrees = ", ".join(str(plan.sum_plan.describe().get("ring_degree")) for plan in plans)
        raise ParameterError(
            f"the sums of the device groups need different ring degrees ({degrees}), but the task has one set of keys: "
            "set the mechanism's parameter 'degree'"
        )


def _check_cohort_sizes(plan: TaskPlan, schedule: Schedule) -> None:
    if not isinstance(plan.sum_plan, MaskedPlan):
        return
    for name, clients in (("cohort_size", schedule.cohort_size), ("min_clients", schedule.min_clients)):
        try:
            plan.sum_plan.neighbourhood(clients)
        except ParameterError as error:
            raise ParameterError(f"a masked round of {name} clients cannot work: {error}") from error


def task_warnings(
    plan: TaskPlan, schedule: Schedule, repeatable: bool, signatures: Signatures = "required"
) -> list[str]:
    """Return the warnings of a task: what its choices reveal to whom, and what else its members should know."""
    summed = plan.sum_plan
    warnings = _masked_warnings(summed, schedule) if isinstance(summed, MaskedPlan) else [_OPENED_BY[summed.opened_by]]
    if repeatable:
        warnings.append(
            "The order of round-robin sampling follows from public values, so clients could choose who is in a cohort "
            "with them: use this for experiments only."
        )
    if plan.recipe.frozen_cohort:
        warnings.append(
            "All sums are over one cohort that only shrinks: a client that drops out leaves the task for good, and a "
            "sum that differs from an earlier one by too few clients is repeated over fewer clients."
        )
    unsigned = [_UNSIGNED] if signatures == "off" else []
    return [*warnings, *plan.recipe.warnings(), *unsigned]


_UNSIGNED = "Requests need no signature: anyone who has a client's token can act as that client."


_OPENED_BY = {
    "anyone": "The server sees every contribution in the clear.",
    "members": "Members share one secret key: any member together with the server can open every contribution.",
    "holder": "The key holder together with the server can open every contribution.",
}


def _masked_warnings(plan: MaskedPlan, schedule: Schedule) -> list[str]:
    found = plan.neighbourhood(schedule.cohort_size)
    k, t = found.degree, found.threshold
    trust = (
        "The server is trusted to follow the protocol: one that lies about who dropped out can open contributions."
        if plan.mode == "curious"
        else "The server is not trusted about dropouts, keys and the model: clients check them, and leave the round."
    )
    return [
        f"{trust} Sums are in the clear once they are released.",
        f"In a full cohort of {schedule.cohort_size} each client shares its secrets among {k} neighbours. {t} of them "
        f"can open its contribution together with the server. A round fails when fewer than {t} neighbours of a client "
        f"stay; about {plan.parameters.dropout:.0%} of the clients may drop out.",
    ]
