"""Checks and warnings for a task's choice of recipe, mechanism and schedule."""

from __future__ import annotations

from collections.abc import Sequence

from aggregator_service.settings import Signatures
from aggregator_service.tasks.plans import TaskPlan
from protocols.errors import ParameterError
from protocols.exposure import exposures
from protocols.messages import Evaluation, Schedule
from protocols.messages.privacy import holds_against
from protocols.privacy_advice import Sizes, outlook_of
from protocols.recipes.base import ItemParameters
from protocols.recipes.private import FAILED_SUMS, Private, sums_needed
from protocols.sums.oneshot.plan import OneshotPlan


def check_sums(plans: Sequence[TaskPlan], schedule: Schedule) -> None:
    """Check that all sums of a task can be made; plans: one for each device group, and that of the main sum.

    Raises `ParameterError` when a masked or one-shot round over `cohort_size` or `min_clients` cannot work, when the
    sums need different encryption keys, or when a recipe has several groups and a frozen cohort.
    """
    if plans[0].recipe.device_groups > 1 and plans[0].sum_class.repeated:
        raise ParameterError("this recipe has several device groups and a frozen cohort: a task cannot have both")
    for plan in plans:
        _check_cohort_sizes(plan, schedule)
    keys = {getattr(plan.sum_plan, "parameter_id", b"") for plan in plans}
    if len(keys) > 1:
        degrees = ", ".join(str(plan.sum_plan.describe().get("ring_degree")) for plan in plans)
        raise ParameterError(
            f"the sums of the task need different ring degrees ({degrees}), but the task has one set of keys: "
            "set the mechanism's parameter 'degree'"
        )


def check_budget(plan: TaskPlan, schedule: Schedule) -> None:
    """Raise `ParameterError` where a privacy block does not pay for all sums of one cohort, and for some that fail.

    One member could end such a task: what others sent to a sum that it makes fail is spent.
    """
    if not isinstance(plan.recipe, Private) or not plan.sum_class.repeated:
        return
    needed, paid = sums_needed(plan.recipe, schedule.rounds), plan.recipe.terms.sums
    if paid < needed + FAILED_SUMS:
        raise ParameterError(
            f"privacy: each member contributes to every sum of this task ({needed}), and again for each that fails: "
            f"rounds {paid} leaves no room for {FAILED_SUMS} that fail. Set rounds of the privacy block to at least "
            f"{needed + FAILED_SUMS} (--client-sums {needed + FAILED_SUMS}), or leave it out"
        )


def check_evaluation(plan: TaskPlan, evaluation: Evaluation) -> None:
    """Raise `ParameterError` where the task shall stop by a curve that the server cannot see."""
    if evaluation.stop_after is not None and plan.sum_plan.opened_by != "anyone":
        raise ParameterError(
            f"the server cannot open the sums of {plan.mechanism.name!r}, so it does not see the curve by which it "
            "shall stop: leave out stop_after, and close the task when its members see no improvement"
        )


def _check_cohort_sizes(plan: TaskPlan, schedule: Schedule) -> None:
    summed, cohort = plan.sum_plan, schedule.cohort_size
    fewest = schedule.min_clients * summed.groups
    if fewest > cohort:
        raise ParameterError(
            f"each of {summed.groups} groups needs min_clients, {schedule.min_clients}, so cohort_size must be at "
            f"least {fewest}, or min_clients or groups smaller"
        )
    in_groups = f" in each of {summed.groups} groups" if summed.groups > 1 else ""
    for name, clients in (("cohort_size clients", cohort), (f"min_clients clients{in_groups}", fewest)):
        try:
            summed.check_cohort(clients)
        except ParameterError as error:
            raise ParameterError(f"a {summed.mechanism} round of {name} cannot work: {error}") from error
    # what a full cohort's own dropouts leave is always enough: the threshold of a neighbourhood is higher
    fewest = summed.quorum(cohort) if summed.repeated else 0
    if 0 < schedule.start_clients < fewest:
        raise ParameterError(
            f"all sums are over the same data, and clients confirm sums of a cohort_size of {cohort} over "
            f"{fewest} clients or more: start_clients must be at least {fewest}, or 0, or cohort_size smaller"
        )


def task_warnings(
    plan: TaskPlan, schedule: Schedule, repeatable: bool, signatures: Signatures = "required"
) -> list[str]:
    """Return the warnings of a task: what its choices reveal to whom, and what else its members should know."""
    summed = plan.sum_plan
    warnings = summed.trust(schedule.cohort_size)
    if repeatable:
        warnings.append(
            "The order of round-robin sampling follows from public values, so clients could choose who is in a cohort "
            "with them: use this for experiments only."
        )
    if plan.sum_class.repeated:
        warnings.append(
            "All sums are over one cohort that only shrinks: a client that drops out leaves the task for good, and a "
            "sum that differs from an earlier one by too few clients is repeated over fewer clients."
        )
    said = [each.text for each in exposures(plan.recipe, schedule, summed.groups)]
    noise = _noise_warnings(plan, plan.recipe, schedule) if isinstance(plan.recipe, Private) else []
    unsigned = [_UNSIGNED] if signatures == "off" else []
    return [*warnings, *plan.recipe.warnings(), *said, *noise, *unsigned]


def held_against(plan: TaskPlan, schedule: Schedule, corrupt: float) -> str:
    """Return, for the members of a task with a privacy block, whom its guarantee holds against.

    corrupt: share of a cohort whose noise is not counted on.
    """
    summed = plan.sum_plan
    committee = None
    if isinstance(summed, OneshotPlan):
        committee = summed.committee, summed.parameters.collusion_bound
    return holds_against(summed.opened_by, schedule.cohort_size, corrupt, committee)


def _noise_warnings(plan: TaskPlan, recipe: Private, schedule: Schedule) -> list[str]:
    outlook = noise_warning(recipe, schedule)
    return [held_against(plan, schedule, recipe.privacy.corrupt), *([] if outlook is None else [outlook])]


def noise_warning(recipe: Private, schedule: Schedule) -> str | None:
    """Return what the noise of a task leaves, in one sentence; None if it leaves a part of what is personal or more."""
    cohort = schedule.cohort_size
    users = max(cohort, schedule.start_clients)
    sizes = Sizes(schedule.rounds, cohort, schedule.min_clients, recipe.terms.sums, all_users=users == cohort)
    parameters = recipe.parameters
    items = parameters.items if isinstance(parameters, ItemParameters) else recipe.inner.layout(recipe.main_sum).length
    outlook = outlook_of(recipe, users, items, sizes)
    if outlook.left in ("part", "most"):
        return None
    honest = recipe.terms.honest
    by_honest = f" The noise of {honest} of them alone must reach the target: a larger min_clients means less noise."
    return f"The noise drowns the signal: {outlook.text}.{by_honest if 2 * honest < cohort else ''}"


_UNSIGNED = "Requests need no signature: anyone who has a client's token can act as that client."
