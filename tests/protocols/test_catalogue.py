from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.catalogue import MAX_CATALOGUE_BYTES, Catalogue, longest_catalogue
from protocols.errors import CodecError, ParameterError
from protocols.messages import MechanismChoice, RecipeChoice, TaskRequest

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)
ITEMS = st.dictionaries(TEXT.filter(bool), TEXT, min_size=1, max_size=8)


def catalogue_of(items: dict[str, str]) -> Catalogue:
    return Catalogue(tuple(items), tuple(items.values()))


@given(ITEMS)
def test_decode_undoes_encode(items: dict[str, str]) -> None:
    made = catalogue_of(items)
    body = made.encode()
    decoded = Catalogue.decode(body)
    assert decoded == made and decoded.encode() == body
    assert made.digest == hashlib.sha256(body).hexdigest()
    assert [made.number_of(one) for one in made.ids] == list(range(len(made)))
    assert len(body) <= longest_catalogue(len(made))


@given(st.lists(st.sampled_from([b"a", b"b", b"\t", b"\n", b"\r", b"\xc3", b"\xa9", b"\x00", b"\x85"]), max_size=12))
def test_what_encode_does_not_return_is_refused(pieces: list[bytes]) -> None:
    body = b"".join(pieces)
    try:
        decoded = Catalogue.decode(body)
    except CodecError as error:
        assert not body or "line " in str(error)
    else:
        assert decoded.encode() == body


@pytest.mark.parametrize(
    ("ids", "titles", "text"),
    [
        ((), (), "at least one item"),
        (("a",), (), "one title for each id"),
        (("a", "b", "a"), ("", "", ""), "line 3 of the catalogue: the id is that of line 1 again"),
        (("a", ""), ("", ""), "line 2 of the catalogue: the id is empty"),
        (("a\tb",), ("",), "line 1 of the catalogue: the id has a control character"),
        (("a",), ("one\ntwo",), "line 1 of the catalogue: the title has a control character"),
        (("\ud800",), ("",), "half of a surrogate pair"),
        (("é" * 129,), ("",), "the id has 258 bytes in UTF-8, more than 256"),
        (("a",), ("A" * 1025,), "the title has 1025 bytes"),
    ],
)
def test_what_is_no_catalogue(ids: tuple[str, ...], titles: tuple[str, ...], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        Catalogue(ids, titles)


def test_the_whole_has_a_limit() -> None:
    count = MAX_CATALOGUE_BYTES // 1025
    with pytest.raises(ParameterError, match="more than 67108864: shorten the titles"):
        Catalogue(tuple(map(str, range(count))), ("A" * 1024,) * count)
    assert longest_catalogue(1) == 256 + 1024 + 2
    assert longest_catalogue(5_000_000) == MAX_CATALOGUE_BYTES


def test_an_unknown_id_has_no_number() -> None:
    with pytest.raises(ParameterError, match="no item with the id 'c'"):
        catalogue_of({"a": "", "b": ""}).number_of("c")


def test_a_request_without_a_catalogue_has_the_fields_that_it_had() -> None:
    request = TaskRequest(name="t", recipe=RecipeChoice(name="colr"), mechanism=MechanismChoice(name="plain"))
    assert "catalogue_digest" not in request.model_dump(mode="json")
    named = request.model_copy(update={"catalogue_digest": "0" * 64})
    assert TaskRequest.model_validate_json(named.model_dump_json()) == named
    with pytest.raises(ValueError, match="catalogue_digest"):
        TaskRequest.model_validate(named.model_dump() | {"catalogue_digest": "0" * 63})
