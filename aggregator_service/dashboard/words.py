"""Texts and formats of the pages: states, durations, byte counts, terms of a task, quality of its model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final

from markupsafe import Markup
from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import RoundRow
from protocols.messages import TaskView
from protocols.recipes.evaluation_curve import (
    ADOPTED_ROUND,
    BEST_ROUND,
    EVALUATED_CLIENTS,
    MODEL_ROUND,
    NDCG,
    POPULARITY,
)
from protocols.recipes.registry import recipe
from protocols.sums.registry import mechanism_entry

ROUND_STATES: Final[Mapping[str, str]] = {
    "advertising": "Clients of the cohort send the signed keys of the round.",
    "sharing": "Clients share their secrets among their neighbours.",
    "collecting": "Clients send their contributions.",
    "confirming": "The survivors, or the committee, sign the set of survivors.",
    "unmasking": "The survivors, or the committee, send the shares that remove the masks from the sum.",
    "folding": "The server adds the remaining contributions to the sum.",
    "complete": "The aggregate was released.",
    "failed": "Nothing was released. The data that clients sent was deleted.",
}
TASK_STATES: Final = {
    "open": "Open: rounds run, or will run.",
    "complete": "Complete: no more rounds run, and the model stays.",
    "closed": "Closed by an operator.",
    "failed": "Failed: too many consecutive rounds failed, or too few clients were left.",
}
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_CLIENT_ID: Final = re.compile(r"\b[ce]_[0-9a-f]{20}\b")
_OPEN, _CLOSE = "\x02", "\x03"


def span(seconds: float) -> str:
    """Return a duration in its two largest units: "1 h 5 min". `static/live.js` uses the same format."""
    if 0 < seconds < 1:
        return f"{max(1, round(seconds * 1000))} ms"
    left, words = int(seconds), list[str]()
    largest = next((place for place, (_, size) in enumerate(_UNITS) if left >= size), -1)
    for unit, size in _UNITS[largest:][:2]:
        count, left = divmod(left, size)
        if count or not words:
            words.append(f"{count} {unit}")
    return " ".join(words)


def volatile(text: str) -> Markup:
    """Mark text that changes only because time passes: such a change does not cause an update."""
    return Markup(f"{_OPEN}{{}}{_CLOSE}").format(text)  # noqa: S704 - only the marks are not escaped


def steady(html: str) -> str:
    """Return rendered HTML without its volatile text, for comparison."""
    parts = html.split(_OPEN)
    return parts[0] + "".join(part.partition(_CLOSE)[2] for part in parts[1:])


def shown(html: str) -> Markup:
    """Return rendered HTML without the marks of volatile text, ready to send."""
    return Markup(html.replace(_OPEN, "").replace(_CLOSE, ""))  # noqa: S704 - rendered with autoescape


def when(at: float, now: float, *, bare: bool = False) -> Markup:
    """Return a <time> element: the time relative to now, its date in the title. bare: omit "ago" and "in"."""
    text = span(abs(at - now))
    if not bare:
        text = f"in {text}" if at > now else f"{text} ago"
    date, form = datetime.fromtimestamp(at, UTC), "bare" if bare else "relative"
    return Markup('<time datetime="{}" title="{:%Y-%m-%d %H:%M:%S} UTC" data-time="{}">{}</time>').format(
        date.isoformat(timespec="milliseconds"), date, form, volatile(text)
    )


def byte_count(count: float) -> str:
    """Return a byte count in decimal units with three significant digits: "12.3 kB"."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        if count < 1000 or unit == "TB":
            break
    return f"{count:.{0 if count >= 100 else 1 if count >= 10 else 2}f} {unit}"


def figure(value: Any) -> str:
    """Return a parameter's value as text: yes/no, thousands separators, six significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, float):
        if not isfinite(value):
            return str(value)
        return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def anonymous(text: str) -> str:
    """Return a text without the client ids in it, which no page shows; the API and the log have them."""
    return _CLIENT_ID.sub("a client", text)


def plain_name(name: str) -> str:
    """Return the name of a parameter or metric with spaces instead of underscores."""
    return name.replace("_", " ").replace("/", " / ")


_SEEN_BY = {
    "anyone": ("anyone", "including the server"),
    "members": ("every member", "together with the server also single contributions"),
}


@dataclass(frozen=True)
class Term:
    """One line: label, value, and what the value means."""

    label: str
    value: str
    note: str = ""


def security_level(task: TaskView) -> str:
    """Return the security level of a task's encryption: "128-bit", for example, or "none"."""
    bits = task.plan.get("security_bits")
    return f"{bits}-bit" if bits else "none"


def security_terms(task: TaskView) -> list[Term]:
    """Return the lines that describe the security of a task: level, who can open a sum, thresholds, noise."""
    plan, schedule = task.plan, task.schedule
    bits = plan.get("security_bits") or 0
    level = Term("Security level", f"{bits} bits") if bits else Term("Security level", "none", "sums are not encrypted")
    masks_come_off = task.opened_by == "anyone" and mechanism_entry(task.mechanism.name).hides
    opened = ("everyone", "after the release") if masks_come_off else _SEEN_BY[task.opened_by]
    floor = Term("Privacy floor", f"{schedule.min_clients} clients", "with fewer survivors nothing is released")
    return [level, Term("Sums can be opened by", *opened), floor, *_mechanism_terms(plan), *_noise_terms(task)]


def _mechanism_terms(plan: Mapping[str, Any]) -> Iterator[Term]:
    if "ring_degree" in plan:
        yield Term("Ring degree", figure(plan["ring_degree"]), f"modulus {plan.get('modulus_bits')} bits")
    if "key_bits" in plan:
        yield Term("Key length", f"{figure(plan['key_bits'])} bits")
    if "mode" in plan:
        yield Term("Mode", str(plan["mode"]))
    if "committee" in plan:
        withstood = 2 * plan["threshold"] - plan["committee"] - 1
        yield Term("Committee", f"{plan['committee']} members", f"withstands {withstood} that collude with the server")
        yield Term("Threshold, t", figure(plan["threshold"]), "members needed to take the masks off a sum")
    around = plan.get("neighbourhood")
    if isinstance(around, Mapping):
        yield Term("Neighbours, k", figure(around.get("degree")), "clients that hold the shares of a client")
        yield Term("Threshold, t", figure(around.get("threshold")), "neighbours needed to remove a mask")
        yield Term("Dropouts tolerated", f"{100 * float(around.get('dropout', 0)):.0f} %", "of a neighbourhood")
    if plan.get("garbage_passes", 1.0) < 1.0:
        chance = f"{plan['garbage_passes']:.2g}"
        yield Term("Garbage in one value passes", chance, "probability that it has a size that a sum can have")
    if plan.get("groups", 1) > 1:
        near = f"of those within {plan['tau']:g} times the median distance of all"
        yield Term("Groups with a sum each", figure(plan["groups"]), f"the model is made {near}")
    if "max_contributions" in plan:
        yield Term("Contributions per sum", f"up to {figure(plan['max_contributions'])}")
    if "aggregate_bytes" in plan:
        yield Term("Aggregate", byte_count(plan["aggregate_bytes"]))
    if "predicted_error" in plan:
        yield Term("Predicted error", f"{plan['predicted_error']:.2g}", "per value of the sum")


def _noise_terms(task: TaskView) -> Iterator[Term]:
    """Yield the epsilon of each noise parameter of the recipe."""
    chosen = recipe(task.recipe.name, task.recipe.parameters, noisy=task.privacy is not None).parameters
    for name in type(chosen).model_fields:
        epsilon = getattr(getattr(chosen, name), "epsilon", None)
        if isinstance(epsilon, float):
            yield Term("LDP epsilon", f"{epsilon:g}", "per uploaded value and round; it accumulates over rounds")


def all_parameters(task: TaskView) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return all parameters as (group name, [(parameter name, value)])."""
    groups: dict[str, Mapping[str, Any]] = {
        "Schedule": task.schedule.model_dump(),
        f"Recipe {task.recipe.name}": task.recipe.parameters,
        f"Mechanism {task.mechanism.name}": task.mechanism.parameters,
        "Evaluation": {} if task.evaluation is None else task.evaluation.model_dump(),
        "Privacy": {} if task.privacy is None else task.privacy.model_dump(),
        "Plan": task.plan,
    }
    return [(name, [(path, figure(value)) for path, value in _flat(held)]) for name, held in groups.items() if held]


def _flat(held: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in held.items():
        path = f"{before} / {plain_name(name)}" if before else plain_name(name)
        if isinstance(value, Mapping):
            yield from _flat(value, path)
        elif isinstance(value, list | tuple):
            yield path, ", ".join(figure(one) for one in value)
        else:
            yield path, value


LAST: Final = 500
"""Maximum number of rounds in a plot."""
_WIDTH: Final = 640.0
_HEIGHT: Final = 160.0
_MARGIN: Final = 8.0


@dataclass(frozen=True)
class Series:
    """One metric over the rounds: points (round number, value), ascending by round."""

    name: str
    points: Sequence[tuple[int, float]]
    popularity: Sequence[tuple[int, float]] = ()
    """The same metric of the ranking by item counts, to be drawn beside it; empty without one."""

    @property
    def low(self) -> float:
        return min(value for _, value in (*self.points, *self.popularity))

    @property
    def high(self) -> float:
        return max(value for _, value in (*self.points, *self.popularity))

    @property
    def is_plotted(self) -> bool:
        """Whether it has a plot: a metric of quality, or a figure that changes."""
        return self.name in _DECIDING or self.low != self.high

    @property
    def last(self) -> float:
        """The value of the newest round."""
        return self.points[-1][1]

    def places(self, points: Sequence[tuple[int, float]] | None = None) -> list[tuple[float, float]]:
        """Return the coordinates (x, y) of `points`, by default of the metric, in a box of 640 x 160."""
        first, until = self.points[0][0], self.points[-1][0]
        low, range_ = self.low, self.high - self.low
        return [
            (
                _MARGIN + (number - first) / max(1, until - first) * (_WIDTH - 2 * _MARGIN),
                _HEIGHT - _MARGIN - ((value - low) / range_ if range_ else 0.5) * (_HEIGHT - 2 * _MARGIN),
            )
            for number, value in (self.points if points is None else points)
        ]

    def path(self, points: Sequence[tuple[int, float]] | None = None) -> str:
        """Return the line through `points`, by default of the metric, as SVG path data."""
        return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in self.places(points))


_BOOKKEEPING: Final = (ADOPTED_ROUND, BEST_ROUND, MODEL_ROUND, EVALUATED_CLIENTS, "groups")
"""Figures of a report that say what was measured, and not how good it is."""
_DECIDING: Final = (NDCG, "hr@10", "rmse", "mae")
"""Metrics of quality; the first one that a task has decides."""
_FALLING: Final = ("rmse", "mae")
"""Those of which less is better."""


def progress_of(series: Sequence[Series], *, noisy: bool) -> str:
    """Return in a sentence whether the model gets better, by a metric of quality; "" where none is reported.

    The newest third of the rounds is compared with the third before it. noisy: whether the sums hold noise, which the
    sentence then says: a metric may be below 0, or a count not whole.
    """
    names = [one.name for one in series]
    deciding = next((name for name in _DECIDING if name in names), None)
    if deciding is None:
        return ""
    values = [value for _, value in series[names.index(deciding)].points]
    third = len(values) // 3
    note = " The sums hold noise of the privacy block: single figures may be far off, also below 0." if noisy else ""
    if not third:
        return f"Too few measurements of {deciding} to tell whether the model gets better.{note}"
    before, after = (sum(some) / third for some in (values[-2 * third : -third], values[-third:]))
    better = after < before if deciding in _FALLING else after > before
    change = abs(after - before) / max(abs(before), 1e-9)
    word = "hardly changes" if change < _CHANGE else "gets better" if better else "gets worse"
    return f"The model {word}: {deciding} went from {before:.4g} to {after:.4g} over the last measurements.{note}"


_CHANGE: Final = 0.005
"""Least relative change that is called one."""


def quality(session: Session, task_id: str) -> list[Series]:
    """Return the metrics of the last 500 completed rounds, by name; empty for recipes that report none."""
    query = select(RoundRow.number, RoundRow.report).where(RoundRow.task_id == task_id, RoundRow.state == "complete")
    rows = session.execute(query.order_by(RoundRow.number.desc()).limit(LAST)).all()[::-1]
    found: dict[str, list[tuple[int, float]]] = {}
    for number, report in rows:
        for name, value in (report or {}).items():
            if isfinite(value):
                found.setdefault(name, []).append((number, float(value)))
    for name in _BOOKKEEPING:
        found.pop(name, None)
    controls = {name: found.pop(name) for name in list(found) if name.startswith(POPULARITY)}
    return [Series(name, points, controls.get(POPULARITY + name, ())) for name, points in sorted(found.items())]


def figures(series: Sequence[Series]) -> list[tuple[int, dict[str, float]]]:
    """Return the same values by round, newest first: (round number, metric name to value)."""
    found: dict[int, dict[str, float]] = {}
    for one in series:
        for number, value in one.points:
            found.setdefault(number, {})[one.name] = value
        for number, value in one.popularity:
            found.setdefault(number, {})[POPULARITY + one.name] = value
    return sorted(found.items(), reverse=True)
