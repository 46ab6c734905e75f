"""Create, list and show tasks, for the routes and the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from aggregator_service.access.audit_trail import Actor, record
from aggregator_service.access.principals import hash_token, new_id, new_token
from aggregator_service.problems import Problem
from aggregator_service.settings import Signatures
from aggregator_service.storage.round_rows import find_snapshot, last_completed, seen_by
from aggregator_service.storage.schema import ClientRow, InvitationRow, PastTaskRow, RoundRow, TaskRow, TermsColumns
from aggregator_service.tasks.choice_checks import check_budget, check_evaluation, check_sums, task_warnings
from aggregator_service.tasks.committee_keys import awaited_committee, committee_size
from aggregator_service.tasks.membership import able_members, awaited_uncounted
from aggregator_service.tasks.plans import (
    StoredTerms,
    TaskPlan,
    check_terms,
    plan_task,
    row_evaluation,
    row_privacy,
    row_terms,
    task_terms,
)
from aggregator_service.tasks.receipts import receipt_key
from aggregator_service.tasks.starts import awaited_catalogue, check_catalogue
from protocols.codec import b64decode, b64encode, canonical_json
from protocols.errors import ParameterError
from protocols.exposure import check_equations
from protocols.layout import Block
from protocols.messages import (
    Invitation,
    InvitationRequest,
    MechanismChoice,
    OrganiserPin,
    RecipeChoice,
    Schedule,
    TaskRequest,
    TaskView,
)
from protocols.messages.rounds import BlockView, LayoutView, ResolvedChoice, ResolvedTask, SegmentView, SumView
from protocols.recipes.registry import recipe_entry
from protocols.sums.base import SumPlan
from protocols.sums.masked.plan import RoundContext
from protocols.sums.registry import mechanism_entry, resolved_parameters
from protocols.task_terms import broadcast_digest, differing_part, model_of_round


def plan_request(request: TaskRequest) -> TaskPlan:
    """Check a request and return the plan of its main sum.

    Raises `ParameterError`, `BudgetError` or `CombinationError` when recipe, mechanism and schedule do not fit
    together. Call it before the transaction: it may take a second, during which a SQLite database could not be written.
    """
    recipe, mechanism = request.recipe, request.mechanism
    recipe_entry(recipe.name, recipe.version)
    mechanism_entry(mechanism.name, mechanism.version)
    canonical_json(request.model_dump(mode="json"))  # parties bind their masks to this form of the terms
    terms = task_terms(
        recipe.name,
        recipe.parameters,
        mechanism.name,
        mechanism.parameters,
        request.schedule,
        request.evaluation,
        request.privacy,
    )
    check_terms(terms)
    plan = plan_task(terms)
    check_equations(plan.recipe, request.schedule, groups=plan.sum_plan.groups)
    check_catalogue(request, plan.recipe)
    check_budget(plan, request.schedule)
    sums = [*range(1, plan.recipe.device_groups + 1)]
    if request.evaluation is not None:
        check_evaluation(plan, request.evaluation)
        sums.append(plan.recipe.main_sum + 1)
    others = [plan_task(terms, sum_index) for sum_index in sums]
    check_sums(others if plan in others else [*others, plan], request.schedule)
    return plan


def create_task(
    session: Session, request: TaskRequest, plan: TaskPlan, actor: Actor, task_id: str | None = None
) -> TaskRow:
    """Add an open task; plan: that of `plan_request`. task_id: its id; None: a new one.

    Raises `Problem` conflict (409) when the name is taken, and `ParameterError` when the sums of the task and of
    earlier ones over its data set would together give the items of single members away.
    """
    recipe, mechanism = request.recipe, request.mechanism
    if request.data_set is not None:
        if plan.sum_plan.groups > 1:
            raise ParameterError(
                "a task with groups has no data_set: sums of other tasks over the same data, and of groups, could "
                "together be of few clients"
            )
        same: list[TermsColumns] = []
        for kind in (TaskRow, PastTaskRow):
            same += session.scalars(select(kind).where(kind.data_set == request.data_set))
        check_equations(plan.recipe, request.schedule, [plan_task(row_terms(other)).recipe for other in same])
    task = TaskRow(
        id=task_id or new_id("t"),
        name=request.name,
        state="open",
        recipe_name=recipe.name,
        recipe_parameters=dict(recipe.parameters),
        mechanism_name=mechanism.name,
        mechanism_parameters=dict(mechanism.parameters),
        schedule=request.schedule.model_dump(),
        follows=request.schedule.follows,
        seed=os.urandom(32) if request.seed is None else b64decode(request.seed, 32),
        repeatable=request.seed is not None,
        opened_by=plan.sum_plan.opened_by,
        needs_keyring=plan.mechanism.needs_keyring,
        data_set=request.data_set,
        organiser_key=None if request.organiser is None else b64decode(request.organiser.key, 32),
        organiser_scope=None if request.organiser is None else request.organiser.scope,
        evaluation=None if request.evaluation is None else request.evaluation.model_dump(mode="json"),
        catalogue_digest=request.catalogue_digest,
        privacy=None if request.privacy is None else request.privacy.model_dump(mode="json"),
        created_at=actor.at,
        receipt_seed=os.urandom(32),
    )
    if request.schedule.follows is not None:
        task.revocations = followed_task(session, request).revocations
    session.add(task)
    try:
        session.flush()
    except IntegrityError:
        raise Problem("conflict", "a task with this name exists already") from None
    record(session, actor, "task created", task=task, recipe=recipe.name, mechanism=mechanism.name)
    return task


def followed_task(session: Session, request: TaskRequest) -> TaskRow:
    """Return the task that a requested one follows.

    Raises `ParameterError` if there is none, or its members could not be carried over: their certificates are of one
    organiser and scope, and what its sums said must count where sums over the same data do.
    """
    followed = session.get(TaskRow, request.schedule.follows)
    if followed is None:
        raise ParameterError(f"follows: there is no task with the id {request.schedule.follows!r}")
    if _organiser(followed) != request.organiser:
        raise ParameterError(
            f"follows: task {followed.name!r} has another organiser or scope, so its members have no certificate for "
            "this one: name the same, or leave follows out and invite them"
        )
    if followed.data_set != request.data_set:
        raise ParameterError(
            f"follows: task {followed.name!r} has the data_set {followed.data_set!r}: a task over its members' data "
            "has the same"
        )
    return followed


def following_task(session: Session, task: TaskRow) -> TaskRow | None:
    """Return the last of the tasks that follow `task`, one after the other; None if none follows it."""
    query = select(TaskRow).where(TaskRow.follows == task.id)
    newest = session.scalars(query.order_by(TaskRow.created_at.desc(), TaskRow.id).limit(1)).one_or_none()
    return None if newest is None else following_task(session, newest) or newest


def list_tasks(session: Session, name: str | None = None) -> Sequence[TaskRow]:
    """Return all tasks, newest first; only the one called `name` if it is given."""
    query = select(TaskRow).order_by(TaskRow.created_at.desc(), TaskRow.id)
    return session.scalars(query if name is None else query.where(TaskRow.name == name)).all()


def task_view(session: Session, task: TaskRow, signatures: Signatures = "required", now: float = 0.0) -> TaskView:
    """Return a task as operators and members see it, with its plan, counts and warnings.

    signatures: whether this server requires signed requests; "off" adds a warning. now: seconds since the epoch; the
    committee's certificates that expired before do not count.
    """
    schedule = Schedule.model_validate(task.schedule)
    terms = row_terms(task)
    plan = plan_task(terms)
    present = ClientRow.task_id == task.id, ClientRow.revoked_at.is_(None), ClientRow.role != "committee"
    counted = select(func.count()).select_from(ClientRow).where(*present)
    members = session.execute(counted).scalar_one()
    able = able_members(session, task, plan.recipe, plan.sum_class, plan.recipe.main_sum)
    return TaskView.model_validate(
        {
            "task_id": task.id,
            "name": task.name,
            "state": task.state,
            "recipe": RecipeChoice(
                name=task.recipe_name,
                parameters=task.recipe_parameters,
                version=recipe_entry(task.recipe_name).version,
            ),
            "mechanism": MechanismChoice(
                name=task.mechanism_name,
                parameters=task.mechanism_parameters,
                version=mechanism_entry(task.mechanism_name).version,
            ),
            "schedule": schedule,
            "seed": b64encode(task.seed),
            "data_set": task.data_set,
            "organiser": _organiser(task),
            "evaluation": row_evaluation(task),
            "catalogue_digest": task.catalogue_digest,
            "privacy": row_privacy(task),
            "receipt_key": receipt_key(task),
            "best_round": task.best_round,
            "plan": plan.sum_plan.describe(),
            "resolved": resolved_task(terms),
            "opened_by": task.opened_by,
            "members": members,
            "keyed_members": sum(able) if task.needs_keyring else 0,
            "able_members": able,
            "completed_rounds": task.completed_rounds,
            "abandoned_sums": task.abandoned_sums,
            "failed_rounds": task.failed_rounds,
            "waiting_for": awaited_catalogue(task)
            or awaited_committee(session, task, now)
            or awaited_uncounted(session, task, plan.recipe)
            or _awaited_people(session, task, schedule),
            "warnings": [
                *([ended] if (ended := ended_early(task)) else []),
                *task_warnings(plan, schedule, task.repeatable, signatures),
            ],
        }
    )


def ended_early(task: TaskRow) -> str:
    """Return why a task ended before its last sum, as a sentence; "" where its rounds say why."""
    return "" if task.ended is None else f"The task ended early: {task.ended}."


def _awaited_people(session: Session, task: TaskRow, schedule: Schedule) -> str | None:
    """Return that a task without a key holder, or without any member, waits for one; else None."""
    if task.state != "open":
        return None
    enrolled = select(ClientRow.role).distinct().where(ClientRow.task_id == task.id, ClientRow.revoked_at.is_(None))
    roles = set(session.scalars(enrolled))
    if task.needs_keyring and task.public_key is None and "holder" not in roles:
        return "the key holder: none has enrolled, and without its keys no member can contribute"
    if "member" not in roles:
        wanted = max(schedule.start_clients or schedule.cohort_size, schedule.min_clients)
        return f"members: none is enrolled, and the first round needs {wanted}"
    return None


def _organiser(task: TaskRow) -> OrganiserPin | None:
    if task.organiser_key is None or task.organiser_scope is None:
        return None
    return OrganiserPin(key=b64encode(task.organiser_key), scope=task.organiser_scope)


def agreed_digest(
    session: Session, task: TaskRow, sum_index: int, completed: RoundRow | None, levels: Sequence[int]
) -> bytes:
    """Return the digest to which the keys of a masked round of sum `sum_index` are bound.

    It covers the task and the model that the cohort trains on: their device group's view of the snapshot of
    `completed`, the newest round that released a sum. levels: the levels in use in the round.
    """
    return broadcast_digest(task_view(session, task), sum_index, _model(session, task, sum_index, completed), levels)


def differing_binding(session: Session, task: TaskRow, round_: RoundRow, own: RoundContext, stated: str) -> str:
    """Return which part of an advertisement's header Round-Binding differs from the server's, "" where none does.

    round_: the task's newest round, which is active. own: its context.
    """
    model = _model(session, task, round_.sum_index, last_completed(session, task.id))
    return differing_part(stated, task_view(session, task), model, round_.sum_index, own, round_.levels)


def _model(session: Session, task: TaskRow, sum_index: int, completed: RoundRow | None) -> bytes | None:
    """Return `model_of_round` of what the cohort of sum `sum_index` trains on; None while no round is complete."""
    device_group = plan_task(row_terms(task), sum_index).recipe.device_group_of(sum_index)
    state = None if completed is None else find_snapshot(session, task.id, completed.number)
    if state is None:
        return None
    return model_of_round(state.round_number, bytes.fromhex(seen_by(session, state, device_group).digest))


def create_invitation(session: Session, task: TaskRow, request: InvitationRequest, actor: Actor) -> Invitation:
    """Add an invitation; the result contains its token, of which only the hash is stored.

    Raises `Problem` conflict (409) when the task is over.
    """
    if task.state != "open":
        raise Problem("conflict", "the task is over: no client can enrol any more")
    if request.role == "committee" and not committee_size(task):
        raise Problem("invalid-parameters", "this task's mechanism has no committee: only oneshot tasks have one")
    if request.role == "holder" and not task.needs_keyring:
        raise Problem("invalid-parameters", "this task's mechanism has no keys, so it has no key holder")
    token = new_token("hri")
    invitation_id = new_id("i")
    session.add(
        InvitationRow(
            id=invitation_id,
            token_hash=hash_token(token),
            task_id=task.id,
            role=request.role,
            uses=request.uses,
            created_at=actor.at,
            expires_at=actor.at + request.expires_seconds,
        )
    )
    record(session, actor, "invitation made", task=task, target=invitation_id, role=request.role, uses=request.uses)
    return Invitation(
        task_id=task.id,
        invitation_id=invitation_id,
        invitation=token,
        role=request.role,
        uses=request.uses,
        expires_seconds=request.expires_seconds,
    )


@lru_cache(maxsize=64)
def resolved_task(terms: StoredTerms) -> ResolvedTask:
    """Return the parameters of a task with their defaults, and its main sum."""
    plan = plan_task(terms)
    own = resolved_parameters(terms.mechanism_name, json.loads(terms.mechanism_parameters))
    return ResolvedTask(
        recipe=ResolvedChoice(name=terms.recipe_name, parameters=plan.recipe.parameters.model_dump(mode="json")),
        mechanism=ResolvedChoice(name=terms.mechanism_name, parameters=own),
        main_sum=_view(plan, plan.recipe.main_sum),
    )


@lru_cache(maxsize=64)
def sum_view(terms: StoredTerms, sum_index: int) -> SumView:
    """Return the layout and the plan of sum `sum_index` of a task; what `plan_task` raises."""
    return _view(plan_task(terms, sum_index), sum_index)


def _view(plan: TaskPlan, sum_index: int) -> SumView:
    return SumView(
        sum_index=sum_index,
        device_group=plan.recipe.device_group_of(sum_index),
        layout=_layout(plan.sum_plan),
        plan=plan.sum_plan.describe(),
        state_bytes=plan.recipe.state_bytes(sum_index),
    )


def _layout(plan: SumPlan) -> LayoutView:
    layout, scales = plan.layout, _scales_of_shapes(plan)
    if layout.chosen:  # all blocks are equal, and there may be millions
        blocks = [_block(layout.blocks[0], len(layout.blocks), scales)]
    else:
        runs = (list(run) for _, run in groupby(layout.blocks, key=lambda block: block.segments))
        blocks = [_block(run[0], len(run), scales) for run in runs]
    return LayoutView(length=layout.length, chosen=layout.chosen, blocks=blocks)


def _scales_of_shapes(plan: SumPlan) -> Mapping[tuple[object, str], float]:
    """Return the scale by a block's segments and a segment's name: a plan may name one block of equal ones only."""
    scales = plan.segment_scales
    return {
        (block.segments, segment.name): scales[f"{block.name}/{segment.name}"]
        for block in (plan.layout.blocks if scales else ())
        for segment in block.segments
        if f"{block.name}/{segment.name}" in scales
    }


def _block(block: Block, count: int, scales: Mapping[tuple[object, str], float]) -> BlockView:
    shown = SegmentView.model_fields.keys() - {"scale"}
    segments = [
        SegmentView(
            **{name: getattr(segment, name) for name in shown}, scale=scales.get((block.segments, segment.name))
        )
        for segment in block.segments
    ]
    return BlockView(name=block.name, count=count, segments=segments)
