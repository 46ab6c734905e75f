"""The reader of any file of interactions: round trips through every format, what it says, and malformed files."""

from __future__ import annotations

import csv
import gzip
import io
import string
import subprocess
import sys
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from client_sdk.lab.data import chunks
from client_sdk.lab.data.columns import GUESTS, NO_VALUE, Columns, parse_columns
from client_sdk.lab.data.files import read_data_file, read_history
from client_sdk.lab.data.interactions import DataError
from client_sdk.lab.data.splits import load_split
from protocols.errors import ParameterError


def is_id(text: str) -> bool:
    return text.strip().lower() not in (*NO_VALUE, *GUESTS) and "E+" not in text


INTEGERS = st.integers(-(10**18) + 1, 10**18 - 1)
TEXTS = st.text(string.ascii_letters + string.digits + "äß漢-_.", min_size=1, max_size=12).filter(is_id)
QUOTED = st.text(string.ascii_letters + ', "\n\täß', min_size=1, max_size=12).map(str.strip).filter(is_id)
ANY_TEXT = (
    st.text(st.characters(exclude_categories=["Cc", "Cs"]) | st.sampled_from('",;|\t\n'), min_size=1, max_size=12)
    .map(str.strip)
    .filter(is_id)
)
RATINGS = st.integers(-20, 20).map(lambda value: value / 4)
TIMES = st.integers(-(10**10), 10**10)


def rows_of(ids):
    """Tables with too few rows for a suspicion that ids which all differ number the rows."""
    return st.lists(st.tuples(ids, ids, RATINGS, TIMES), min_size=1, max_size=29)


def expected(rows) -> dict[tuple[str, str], tuple[float, int]]:
    """Of repeated pairs the latest, of equal times the one rated highest."""
    ordered = sorted(rows, key=lambda row: (row[3], row[2]))
    return {(str(user).strip(), str(item).strip()): (rating, time) for user, item, rating, time in ordered}


def content(read) -> dict[tuple[str, str], tuple[float, int]]:
    users, items = read.user_ids[read.users].tolist(), read.item_ids[read.items].tolist()
    values = zip(read.ratings.tolist(), read.timestamps.tolist(), strict=True)
    return {(str(user), str(item)): value for user, item, value in zip(users, items, values, strict=True)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("files")


@settings(max_examples=15, deadline=None)
@given(
    st.one_of(rows_of(INTEGERS), rows_of(TEXTS), rows_of(INTEGERS | TEXTS)),
    st.sampled_from(["\t", "::", ",", ";", "|", " "]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([30, 100, 1 << 22]),
)
def test_round_trip_of_tables_in_text(folder, rows, separator, crlf, packed, size) -> None:
    end = "\r\n" if crlf else "\n"
    header = separator.join(("who", "what", "stars", "when"))
    text = end.join([header, *(separator.join(map(str, row)) for row in rows)]) + end
    path = folder / "table"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", size)
        found = read_data_file(path, parse_columns("user=who,item=what,rating=stars,time=when"))
    assert content(found.interactions) == expected(rows)
    assert found.rows == len(rows)
    assert found.interactions.merged == len(rows) - len(expected(rows))


@settings(max_examples=30, deadline=None)
@given(
    rows_of(QUOTED | ANY_TEXT),
    ANY_TEXT | st.just(""),
    st.sampled_from("\t,;|"),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from(["\r\n", "\n"]),
    st.booleans(),
    st.booleans(),
    st.integers(30, 400),
)
@example([("A \nA", "A \nA", 1.0, 0)] * 2, "", ",", csv.QUOTE_ALL, "\r\n", False, False, 400)  # blanks fit more lines
@example([("A \nA", "A \nA", 1.0, 0)] * 2, "", ",", csv.QUOTE_ALL, "\r\n", False, False, 45)  # a cut inside a field
@example([("A", 'B"', 1.0, 0)] * 2, '"', ",", csv.QUOTE_MINIMAL, "\n", True, True, 30)
def test_what_pythons_csv_writes_is_read(folder, rows, note, separator, quoting, end, mark, packed, size) -> None:
    written = io.StringIO(newline="")
    writer = csv.writer(written, delimiter=separator, quoting=quoting, lineterminator=end)
    writer.writerows([("user", "item", "rating", "time", "note"), *((*row, note) for row in rows)])
    data = written.getvalue().encode("utf-8-sig" if mark else "utf-8")
    path = folder / "quoted.csv"
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", size)
        found = read_data_file(path)
    assert content(found.interactions) == expected(rows)
    assert found.rows == len(rows)


@pytest.mark.parametrize("size", [20, 1 << 22])
def test_quotes_inside_fields_are_kept(tmp_path, monkeypatch, size) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", size)
    monkeypatch.setattr(chunks, "_LONGEST_QUOTED", 60)
    path = tmp_path / "x.tsv"
    rows = ['a\t12" vinyl', 'b\t7"', 'a\t"two\nlines"', 'b\t"say ""so"""', "c\tplain", 'c\tlast"', *["d\tmore"] * 20]
    path.write_text("user\titem\n" + "\n".join(rows) + "\n")
    read = read_data_file(path).interactions
    assert set(read.item_ids.tolist()) == {'12" vinyl', '7"', "two\nlines", 'say "so"', "plain", 'last"', "more"}
    assert read.merged == 19


@settings(max_examples=80, deadline=None)
@given(st.text('ab",\n', min_size=1, max_size=30))
@example('""a"",b')
@example(',"a"",b')
@example('a,""b""')
@example('","a",b')
def test_wrong_quotes_are_never_misread(folder, text) -> None:
    """A file is read as Python's csv module does or refused, which is right only if that refuses it or lines break."""
    path = folder / "wrong.csv"
    text = "user,item\n" + text.rstrip("\n") + "\n"
    path.write_text(text)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))[1:]
    except csv.Error:
        rows = []
    is_table = bool(rows) and all(len(row) == 2 and all(map(str.strip, row)) for row in rows)
    try:
        read = read_data_file(path).interactions
    except DataError:
        assert not is_table or any("\n" in field for row in rows for field in row)
        return
    pairs = zip(read.user_ids[read.users].tolist(), read.item_ids[read.items].tolist(), strict=True)
    assert is_table
    assert set(pairs) == {(user.strip(), item.strip()) for user, item in rows}


@settings(max_examples=10, deadline=None)
@given(st.one_of(rows_of(INTEGERS), rows_of(TEXTS), rows_of(QUOTED)))
def test_round_trip_of_parquet(folder, rows) -> None:
    users, items, ratings, times = zip(*rows, strict=True)
    path = folder / "table.parquet"
    columns = {"user_id": users, "movieId": items, "rating": ratings, "timestamp": times, "more": users}
    polars.DataFrame(columns).write_parquet(path)
    assert content(read_data_file(path).interactions) == expected(rows)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(0, 60), min_size=2, max_size=9, unique=True), min_size=2, max_size=20))
def test_round_trip_of_id_lists(folder, lists) -> None:
    path = folder / "lists.txt"
    lists[0] = list(range(6))  # no table: six numbers a line
    path.write_text("".join(f"{user} {' '.join(map(str, items))}\n" for user, items in enumerate(lists)))
    found = read_data_file(path)
    made = found.interactions
    assert [made.item_ids[made.positives(user)].astype(int).tolist() for user in range(len(lists))] == lists
    assert found.format == "a user and the items on each line"


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
def test_pieces_of_any_size_hold_the_same_lines(tmp_path, size) -> None:
    (tmp_path / "x.csv").write_bytes("\ufeffuser,item\r\na,1\r\nb,2\r\n\r\n\n".encode())
    pieces = list(chunks.chunks(tmp_path / "x.csv", size))
    assert b"".join(piece.data for piece in pieces).replace(b"\r", b"") == b"user,item\na,1\nb,2\n"
    assert pieces[-1].line + pieces[-1].data.count(b"\n") == 4


@pytest.mark.parametrize(
    ("text", "columns", "form"),
    [
        ("1::2::3\n1::3::4\n", "user=0,item=1,rating=2", "separated by double colons, no header"),
        ("u1\ti2\t978300760\t4\nu1\ti3\t978300761\t5", "user=0,item=1,rating=3,time=2", "separated by tabs, no header"),
        ("item-7|user_1\nitem-8|user_1\n", "user=1,item=0", "separated by bars, no header"),
        ("u1,i1,2026-01-01\nu1,i2,2026-01-02\n", "user=0,item=1,time=2", "separated by commas, no header"),
        ("Movie Id,USER_ID\n1,2\n", "user=USER_ID,item=Movie Id", "separated by commas, a header"),
        (
            "user_id:token\titem_id:token\trating:float\n1\t2\t3\n",
            "user=user_id:token,item=item_id:token,rating=rating:float",
            "separated by tabs, a header",
        ),
    ],
)  # fmt: skip
def test_what_is_found_is_said(tmp_path, text, columns, form) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    found = read_data_file(path)
    assert (found.format, str(found.columns)) == (form, columns)
    assert f"read {found.rows:,} rows, " in str(found)
    assert read_data_file(path, parse_columns(columns)).columns == found.columns


def test_columns_are_chosen_by_number_and_by_heading(tmp_path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('when,what,who\n3,"a, b",ann\n9,c,ann\n5,"a, b",007\n')
    for columns in (Columns("who", "what", None, "when"), Columns(2, 1, time=0), Columns("who", 1, None, 0)):
        read = read_data_file(path, columns).interactions
        assert read.user_ids.tolist() == ["007", "ann"]
        assert read.item_ids.tolist() == ["a, b", "c"]
        assert read.positives(1).tolist() == [0, 1]
        assert read.timestamps.tolist() == [5, 3, 9]
        assert read.ratings is None


@pytest.mark.parametrize(
    ("text", "line", "column", "what"),
    [
        ("", None, None, "the file is empty"),
        ("\n\r\n", None, None, "the file is empty"),
        ("user,item\n", None, None, "has a header but no lines"),
        ("alone\n", 1, None, "cannot tell what separates the columns"),
        ("user,thing\n1,2\n", None, None, "no heading says which columns hold the user and the item"),
        ("user,user_id,item\n1,2,3\n", None, None, "two columns look like the user, 'user' and 'user_id'"),
        ("user,item\n1,2\n1\n3,4\n", 3, None, "1 fields, but most lines have 2"),
        ("user,item\n1,2\n\n3,4\n", 3, None, "a blank line"),
        ("user,item\n1,2\n,3\n", 3, "'user' (user)", "the user is empty"),
        ("user,item\n1,2\n  ,3\n", 3, "'user' (user)", "the user is empty"),
        ("user,item,rating\n1,2,3\n1,3,good\n", 3, "'rating' (rating)", "the rating is not a number: 'good'"),
        ("user,item,rating\n1,2,3\n1,3,\n", 3, "'rating' (rating)", "the rating is empty"),
        ("user,item,rating\n1,2,3\n1,3,nan\n", 3, "'rating' (rating)", "the rating is not a number: 'nan'"),
        ("user,item,rating\n1,2,3\n1,3,-inf\n", 3, "'rating' (rating)", "the rating is not a number"),
        ("user,item,rating\n1,2,3\n1,3,1_0\n", 3, "'rating' (rating)", "the rating is not a number"),
        ("user,item,rating\n1,2,3\n1,3,1e39\n", 3, "'rating' (rating)", "too large"),
        ("user\titem\ttime\n1\t2\t99\n1\t3\t1e30\n", 3, "'time' (time)", "too large"),
        ('user,item\n"1\n2",2\n1,"2\n', 4, None, "not a CSV line"),
        ('user,item\n"1\n2",2\n1\n', 4, None, "1 fields"),
        ('user,item,rating\n"a",1,2\n"b\nc",1,x\n', 4, "'rating' (rating)", "not a number: 'x'"),
        (f"user,item\n1,2\n1,{'x' * 300}\n", 3, "'item' (item)", "more than 255 bytes"),
        (f'user,item\n1,"2"\n1,{"x" * 300}\n', 3, "'item' (item)", "more than 255 bytes"),
        ("user,item\n1,2\n1,\0\n", 3, None, "not a text file, or UTF-16"),
        ("user,item,note\n1,2,\n3,4,\n5,6\n7,8,\n", 4, None, "the line has 2 fields, but most lines have 3"),
        ('user,item,note\n1,2,"a, b"\n3,4,\n5,6\n7,8,\n', 4, None, "the line has 2 fields, but most lines have 3"),
        ("user,item,time\na,1,2026-01-01\nb,2,17\n", 3, "'time' (time)", "the time is not a date and time"),
        ("user,item,time\na,1,17\nb,2,2026-01-01\n", 3, "'time' (time)", "the time is not a number: '2026-01-01'"),
        ("user,item,time\na,1,2026-02-30\n", 2, "'time' (time)", "the time is neither a number nor a date as in"),
    ],
)  # fmt: skip
def test_a_malformed_file_is_refused_with_its_place(tmp_path, text, line, column, what) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(text.encode())
    with pytest.raises(DataError) as caught:
        read_data_file(path)
    assert what in caught.value.problem
    assert (caught.value.path, caught.value.line, caught.value.column) == (path, line, column)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: archive(path, "[Content_Types].xml", "xl/workbook.xml"), "an Excel workbook: save the sheet"),
        (lambda path: path.write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + bytes(512)), "an Excel workbook"),
        (lambda path: archive(path, "mimetype", "content.xml"), "a spreadsheet of LibreOffice"),
        (lambda path: np.savez(path, users=np.arange(3)), "numpy arrays (.npz), not a table"),
        (lambda path: np.save(path, np.arange(3)), "a numpy array, not a table"),
        (lambda path: archive(path, "ratings.csv"), "a zip archive: unpack it first"),
        (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(50)), "a zip archive: unpack it first"),
        (lambda path: path.write_text("user,item\na,b\n", encoding="utf-16"), "UTF-16 text: save it as UTF-8"),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_named_with_what_to_do(tmp_path, make, what) -> None:
    make(tmp_path / "ratings")
    (path,) = tmp_path.iterdir()  # numpy adds its own ending
    for read in (read_data_file, read_history):
        with pytest.raises(DataError) as caught:
            read(path)
        assert what in caught.value.problem


def archive(path, *names) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, "x")


@pytest.mark.parametrize("end", ["   ", " \r\n", "\n  \n\n ", "  \n\r\n   \n"])
def test_a_last_line_of_blanks_is_left_out(tmp_path, end) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(("user,item\r\n1,2\r\n3,4\r\n" + end).encode())
    assert read_data_file(path).rows == 2
    path.write_bytes(("0 1 2\n1 2\n" + end).encode())
    assert read_data_file(path).interactions.size == 3
    path.write_bytes((f"user,item\n1,2\n{end}\n3,4\n").encode())
    with pytest.raises(DataError, match="a blank line"):  # in the middle it is none
        read_data_file(path)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_that_were_not_clicked_are_no_interactions(tmp_path, suffix) -> None:
    """As in MIND, whose users were shown the items with label 0."""

    def write(**columns: list[object]):
        path = tmp_path / f"x.{suffix}"
        table = polars.DataFrame({"user": ["a", "a", "b"], "item": ["x", "y", "x"], **columns})
        (table.write_csv if suffix == "csv" else table.write_parquet)(path)
        return path

    for column in ({"label": [1, 0, 1]}, {"is_click": [0.0, 1.0, 1.0]}):
        with pytest.raises(
            DataError, match=r"holds 0(\.0)? and 1(\.0)?, and lines with 0(\.0)? are usually no interactions"
        ):
            read_data_file(write(**column))
    assert read_data_file(write(label=[1, 0, 1]), parse_columns("user=user,item=item")).rows == 3
    for column in ({"label": [1, 1, 1]}, {"label": ["EMI", "0", "Blue Note"]}, {"label": [0, 1, 7]}):
        assert read_data_file(write(**column)).rows == 3


def test_columns_in_python_are_a_record(tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("who,what\na,x\nb,y\n")
    assert load_split(str(path), columns=parse_columns("user=who,item=what")).train.n_users == 2
    for columns in ("user=who,item=what", {"user": "who", "item": "what"}):
        with pytest.raises(ParameterError, match=r"columns must be a Columns, got a \w+: parse_columns\("):
            load_split(str(path), columns=columns)
        with pytest.raises(ParameterError, match="columns must be a Columns"):
            read_data_file(path, columns)


def test_the_folder_of_the_data_sets_may_be_text(tmp_path) -> None:
    with pytest.raises(DataError, match=str(tmp_path)):
        load_split("ml-100k", str(tmp_path))


def test_columns_that_are_missing_or_make_no_sense_are_named(tmp_path) -> None:
    for text, columns, what in (
        ("a,b\n1,2\n", "user=0,item=2", "no column 2: the file has 2, numbered from 0"),
        ("a,b\n1,2\n", "user=who,item=b", "no column named 'who': the header has 'a', 'b'"),
        ("a,a\n1,2\n", "user=a,item=1", "more than one column named 'a'"),
    ):
        (tmp_path / "x.csv").write_text(text)
        with pytest.raises(DataError, match=what):
            read_data_file(tmp_path / "x.csv", parse_columns(columns))
    for text in ("user=0", "user=0,item", "user=0,item=1,stars=2", "user=0,item=0", "user=0,user=1,item=2"):
        with pytest.raises(ParameterError):
            parse_columns(text)


@pytest.mark.parametrize("least", [-100, -1, 32_700, 2**31 - 100, 2**62, -(2**63)])
def test_ids_of_any_size_stay_apart(tmp_path, least) -> None:
    path = tmp_path / "x.csv"
    ids = [str(least + step) for step in range(0, 201, 5)]
    path.write_text("user,item\n" + "".join(f"{one},{one}\n{one},{other}\n" for one, other in pairwise(ids)))
    read = read_data_file(path).interactions
    assert read.user_ids.tolist() == ids[:-1]
    assert read.item_ids.tolist() == ids
    assert read.user_degrees().tolist() == [2] * (len(ids) - 1)
    assert read.item_degrees().tolist() == [1, *[2] * (len(ids) - 2), 1]


def test_huge_ids_negative_times_and_repeated_pairs(tmp_path) -> None:
    path = tmp_path / "x.csv"
    huge = 10**30
    path.write_text(f"{huge},7,3,-5\n{huge},7,4,-9\n5,007,1,2.9\n")
    found = read_data_file(path, parse_columns("user=0,item=1,rating=2,time=3"))
    read = found.interactions
    assert read.user_ids.tolist() == [str(huge), "5"]
    assert read.item_ids.tolist() == ["007", "7"]
    assert (read.merged, read.ratings.tolist(), read.timestamps.tolist()) == (1, [3, 1], [-5, 2])
    assert "1 repeated pairs" in str(found)
    assert "times from -5 to 2" in str(found)


def test_other_compressions_are_named(tmp_path) -> None:
    for start, what in ((b"PK\x03\x04", "zip"), (b"BZh9", "bzip2"), (b"\x28\xb5\x2f\xfd", "zstd")):
        (tmp_path / "x").write_bytes(start + bytes(99))
        with pytest.raises(DataError, match=what):
            read_data_file(tmp_path / "x")


def test_a_table_without_polars_names_the_extra(tmp_path, monkeypatch) -> None:
    table = polars.DataFrame({"user": [1], "item": [2]})
    table.write_parquet(tmp_path / "x.parquet")
    table.write_csv(tmp_path / "x.csv")
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.delitem(sys.modules, "client_sdk.lab.data.tables", raising=False)
    for path in tmp_path.iterdir():
        with pytest.raises(DataError, match="polars, of the extra `data`, which is not installed: hushrec doctor"):
            read_data_file(path)


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"user": [1, None], "item": [1, 2]}, "line 2, column 'user' (user): the user is missing"),
        ({"user": [1, 2], "item": [1.5, 2]}, "the column 'item' (item) has type Float64: ids are integers or text"),
        ({"user": ["a", ""], "item": [1, 2]}, "line 2, column 'user' (user): the user is empty"),
        (
            {"user": [1, 2], "item": [1, 2], "rating": ["5", "good"]},
            "line 2, column 'rating' (rating): the rating is not a",
        ),
        ({"user": [1, 2], "item": [1, 2], "rating": [5.0, float("nan")]}, "line 2, column 'rating' (rating)"),
        ({"user": [1, 2], "thing": [1, 2]}, "no heading says which columns"),
    ],
)
def test_malformed_parquet_is_refused_with_its_place(tmp_path, columns, what) -> None:
    path = tmp_path / "x.parquet"
    polars.DataFrame(columns).write_parquet(path)
    with pytest.raises(DataError) as caught:
        read_data_file(path)
    assert what in str(caught.value)
    path.write_bytes(b"PAR1" + bytes(40))
    with pytest.raises(DataError, match="not a readable parquet file"):
        read_data_file(path)


PEAK = """
import sys
from pathlib import Path
from client_sdk.lab.data.files import read_data_file

def peak():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmHWM"))

read_data_file(Path(sys.argv[1]))
Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present size
before = peak()
assert read_data_file(Path(sys.argv[2])).rows == 120_000
print(peak() - before)
"""


def test_memory_is_bounded_by_the_pieces(tmp_path) -> None:
    """A file of 108 MB, most of it a column that is not read, needs a small part of that."""
    small, large = tmp_path / "small.csv", tmp_path / "large.csv.gz"
    small.write_text("user,item,note\n1,2,x\n")
    note = b'"%b"' % (b"a line of text, " * 56)
    rows = b"".join(b"%d,%d,%b\n" % (row % 3000, row % 7001, note) for row in range(120_000))
    large.write_bytes(gzip.compress(b"user,item,note\n" + rows, compresslevel=1))
    command = [sys.executable, "-c", PEAK, small, large]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) < 80_000, "KiB"
