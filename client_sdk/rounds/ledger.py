"""Where this client's data are: the released sums that contain them, and what they have cost of its privacy budget.

A malicious server can omit sums from its ledger, but it cannot change this client's records. So each contribution is
recorded before it is sent (`OwnRound.deliver`), and the two lists are compared.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.requests import or_none
from client_sdk.api.wire import Program
from client_sdk.errors import PolicyRefused
from client_sdk.store.client_store import ClientStore, OwnContribution
from client_sdk.store.states import Spending, total_epsilon
from protocols.errors import to_accept
from protocols.messages import LedgerEntry
from protocols.recipes.base import RoundSpec
from protocols.recipes.private import Private


@dataclass(frozen=True)
class OwnLedger:
    """The released sums that contain this client's data."""

    task_id: str
    task_name: str
    entries: tuple[LedgerEntry, ...]
    """The server's list, in order of rounds."""
    warnings: tuple[str, ...]
    """Where the client's own records differ from it."""


def listed_sums(calls: ApiCalls, task_id: str) -> Program[tuple[list[LedgerEntry], int]]:
    """Return the released sums with this client's data, by the server's list, and after which round it is whole.

    The server deletes after some rounds who contributed to earlier ones; this client's own records stay.
    """
    entries: list[LedgerEntry] = []
    while True:
        page = yield from calls.own_ledger(task_id, entries[-1].round if entries else 0)
        entries += page.entries
        if not page.more or not page.entries:
            return entries, page.complete_after


def read_ledger(calls: ApiCalls, client_store: ClientStore, task_id: str, task_name: str) -> Program[OwnLedger]:
    """Fetch this client's ledger of one task and compare it with its own records."""
    entries, complete_after = yield from listed_sums(calls, task_id)
    recorded = client_store.contributions(task_id)
    warnings = [text for entry in entries if (text := _difference(entry, recorded.get(entry.round)))]
    listed = {entry.round for entry in entries}
    for number in sorted(recorded.keys() - listed):
        if not recorded[number].acknowledged or number <= complete_after:
            continue
        found = yield from or_none(calls.round(task_id, number))
        if found is None:
            fault = ", and does not know the round: it was restored from a backup"
        elif found.state == "complete":
            fault = " and released the sum, but does not list it"
        else:
            continue
        warnings.append(f"round {number}: the server acknowledged a contribution{fault}")
    return OwnLedger(task_id, task_name, tuple(entries), tuple(warnings))


def _difference(entry: LedgerEntry, recorded: OwnContribution | None) -> str | None:
    if recorded is None:
        return f"round {entry.round}: the server lists a contribution that this device has no record of"
    if recorded.digest != entry.contribution_digest:
        return f"round {entry.round}: the server counted a contribution other than the one that this device sent"
    return None


# --- the privacy budget of this client's data: reserved when it joins a task, spent before each contribution ----------


@dataclass(frozen=True)
class TaskCost:
    """What one task with a privacy block costs this client's data."""

    task_id: str
    task_name: str
    sums: int
    """Contributions sent, of `most_sums` that the task allows."""
    most_sums: int
    spent: float
    """Epsilon of what was sent."""
    reserved: float
    """Epsilon of what counts towards the budget: of `most_sums` contributions while the task goes on, of what was spent
    once it has ended."""
    ended: bool


@dataclass(frozen=True)
class Budget:
    """What all tasks with a privacy block cost this identity's data, by its own records of all servers."""

    tasks: tuple[TaskCost, ...]
    spent: float
    reserved: float
    """Epsilon of all tasks together, at `delta`, as for `TaskCost`; smaller than the sum of the tasks' figures, because
    it is Renyi divergences that add up."""
    max_epsilon: float
    """What the policy allows to be reserved."""
    delta: float


def read_budget(store: ClientStore, policy: Policy) -> Budget:
    """Return what the tasks of this identity cost its data. Raises `LocalFileError` for a damaged record."""
    delta, kept = policy.budget_delta, store.all_spending()

    def spent_and_reserved(records: Collection[Spending]) -> tuple[float, float]:
        return total_epsilon(records, delta, spent_only=True), total_epsilon(records, delta)

    tasks = [
        TaskCost(key.partition("@")[0], one.task_name, one.sums, one.most_sums, *spent_and_reserved([one]), one.over)
        for key, one in kept.items()
    ]
    tasks.sort(key=lambda task: (task.task_name, task.task_id))
    return Budget(tuple(tasks), *spent_and_reserved(kept.values()), policy.max_epsilon, delta)


def check_budget(store: ClientStore, policy: Policy, terms: TaskTerms, listed: int = 0) -> Spending | None:
    """Return the record of a task with a privacy block, None for one without.

    listed: sums with this client's data by the server's list; more than this device recorded where it was restored.
    Raises `PolicyRefused` if the policy does not allow what this and all other tasks may cost this client's data.
    """
    recipe = terms.recipe
    if not isinstance(recipe, Private):
        return None
    own = store.spending(terms.task_id)
    if own is None:
        own = Spending(terms.name, recipe.terms.sums, recipe.cost(recipe.terms.sums))
    if listed > own.sums:
        sums = min(listed, own.most_sums)
        own = replace(own, sums=sums, spent=np.maximum(own.spent, recipe.cost(sums)))
    if terms.view.state != "open":
        return replace(own, over=True)
    own = replace(own, over=False)  # a task that failed may go on
    others = store.other_spending(terms.task_id)
    before, after = (total_epsilon(records, policy.budget_delta) for records in (others, [*others, own]))
    if after > policy.max_epsilon:
        raise PolicyRefused(
            f"task {terms.name!r} may cost this client's data epsilon {after:.3g} at delta {policy.budget_delta:g}, "
            f"{before:.3g} of it for other tasks; this client's policy allows {policy.max_epsilon:g} (see hushrec "
            "ledger)",
            remedy=to_accept("max_epsilon=...", "--max-epsilon"),
        )
    return own


def reserve_budget(store: ClientStore, policy: Policy, terms: TaskTerms, listed: int) -> None:
    """Store what a task may cost, if it has a privacy block; see `check_budget` for `listed` and the errors."""
    with store.exclusive():
        own = check_budget(store, policy, terms, listed)
        if own is not None:
            store.keep_spending(terms.task_id, own)


def release_budget(store: ClientStore, task_id: str) -> None:
    """Free what a task that has ended had reserved and did not spend."""
    with store.exclusive():
        own = store.spending(task_id)
        if own is not None and not own.over:
            store.keep_spending(task_id, replace(own, over=True))


def spend_budget(store: ClientStore, terms: TaskTerms, spec: RoundSpec) -> None:
    """Store what a contribution costs, if the task has a privacy block; called when its upload begins.

    Raises `PolicyRefused` when nothing is left: `require_data` abstains before.
    """
    recipe = terms.recipe
    if not isinstance(recipe, Private):
        return
    with store.exclusive():
        own = store.spending(terms.task_id)
        why = "this task has no record of a privacy budget" if own is None else own.why_not()
        if own is not None and own.over:
            why = "the budget that was left of this task is free for others since it ended: join it again"
        if own is None or why is not None:
            raise PolicyRefused(f"round {spec.number}: {why}")
        store.keep_spending(terms.task_id, own.with_sum(recipe.noise(spec.sum_index).curve(recipe.terms.honest)))
