# ruff: noqa: E501, S608 - a layout is one line of a table, and one of them is a dump of SQL
"""The layouts of public data sets and of shops' exports: each is read as it is meant, or refused with what to type.

All rows are made up; the layouts are those of the providers. A wrong reading that passes in silence is the one outcome
that must not be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from client_sdk.lab.data.columns import parse_columns
from client_sdk.lab.data.files import read_data_file, write_data_file
from client_sdk.lab.data.interactions import DataError
from client_sdk.lab.data.splits import load_split


@dataclass(frozen=True)
class Row:
    user: int
    item: int
    stars: int
    time: int

    @property
    def date(self) -> datetime:
        return datetime.fromtimestamp(self.time, UTC)


_rng = np.random.default_rng(55)
ROWS = [
    Row(user, int(item), int(_rng.integers(1, 6)), 1_400_000_000 + 86_400 * int(_rng.integers(400)) + place)
    for user in range(3, 15)
    for place, item in enumerate(_rng.choice(np.arange(20, 60), 5, replace=False))
]

Line = Callable[[Row], str]


@dataclass(frozen=True)
class Layout:
    """name: data set or export. header: first line, "" without one. line: makes a line. user, item: the ids as meant.

    refused: a part of the error, None for a file that is read. reads: what is read beside user and item.
    """

    name: str
    header: str
    line: Line
    refused: str | None = None
    reads: str = ""
    user: Line = lambda row: f"{row.user}"
    item: Line = lambda row: f"{row.item}"
    time: Callable[[Row], int] = lambda row: row.time
    rating: Callable[[Row], float] = lambda row: row.stars


def as_json(**fields: Callable[[Row], object]) -> Line:
    return lambda row: json.dumps({name: value(row) for name, value in fields.items()})


def micros(row: Row) -> int:
    return row.time * 1_000_000


def day(row: Row) -> int:
    return row.time // 86_400 * 86_400_000_000


UNNAMED = "no heading says which columns hold the user and the item"
TOLD = "--columns user=0,item=1"
AMAZON: dict[str, Line] = {"user": lambda row: f"A{row.user:013d}", "item": lambda row: f"B00{row.item:07d}"}

LAYOUTS = [
    # --- tables whose headings say what they are ---
    Layout("MovieLens ratings.csv", "userId,movieId,rating,timestamp", lambda r: f"{r.user},{r.item},{r.stars}.0,{r.time}", reads="rating time"),
    Layout("MovieLens 1M .dat", "", lambda r: f"{r.user}::{r.item}::{r.stars}::{r.time}", reads="rating time"),
    Layout("MovieTweetings .dat", "", lambda r: f"{r.user}::{r.item:07d}::{r.stars}::{r.time}", reads="rating time", item=lambda r: f"{r.item:07d}"),
    Layout("Book-Crossing", '"User-ID";"ISBN";"Book-Rating"', lambda r: f'"{r.user}";"{r.item:010d}";"{r.stars}"', reads="rating", item=lambda r: f"{r.item:010d}"),
    Layout("Anime of Kaggle", "user_id,anime_id,rating", lambda r: f"{r.user},{r.item},{r.stars}", reads="rating"),
    Layout("Netflix of Kaggle", "CustId,Rating,Date,MovieId", lambda r: f"{r.user},{r.stars},{r.date:%Y-%m-%d},{r.item}", reads="rating time", time=day),
    Layout("Amazon 2023 ratings", "user_id,parent_asin,rating,timestamp", lambda r: f"{AMAZON['user'](r)},{AMAZON['item'](r)},{r.stars}.0,{r.time}000", reads="rating time", time=lambda r: r.time * 1000, **AMAZON),
    Layout("Amazon review TSV", "marketplace\tcustomer_id\treview_id\tproduct_id\tproduct_parent\tproduct_title\tstar_rating\treview_date", lambda r: f'US\t{r.user}\tR{r.time}\tB00{r.item:07d}\t1\tA 12" vinyl\t{r.stars}\t{r.date:%Y-%m-%d}', reads="rating time", time=day, item=AMAZON["item"]),
    Layout("Yelp CSV", "user_id,business_id,stars,date", lambda r: f"u{r.user},b{r.item},{r.stars}.0,{r.date:%Y-%m-%d %H:%M:%S}", reads="rating time", time=micros, user=lambda r: f"u{r.user}", item=lambda r: f"b{r.item}"),
    Layout("RetailRocket", "timestamp,visitorid,event,itemid,transactionid", lambda r: f"{r.time}000,{r.user},view,{r.item},", reads="time", time=lambda r: r.time * 1000),
    Layout("REES46", "event_time,event_type,product_id,category_id,category_code,brand,price,user_id,user_session", lambda r: f"{r.date:%Y-%m-%d %H:%M:%S} UTC,view,{r.item},1,a.b,x,3.5,{r.user},s{r.time}", reads="time", time=micros),
    Layout("Last.fm of HetRec", "userID\tartistID\tweight", lambda r: f"{r.user}\t{r.item}\t{r.time}"),
    Layout("MovieLens of HetRec", "userID\tmovieID\trating\tdate_day\tdate_month", lambda r: f"{r.user}\t{r.item}\t{r.stars}\t1\t2", reads="rating"),
    Layout("RecBole .inter", "user_id:token\titem_id:token\trating:float\ttimestamp:float", lambda r: f"{r.user}\t{r.item}\t{r.stars}\t{r.time}.0", reads="rating time"),
    Layout("KuaiRec", "user_id,video_id,play_duration,video_duration,time,date,timestamp,watch_ratio", lambda r: f"{r.user},{r.item},1,2,{r.date:%Y-%m-%d %H:%M:%S}.5,{r.date:%Y%m%d},{r.time}.5,1.2", reads="time"),
    Layout("Online Retail of UCI", "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country", lambda r: f"5,{r.item}A,POT,{r.stars},{r.date:%m/%d/%Y %H:%M},2.5,{r.user},UK", reads="time", time=lambda r: r.time // 60 * 60_000_000, item=lambda r: f"{r.item}A"),
    Layout("Steam of Kaggle, with header", "user_id,game_id,hours", lambda r: f"{r.user},{r.item},1.5"),
    Layout("H&M", "t_dat,customer_id,article_id,price,sales_channel_id", lambda r: f"{r.date:%Y-%m-%d},c{r.user},0{r.item},0.05,2", user=lambda r: f"c{r.user}", item=lambda r: f"0{r.item}"),
    Layout("Food.com", "user_id,recipe_id,date,rating,review", lambda r: f'{r.user},{r.item},{r.date:%Y-%m-%d},{r.stars},"good, ""really""\nit is"', reads="rating time", time=day),
    Layout("LFM-2b", "user_id\ttrack_id\talbum_id\ttimestamp", lambda r: f"{r.user}\t{r.item}\t7\t{r.date:%Y-%m-%d %H:%M:%S}", reads="time", time=micros),
    # --- exports of shops ---
    Layout("German shop", "Kundennummer;Artikelnummer;Menge;Bestelldatum", lambda r: f"K-{r.user};A-{r.item};{r.stars};{r.date:%d.%m.%Y %H:%M}", reads="time", time=lambda r: r.time // 60 * 60_000_000, user=lambda r: f"K-{r.user}", item=lambda r: f"A-{r.item}"),
    Layout("German ratings", "Kunden-Nr.;Artikel-Nr.;Bewertung;Datum", lambda r: f"{r.user};{r.item};{r.stars},5;{r.date:%d.%m.%Y}", reads="rating time", time=day, rating=lambda r: r.stars + 0.5),
    Layout("French shop", "ID client;Référence produit;Quantité;Date commande", lambda r: f"{r.user};P{r.item};1;{r.date:%Y-%m-%d}", UNNAMED),
    Layout("French shop, plain", "id_client;ref_produit;quantite;date_commande", lambda r: f"{r.user};P{r.item};1;{r.date:%d/%m/%Y}", reads="time", time=day, item=lambda r: f"P{r.item}"),
    Layout("Shopify orders", "Name,Email,Created at,Lineitem quantity,Lineitem name,Lineitem sku", lambda r: f"#1,u{r.user}@x.org,{r.date:%Y-%m-%d %H:%M:%S} +0200,1,Pot,SKU-{r.item}", UNNAMED),
    Layout("WooCommerce", "order_id,customer_id,sku,quantity,created_at", lambda r: f"{r.time},{r.user},SKU {r.item},1,{r.date:%Y-%m-%dT%H:%M:%S}", reads="time", time=micros, item=lambda r: f"SKU {r.item}"),
    Layout("product and SKU", "customer_id,product_id,sku", lambda r: f"{r.user},{r.item},S{r.item}", "two columns look like the item, 'product_id' and 'sku'"),
    Layout("dates of either kind", "user,item,date", lambda r: f"{r.user},{r.item},0{r.stars}/0{r.user % 9 + 1}/2024", "could be day/month or month/day"),
    Layout("decimals of thousands", "user;item;rating", lambda r: f"{r.user};{r.item};{r.stars},000", "the rating is not a number: "),
    Layout("pandas index, header", ",user,item,rating", lambda r: f"{r.time},{r.user},{r.item},{r.stars}", reads="rating"),
    Layout("write.table of R", "user item rating", lambda r: f"{r.time} {r.user} {r.item} {r.stars}", "the line has 3 fields, but most lines have 4"),
    Layout("pandas headings", "0,1,2,3", lambda r: f"{r.user},{r.item},{r.stars},{r.time}", TOLD),
    # --- tables without headings ---
    Layout("MovieLens u.data", "", lambda r: f"{r.user}\t{r.item}\t{r.stars}\t{r.time}", f"{TOLD},rating=2,time=3"),
    Layout("FilmTrust", "", lambda r: f"{r.user} {r.item} {r.stars}", f"{TOLD},rating=2"),
    Layout("Amazon 2014 ratings only", "", lambda r: f"A{r.user:013d},B00{r.item:07d},{r.stars}.0,{r.time}", UNNAMED),
    Layout("Amazon 2018 ratings only: the item first", "", lambda r: f"B00{r.item:07d},A{r.user:013d},{r.stars}.0,{r.time}", UNNAMED),
    Layout("YooChoose clicks", "", lambda r: f"{r.user},{r.date:%Y-%m-%dT%H:%M:%S}.277Z,2145{r.item},0", "--columns user=0,item=2,time=1"),
    Layout("Gowalla check-ins", "", lambda r: f"{r.user}\t{r.date:%Y-%m-%dT%H:%M:%SZ}\t30.{r.time}\t-97.{r.time}\t{r.item}", "--columns user=0,item=4,time=1"),
    Layout("Last.fm 1K", "", lambda r: f"user_{r.user:06d}\t{r.date:%Y-%m-%dT%H:%M:%SZ}\ta{r.item}\tArtist\tt{r.item}\tTrack", UNNAMED),
    Layout("Last.fm 360K", "", lambda r: f"{r.user:040x}\t{r.item:036x}\tArtist {r.item}\t{r.stars}", UNNAMED),
    Layout("Taobao", "", lambda r: f"{r.user},{r.item},4{r.item % 3},pv,{r.time}", UNNAMED),
    Layout("Foursquare of TSMC", "", lambda r: f"{r.user}\tv{r.item}\tc\tBar\t40.7\t-74.0\t-240\t{r.date:%a %b %d %H:%M:%S} +0000 {r.date:%Y}", UNNAMED),
    Layout("Steam-200k", "", lambda r: f'{r.user},"Game, {r.item}",purchase,1.0,0', UNNAMED),
    Layout("Million Song triplets", "", lambda r: f"{r.user:040x}\tSO{r.item}\t{r.stars}", UNNAMED),
    Layout("time, user, item", "", lambda r: f"{r.time},{r.user},{r.item}", "--columns user=1,item=2,time=0"),
    Layout("row number in front", "", lambda r: f"{ROWS.index(r)},{r.user},{r.item},{r.stars}", "--columns user=1,item=2,rating=3"),
    Layout("movies.dat", "", lambda r: f"{r.item}::Film {r.item} (1995)::Animation|Comedy", UNNAMED),
    Layout("users.dat", "", lambda r: f"{r.user}::F::1::10::48067", UNNAMED),
    Layout("ids that say what they are", "", lambda r: f"i{r.item};u{r.user};{r.stars},5", reads="rating", rating=lambda r: r.stars + 0.5, user=lambda r: f"u{r.user}", item=lambda r: f"i{r.item}"),
    # --- JSON lines ---
    Layout("Amazon reviews", "", as_json(reviewerID=AMAZON["user"], asin=AMAZON["item"], helpful=lambda r: [0, 1], reviewText=lambda r: 'a 12" pot, "good"\n', overall=lambda r: float(r.stars), unixReviewTime=lambda r: r.time, reviewTime=lambda r: "09 13, 2009"), reads="rating time", **AMAZON),
    Layout("Amazon reviews 2023", "", as_json(rating=lambda r: r.stars, title=lambda r: "x", asin=lambda r: f"B09{r.time}", parent_asin=AMAZON["item"], user_id=AMAZON["user"], timestamp=lambda r: r.time * 1000), reads="rating time", time=lambda r: r.time * 1000, **AMAZON),
    Layout("Yelp reviews", "", as_json(review_id=lambda r: f"r{r.time}", user_id=lambda r: r.user, business_id=lambda r: r.item, stars=lambda r: r.stars, useful=lambda r: 0, date=lambda r: f"{r.date:%Y-%m-%d %H:%M:%S}"), reads="rating time", time=micros),
    Layout("Goodreads", "", as_json(user_id=lambda r: r.user, book_id=lambda r: f"{r.item}", review_id=lambda r: "x", rating=lambda r: r.stars, date_added=lambda r: f"{r.date:%a %b %d %H:%M:%S} +0000 {r.date:%Y}"), reads="rating time", time=micros),
    Layout("Google Local", "", as_json(user_id=lambda r: f"1{r.user:020d}", name=lambda r: "A", time=lambda r: r.time * 1000, rating=lambda r: r.stars, text=lambda r: None, gmap_id=lambda r: f"0x{r.item}:0x1"), reads="rating time", time=lambda r: r.time * 1000, user=lambda r: f"1{r.user:020d}", item=lambda r: f"0x{r.item}:0x1"),
    Layout("orders as JSON lines", "", as_json(order_id=lambda r: r.time, customer=lambda r: r.user, sku=lambda r: r.item), user=lambda r: f"{r.user}"),
    Layout("JSON lines of unknown names", "", as_json(who=lambda r: r.user, what=lambda r: r.item), "--columns user=who,item=what"),
    Layout("Steam reviews: lines of Python", "", lambda r: f"{{u'username': u'{r.user}', u'product_id': u'{r.item}'}}", "python -c 'import ast, json"),
    # --- what is no table of interactions ---
    Layout("JSON array", "[", lambda r: json.dumps({"user": r.user, "item": r.item}) + ",", "write_ndjson"),
    Layout("ARFF", "@relation ratings", lambda r: f"{r.user},{r.item},{r.stars}", "an ARFF file"),
    Layout("MatrixMarket", "%%MatrixMarket matrix coordinate real general", lambda r: f"{r.user} {r.item} {r.stars}", "begins with a comment"),
    Layout("KONECT and SNAP", "# user item", lambda r: f"{r.user}\t{r.item}", "grep -v"),
    Layout("Netflix Prize", "1:", lambda r: f"{r.user},{r.stars},{r.date:%Y-%m-%d}", "write the film into each line"),
    Layout("libFM", "", lambda r: f"{r.stars} {r.user}:1 {r.item + 100}:1", "a libFM or libSVM file"),
    Layout("SQL dump", "", lambda r: f"INSERT INTO r VALUES ({r.user},{r.item},{r.stars});", "an SQL dump"),
    Layout("Python tuples", "", lambda r: f"({r.user}, {r.item}, {r.stars})", "lines of Python"),
    Layout("Markdown", "| user | item |", lambda r: f"| {r.user} | {r.item} |", "a Markdown table"),
    Layout("labels of words", "user,item,label", lambda r: f"{r.user},{r.item},{r.stars > 3}", "lines with 0 are usually no interactions"),
    Layout("decimal commas in quotes", "user,item,rating", lambda r: f'{r.user},{r.item},"{r.stars},5"', reads="rating", rating=lambda r: r.stars + 0.5),
    Layout("days of two digits", "user,item,date", lambda r: f"{r.user},{r.item},{r.date:%d.%m.%y}", "the time is not a number: "),
    Layout("a film's title", "userId,title,rating", lambda r: f"{r.user},Film {r.item},{r.stars}", "--columns user=userId,item=title,rating=rating"),
    Layout("web page", "<!doctype html>", lambda r: f"<p>{r.user},{r.item}", "a web page or XML"),
    Layout("Excel's sep", "sep=;", lambda r: f"{r.user};{r.item}", "delete that line"),
    Layout("leave-one-out between blanks", "", lambda r: f"{r.time} {r.item} {r.stars}", "user=0,item=1..."),
]  # fmt: skip


def meant(layout: Layout) -> dict[tuple[str, str], tuple[float | None, int | None]]:
    return {
        (layout.user(row), layout.item(row)): (
            layout.rating(row) if "rating" in layout.reads else None,
            layout.time(row) if "time" in layout.reads else None,
        )
        for row in ROWS
    }


def found_in(path: Path) -> dict[tuple[str, str], tuple[float | None, int | None]]:
    read = read_data_file(path).interactions
    users, items = read.user_ids[read.users].tolist(), read.item_ids[read.items].tolist()
    none = [None] * read.size
    ratings = none if read.ratings is None else read.ratings.tolist()
    times = none if read.timestamps is None else read.timestamps.tolist()
    pairs = zip(users, items, strict=True)
    return dict(zip(pairs, zip(ratings, times, strict=True), strict=True))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_layout_is_read_as_meant_or_refused(tmp_path, layout) -> None:
    path = tmp_path / "a file.txt"
    path.write_text("\n".join([*([layout.header] if layout.header else []), *map(layout.line, ROWS)]) + "\n")
    if layout.refused is None:
        assert found_in(path) == meant(layout)
    else:
        with pytest.raises(DataError) as caught:
            read_data_file(path)
        assert layout.refused in str(caught.value)


@pytest.mark.parametrize(
    ("name", "lines", "refused"),
    [
        ("LightGCN", lambda user, items: [user, *items], None),
        ("CiteULike: the count first", lambda user, items: [len(items), *items], "begins with the number of its items"),
        ("baskets", lambda user, items: sorted(items), UNNAMED),
        ("two numbers a line", lambda user, items: [user, *items[:1]], TOLD),
        ("three numbers a line", lambda user, items: [user, *items[:2]], "user=0,item=1..."),
    ],
)
def test_lists_need_evidence_that_tables_do_not_have(tmp_path, name, lines, refused) -> None:
    rng = np.random.default_rng(1)
    lists = [[int(item) for item in rng.choice(40, 3 + user, replace=False)] for user in range(9)]
    path = tmp_path / "lists.txt"
    path.write_text("".join(" ".join(map(str, lines(user, items))) + "\n" for user, items in enumerate(lists)))
    if refused is None:
        assert set(found_in(path)) == {(str(user), str(item)) for user, items in enumerate(lists) for item in items}
    else:
        with pytest.raises(DataError) as caught:
            read_data_file(path)
        assert refused in str(caught.value)


def test_parquet_is_read_as_the_same_table_in_text(tmp_path) -> None:
    table = pl.DataFrame(
        {"customer_id": [row.user for row in ROWS], "sku": [f"S{row.item}" for row in ROWS],
         "created_at": [row.date for row in ROWS], "stars": [str(row.stars) for row in ROWS]}
    )  # fmt: skip
    table.write_parquet(tmp_path / "orders.parquet")
    table.write_csv(tmp_path / "orders.csv")
    assert found_in(tmp_path / "orders.parquet") == found_in(tmp_path / "orders.csv")
    assert len(found_in(tmp_path / "orders.csv")) == len(ROWS)


# --- orders: returns, guests, quantities, rows that cannot be read ----------------------------------------------------


def test_returns_cancel_what_was_bought(tmp_path) -> None:
    path = tmp_path / "orders.csv"
    rows = ["ann,pot,2,1", "ann,pot,-2,9", "ann,pan,3,2", "ann,pan,-1,8", "bob,pot,1,3", "bob,cup,0,4", "bob,pot,2,5"]
    path.write_text("\n".join(["customer,sku,quantity,timestamp", *rows]) + "\n")
    assert found_in(path) == {("ann", "pan"): (None, 2), ("bob", "pot"): (None, 5)}
    said = str(read_data_file(path))
    assert "2 pairs left out, of which as much came back as was bought" in said
    assert "1 repeated pairs of user and item: the latest of each is used" in said


def test_rows_that_cannot_be_read_are_left_out_up_to_a_number(tmp_path) -> None:
    path = tmp_path / "orders.csv"
    rows = ["1,2,3", ",2,4", "NULL,2,4", "2,3", "2,4,good", "user,item,rating", "", "3,5,1"]
    path.write_text("\n".join(["user,item,rating", *rows]) + "\n")
    with pytest.raises(DataError, match="5 more rows cannot be read: leave them out with --skip-bad 6") as caught:
        read_data_file(path, skip_bad=5)
    assert (caught.value.line, caught.value.column) == (3, "'user' (user)")
    found = read_data_file(path, skip_bad=6)
    assert (found.rows, found.bad, [error.line for error in found.left_out]) == (2, 6, [3, 4, 5, 6, 7, 8])
    assert "6 rows left out (line 3: the user is empty, line 4: the user is missing: 'NULL'" in str(found)
    assert "the user is the heading again: 'user'" in str(found)


def test_what_each_column_was_taken_for_is_said(tmp_path) -> None:
    path = tmp_path / "plays.tsv"
    path.write_text(
        "userID\tartistID\tweight\tplay_hours\tdate\n7\t51\t13\t2.5\t2020-01-01\n7\t52\t1\t.5\t2020-01-02\n"
    )
    said = str(read_data_file(path))
    assert "columns user=userID,item=artistID,time=date by their headings" in said
    assert "the first: 7 51 2020-01-01 / 7 52 2020-01-02" in said
    assert "not read: 'weight', 'play_hours'" in said
    assert "times from 2020-01-01 00:00:00 to 2020-01-02 00:00:00" in said


def test_a_converted_file_is_read_as_the_same(tmp_path) -> None:
    path, made = tmp_path / "orders.txt", tmp_path / "made.csv"
    path.write_text("".join(f"{row.date:%Y-%m-%dT%H:%M:%S}.25Z;{row.user};{row.item};{row.stars},5\n" for row in ROWS))
    file = read_data_file(path, parse_columns("time=0,user=1,item=2,rating=3"))
    write_data_file(file, made)
    assert made.read_text().splitlines()[0] == "user,item,rating,time"
    again, before = read_data_file(made).interactions, file.interactions
    for name in ("user_ids", "item_ids", "items", "ratings", "timestamps", "indptr"):
        assert getattr(again, name).tolist() == getattr(before, name).tolist(), name
    with pytest.raises(DataError, match="cannot write the file: File exists"):
        write_data_file(file, made)


@pytest.mark.parametrize("timed", [True, False])
def test_the_order_of_the_lines_does_not_change_a_split(tmp_path, timed) -> None:
    times = [5 + row.item % 2 for row in ROWS]
    lines = [f"{row.user},{row.item}" + f",{time}" * timed for row, time in zip(ROWS, times, strict=True)]
    lines += lines[::7]
    splits = []
    for seed in range(3):
        path = tmp_path / f"{seed}.csv"
        shuffled = np.random.default_rng(seed).permutation(lines)
        path.write_text("\n".join(["user,item" + ",time" * timed, *shuffled]) + "\n")
        split = load_split(str(path), seed=4)
        splits.append((split.words, split.test.items.tolist(), split.test.users.tolist()))
        rest = load_split(str(path), seed=4, kind="random").test
        splits[-1] += (set(zip(rest.users.tolist(), rest.items.tolist(), strict=True)),)
    assert splits[0] == splits[1] == splits[2]
    assert ("drawn with seed 4 from several of one time" in splits[0][0]) == timed
