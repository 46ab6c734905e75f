"""Encodings: base64, canonical JSON, fixed point, parameters as text, catalogues; layouts of sums, and routes."""

from __future__ import annotations

import hashlib
import math
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import catalogue
from protocols.catalogue import MAX_CATALOGUE_BYTES, Catalogue, catalogue_memory, longest_catalogue
from protocols.codec import Reader, b64decode, b64encode, canonical_json, pack
from protocols.errors import BudgetError, CodecError, ParameterError, RefusalError, RoutingError
from protocols.layout import (
    TRAINED,
    Block,
    Segment,
    VectorLayout,
    check_levels,
    clip_to_bounds,
    levels_in_use,
    lowered,
    refuse_short_routes,
    short_routes,
)
from protocols.messages import MechanismChoice, RecipeChoice, TaskRequest
from protocols.parameter_text import named_values
from protocols.recipes.registry import recipe
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ring import FixedPoint


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_reader_undoes_pack(chunks: list[bytes]) -> None:
    reader = Reader(pack(*chunks))
    assert [reader.chunk(40) for _ in chunks] == chunks
    reader.finish()


@given(st.binary(max_size=60))
def test_base64_round_trip(body: bytes) -> None:
    text = b64encode(body)
    assert b64decode(text) == body
    assert b64decode(text, len(body)) == body
    assert not set(text) & set("+/=")


def test_reader_refuses_what_does_not_fit() -> None:
    with pytest.raises(CodecError, match="expected 3 more bytes, 2 are left"):
        Reader(b"ab").fixed(3)
    with pytest.raises(CodecError, match="expected 2 bytes, got 1"):
        b64decode("QQ", 2)
    with pytest.raises(CodecError, match="over the limit of 4"):
        Reader(pack(b"abcde")).chunk(4)
    with pytest.raises(CodecError):
        Reader(b"\xff" * 8).chunk(1 << 62)
    with pytest.raises(CodecError, match="1 trailing bytes"):
        Reader(b"a").finish()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back_exactly(number: float) -> None:
    assert float(canonical_json(number)) == number


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**53, -(2**53), b"bytes", {1: 2}, "\udc00", {"a": {1, 2}}])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(ParameterError):
        canonical_json([value])


BITS = st.integers(16, 64)


@given(BITS, st.floats(1e-3, 1e3), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_sums_within_the_bound_survive_any_wrap_around(bits: int, bound: float, clients: int, seed: int) -> None:
    """Every contribution may be as large as the bound, so partial sums wrap; the true sum stays within it."""
    rng = np.random.default_rng(seed)
    ring = FixedPoint.widest(bits, bound, 2 * clients)
    half = rng.uniform(-bound, bound, (clients, 7))
    vectors = np.concatenate([half, np.vstack([-half[1:], np.zeros((1, 7))])])  # sums to half[0]
    total = np.zeros(7, ring.dtype)
    for vector in vectors:
        element, clipped = ring.encode(vector, bound)
        assert clipped == 0
        total = ring.reduce(total + element)
    assert np.abs(ring.decode(total) - half[0]).max() <= clients / ring.scale + 1e-9 * bound


def test_a_budget_that_does_not_fit_says_what_would() -> None:
    with pytest.raises(BudgetError, match=r"it would fit with 17 bits, or a scale of 2\^12") as refusal:
        FixedPoint(16, 3.0, 2.0**14)
    assert "16 bits" in str(refusal.value)
    FixedPoint(17, 3.0, 2.0**14)
    FixedPoint(16, 3.0, 2.0**12)
    with pytest.raises(BudgetError, match="a scale of"):
        FixedPoint(64, 3.0, 2.0**64)
    with pytest.raises(BudgetError, match="rounding errors of .* alone"):
        FixedPoint.widest(16, 1.0, 2**15)
    with pytest.raises(ParameterError):
        FixedPoint.widest(16, 0.0)
    with pytest.raises(BudgetError, match="2\\^53"):
        FixedPoint(64, 1.0, 2.0**60).encode(np.zeros(1), 1.0)


def test_values_and_elements_that_are_not_of_the_ring_are_refused() -> None:
    ring = FixedPoint(20, 1.0, 8.0)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ParameterError, match="not finite"):
            ring.encode(np.array([0.0, bad]), 1.0)
    with pytest.raises(ParameterError, match="clip"):
        ring.encode(np.zeros(1), np.nan)
    with pytest.raises(ParameterError, match="uint32"):
        ring.decode(np.zeros(1, np.uint64))
    with pytest.raises(BudgetError, match="reduce it first"):
        ring.decode(np.array([1 << 20], np.uint32))


@given(BITS, st.floats(1e-3, 1e3), st.integers(0, 10_000))
def test_widest_leaves_room_for_rounding(bits: int, bound: float, contributions: int) -> None:
    ring = FixedPoint.widest(bits, bound, contributions)
    assert bound * ring.scale + contributions < 2 ** (bits - 1)


# --- validation errors as text, and `name=value` pairs from a command line --------------------------------------------

ONE_BLOCK = VectorLayout((Block("b", (Segment("s", 8, 1.0),)),), sum_class=TRAINED)


@pytest.mark.parametrize("name", ["<b>bold</b>", "a" * 41, "two words", "Ünïcode"])
@pytest.mark.parametrize("build", [lambda p: recipe("colr", {"items": 5, **p}), lambda p: CKKS.plan(p, ONE_BLOCK, 3)])
def test_a_name_that_is_none_is_not_repeated(build: Callable[[Mapping[str, Any]], object], name: str) -> None:
    with pytest.raises(ParameterError) as refused:
        build({name: 1})
    assert "(invalid name): unknown name" in str(refused.value)
    assert name not in str(refused.value)


def test_values_are_json_where_they_can_be_and_text_otherwise() -> None:
    typed = ["rank=4", "clip=0.5", "set=compact", "reveal=true", "seed=a=b", "empty="]
    assert named_values(typed) == {
        "rank": 4, "clip": 0.5, "set": "compact", "reveal": True, "seed": "a=b", "empty": "",
    }  # fmt: skip
    assert named_values([]) == {}


@pytest.mark.parametrize("pairs", [["rank"], ["=4"], [""], ["rank=4", "rank=8"]])
def test_what_is_no_pair_or_said_twice_is_refused(pairs: list[str]) -> None:
    with pytest.raises(ParameterError):
        named_values(pairs)


# --- item catalogues --------------------------------------------------------------------------------------------------


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)
ITEMS = st.dictionaries(TEXT.filter(bool), TEXT, min_size=1, max_size=8)


@given(ITEMS, st.data())
@settings(max_examples=25)
def test_decode_undoes_encode(items: dict[str, str], data: st.DataObject) -> None:
    labels = [data.draw(st.lists(TEXT.filter(bool), max_size=4)) for _ in items]
    made = Catalogue(tuple(items), tuple(items.values()), labels)
    body = made.encode()
    decoded = Catalogue.decode(body)
    assert [set(own) for own in decoded.labels] == [set(own) for own in labels]
    assert decoded.titles == tuple(items.values())
    assert decoded == made and decoded.encode() == body
    assert made.digest == hashlib.sha256(body).hexdigest()
    assert [made.number_of(one) for one in made.ids] == list(range(len(made)))
    assert len(body) <= longest_catalogue(len(made))
    with pytest.raises(ParameterError, match="no item with the id"):
        made.number_of("\n")


@given(st.lists(st.sampled_from([b"a", b"b", b"\t", b"\n", b"\r", b"\xc3", b"\xa9", b"\x00", b"\x85"]), max_size=12))
def test_what_encode_does_not_return_is_refused(pieces: list[bytes]) -> None:
    body = b"".join(pieces)
    try:
        decoded = Catalogue.decode(body)
    except CodecError as error:
        assert not body or "line " in str(error)
    else:
        assert decoded.encode() == body


def test_what_no_encoding_can_hold_is_no_catalogue() -> None:
    for ids, titles, text in (
        (("a",), (), "one title for each id"),
        (("\ud800",), ("",), "line 1 .* surrogate pair"),
    ):
        with pytest.raises(ParameterError, match=text):
            Catalogue(ids, titles)
    many = [f"{number:04}" for number in range(catalogue.MOST_LABELS + 1)]
    halves = [many[at : at + 150] for at in range(0, len(many), 150)]
    ids = [str(number) for number in range(2 * len(halves))]
    Catalogue(ids[: len(halves)], [""] * len(halves), halves)  # which no two items have
    for labels, text in (
        ([], "labels for each id"),
        ([["a", ""]] + [[]] * (len(ids) - 1), "line 1 .* a label is empty"),
        ([["\ud800"]] + [[]] * (len(ids) - 1), "line 1 .* surrogate pair"),
        ([["a" * 1024]] + [[]] * (len(ids) - 1), "line 1 .* more than 1024 bytes"),
        (halves * 2, "2049 labels of two items or more, more than 2048"),
    ):
        with pytest.raises(ParameterError, match=text):
            Catalogue(ids, [""] * len(ids), labels)


def test_the_whole_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert longest_catalogue(1) == 256 + 1024 + 1024 + 2
    assert longest_catalogue(5_000_000) == MAX_CATALOGUE_BYTES == 2**26
    monkeypatch.setattr(catalogue, "MAX_CATALOGUE_BYTES", 99)
    assert len(Catalogue(("a", "b"), ("A" * 45, "B" * 48)).encode()) == 99
    with pytest.raises(ParameterError, match="more than 99: shorten the titles"):
        Catalogue(("a", "b"), ("A" * 46, "B" * 48))


def test_a_request_without_a_catalogue_has_the_fields_that_it_had() -> None:
    request = TaskRequest(name="t", recipe=RecipeChoice(name="colr"), mechanism=MechanismChoice(name="plain"))
    assert "catalogue_digest" not in request.model_dump(mode="json")
    named = request.model_copy(update={"catalogue_digest": "0" * 64})
    assert TaskRequest.model_validate_json(named.model_dump_json()) == named
    with pytest.raises(ValueError, match="catalogue_digest"):
        TaskRequest.model_validate(named.model_dump() | {"catalogue_digest": "0" * 63})


VALUES = Segment("values", 3, 0.5)
COUNTS = Segment("counts", 2, 1.0, integral=True)
LAYOUT = VectorLayout((Block("a", (VALUES,)), Block("b", (VALUES,)), Block("c", (VALUES, COUNTS))), sum_class=TRAINED)


@pytest.mark.parametrize(("length", "clip"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0), (1, np.inf), (1, np.nan)])
def test_a_segment_needs_a_length_and_bounds(length: int, clip: float) -> None:
    with pytest.raises(ParameterError, match="'s'"):
        Segment("s", length, clip)
    if length == 1:
        with pytest.raises(ParameterError, match="'s': sum_bound"):
            Segment("s", 1, 1.0, sum_bound=clip)
    assert [Segment("s", 1, 0.5, sum_bound=1.5).bound_on_sum(count) for count in (2, 4)] == [1.0, 1.5]


def test_a_contribution_is_scattered_to_the_blocks_of_its_route() -> None:
    whole = LAYOUT.scatter(2, [np.array([7.0, 8.0, 9.0]), np.arange(3.0)])
    assert whole.tolist() == [7, 8, 9, 0, 1, 2, 0, 0, 0, 0, 0]
    assert LAYOUT.scatter(0, []).tolist() == [0.0] * 11
    with pytest.raises(ParameterError, match=r"block 'a' needs 3 values, got shape \(4,\)"):
        LAYOUT.scatter(1, [np.zeros(4)])


def test_split_and_join() -> None:
    parts = LAYOUT.split(np.arange(11.0))
    assert [p.tolist() for p in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9, 10]]
    assert LAYOUT.blocks[2].join(LAYOUT.blocks[2].split(parts[2])).tolist() == parts[2].tolist()
    with pytest.raises(ParameterError, match="11 values"):
        LAYOUT.split(np.zeros(10))
    with pytest.raises(ParameterError, match="'counts' needs 2 values, got 3"):
        LAYOUT.blocks[2].join({"values": np.zeros(3), "counts": np.zeros(3)})
    with pytest.raises(ParameterError, match="needs"):
        LAYOUT.blocks[2].join({"values": np.zeros(3)})


@pytest.mark.parametrize("route", [4, -1])
def test_routes_that_are_refused(route: int) -> None:
    with pytest.raises(RoutingError):
        LAYOUT.check_route(route)


@given(st.lists(st.floats(-2, 2), min_size=5, max_size=5))
def test_clipping_counts_what_it_moves(values: list[float]) -> None:
    block, vector = LAYOUT.blocks[2], np.array(values)
    clipped, moved = clip_to_bounds(block, vector)
    assert (np.abs(clipped) <= block.bounds()).all()
    assert moved == np.count_nonzero(clipped != vector)
    with pytest.raises(ParameterError, match="training diverged"):
        clip_to_bounds(LAYOUT.blocks[0], np.array([0.0, np.nan, 0.0]))


@given(st.lists(st.integers(1, 12), max_size=120), st.integers(1, 20))
def test_each_level_in_use_has_enough_clients_with_room_for_dropouts(drawn: list[int], min_clients: int) -> None:
    used = levels_in_use(drawn, min_clients)
    check_levels(used, 12)
    groups = Counter(lowered(level, used) for level in drawn)
    assert all(lowered(level, used) <= level for level in drawn)
    assert set(groups) <= set(used)
    least = min_clients + min_clients // 4 + 1
    if len(drawn) >= least:
        assert min(groups.values()) >= least
        assert not short_routes(groups.elements(), min_clients)
        enough = {level for level, count in Counter(drawn).items() if count >= least}
        assert enough <= {1} or len(used) > 1 or Counter(drawn)[1] < least  # a level is not given up for nothing
    else:
        assert used == (1,)


@pytest.mark.parametrize(
    ("drawn", "used"),
    [
        ([4] * 6 + [3] * 6 + [1] * 6, (1, 3, 4)),
        ([4] * 3 + [3] * 3 + [1] * 6, (1, 3)),  # those of level 4 fall to 3
        ([4] * 6 + [3] * 6 + [1] * 2, (1, 4)),  # too few are left for level 1, so those of level 3 join them
        ([4] * 6 + [2] * 3, (1,)),
        ([], (1,)),
    ],
)
def test_levels_fall_from_the_top(drawn: list[int], used: tuple[int, ...]) -> None:
    assert levels_in_use(drawn, 4) == used


@pytest.mark.parametrize("used", [(), (2, 3), (1, 3, 2), (1, 1), (1, 5)])
def test_levels_that_no_round_has(used: tuple[int, ...]) -> None:
    with pytest.raises(ParameterError, match="were expected, ascending"):
        check_levels(used, 4)


def test_routes_of_few_clients() -> None:
    routes = {"a": 1, "b": 1, "c": 2, "d": 1}
    assert short_routes(routes.values(), 3) == [1]
    refuse_short_routes("abd", routes.__getitem__, 3, "the roster")
    with pytest.raises(RefusalError, match="the roster has 1 clients that contribute to the same blocks"):
        refuse_short_routes(routes, routes.__getitem__, 3, "the roster")


def test_a_catalogue_takes_the_memory_that_is_counted_for_it() -> None:
    count = 20_000
    body = b"".join(b"SKU-%07d\tThing %d\n" % (number, number) for number in range(count))
    tracemalloc.start()
    try:
        made = Catalogue.decode(body)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 17 * count and most < 64 * count  # besides `body` itself; strings and a dict took 241 bytes a line
    assert len(body) + held < catalogue_memory(count) == longest_catalogue(count) + 16 * count
    assert (made.ids[-1], made.titles[1:3]) == ("SKU-0019999", ("Thing 1", "Thing 2"))
    assert made.number_of("SKU-0019999") == count - 1


@given(ITEMS, st.data())
@settings(max_examples=25)
def test_an_id_that_is_there_twice_is_named_with_both_lines(items: dict[str, str], data: st.DataObject) -> None:
    ids = [*items, data.draw(st.sampled_from(sorted(items)))]
    with pytest.raises(ParameterError, match=rf"line {len(ids)} .* line {ids.index(ids[-1]) + 1} again"):
        Catalogue(ids, [""] * len(ids))
