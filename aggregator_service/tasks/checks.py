"""What a choice of recipe, mechanism and schedule means: warnings for a task, and what a masked one must meet."""

from __future__ import annotations

from collections.abc import Sequence

from aggregator_service.settings import Signatures
from aggregator_service.tasks.plans import TaskPlan
from protocols.errors import ParameterError
from protocols.messages import Schedule
from protocols.sums.masked.plan import MaskedPlan

__all__ = ["check_sums", "task_warnings"]


def check_sums(plans: Sequence[TaskPlan], schedule: Schedule) -> None:
    """Raise `ParameterError` when a sum of one of the groups, asked in turn, could never be made.

    A masked round over `cohort_size`, or only `min_clients`, must work, and the keys of an encrypted task must fit all.
    """
    if len(plans) > 1 and plans[0].recipe.frozen_cohort:
        raise ParameterError("this recipe asks groups in turn, over one cohort that only shrinks: no task can do both")
    for plan in plans:
        _check_floor(plan, schedule)
    keys = {getattr(plan.sum_plan, "parameter_id", b"") for plan in plans}
    if len(keys) > 1:
        degrees = ", ".join(str(plan.sum_plan.describe().get("ring_degree")) for plan in plans)
        raise ParameterError(
            f"the groups' sums suit different ring degrees ({degrees}) and the task has one set of keys: choose a "
            "degree for all with the mechanism's parameter 'degree'"
        )


def _check_floor(plan: TaskPlan, schedule: Schedule) -> None:
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
    """What this choice reveals, and to whom."""
    summed = plan.sum_plan
    warnings = _of_masked(summed, schedule) if isinstance(summed, MaskedPlan) else [_OPENED_BY[summed.opened_by]]
    if repeatable:
        warnings.append(
            "Whose turn it is follows from public values, so clients could choose their company: an experiment."
        )
    if plan.recipe.frozen_cohort:
        warnings.append(
            "All sums are over one cohort that only shrinks: a client that drops out leaves the job for good, and a "
            "sum that differs from an earlier one by too few clients is made again over fewer."
        )
    unsigned = [_UNSIGNED] if signatures == "off" else []
    return [*warnings, *plan.recipe.warnings(), *unsigned]


_UNSIGNED = "Requests need no signature: anyone who has a client's token can act as that client."


_OPENED_BY = {
    "anyone": "The server sees every contribution in the clear.",
    "members": "Members share one secret key: any member together with the server can open every contribution.",
    "holder": "The key holder together with the server can open every contribution.",
}


def _of_masked(plan: MaskedPlan, schedule: Schedule) -> list[str]:
    found = plan.neighbourhood(schedule.cohort_size)
    k, t = found.degree, found.threshold
    trust = (
        "The server is trusted to follow the protocol: one that lies about who is alive can open contributions."
        if plan.mode == "curious"
        else "The server may lie about who is alive, about keys and about the model: clients check, and leave."
    )
    return [
        f"{trust} Sums are in the clear once they are released.",
        f"In a full cohort of {schedule.cohort_size} each client shares its secrets among {k} neighbours. {t} of them "
        f"can open its contribution together with the server, and a round fails when a client has fewer than {t} "
        f"that stay: it bears about {plan.parameters.dropout:.0%} that drop out.",
    ]
