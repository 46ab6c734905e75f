"""The pages with live parts: what each is made of, gathered once for the whole page or again for its news."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from sqlalchemy.orm import Session

from aggregator_service.dashboard.health_facts import health_facts
from aggregator_service.dashboard.overview import overview
from aggregator_service.dashboard.pages import fragment, markup, page
from aggregator_service.dashboard.quality import figures
from aggregator_service.dashboard.sign_ins import Visitor
from aggregator_service.dashboard.tallies import Tally, tallies
from aggregator_service.dashboard.task_facts import TaskFacts, task_facts
from aggregator_service.dashboard.terms import all_parameters, security_level, security_terms
from aggregator_service.problems import Problem
from aggregator_service.services import Services
from aggregator_service.storage.rounds import find_round
from aggregator_service.storage.schema import TaskRow

__all__ = ["Screen", "Shown", "health_screen", "round_screen", "task_of", "task_screen", "tasks_screen"]


@dataclass(frozen=True)
class Shown:
    """What a screen shows now: its facts, and in one sentence what a listener should hear of when it changes."""

    facts: Mapping[str, Any]
    said: str = ""


@dataclass(frozen=True)
class Screen:
    """A page: its template, the fragments that are kept up to date, and how to find out what they show.

    task_id: whose changes are news at once; everything else is found by looking.
    """

    template: str
    fragments: tuple[str, ...]
    look: Callable[[Services], Shown]
    task_id: str = ""

    def response(self, request: Request, services: Services, visitor: Visitor) -> Any:
        """The whole page."""
        now, shown = services.clock.now(), self.look(services)
        parts = {name: markup(html) for name, html in self.render(request, visitor, now, shown).items()}
        return page(request, self.template, now, visitor, parts=parts, **shown.facts)

    def render(self, request: Request, visitor: Visitor, now: float, shown: Shown) -> dict[str, str]:
        """The fragments by name."""
        return {name: fragment(request, name, now, visitor, shown.facts) for name in self.fragments}


def tasks_screen(number: int) -> Screen:
    """Every task with its current round."""

    def look(services: Services) -> Shown:
        with services.database.read() as session:
            found = overview(session, number)
        return Shown({"overview": found}, f"{found.states.get('open', 0)} tasks are open.")

    return Screen("tasks", ("task_list",), look)


def task_screen(task_id: str, before: int | None) -> Screen:
    """One task: rounds, quality, members, parameters."""

    def look(services: Services) -> Shown:
        with services.database.read() as session:
            row, now, signatures = task_of(session, task_id), services.clock.now(), services.settings.signatures
            facts = task_facts(session, row, now, before, signatures)
        view = facts.view
        shown = {
            "facts": facts,
            "level": security_level(view),
            "security": security_terms(view),
            "parameters": all_parameters(view),
            "figures": figures(facts.quality),
        }
        return Shown(shown, _of_task(facts))

    return Screen("task", ("task_status", "quality", "rounds"), look, task_id)


def _of_task(facts: TaskFacts) -> str:
    newest = f" Round {facts.strip[-1].number} is {facts.strip[-1].state}." if facts.strip else ""
    return f"The task is {facts.row.state}.{newest}"


def round_screen(task_id: str, number: int) -> Screen:
    """One round: phases, funnel, bytes and time."""

    def look(services: Services) -> Shown:
        with services.database.read() as session:
            task = task_of(session, task_id)
            tally = tally_of(session, task_id, number)
            later = find_round(session, task_id, number + 1) is not None
        return Shown({"task": task, "tally": tally, "later": later}, f"Round {number} is {tally.round.state}.")

    return Screen("round", ("round_status", "round_facts"), look, task_id)


def health_screen() -> Screen:
    """The server itself."""

    def look(services: Services) -> Shown:
        facts = health_facts(services)
        return Shown({"facts": facts}, "The server works." if facts.worst != "bad" else "A part of the server fails.")

    return Screen("health", ("health",), look)


def task_of(session: Session, task_id: str) -> TaskRow:
    """The task; 404."""
    task = session.get(TaskRow, task_id)
    if task is None:
        raise Problem("not-found", "There is no such task.")
    return task


def tally_of(session: Session, task_id: str, number: int) -> Tally:
    """The round with its counts; 404."""
    row = find_round(session, task_id, number)
    if row is None:
        raise Problem("not-found", "There is no such round.")
    return tallies(session, [row])[0]
