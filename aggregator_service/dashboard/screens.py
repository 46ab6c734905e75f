"""The pages with live fragments: how their facts are loaded, for the whole page and for each update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from sqlalchemy.orm import Session

from aggregator_service.dashboard.access import Visitor
from aggregator_service.dashboard.facts import TaskFacts, health_facts, overview, task_facts
from aggregator_service.dashboard.pages import fragment, markup, page
from aggregator_service.dashboard.tallies import Tally, tallies
from aggregator_service.dashboard.words import all_parameters, figures, security_level, security_terms
from aggregator_service.problems import Problem
from aggregator_service.services import Services
from aggregator_service.storage.rounds import find_round
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.tasks import ended_early

__all__ = ["Screen", "ScreenContent", "health_screen", "round_screen", "task_of", "task_screen", "tasks_screen"]


@dataclass(frozen=True)
class ScreenContent:
    """The content of a screen: template variables, and a sentence that screen readers announce when it changes."""

    facts: Mapping[str, Any]
    announcement: str = ""


@dataclass(frozen=True)
class Screen:
    """A page: its template, the names of its live fragments, and a function that loads its content.

    task_id: a change of this task triggers an update at once; other changes are found by polling.
    """

    template: str
    fragments: tuple[str, ...]
    load: Callable[[Services], ScreenContent]
    task_id: str = ""

    def response(self, request: Request, services: Services, visitor: Visitor) -> Any:
        """Render the whole page."""
        now, shown = services.clock.now(), self.load(services)
        parts = {name: markup(html) for name, html in self.render(request, visitor, now, shown).items()}
        return page(request, self.template, now, visitor, parts=parts, **shown.facts)

    def render(self, request: Request, visitor: Visitor, now: float, shown: ScreenContent) -> dict[str, str]:
        """Render the live fragments; the result maps fragment name to HTML."""
        return {name: fragment(request, name, now, visitor, shown.facts) for name in self.fragments}


def tasks_screen(number: int) -> Screen:
    """Return the overview of all tasks, page `number` (from 1)."""

    def load(services: Services) -> ScreenContent:
        with services.database.read() as session:
            found = overview(session, number)
        return ScreenContent(
            {"overview": found, "unsigned": services.settings.signatures == "off"},
            f"{found.states.get('open', 0)} tasks are open.",
        )

    return Screen("tasks", ("task_list",), load)


def task_screen(task_id: str, before: int | None) -> Screen:
    """Return the page of a task: rounds, metrics, members, parameters. before: only rounds numbered below it."""

    def load(services: Services) -> ScreenContent:
        with services.database.read() as session:
            row, now, signatures = task_of(session, task_id), services.clock.now(), services.settings.signatures
            facts = task_facts(session, row, now, before, signatures)
        view = facts.view
        shown = {
            "facts": facts,
            "level": security_level(view),
            "security": security_terms(view),
            "parameters": all_parameters(view),
            "ended": ended_early(facts.row),
            "warnings": _other_warnings(facts),
            "figures": figures(facts.quality),
        }
        return ScreenContent(shown, _task_announcement(facts))

    return Screen("task", ("task_status", "quality", "privacy", "rounds"), load, task_id)


def _other_warnings(facts: TaskFacts) -> list[str]:
    """Return the warnings of a task that no other part of its page says."""
    said = [] if facts.privacy is None else facts.privacy.against
    return [text for text in facts.view.warnings if text not in said and text != ended_early(facts.row)]


def _task_announcement(facts: TaskFacts) -> str:
    newest = f" Round {facts.strip[-1].number} is {facts.strip[-1].state}." if facts.strip else ""
    return f"The task is {facts.row.state}.{newest}"


def round_screen(task_id: str, number: int) -> Screen:
    """Return the page of a round: states, funnel, bytes and times."""

    def load(services: Services) -> ScreenContent:
        with services.database.read() as session:
            task = task_of(session, task_id)
            tally = tally_of(session, task_id, number)
            later = find_round(session, task_id, number + 1) is not None
        return ScreenContent({"task": task, "tally": tally, "later": later}, f"Round {number} is {tally.round.state}.")

    return Screen("round", ("round_status", "round_facts"), load, task_id)


def health_screen() -> Screen:
    """Return the page on the health of the server's components."""

    def load(services: Services) -> ScreenContent:
        facts = health_facts(services)
        return ScreenContent(
            {"facts": facts}, "All components work." if facts.worst != "bad" else "A component has failed."
        )

    return Screen("health", ("health",), load)


def task_of(session: Session, task_id: str) -> TaskRow:
    """Return the task. Raises: `Problem` not-found."""
    task = session.get(TaskRow, task_id)
    if task is None:
        raise Problem("not-found", "There is no task with this id: it may be on another server.")
    return task


def tally_of(session: Session, task_id: str, number: int) -> Tally:
    """Return the round with its counts. Raises: `Problem` not-found."""
    row = find_round(session, task_id, number)
    if row is None:
        raise Problem("not-found", "The task has no round with this number yet.")
    return tallies(session, [row])[0]
