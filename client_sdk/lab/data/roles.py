"""Which column of a table holds the user, the item, the rating, the time and the quantity.

A column is used only if its heading or the caller names it, or if the file says by itself what it is: MovieLens' `::`,
lists of items by user, and ids such as `user_7` and `item-12`. All else is refused, with the first rows and the option
to type, because two columns of numbers could be anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from client_sdk.lab.data.columns import DATE, LEAST_TIME, LISTS, NO_VALUE, NUMBER, ROLES, Columns, is_small
from client_sdk.lab.data.interactions import DataError
from client_sdk.lab.data.layouts import Layout
from protocols.errors import ParameterError
from protocols.headings import ColumnRole, columns_of, plain_heading, recognise

Roles = dict[ColumnRole, int]
"""Role of a column -> its number, from 0. It always has user and item."""
_SHOWN: Final = 10  # headings in an error
_ROWS: Final = 3  # rows in an error


def roles_of(path: Path, layout: Layout, columns: Columns | None) -> tuple[Roles, str]:
    """Return the number of each role's column of a table, and why in words.

    Raises `DataError` for a column that the table does not have, and without `columns` if user and item are not named.
    """
    if columns is not None:
        wanted = {role: getattr(columns, role) for role in ROLES}
        named = {role: _number(path, column, layout) for role, column in wanted.items() if column is not None}
        if len(set(named.values())) < len(named):
            raise DataError("two of the columns are the same one, by number and by heading", path, 1)
        return named, "as --columns says"
    try:
        found = {role: place for role, place in columns_of(layout.header or ()).items() if role in ROLES}
    except ParameterError as error:
        raise unclear(path, layout, str(error)) from None
    if {"user", "item"} <= found.keys():
        _require_plain(path, layout, found)
        return found, "by their headings"
    roles = _self_evident(layout)
    if roles is None:
        raise unclear(path, layout, "no heading says which columns hold the user and the item")
    return roles


_CELL: Final = re.compile(r"[\w.-]+([;|,] ?[\w.-]+)+")


def _require_plain(path: Path, layout: Layout, found: Roles) -> None:
    """Raise `DataError` for a cell that holds a list, and for dates that would not be read as times."""
    for role in ROLES[:2]:
        cells = [row[found[role]] for row in layout.rows]
        if len(cells) > _ROWS and 2 * sum(_CELL.fullmatch(cell) is not None for cell in cells) > len(cells):
            raise unclear(path, layout, f"{role}s look like lists, such as {max(cells, key=len)[:40]!r}: "
                          "write each on a line of its own")  # fmt: skip
    for place, heading in enumerate(layout.header or ()):
        cells = [row[place] for row in layout.rows if row[place]]
        is_named = re.search("(?i)date|time|datum|zeit|_ts$|^t_", heading) is not None and _kind(cells) == "time"
        is_time = bool(cells) and (is_named or all(map(DATE.fullmatch, cells)))
        if is_time and "time" not in found and place not in found.values():
            raise unclear(path, layout, f"no heading says which column is the time, and {heading!r} looks like one: "
                          f"add time={heading} to the option, or leave it out")  # fmt: skip


def _number(path: Path, column: int | str, layout: Layout) -> int:
    if isinstance(column, int):
        if column >= layout.width:
            raise DataError(f"no column {column}: the file has {layout.width}, numbered from 0", path, 1)
        return column
    names = list(layout.header or ())
    if names.count(column) != 1:
        have = f"the header has {', '.join(map(repr, names))}" if names else "the file has no header"
        problem = "more than one column" if column in names else "no column"
        raise DataError(f"{problem} named {column!r}: {have}", path, 1)
    return names.index(column)


_TELLING: Final = (
    ("user", re.compile(r"(?i)(u|user|usr|customer|cust|client|member|visitor|kunde|utilisateur)[-_:# ]?\d+")),
    ("item", re.compile(r"(?i)(i|item|m|movie|film|p|prod|product|article|art|artikel|produit|sku|book)[-_:# ]?\d+")),
    ("item", re.compile(r"B0[0-9A-Z]{8}")),  # Amazon's ASIN
)


def _self_evident(layout: Layout) -> tuple[Roles, str] | None:
    """Return the columns of a table without header that says by itself what they are, and why; None for any other."""
    kinds = _kinds(layout)
    if layout.separator == "::" and kinds[2:] in (["rating"], ["rating", "time"]) and not layout.header:
        whole = all(field.isdigit() for row in layout.rows for field in row[:2])
        return (
            ({"user": 0, "item": 1, "rating": 2, **({"time": 3} if kinds[3:] else {})}, "as in MovieLens")
            if whole
            else None
        )
    found: Roles = {}
    for place, kind in enumerate(kinds):
        fields = [row[place] for row in layout.rows]
        roles = {role for role, pattern in _TELLING if all(map(pattern.fullmatch, fields))}
        role: Any = roles.pop() if len(roles) == 1 else kind
        if layout.header or role in found or role not in ("user", "item", "rating", "time"):
            return None
        found[role] = place
    return (found, "by what their ids begin with") if {"user", "item"} <= found.keys() else None


def _kinds(layout: Layout) -> list[str]:
    return [_kind([row[place] for row in layout.rows]) for place in range(layout.width)]


def _kind(fields: Sequence[str]) -> str:
    """Return what the values of a column could be: time, rating, row (a number of the row), value or id."""
    if all(map(DATE.fullmatch, fields)):
        return "time"
    plain = [field.replace(",", ".") if field.count(",") == 1 else field for field in fields]
    if not all(map(NUMBER.fullmatch, plain)):
        return "id"
    numbers = [float(field) for field in plain]
    if min(numbers) >= LEAST_TIME and all(number.is_integer() for number in numbers):
        return "time"
    if len(numbers) > _ROWS and all(later - number == 1 for number, later in zip(numbers, numbers[1:], strict=False)):
        return "row"
    is_half = all((2 * number).is_integer() for number in numbers)
    if 1 < len(set(numbers)) <= 21 and min(numbers) >= -10 and max(numbers) <= 10 and is_half:
        return "rating"
    return "id" if all(field.isdigit() for field in fields) else "value"


_RANK: Final = {"id": 0, "rating": 1, "value": 2, "row": 2, "time": 3}  # of kinds, for what could be an id
_HINTS: Final[dict[ColumnRole, str]] = {
    "user": "user|customer|kunde|member|client|buyer|visitor|mail|uid|steamid|profilename|household|account|session|"
    "order_?id|basket",
    "item": "item|product|sku|article|artikel|movie|film|song|track|book|game|app|asin|shop|merchant|place|joke|beerid|"
    "listing|mbid|ad_?group|campaign",
    "rating": "rating|score|star|overall",
    "time": "date|time|datum|zeit|_ts$|created|updated|erstellt",
}  # fmt: skip
"""What a heading may contain that is none of the usual, the likeliest first: for the example of an option, no more."""
_NO_ID: Final = re.compile(
    r"(?i)(?<!user)(?<!profile)name$|title|quantity|price|size|number$|position|categor|^is|ed\b"
)


def _guess(layout: Layout, wrong: int | None) -> str:
    """Return the columns as the option `--columns`: by their headings, or by what their values look like."""
    kinds, names = _kinds(layout), layout.header or ("",) * layout.width
    found = {role: place for place, name in enumerate(names) if (role := recognise(name)) in ROLES and place != wrong}
    for role, hints in _HINTS.items():
        rest = [place for place in range(layout.width) if place not in found.values() and place != wrong]
        could = [place for place in rest if kinds[place] == role] if role in ROLES[2:] else [
            place for place in rest if kinds[place] != "time" and not _NO_ID.search(names[place])]  # fmt: skip
        fits = [place for hint in hints.split("|") for place in could if re.search(hint, names[place], re.IGNORECASE)]
        if role not in found and fits:
            found[role] = fits[0]
    rest = [place for place in range(layout.width) if place not in found.values() and place != wrong]
    ids = sorted(rest, key=lambda place: (bool(_NO_ID.search(names[place])), _RANK[kinds[place]], place))
    missing = [role for role in ROLES[:2] if role not in found]
    found |= dict(zip(missing, sorted(ids[: len(missing)]), strict=False))
    for role in [role for role in ROLES[2:4] if role not in found and not layout.header]:
        found |= dict([(role, place) for place in rest if kinds[place] == role and place not in found.values()][:1])
    return ",".join(
        f"{role}={name if name and names.count(name) == 1 and not set(name) & set(',=') else found[role]}"
        for role, name in [(role, names[found[role]]) for role in ROLES if role in found]
    )


def unclear(path: Path, layout: Layout, problem: str, wrong: int | None = None) -> DataError:
    """Return the error for a table whose columns are not named: its first rows, and the option to type.

    wrong: a column that its heading names, and its content does not fit.
    """
    rows = [
        list(map(str, range(layout.width))),
        *([list(layout.header)] if layout.header else []),
        *layout.rows[:_ROWS],
    ]
    shown = [[field[:20] for field in row[:_SHOWN]] for row in rows]
    widths = [max(len(row[place]) for row in shown) for place in range(len(shown[0]))]
    lines = ["  ".join(field.ljust(width) for field, width in zip(row, widths, strict=True)).rstrip() for row in shown]
    lines[0] = lines[0] + f"  and {layout.width - _SHOWN} more columns" * (layout.width > _SHOWN)
    matrix = ""
    cells = [field for row in layout.rows for field in row[1:]]
    if layout.width >= _SHOWN and all(field.lower() in NO_VALUE or is_small(field) for field in cells):
        matrix = (
            "\nIf it is a rating matrix, a line for each user and a column for each item, bring it into long form: "
            "docs/your-own-data.md says how."
        )
    elif (
        layout.kind == "text"
        and layout.separator == " "
        and all(field.isdigit() for row in layout.rows for field in row)
    ):
        matrix = f"\nIf each line is a user and any number of items: --columns user=0,item={LISTS}"
    name = shlex.quote(str(path))
    table = "\n".join(f"    {line}" for line in lines)
    return DataError(
        f"{problem}. Columns and first rows:\n{table}\nSay it, with numbers or headings, for example:\n"
        f"    hushrec data show {name} --columns {shlex.quote(_guess(layout, wrong))}{matrix}",
        path,
    )


# --- columns that say that a row is no interaction ------------------------------------------------------------------

_NO: Final = r"(-1|0)(\.0)?|false|no|nein"
_YES: Final = r"1(\.0)?|true|yes|ja"
_MARKS: Final = (
    ("label click clicks clicked isclick isclicked target liked islike purchased purchase ispurchase bought conversion "
     "isrecommended", _NO),
    ("returned isreturned cancelled canceled iscancelled iscanceled refunded isrefunded deleted isdeleted void "
     "storniert storno retoure skipped skip isskipped disliked", _YES),
    ("status orderstatus financialstatus paymentstatus state event eventtype eventname action actiontype behavior "
     "behaviortype interactiontype impressiontype transactiontype ordertype type feedback",
     ".*(cancel|refund|return|void|fail|storni|retour|erstatt|annul|remove|dislike|impression|shown|skip).*"),
)  # fmt: skip
"""Headings in plain form, and a pattern of their values that mean that nobody took the item."""


def marks_of(header: Sequence[str]) -> dict[int, str]:
    """Return the number of each column that may say that a row is no interaction, and a pattern of values that do."""
    return {
        place: pattern
        for place, heading in enumerate(header)
        for headings, pattern in _MARKS
        if plain_heading(heading) in headings.split()
    }


def require_taken(path: Path, layout: Layout, roles: Roles, seen: Mapping[int, set[str]]) -> None:
    """Raise `DataError` if one of the values `seen` in a column of marks says that a row is no interaction."""
    header = layout.header or ()
    marks = marks_of(header)
    for place, values in seen.items():
        pattern = marks.get(place, _NO)
        wrong = sorted(value for value in values if re.fullmatch(pattern, value))
        if wrong and (pattern not in (_NO, _YES) or all(re.fullmatch(f"{_NO}|{_YES}", value) for value in values)):
            said = ",".join(f"{role}={header[column]}" for role, column in roles.items())
            raise DataError(
                f"the column {header[place]!r} holds {' and '.join(sorted(values)[:3])}, and lines with {wrong[0]} are "
                f"usually no interactions: keep the others, or read all lines: hushrec data show "
                f"{shlex.quote(str(path))} --columns {shlex.quote(said)}",
                path,
            )
