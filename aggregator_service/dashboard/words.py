"""Figures and states in words: durations, byte counts, states."""

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
    "advertising": "Clients of the cohort send fresh, signed keys.",
    "sharing": "Clients share their secrets among their neighbours.",
    "collecting": "Clients send their contributions.",
    "confirming": "The survivors sign the set of survivors.",
    "unmasking": "The survivors send the shares that take the masks off the sum.",
    "folding": "The last contributions are folded into the sum; no client is waited for.",
    "complete": "The aggregate was released.",
    "failed": "Nothing was released. What clients sent was deleted.",
}
_TASK_STATES: Final = {
    "open": "Open: rounds are under way or will be.",
    "complete": "Complete: every round of the schedule released its sum.",
    "closed": "Closed by an operator.",
    "failed": "Failed: too many rounds in a row did, or too few clients were left.",
}
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_OPEN, _CLOSE = "\x02", "\x03"


def task_state(state: str) -> str:
    """What a task's state means."""
    return _TASK_STATES.get(state, state)


def span(seconds: float) -> str:
    """A duration by its two largest units; `static/live.js` counts on in the same words."""
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
    """Seconds since the epoch as a date, in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def volatile(text: str) -> Markup:
    """Text that differs with the time of day alone: no reason to send a page again."""
    return Markup(f"{_OPEN}{{}}{_CLOSE}").format(text)  # noqa: S704 - the marks alone are not escaped


def steady(html: str) -> str:
    """A rendered page without what is volatile, to compare."""
    parts = html.split(_OPEN)
    return parts[0] + "".join(part.partition(_CLOSE)[2] for part in parts[1:])


def shown(html: str) -> Markup:
    """A rendered page as it is sent."""
    return Markup(html.replace(_OPEN, "").replace(_CLOSE, ""))  # noqa: S704 - rendered with escaping just now


def when(at: float, now: float, *, bare: bool = False) -> Markup:
    """A moment, relative to now, with its date in the title. bare: without `ago` and `in`."""
    text = span(abs(at - now))
    if not bare:
        text = f"in {text}" if at > now else f"{text} ago"
    stamp = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    form = "bare" if bare else "relative"
    return Markup('<time datetime="{}" title="{}" data-time="{}">{}</time>').format(
        stamp, absolute(at), form, volatile(text)
    )


def byte_count(count: float) -> str:
    """Bytes in decimal units, three figures."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        if count < 1000 or unit == "TB":
            break
    return f"{count:.{0 if count >= 100 else 1 if count >= 10 else 2}f} {unit}"


def figure(value: Any) -> str:
    """A parameter's value."""
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
    """A parameter's or figure's name as words."""
    return name.replace("_", " ").replace("/", " / ")
