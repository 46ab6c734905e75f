"""Texts and formats of the pages: states: durations, byte counts, states."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final

from markupsafe import Markup

__all__ = [
    "ROUND_STATES",
    "absolute",
    "byte_count",
    "figure",
    "plain_name",
    "shown",
    "span",
    "steady",
    "task_state",
    "volatile",
    "when",
]

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
_TASK_STATES: Final = {
    "open": "Open: rounds run, or will run.",
    "complete": "Complete: all rounds of the schedule have released their sums.",
    "closed": "Closed by an operator.",
    "failed": "Failed: too many consecutive rounds failed, or too few clients were left.",
}
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_OPEN, _CLOSE = "\x02", "\x03"


def task_state(state: str) -> str:
    """Return what a task's state means, as a sentence."""
    return _TASK_STATES.get(state, state)


def span(seconds: float) -> str:
    """Return a duration in its two largest units: "1 h 5 min". `static/live.js` uses the same format."""
    if 0 < seconds < 1:
        return f"{max(1, round(seconds * 1000))} ms"
    left, words = int(seconds), list[str]()
    for unit, size in _UNITS:
        if left >= size or (unit == "s" and not words):
            words.append(f"{left // size} {unit}")
            left %= size
        elif words:
            break
        if len(words) == 2:
            break
    return " ".join(words)


def absolute(at: float) -> str:
    """Return a time (seconds since the epoch) as date and time in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


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
    stamp = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    form = "bare" if bare else "relative"
    return Markup('<time datetime="{}" title="{}" data-time="{}">{}</time>').format(
        stamp, absolute(at), form, volatile(text)
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


def plain_name(name: str) -> str:
    """Return the name of a parameter or metric with spaces instead of underscores."""
    return name.replace("_", " ").replace("/", " / ")
