"""Checks and warnings for a task's choice of recipe, mechanism and schedule."""

from __future__ import annotations

from collections.abc import Sequence

from aggregator_service.settings import Signatures
from aggregator_service.tasks.plans import TaskPlan
from protocols.combinations import check_combination
from protocols.errors import CombinationError, ParameterError
from protocols.messages import Evaluation, Schedule
from protocols.sums.base import SumPlan
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.oneshot.parameters import MIN_CLIENTS
from protocols.sums.oneshot.plan import OneshotPlan

__all__ = ["check_evaluation", "check_sums", "task_warnings"]


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


def check_evaluation(plan: TaskPlan, evaluation: Evaluation) -> None:
    """Raise `ParameterError` where the task shall stop by a curve that the server cannot see."""
    if evaluation.stop_after is not None and plan.sum_plan.opened_by != "anyone":
        raise ParameterError(
            f"the server cannot open the sums of {plan.mechanism.name!r}, so it does not see the curve by which it "
            "shall stop: leave out stop_after, and close the task when its members see no improvement"
        )


def _check_cohort_sizes(plan: TaskPlan, schedule: Schedule) -> None:
    if isinstance(plan.sum_plan, OneshotPlan) and schedule.min_clients < MIN_CLIENTS:
        raise ParameterError(f"a one-shot round needs at least {MIN_CLIENTS} clients: set min_clients to {MIN_CLIENTS}")
    if not isinstance(plan.sum_plan, MaskedPlan):
        return
    for name, clients in (("cohort_size", schedule.cohort_size), ("min_clients", schedule.min_clients)):
        try:
            plan.sum_plan.neighbourhood(clients)
        except ParameterError as error:
            raise ParameterError(f"a masked round of {name} clients cannot work: {error}") from error
    if plan.sum_plan.repeated:
        _check_repeated(plan.sum_plan, schedule)


def _check_repeated(plan: MaskedPlan, schedule: Schedule) -> None:
    """Raise `ParameterError` if the task could begin with so few clients that none would confirm a sum.

    What a full cohort's own dropouts leave is always enough, because the threshold of a neighbourhood is higher.
    """
    cohort = schedule.cohort_size
    fewest = plan.quorum(cohort)
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
    try:
        check_combination(plan.recipe, plan.mechanism.name)
    except CombinationError as error:  # the task was created by a version that allowed this
        return [f"No further round of this task will open: {error}. Close it and create another."]
    warnings = _trust_warnings(summed, schedule)
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
    unsigned = [_UNSIGNED] if signatures == "off" else []
    return [*warnings, *plan.recipe.warnings(), *unsigned]


_UNSIGNED = "Requests need no signature: anyone who has a client's token can act as that client."


_OPENED_BY = {
    "anyone": "The server sees every contribution in the clear.",
    "members": "Members share one secret key: any member together with the server can open every contribution.",
}


def _trust_warnings(summed: SumPlan, schedule: Schedule) -> list[str]:
    """Return who can open a contribution or a sum."""
    if isinstance(summed, MaskedPlan):
        return _masked_warnings(summed, schedule)
    if isinstance(summed, OneshotPlan):
        return _oneshot_warnings(summed)
    return [_OPENED_BY[summed.opened_by]]


def _oneshot_warnings(plan: OneshotPlan) -> list[str]:
    c, t, corrupt, most = plan.committee, plan.threshold, plan.parameters.corrupt, plan.parameters.collusion_bound
    return [
        f"The server is not trusted about survivors, keys and the model, as long as at most {most} of the {c} members "
        f"of the committee collude with it, or {corrupt} where members are replaced: different parties should run "
        f"them. {most + 1} members together with a server that lies about survivors can open every contribution. Sums "
        "are in the clear once they are released.",
        f"If more than {c - t} members of the committee are absent, no round completes, and the task waits for them. "
        "A client that lies about its mask makes a round fail. A member can take clients out of the task by claiming "
        "that their shares do not open.",
    ]


_FEWEST = (
    "All sums are over the same data: clients confirm none over fewer than {} of {} clients, so that the server "
    "cannot compute anything over few clients from several sums. When fewer are left, the task fails."
)


def _masked_warnings(plan: MaskedPlan, schedule: Schedule) -> list[str]:
    try:
        found = plan.neighbourhood(schedule.cohort_size)
    except ParameterError as error:  # the task was created by a version that allowed this
        return [f"No round of this task can complete: {error}. Close it and create another."]
    k, t = found.degree, found.threshold
    trust = (
        "The server is trusted to follow the protocol: one that lies about who dropped out can open contributions."
        if plan.mode == "curious"
        else "The server is not trusted about dropouts, keys and the model: clients check them, and leave the round."
    )
    cohort = schedule.cohort_size
    again = [_FEWEST.format(plan.quorum(cohort), cohort)] if plan.repeated else []
    return [
        f"{trust} Sums are in the clear once they are released.",
        f"In a full cohort of {schedule.cohort_size} each client shares its secrets among {k} neighbours. {t} of them "
        f"can open its contribution together with the server. A round fails when fewer than {t} neighbours of a client "
        f"stay; about {plan.parameters.dropout:.0%} of the clients may drop out.",
        *again,
    ]
