"""The headings of tables that people bring: which column is what: user, item, rating, title and so on.

A heading is compared without its case, blanks and punctuation, and without the type that RecBole writes behind a colon:
`movieId`, `Movie ID` and `movie_id:token` are one heading.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, Literal

from protocols.errors import ParameterError

ColumnRole = Literal["user", "item", "rating", "time", "quantity", "title", "labels"]
"""What a column is read as."""

_USUAL: Final[dict[ColumnRole, str]] = {
    "user": (
        "user userid uid useridx iduser reviewer reviewerid customer customerid customernumber customerno "
        "customeremail customeruniqueid customeruserid custid idcustomer client clientid idclient numclient "
        "numeroclient member memberid visitor visitorid idvisitor buyer buyerid userpseudoid steamid subscriberid "
        "accountid kunde kunden kundenid kundennummer kundennr kdnr benutzer "
        "benutzerid nutzer nutzerid utilisateur utilisateurid idutilisateur acheteur"
    ),
    "item": (
        "item itemid iid iditem movie movieid film filmid product productid productcode productnumber idproduct "
        "parentasin asin isbn isbn13 book bookid business businessid article articleid articlenumber articleno artikel "
        "artikelid artikelnummer artikelnr artnr produkt produktid produktnummer produktnr produit produitid idproduit "
        "refproduit referenceproduit codeproduit codearticle refarticle sku skuid productsku lineitemsku "
        "variantsku stockcode ean gtin song songid track trackid artist artistid game gameid recipe recipeid "
        "anime animeid video videoid news newsid appid venue venueid poi poiid gmapid"
    ),
    "rating": (
        "rating ratings stars starrating overall score userrating bookrating reviewrating ratingvalue ratingscore "
        "reviewscore bewertung sterne evaluation"
    ),
    "time": (
        "timestamp eventtimestamp unixtimestamp unixreviewtime unixtime time ts datetime eventtime createdat date "
        "reviewdate reviewtime eventdate orderdate invoicedate purchasedate ordertime purchasetime orderedat "
        "purchasedat dateadded dateupdated datum zeit zeitpunkt zeitstempel bestelldatum kaufdatum rechnungsdatum "
        "horodatage datecommande dateachat dateheure tdat dateadd dateupd orderdatetime servertime "
        "clicktimestamp utctimestamp transactiondt transactiondate orderpurchasetimestamp saledate erstelltam"
    ),
    "quantity": "quantity qty lineitemquantity orderquantity qtyordered productquantity menge anzahl stueck stück "
    "stückzahl quantite quantité qte",
    "title": "title titel titre name productname itemname producttitle bezeichnung artikelname libelle libellé",
    "labels": "labels categories category genres genre tags tag kategorien kategorie étiquettes catégories "
    "catégorie",
}  # fmt: skip
"""Headings of each role in plain form, the one to prefer first."""
_ROLES: Final[dict[str, ColumnRole]] = {heading: role for role, text in _USUAL.items() for heading in text.split()}
_RANKS: Final = {heading: rank for text in _USUAL.values() for rank, heading in enumerate(text.split())}
_MORE_GENERAL: Final = {"parentasin": "asin", "customeruniqueid": "customerid"}
"""A heading -> one beside it that names the same thing more finely: Amazon's items of 2023, Olist's customers."""


def plain_heading(heading: str) -> str:
    """Return a heading in plain form: lower case, without type, blanks and punctuation."""
    return re.sub(r"[\W_]", "", heading.strip().lower().partition(":")[0])


def recognise(heading: str) -> ColumnRole | None:
    """Return what a usual heading stands for; None for any other."""
    return _ROLES.get(plain_heading(heading))


def columns_of(headings: Sequence[str]) -> Mapping[ColumnRole, int]:
    """Return the number of each role's column.

    Of several times and ratings the usual one is taken, such as `timestamp` before `date`. Raises `ParameterError` if
    two columns could be the user or the item, or have one heading: nobody but their author knows which.
    """
    found: dict[ColumnRole, int] = {}
    plain = [plain_heading(heading) for heading in headings]
    finer = {_MORE_GENERAL[heading] for heading in plain if heading in _MORE_GENERAL}
    for place, heading in enumerate(plain):
        role = _ROLES.get(heading)
        if role is None or heading in finer:
            continue
        if role not in found:
            found[role] = place
        elif role in ("user", "item") or heading == plain[found[role]]:
            raise ParameterError(f"two columns look like the {role}, {headings[found[role]]!r} and {headings[place]!r}")
        elif _RANKS[heading] < _RANKS[plain[found[role]]]:
            found[role] = place
    return found


# --- tables of a few columns in text, such as a catalogue and the items of one member --------------------------------

SEPARATORS: Final = ",;\t|"


def small_table(lines: Iterable[str], name: str) -> list[tuple[int, list[str]]]:
    """Return the number of each line and its fields, without blanks around them.

    lines: of a text file opened with `newline=""`. Fields are separated by what splits the first line into most:
    commas, semicolons, tabs or bars; quotes are as in RFC 4180. Raises `ParameterError`, which names the line.
    """
    rest = iter(lines)
    try:
        first = next(rest, None)
        return [] if first is None else _rows(first, rest, name)
    except UnicodeDecodeError:
        raise ParameterError(f"{name} is not UTF-8: convert it first") from None


def _rows(first: str, rest: Iterable[str], name: str) -> list[tuple[int, list[str]]]:
    separator = max(SEPARATORS, key=lambda separator: len(next(csv.reader([first], delimiter=separator), [])))
    reader = csv.reader(chain([first], rest), delimiter=separator, strict=True)
    try:
        return [(reader.line_num, [field.strip() for field in row]) for row in reader]
    except csv.Error as error:
        raise ParameterError(f"{name}, line {reader.line_num}: not CSV: {error}") from None
