from __future__ import annotations

import pytest

from protocols.codec import b64encode
from protocols.errors import BudgetError, ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.base import NamesPublicKey
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.paillier.mechanism import PAILLIER
from protocols.sums.paillier.plan import make_plan
from tests.protocols.sums.paillier.cases import LAYOUT, made_up_primes, small_plan

VECTOR = VectorLayout((Block("b", (Segment("values", 3706, 0.1),)),), sum_class=TRAINED)


@pytest.mark.parametrize(("bits", "slots", "ciphertexts"), [(2048, 51, 73), (3072, 76, 49)])
def test_values_of_32_bits_and_8_of_headroom(bits: int, slots: int, ciphertexts: int) -> None:
    plan = make_plan({"key_bits": bits}, VECTOR, 256)
    (packing,) = plan.packings
    assert (packing.codes[0].width, packing.runs[0].slots, plan.ciphertexts) == (40, slots, ciphertexts)
    route = whole_route(VECTOR)
    assert plan.contribution_bytes(route) == plan.aggregate_bytes == bits // 8 + ciphertexts * bits // 4
    assert plan.partial_bytes == plan.aggregate_bytes + 8


def test_the_error_is_half_a_step_a_contribution() -> None:
    plan = small_plan(contributions=60)
    scale = plan.packings[0].codes[0].scale
    assert plan.segment_errors == {"b/values": 30 / scale, "b/touched": 0.0}
    assert plan.predicted_error == 30 / scale < 60 * 0.1 * 2.0**-30
    assert small_plan(contributions=60, value_bits=33).predicted_error == plan.predicted_error / 2


def test_counts_are_packed_closer_than_values() -> None:
    counts = VectorLayout((Block("b", (Segment("touched", 3706, 1.0, integral=True),)),), sum_class=TRAINED)
    assert make_plan({"key_bits": 2048}, counts, 60).ciphertexts == 13  # 292 slots of 7 bits


def test_the_defaults_are_128_bits_of_security() -> None:
    facts = make_plan({}, LAYOUT, 3).describe()
    assert (facts["key_bits"], facts["security_bits"]) == (3072, 128)
    assert make_plan({"key_bits": 2048}, LAYOUT, 3).describe()["security_bits"] == 112


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"key_bits": 1024}, "key_bits"),
        ({"mode": "shared"}, "mode"),
        ({"value_bits": 7}, "value_bits"),
        ({"value_bits": 49}, "value_bits"),
        ({"public_key": "!"}, "base64url"),
        ({"public_key": ""}, "odd number of 3072 bits"),
        ({"public_key": b64encode(b"\xff" * 256)}, "odd number of 3072 bits"),
        ({"public_key": b64encode(b"\xff" * 383 + b"\xfe")}, "odd number of 3072 bits"),
        ({"public_key": b64encode(b"\x7f" + b"\xff" * 383)}, "odd number of 3072 bits"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(parameters: dict[str, object], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        make_plan(parameters, LAYOUT, 3)


def test_a_refusal_says_what_fits() -> None:
    with pytest.raises(BudgetError, match=r"at most 5242878 contributions fit, or value_bits of at most 31 fit"):
        small_plan(contributions=6_000_000)
    small_plan(contributions=5_242_878)
    small_plan(contributions=6_000_000, value_bits=31)
    heavy = VectorLayout((Block("b", (Segment("weight", 1, 2.0**52, integral=True),)),), sum_class=TRAINED)
    with pytest.raises(BudgetError, match="at most 1 contributions fit$"):
        small_plan(heavy, 2)
    heavier = VectorLayout((Block("b", (Segment("weight", 1, 2.0**60, integral=True),)),), sum_class=TRAINED)
    with pytest.raises(BudgetError, match="no number of contributions fits these counts"):
        small_plan(heavier, 1)


def test_a_plan_can_name_its_public_key() -> None:
    p, q = made_up_primes(2048)
    plan = small_plan()
    named = plan.with_public_key((p * q).to_bytes(256, "big"))
    assert (plan.modulus, named.modulus) == (None, p * q)
    assert named != plan
    assert named == make_plan(named.parameters.model_dump(), LAYOUT, 4)
    assert named.contribution_bytes(((0,),)) == plan.contribution_bytes(((0,),))
    for wrong in (b"", b"\xff" * 384, (p * q + 1).to_bytes(256, "big")):
        with pytest.raises(ParameterError, match="public key"):
            plan.with_public_key(wrong)


def test_a_task_names_one_public_key_for_good() -> None:
    first, second = (p * q for p, q in (made_up_primes(2048), made_up_primes(2048, "another key")))
    parameters = {"key_bits": 2048}
    assert isinstance(PAILLIER, NamesPublicKey)
    assert not isinstance(CKKS, NamesPublicKey)
    named = PAILLIER.name_public_key(parameters, first.to_bytes(256, "big"))
    assert "public_key" not in parameters
    assert make_plan(named, LAYOUT, 4).modulus == first
    assert PAILLIER.name_public_key(named, first.to_bytes(256, "big")) == named
    with pytest.raises(ParameterError, match="names another public key"):
        PAILLIER.name_public_key(named, second.to_bytes(256, "big"))
    for wrong in (b"", first.to_bytes(257, "big"), (first + 1).to_bytes(256, "big")):
        with pytest.raises(ParameterError, match="odd number of 2048 bits"):
            PAILLIER.name_public_key(parameters, wrong)
    with pytest.raises(ParameterError, match="value_bits"):
        PAILLIER.name_public_key({"value_bits": 1}, first.to_bytes(256, "big"))
