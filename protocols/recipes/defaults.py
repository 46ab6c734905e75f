"""What a new task of a recipe has where its maker names nothing: a part of the recipe's entry.

A stored task means what its parameters say, and a parameter that it leaves out keeps the paper's value. Recommended
values are therefore written into a task's parameters when the task is made (`protocols.advice.parameters_for`), where
clients read and check them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MESSAGE_BUDGET: Final = 10_000_000
"""Bytes of a client's longest message of a `privirec-k` task, unless its maker says otherwise; 4 bytes a value."""


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """What is known of a new task, of whose recipe parameters are chosen."""

    items: int | None = None
    """None where its maker names no number, or none that can be."""
    budget: int = MESSAGE_BUDGET
    """Bytes of a client's longest message, at 4 bytes a value."""
    clients: int | None = None
    """In a sum; None where it is not known."""
    mean_items: float | None = None
    """Of a client; None where it is not known."""
    ordered: bool = False
    """Whether clients' items have times."""
    started: bool = False
    """Whether it starts from a spectrum."""
    noisy: bool = False
    """Whether it has a privacy block."""


Adjust = Callable[[Mapping[str, Any], Mapping[str, Any], TaskFacts], dict[str, Any]]
"""From the values chosen so far, those that the maker gave, and the facts to the values that are chosen."""


@dataclass(frozen=True, kw_only=True)
class TaskDefaults:
    """Parameters of a recipe that a new task has where its maker names none."""

    recommended: Mapping[str, Any] = field(default_factory=dict)
    """Chosen on validation rows (docs/results.md); empty where the paper's are kept."""
    noisy: Mapping[str, Any] = field(default_factory=dict)
    """What differs in a task with a privacy block."""
    started: Mapping[str, Any] = field(default_factory=dict)
    """What a task has besides, or instead, that starts from a spectrum; empty for a recipe that cannot."""
    paper: Mapping[str, Any] = field(default_factory=dict)
    """Of its paper or its released code; they reveal constants of clients, so they are not defaults."""
    adjust: Adjust | None = None
    """Makes them fit the sizes of the task."""
    planned: Callable[[int], Mapping[str, Any]] | None = None
    """From the number of items to what a planned task with a privacy block names (`protocols.privacy_advice`); None for
    a recipe that is not planned."""
    in_groups: bool = False
    """Whether it was measured what groups stop (`bench/robust.py`) and what they say (`bench/exposure.py`); of a frozen
    cohort, groups of its first sum."""
