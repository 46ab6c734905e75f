from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import BudgetError, ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.plan import PARAMETER_SETS, CkksPlan, make_plan
from protocols.sums.ckks.seal_io import seal_context
from protocols.sums.ring_security import DEGREES


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
    assert compact.contribution_bytes(((0,),)) <= 1.1 * 4 * MATRIX.length
    assert standard.contribution_bytes(((0,),)) <= 1.4 * 4 * MATRIX.length
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
    mixed = VectorLayout(
        (Block("b", (Segment("small", 5, 0.01), Segment("large", 5, 2.0), Segment("n", 5, 1.0, True))),),
        sum_class=TRAINED,
    )
    plan = make_plan({}, mixed, 60)
    errors = plan.segment_errors
    assert errors["b/n"] == 0.0
    assert errors["b/large"] == plan.predicted_error == pytest.approx(200 * errors["b/small"])


def test_a_count_that_could_round_wrongly_is_refused_with_what_fits() -> None:
    counts = VectorLayout((Block("b", (Segment("n", 5, 1.0, True),)),), sum_class=TRAINED)
    with pytest.raises(BudgetError, match=r"at most \d+ contributions fit, or the set 'standard' fits") as refusal:
        make_plan({"set": "compact"}, counts, 100_000)
    most = int(str(refusal.value).split("at most ")[1].split()[0])
    assert make_plan({"set": "compact"}, counts, most).relative_error < 0.5
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
        bodies = [(((0,),), CKKS.seal(plan, ((0,),), [vector], keyring)) for _ in range(3)]
        opened = CKKS.open(plan, CKKS.release(plan, CKKS.fold(plan, None, bodies)), 3, keyring)
        assert np.std(opened - 3 * vector) == pytest.approx(plan.noise_deviation, rel=0.1)
