"""CKKS as a mechanism: plans, keys, SEAL's saved streams; the fold equals SEAL's own addition, residue by residue."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tenseal import sealapi

from protocols.crypto.keys import Keyring
from protocols.errors import BudgetError, CodecError, ContributionError, ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.base import COUNT_BYTES
from protocols.sums.ckks import wire
from protocols.sums.ckks.fold import ExpandedSum
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.plan import PARAMETER_SETS, SEED_BYTES, CkksParameters, CkksPlan, make_plan
from protocols.sums.ckks.wire import (
    MemoryFile,
    SealContext,
    WireBuffer,
    check_expanded,
    check_range,
    join_planes,
    seal_context,
    view_planes,
)
from protocols.sums.ring_security import DEGREES
from protocols.sums.run import run_sum
from tests.protocols.sums.conformance import MechanismConformance, one_block, opened

FORMS = ("seeded", "expanded")
COMBINATIONS = [
    *(("seeded", "compact", 8192), ("seeded", "standard", 4096), ("seeded", "precise", 2048)),
    *(("expanded", "compact", 2048), ("expanded", "standard", 8192), ("expanded", "precise", 4096)),
]
"""Every set and every degree, in both forms."""


def two_ciphertexts(form: str, set_name: str, degree: int) -> CkksPlan:
    """A plan of one block that fills one ciphertext and part of a second, at any degree."""
    layout = one_block(Segment("v", degree + 5, 0.1))
    return CkksPlan(make_plan({"wire": form, "set": set_name}, layout, 4).parameters, layout, 4, degree)


def random_vector(plan: CkksPlan, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.1, 0.1, plan.layout.length)


def seal_ciphertexts(plan: CkksPlan, body: bytes) -> list[Any]:
    """A contribution along the whole route as SEAL's own ciphertexts, loaded by SEAL, seeds expanded by SEAL."""
    context = seal_context(plan.parameters.set, plan.degree)
    count, polynomials = plan.route_ciphertexts(whole_route(plan.layout)), 1 if plan.seeded else 2
    length = count * polynomials * plan.degree * plan.parameter_set.residue_bytes
    residues = join_planes(view_planes(body[:length], plan.parameter_set, count, polynomials, plan.degree))
    loaded = []
    with MemoryFile() as file:
        for index in range(count):
            seed = body[length + index * SEED_BYTES :][:SEED_BYTES]
            suffix = context.seed_marker() + seed if plan.seeded else b""
            ciphertext = sealapi.Ciphertext()
            prefix = context.ciphertext_prefix(plan.scale, polynomials)
            context.load(file, ciphertext, context.stream(prefix, residues[index], suffix))
            loaded.append(ciphertext)
    return loaded


def residues_of(plan: CkksPlan, ciphertexts: list[Any]) -> np.ndarray:
    """uint64 (ciphertexts, 2, degree) as SEAL saves them."""
    context = seal_context(plan.parameters.set, plan.degree)
    with MemoryFile() as file:
        saved = [
            file.saved(c, context.ciphertext_prefix(plan.scale, 2), 2 * plan.degree, 0)[0].copy() for c in ciphertexts
        ]
    return np.stack(saved).reshape(len(ciphertexts), 2, plan.degree)


def folded_residues(plan: CkksPlan, partial: bytes) -> np.ndarray:
    return join_planes(view_planes(partial[COUNT_BYTES:], plan.parameter_set, plan.ciphertexts, 2, plan.degree))


@pytest.mark.parametrize(("form", "set_name", "degree"), COMBINATIONS)
def test_the_fold_equals_seals_own_add_and_opens(form: str, set_name: str, degree: int) -> None:
    plan = two_ciphertexts(form, set_name, degree)
    route, keyring = whole_route(plan.layout), CKKS.generate_keyring(plan)
    vectors = [random_vector(plan, seed) for seed in range(4)]
    bodies = [CKKS.seal(plan, route, [vector], keyring) for vector in vectors]
    partial = CKKS.fold(plan, None, [(route, body) for body in bodies])
    evaluator = seal_context(set_name, degree).evaluator
    totals = seal_ciphertexts(plan, bodies[0])
    for body in bodies[1:]:
        for total, ciphertext in zip(totals, seal_ciphertexts(plan, body), strict=True):
            evaluator.add_inplace(total, ciphertext)
    np.testing.assert_array_equal(folded_residues(plan, partial), residues_of(plan, totals))

    total = CKKS.open(plan, CKKS.release(plan, partial), 4, keyring)
    assert np.abs(total - np.sum(vectors, axis=0)).max() <= plan.predicted_error


def test_without_pieces_a_seal_ahead_is_the_seal() -> None:
    """Which takes the keys: nothing of a CKKS contribution is made in idle time."""
    plan = CKKS.plan({}, one_block(Segment("v", 6, 1.0)), 2)
    keyring, vector = CKKS.generate_keyring(plan), np.linspace(-1, 1, 6)
    assert CKKS.pieces(plan) == 0
    body = CKKS.seal_ahead(plan, 1, [vector], keyring, lambda n: pytest.fail(f"it takes {n} pieces"))
    total = CKKS.open(plan, CKKS.release(plan, CKKS.fold(plan, None, [(1, body)])), 1, keyring)
    assert np.abs(total - vector).max() <= plan.predicted_error


def test_accumulators_never_overflow() -> None:
    """The largest residues, more often than one accumulator can hold without reducing."""
    for name, times in (("precise", 5_000), ("standard", 33_000)):
        parameter_set = PARAMETER_SETS[name]
        top = parameter_set.modulus - 1
        wire = WireBuffer.empty(parameter_set, 1, 4, seeded=False)
        wire.put(0, np.full(8, top, np.uint64))
        total = ExpandedSum(CkksPlan(CkksParameters(set=parameter_set.name), layout(4), times, 4))
        for _ in range(times):
            total.add(1, wire)
        assert set(total.take(0).tolist()) == {times * top % parameter_set.modulus}


SET = st.sampled_from(sorted(PARAMETER_SETS))


def buffer_of(set_name: str, residues: np.ndarray) -> WireBuffer:
    wire = WireBuffer.empty(PARAMETER_SETS[set_name], len(residues), residues.shape[2], seeded=residues.shape[1] == 1)
    for index, row in enumerate(residues):
        wire.put(index, np.ascontiguousarray(row))
    return wire


@settings(max_examples=40, deadline=None)
@given(SET, st.integers(0, 31), st.data())
def test_the_first_residue_out_of_range_is_found(set_name: str, position: int, data: st.DataObject) -> None:
    parameter_set = PARAMETER_SETS[set_name]
    widest = 1 << 8 * parameter_set.residue_bytes
    residues = np.full((2, 2, 8), parameter_set.modulus - 1, np.uint64)
    assert check_range(buffer_of(set_name, residues).planes, parameter_set.modulus) is None
    bad = data.draw(st.integers(parameter_set.modulus, widest - 1))
    residues.reshape(-1)[position] = bad
    assert check_range(buffer_of(set_name, residues).planes, parameter_set.modulus) == position // 16


def test_a_transparent_ciphertext_is_refused() -> None:
    residues = np.ones((3, 2, 8), np.uint64)
    residues[2, 1] = 0
    with pytest.raises(ContributionError, match="ciphertext 2 is transparent"):
        check_expanded(buffer_of("precise", residues).planes, PARAMETER_SETS["precise"].modulus)
    residues[2, 1, 7] = 1 << 50
    check_expanded(buffer_of("precise", residues).planes, PARAMETER_SETS["precise"].modulus)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_check_names_the_ciphertext(form: str) -> None:
    plan = two_ciphertexts(form, "standard", 2048)
    route, polynomials = whole_route(plan.layout), 1 if plan.seeded else 2
    body = bytearray(CKKS.seal(plan, route, [random_vector(plan, 1)], CKKS.generate_keyring(plan)))
    CKKS.check(plan, route, body)
    residues = memoryview(body)[: 2 * polynomials * plan.degree * plan.parameter_set.residue_bytes]
    for plane in view_planes(residues, plan.parameter_set, 2, polynomials, plan.degree):
        plane[1, 0, 3] = np.iinfo(plane.dtype).max
    with pytest.raises(ContributionError, match="ciphertext 1 holds a residue that is not below the modulus"):
        CKKS.check(plan, route, body)
    with pytest.raises(CodecError, match="80 bytes of residues expected, got 79"):
        view_planes(bytes(79), PARAMETER_SETS["standard"], 1, 2, 8)


def layout(*lengths: int, clip: float = 0.1) -> VectorLayout:
    return VectorLayout(
        tuple(Block(f"b{i}", (Segment("v", n, clip),)) for i, n in enumerate(lengths)), sum_class=TRAINED
    )


MATRIX = layout(3706 * 64)


def test_seal_agrees_with_every_set_at_every_degree() -> None:
    """SEAL generates the pinned prime and accepts it at 128 bits; the planes are as wide as the prime."""
    for name, parameter_set in PARAMETER_SETS.items():
        for degree in DEGREES:
            assert seal_context(name, degree).seal.parameters_set()
            assert parameter_set.modulus % (2 * degree) == 1
        assert parameter_set.modulus.bit_length() == parameter_set.modulus_bits
        assert parameter_set.residue_bytes == -(-parameter_set.modulus_bits // 8)


def test_upload_and_error_of_the_item_matrix() -> None:
    compact, standard = (make_plan({"set": name}, MATRIX, 60) for name in ("compact", "standard"))
    assert compact.contribution_bytes(1) <= 1.1 * 4 * MATRIX.length
    assert standard.contribution_bytes(1) <= 1.4 * 4 * MATRIX.length
    assert compact.predicted_error <= 1e-4 and standard.predicted_error <= 1e-6
    facts = standard.describe()
    assert facts["security_bits"] == 128
    assert facts["bytes_per_value_seeded"] == pytest.approx(5.016, abs=0.001)
    assert facts["bytes_per_value_expanded"] == pytest.approx(10.016, abs=0.001)


def test_the_degree_wastes_no_padding_and_sums_of_one_degree_share_keys() -> None:
    for lengths, degree in (
        *(((10,), 2048), ((2048,), 2048), ((2049,), 4096), ((4096,), 4096), ((8192,), 8192)),
        ((3706,) * 3, 4096),
    ):
        assert make_plan({}, layout(*lengths), 10).degree == degree
    for degree in DEGREES:
        plans = [make_plan({"degree": degree}, vector, 10) for vector in (MATRIX, layout(5))]
        assert {plan.degree for plan in plans} == {degree}
        assert plans[0].parameter_id == plans[1].parameter_id
    ids = {make_plan({"set": name}, layout(n), 5).parameter_id for name in PARAMETER_SETS for n in DEGREES}
    assert len(ids) == 9
    assert make_plan({"wire": "expanded"}, layout(9), 5).parameter_id == make_plan({}, layout(8), 9).parameter_id


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(PARAMETER_SETS)), st.integers(1, 20_000), st.sampled_from(DEGREES))
def test_no_coefficient_of_a_sum_can_wrap(name: str, contributions: int, degree: int) -> None:
    try:
        plan = make_plan({"set": name}, layout(10), contributions)
    except BudgetError:
        return
    plan = CkksPlan(plan.parameters, plan.layout, contributions, degree)
    worst = contributions * (sqrt(2) * (1 + 2**-22) * plan.scale + 0.5 + 21)
    assert plan.scale == 0.0 or worst < PARAMETER_SETS[name].modulus / 2


def test_errors_stand_in_each_segments_unit() -> None:
    mixed = one_block(Segment("small", 5, 0.01), Segment("large", 5, 2.0), Segment("n", 5, 1.0, True))
    plan = make_plan({}, mixed, 60)
    errors = plan.segment_errors
    assert errors["b/n"] == 0.0
    assert errors["b/large"] == plan.predicted_error == pytest.approx(200 * errors["b/small"])


def test_a_count_that_could_round_wrongly_is_refused_with_what_fits() -> None:
    counts = one_block(Segment("n", 5, 1.0, True))
    with pytest.raises(BudgetError, match=r"at most \d+ contributions fit, or the set 'standard' fits") as refusal:
        make_plan({"set": "compact"}, counts, 100_000)
    most = int(str(refusal.value).split("at most ")[1].split()[0])
    assert make_plan({"set": "compact"}, counts, most).relative_error < 0.5
    with pytest.raises(BudgetError):
        make_plan({"set": "compact"}, counts, most + 1)
    assert make_plan({"set": "standard"}, counts, 100_000).predicted_error == 0.0


def test_parameters_that_are_refused() -> None:
    for name, value in (("set", "huge"), ("mode", "shared"), ("wire", "zip"), ("scale", 40), ("degree", 1000)):
        with pytest.raises(ParameterError, match=name):
            CKKS.plan({name: value}, MATRIX, 60)


def test_the_predicted_noise_is_the_measured_noise() -> None:
    """The bound is 8 deviations, so the deviation itself must be right; 8192 values pin it to a few percent."""
    for parameters in ({"set": "compact"}, {"set": "standard"}):
        plan = make_plan(parameters, layout(8192, clip=1.0), 3)
        keyring = CKKS.generate_keyring(plan)
        vector = np.random.default_rng(5).uniform(-1, 1, 8192)
        total = opened(CKKS, plan, [CKKS.seal(plan, 1, [vector], keyring) for _ in range(3)], keyring)
        assert np.std(total - 3 * vector) == pytest.approx(plan.noise_deviation, rel=0.1)


class TestStandard(MechanismConformance):
    mechanism = CKKS
    parameters = {}


class TestPreciseExpanded(MechanismConformance):
    mechanism = CKKS
    parameters = {"set": "precise", "wire": "expanded"}


PLAN = CKKS.plan({}, one_block(Segment("v", 40, 0.1), Segment("n", 10, 1.0, integral=True)), 8)
ROUTE = whole_route(PLAN.layout)
ZEROS = [np.zeros(50)]


@pytest.fixture(scope="module")
def keyring() -> Keyring:
    return CKKS.generate_keyring(PLAN)


def test_the_same_vector_never_gives_the_same_bytes(keyring: Keyring) -> None:
    other = CKKS.generate_keyring(PLAN)
    assert keyring.secret_key != other.secret_key and keyring.state_key != other.state_key
    for plan in (PLAN, CKKS.plan({"wire": "expanded"}, PLAN.layout, 3)):
        assert len({CKKS.seal(plan, ROUTE, ZEROS, keyring) for _ in range(3)}) == 3


def test_malformed_aggregates_are_refused(keyring: Keyring) -> None:
    """Also keys of another length, and transparent ciphertexts: ckks_keys.json."""
    with pytest.raises(CodecError, match="ciphertext 0 of the aggregate holds a residue"):
        CKKS.open(PLAN, b"\xff" * PLAN.aggregate_bytes, 1, keyring)


def test_threads_do_not_disturb_one_another(keyring: Keyring) -> None:
    vectors = [np.full(50, 0.01 * i) for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        bodies = list(pool.map(lambda v: CKKS.seal(PLAN, ROUTE, [v], keyring), vectors))
    total = opened(CKKS, PLAN, bodies, keyring)
    assert np.abs(total - np.sum(vectors, axis=0))[:40].max() <= PLAN.predicted_error


def test_without_a_wide_pipe_the_memory_file_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(wire.fcntl, "fcntl", refused)
    total = run_sum(CKKS, PLAN, [np.full(50, 0.05), np.full(50, -0.1)]).total
    assert np.abs(total + 0.05)[:40].max() <= PLAN.predicted_error


def test_nothing_is_left_open(keyring: Keyring) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    body = CKKS.seal(PLAN, ROUTE, ZEROS, keyring)
    opened(CKKS, PLAN, [body], keyring)
    with pytest.raises(BudgetError):
        CKKS.fold(PLAN, None, [(ROUTE, body)] * 9)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_another_tasks_key_opens_nothing(keyring: Keyring) -> None:
    body = CKKS.seal(PLAN, ROUTE, [np.full(50, 0.1)], keyring)
    assert np.abs(opened(CKKS, PLAN, [body], CKKS.generate_keyring(PLAN)) - 0.1)[:40].max() > 1e-3


PREFIX = b"a prefix"
RESIDUES = np.arange(4, dtype=np.uint64)


class Saved:
    """Stands for a SEAL object: saves the bytes it is given."""

    def __init__(self, content: bytes, compression: int = 2, wrong_length: int = 0) -> None:
        body = zstandard.ZstdCompressor().compress(content)
        header = struct.Struct("<HBBBBHQ")
        self._stream = header.pack(0xA15E, 16, 4, 0, compression, 0, header.size + len(body) + wrong_length) + body

    def save(self, path: str) -> None:
        Path(path).write_bytes(self._stream)


def read(saved: Saved) -> tuple[np.ndarray, bytes]:
    with MemoryFile() as file:
        residues, suffix = file.saved(saved, PREFIX, RESIDUES.size, 3)
        return residues.copy(), suffix


def test_a_saved_object_is_its_prefix_residues_and_suffix(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = PREFIX + RESIDUES.tobytes() + b"end"
    residues, suffix = read(Saved(whole))
    assert (residues.tolist(), suffix) == (RESIDUES.tolist(), b"end")
    for saved, fault in (
        (Saved(whole, compression=1), "in an unknown form"),
        (Saved(whole, wrong_length=1), "in an unknown form"),
        (Saved(b"another " + whole[8:]), "unexpected parameters"),
        (Saved(whole[:-1]), "a shorter stream"),
        (Saved(whole + b"."), "a longer stream"),
    ):
        with pytest.raises(CodecError, match=fault):
            read(saved)
    monkeypatch.setattr(wire, "_LONGEST_SAVE", 64)
    with pytest.raises(CodecError, match="more bytes than any object"):
        read(Saved(np.random.default_rng(0).bytes(200)))


def test_seal_refuses_streams_and_parameters() -> None:
    """A stream that is not its own, residues out of range, and degrees that it calls insecure."""
    context = seal_context("standard", 2048)
    large = context.stream(context.plaintext_prefix(1.0), np.full(2048, 2**63, np.uint64))
    for stream in ((b"not a SEAL stream",), large):
        with MemoryFile() as file, pytest.raises(CodecError, match="SEAL rejects this object"):
            context.load(file, sealapi.Plaintext(), stream)
    with pytest.raises(ParameterError, match="at degree 1024"):
        SealContext("standard", 1024)


def test_another_prime_than_the_pinned_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = wire.PARAMETER_SETS["standard"]
    monkeypatch.setattr(
        wire, "PARAMETER_SETS", {"standard": replace(pinned, modulus=pinned.modulus - 2 * pinned.modulus_bits)}
    )
    with pytest.raises(ParameterError, match="not the pinned one"):
        SealContext("standard", 4096)


def test_a_seed_of_another_generator_is_refused(keyring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_PRNG_BLAKE2XB", 2)
    with pytest.raises(CodecError, match="a seed in an unknown form"):
        CKKS.seal(PLAN, ROUTE, ZEROS, keyring)
