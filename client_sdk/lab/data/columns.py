"""What a file is, and which columns of a table hold the user, the item, the rating, the time and the quantity.

A column is used only if its heading or the caller names it, or if the file says by itself what it is: MovieLens' `::`,
lists of items by user, and ids such as `user_7` and `item-12`. All else is refused, with the first rows and the option
to type, because two columns of numbers could be anything.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from client_sdk.lab.data.chunks import Chunk, chunks
from client_sdk.lab.data.interactions import DataError
from protocols.errors import ParameterError
from protocols.headings import Role, columns_of, plain_heading, recognise

ROLES: Final[tuple[Role, ...]] = ("user", "item", "rating", "time", "quantity")
Roles = dict[Role, int]
"""Role -> number of the column, from 0. It always has user and item."""

NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MONTH: Final = r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
DATE: Final = re.compile(
    r"(\d{4}([-/.])\d\d?\2\d\d?|\d\d?([-/.])\d\d?\3(\d{4}|\d\d))([T ,]+\d.*)?|\d{8}T\d{4,}Z?"
    rf"|([A-Z][a-z]{{2,8}},? )?(\d\d?[-. ]+{_MONTH}[-.,]* ?|{_MONTH}[. ]+\d\d?,? .*)\d\d.*",
    re.ASCII,
)
"""What looks like a date, also one of a form that is not read, such as with a year of two digits."""
LISTS: Final = "1..."
"""What stands for the item where a line has a user and any number of items: `--columns user=0,item=1...`."""
NO_VALUE: Final = ("", "nan", "na", "n/a", "<na>", "null", "none", "nil", "\\n", "?", "-", "#n/a", "undefined")
"""Ids that stand for a missing one, in lower case."""
GUESTS: Final = ("anonymous", "guest", "unknown", "gast", "invité")
"""Ids that stand for a missing user, in lower case."""
_SHOWN: Final = 10  # headings in an error
_ROWS: Final = 3  # rows in an error
LEAST_TIME: Final = 1e8  # seconds since 1970: 1973. No rating is that large


@dataclass(frozen=True)
class Columns:
    """The columns to read, each by its number from 0 or by its heading. Those that are None are not read.

    Raises `ParameterError` if two roles have the same column or a number is negative.
    """

    user: int | str
    item: int | str
    rating: int | str | None = None
    time: int | str | None = None
    quantity: int | str | None = None

    def __post_init__(self) -> None:
        chosen = [column for column in vars(self).values() if column is not None]
        if len(set(chosen)) < len(chosen):
            raise ParameterError("two of user, item, rating, time and quantity are read from the same column")
        if any(isinstance(column, int) and column < 0 for column in chosen):
            raise ParameterError("columns are numbered from 0")

    def __str__(self) -> str:
        """Return the text that `parse_columns` reads."""
        return ",".join(f"{role}={column}" for role, column in vars(self).items() if column is not None)


def parse_columns(text: str) -> Columns:
    """Return the columns in a text such as `user=0,item=1,rating=2,time=3` or `user=who,item=what`.

    A value of digits is a number from 0, any other a heading. `user=0,item=1...` says that each line has a user and any
    number of items. Raises `ParameterError` for any other text.
    """
    found: dict[str, int | str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in ROLES or not equals or not value:
            raise ParameterError(
                f"not a column: {part.strip()!r}; write user=0,item=1,rating=2,time=3, with numbers or headings"
            )
        if name in found:
            raise ParameterError(f"{name} is given twice")
        found[name] = int(value) if value.isascii() and value.isdigit() else value
    if not {"user", "item"} <= found.keys():
        raise ParameterError("columns must say where user and item are, for example user=0,item=1")
    return Columns(**found)


def require_columns(columns: Columns | None) -> None:
    """Raise `ParameterError` for what is no `Columns`, such as the text that `parse_columns` reads."""
    if columns is not None and not isinstance(columns, Columns):
        raise ParameterError(
            f"columns must be a Columns, got a {type(columns).__name__}: parse_columns('user=0,item=1') makes one"
        )


def is_value(field: str) -> bool:
    """Return whether a field is a number or a date, which no heading is."""
    return bool(NUMBER.fullmatch(field.strip()) or DATE.fullmatch(field.strip()))


# --- what a file is --------------------------------------------------------------------------------------------------

SEPARATORS: Final = {"\t": "tabs", "::": "double colons", ",": "commas", ";": "semicolons", "|": "bars", " ": "blanks"}
"""Separators that are recognised, and their names."""
_SAMPLE_BYTES: Final = 1 << 20
_SAMPLE: Final = 64  # rows
_MOST_COLUMNS: Final = 4  # of a table of whole numbers between blanks
_OTHERS: Final = (
    (r"\s*\[\s*(\{.*)?$", "a JSON array: write an object a line: python -c 'import json, sys; [print(json.dumps(row)) "
     "for row in json.load(sys.stdin)]' < FILE > new.jsonl"),
    (r"\s*\{.*'.*:", "lines of Python, not JSON: convert them: python -c 'import ast, json, sys; "
     "[print(json.dumps(ast.literal_eval(line))) for line in sys.stdin]' < FILE > new.jsonl"),
    (r"\s*\{", "not JSON lines: write one whole JSON object on each line"),
    (r"\s*[([]\s*['\"\w]+\s*,.*[)\]]", "lines of Python, not a table: tr -d '()[] \"'\"'\" < FILE > new.csv"),
    (r"(?i)\s*(insert\s+into|create\s+table|drop\s+table|--|/\*|begin;|set\s)", "an SQL dump: export the table as CSV"),
    (r"(?i)@relation", "an ARFF file: keep its data: sed '1,/^@data/Id' FILE > new.csv"),
    (r"%%MatrixMarket", "a MatrixMarket file: it begins with a comment and the sizes: "
     "grep -v '^%' FILE | tail -n +2 > new.txt"),
    (r"[%#]", "it begins with a comment: delete such lines: grep -v '^[%#]' FILE > new.txt"),
    (r"\s*\|.*\|\s*$", "a Markdown table: sed '/^|[-: |]*$/d; s/^ *| *//; s/ *| *$//; s/ *| */,/g' FILE > new.csv"),
    (r"\s*<", "a web page or XML, not a table: export the table as CSV"),
    (r"sep=.\s*$", "its first line names the separator, for Excel: delete that line: tail -n +2 FILE > new.csv"),
    (r"\d+:\s*$", "ratings below a line for each film, as of the Netflix Prize: write the film into each line: "
     "awk -F: 'BEGIN {print \"item,user,rating,date\"} /:/ {item = $1; next} {print item \",\" $0}' FILE > new.csv"),
    (r"\S+( \d+:\S+)+\s*$", "a libFM or libSVM file: write user,item,rating as CSV"),
    (r'[^"\r]*\r.', "its lines end with carriage returns alone: tr '\\r' '\\n' < FILE > new.csv"),
)  # fmt: skip
"""Patterns of a first line that no table has, and what such a file is."""


@dataclass(frozen=True)
class Layout:
    """What a file is."""

    kind: Literal["text", "json", "parquet", "lists"]
    header: tuple[str, ...] | None
    """The headings, or None."""
    rows: Sequence[Sequence[str]]
    """The first rows without the header, as text."""
    separator: str = ""
    """That of a table in text."""

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.header or self.rows[0])

    @property
    def quoted(self) -> bool:
        """Whether fields may be quoted as in RFC 4180: with one separating character that is no blank."""
        return self.kind == "text" and _may_quote(self.separator)

    def __str__(self) -> str:
        """Return the format in words."""
        if self.kind == "text":
            return f"separated by {SEPARATORS[self.separator]}, {'a' if self.header else 'no'} header"
        return {"json": "JSON lines", "parquet": "parquet", "lists": "a user and the items on each line"}[self.kind]


def layout_of(path: Path, columns: Columns | None = None, beside_lists: bool = False) -> Layout:
    """Return what a text file is, from its first lines.

    columns: what the caller wants to read. beside_lists: whether the other file of a given split is one of lists.
    Raises `DataError` for a format that is named in `_OTHERS`, and where no separator fits or two fit equally.
    """
    pieces = chunks(path, _SAMPLE_BYTES)
    first = Chunk(b"".join(piece.data for piece in islice(pieces, 2)), 1)  # a last line without an end comes second
    pieces.close()
    lines = first.data.decode().split("\n", _SAMPLE)[:_SAMPLE]
    if not lines[-1]:
        del lines[-1]
    if lines[0].lstrip().startswith("{") and (objects := _objects(lines)):
        header = tuple(dict.fromkeys(key for row in objects for key in row))
        return Layout("json", header, [[_text(row.get(key)) for key in header] for row in objects])
    for pattern, what in _OTHERS:
        if columns is None and re.match(pattern, lines[0]):
            raise DataError(what.replace("FILE", shlex.quote(str(path))), path, 1)
    if columns is not None and columns.item == LISTS:
        return Layout("lists", None, [line.split() for line in lines])
    if columns is None and _are_lists(path, lines, beside_lists):
        return Layout("lists", None, [line.split() for line in lines])
    separator, rows = _separated(path, first, lines)
    headed = _has_header(rows, columns)
    return Layout("text", tuple(rows[0]) if headed else None, rows[1:] if headed else rows, separator)


def _objects(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Return the objects of JSON lines; none if the first is no JSON object on a line of its own."""
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found if all(isinstance(each, dict) for each in found) else []


def _text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _may_quote(separator: str) -> bool:
    return len(separator) == 1 and separator != " "


def _separated(path: Path, first: Chunk, lines: Sequence[str]) -> tuple[str, list[list[str]]]:
    """Return what separates the columns, and the first rows.

    It is what splits most lines into the same number of fields, also the first; of several, what makes headings of the
    first that are known, what has quotes around fields, and what makes most columns.
    """
    quotes = any('"' in line for line in lines)
    fits = {}
    for separator in SEPARATORS:
        rows = _rows(first, lines, separator)
        width = Counter(map(len, rows)).most_common(1)[0][0]
        if width > 1:
            alike = sum(len(row) == width for row in rows) / len(rows)
            known = {"user", "item"} <= set(map(recognise, rows[0]))
            is_first, is_quoted = len(rows[0]) == width, quotes and _may_quote(separator)
            fit = known, alike, is_first, is_quoted, separator == "::", width, separator != " "
            fits[separator] = fit, rows
    names = ", ".join(SEPARATORS.values())
    if not fits:
        raise DataError(f"cannot tell what separates the columns: expected {names}", path, 1)
    best = max(fits, key=lambda separator: fits[separator][0])
    fit, rows = fits[best]
    equal = [SEPARATORS[other] for other in fits if fits[other][0] == fit]
    if len(equal) > 1:
        raise DataError(f"{' and '.join(equal)} split the lines equally well: use tabs", path, 1)
    width = fit[5]
    if best == " " and any("" in row for row in rows):
        command = f"sed 's/^ *//; s/  */ /g' {shlex.quote(str(path))} > new.txt"
        raise DataError(f"several blanks stand between columns: make them one: {command}", path, 1)
    named = next((n for n, line in enumerate(lines) if {"user", "item"} <= set(map(recognise, line.split(best)))), 0)
    if named or not fit[2]:
        problem = f"the line has {len(rows[0])} fields, but most lines have {width}"
        if named:
            command = f"tail -n +{named + 1} {shlex.quote(str(path))} > new.csv"
            problem = f"the headings are on line {named + 1}: delete what is above: {command}"
        raise DataError(problem, path, 1)
    return best, [[field.strip() for field in row] for row in rows if len(row) == width]


def _rows(first: Chunk, lines: Sequence[str], separator: str) -> list[list[str]]:
    """Return the first rows; where fields are not quoted properly for the separator, they end with an empty one."""
    if not _may_quote(separator):
        return [line.removesuffix("\r").split(separator) for line in lines]
    rows = []
    reader = csv.reader(io.StringIO(first.data.decode(), newline="\n"), delimiter=separator, strict=True)
    try:
        for row in islice(reader, _SAMPLE):
            rows += [row] if row else []
    except csv.Error:
        rows.append([])
    return rows


def _are_lists(path: Path, lines: Sequence[str], beside_lists: bool) -> bool:
    """Return whether each line is a user and the user's items, whole numbers between blanks.

    Evidence that no table has: users ascend, and lines have different lengths or more than four numbers, in this file
    or the one beside it. Raises `DataError` for lines that begin with the number of items, as in CiteULike.
    """
    rows = [line.split() for line in lines if "\t" not in line]
    if len(rows) < len(lines) or not all(word.isascii() and word.isdigit() for row in rows for word in row):
        return False
    users, lengths = [int(row[0]) for row in rows if row], {len(row) for row in rows}
    if any(not row for row in rows) or users != sorted(set(users)):
        return False
    if beside_lists:
        return True
    if len(lengths) == 1 and 2 * sum(len(set(row[1:])) < len(row) - 1 for row in rows) > len(rows):
        return False  # of a matrix
    if len(lengths) > 1 and all(user == len(row) - 1 for user, row in zip(users, rows, strict=True)):
        raise DataError("each line begins with the number of its items, not with a user: number the lines", path, 1)
    return len(lengths) > 1 or max(lengths) > _MOST_COLUMNS


def _has_header(rows: Sequence[Sequence[str]], columns: Columns | None) -> bool:
    """Return whether the first row is a header.

    It is if a column is given by its heading, if it numbers columns of other values, as pandas does, and if no field of
    it is a number or date, and one is a usual heading or stands above numbers or dates.
    """
    first, below = rows[0], rows[1:]
    if columns is not None and any(isinstance(column, str) for column in vars(columns).values()):
        return True
    numbers = first[1:] if first[0] == "" else first  # pandas leaves out the heading of its index
    if numbers == [str(place) for place in range(len(numbers))]:  # no row of data, if a column has other values
        return any(not all(map(_is_small, column)) for column in zip(*below, strict=False))
    if any(map(is_value, first)):
        return {"user", "item"} <= set(map(recognise, first))
    above = any(
        2 * sum(is_value(row[place]) for row in below if len(row) > place) >= len(below) > 0
        for place in range(len(first))
    )
    return above or any(map(recognise, first))


# --- which column is what --------------------------------------------------------------------------------------------


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
_HINTS: Final[dict[Role, str]] = {
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
    if layout.width >= _SHOWN and all(field.lower() in NO_VALUE or _is_small(field) for field in cells):
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


def _is_small(field: str) -> bool:
    """Return whether a field is a number below all times."""
    return NUMBER.fullmatch(field) is not None and abs(float(field)) < LEAST_TIME


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
