"""The table of masked stages agrees with itself, and its functions with the table."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from protocols.messages.stages import (
    MASKED_MESSAGES,
    MASKED_STAGES,
    MASKED_STATES,
    MESSAGE_IN,
    STATE_FOR,
    MaskedMessage,
    RoundState,
    StageMessage,
    opening_state,
    prerequisite_of,
)

STATES: TypeAdapter[RoundState] = TypeAdapter(RoundState)
ENDED = {RoundState.COMPLETE, RoundState.FAILED}


def test_the_stages_are_in_the_order_of_their_states_and_messages() -> None:
    assert tuple(stage.state for stage in MASKED_STAGES) == MASKED_STATES
    assert tuple(stage.message for stage in MASKED_STAGES) == MASKED_MESSAGES == get_args(MaskedMessage)
    assert len(set(MASKED_STATES)) == len(set(MASKED_MESSAGES)) == len(MASKED_STAGES)


def test_clients_send_a_message_in_every_state_but_folding_and_the_last() -> None:
    assert set(MASKED_STATES) == set(RoundState) - ENDED - {RoundState.FOLDING}
    assert set(MESSAGE_IN) == set(MASKED_STATES)


def test_the_two_mappings_are_each_others_inverse() -> None:
    assert {state: message for message, state in STATE_FOR.items()} == dict(MESSAGE_IN)


def test_every_message_but_the_contribution_has_a_resource_of_its_own() -> None:
    assert set(get_args(StageMessage)) == set(MASKED_MESSAGES) - {"contribute"}


def test_each_stage_asks_those_who_sent_the_message_of_the_stage_before() -> None:
    assert [stage.after for stage in MASKED_STAGES] == [None, *MASKED_MESSAGES[:-1]]


@pytest.mark.parametrize(
    ("confirms", "expected"),
    [
        (True, [None, "advertise", "share", "contribute", "confirm"]),
        (False, [None, "advertise", "share", "contribute", "contribute"]),
    ],
    ids=["semi-malicious", "curious"],
)
def test_the_prerequisite_of_a_message(confirms: bool, expected: list[str | None]) -> None:
    assert [prerequisite_of(message, confirms=confirms) for message in MASKED_MESSAGES] == expected


def test_the_opening_state() -> None:
    assert opening_state("masked") is RoundState.ADVERTISING is MASKED_STATES[0]
    assert opening_state("oneshot") is opening_state("ckks") is RoundState.COLLECTING


@pytest.mark.parametrize("state", RoundState)
def test_every_state_is_read_from_json(state: RoundState) -> None:
    assert STATES.validate_json(f'"{state}"') is state


def test_the_json_schema_lists_every_state_once() -> None:
    listed = STATES.json_schema()["enum"]
    assert sorted(listed) == sorted(state.value for state in RoundState)


def test_another_state_is_refused() -> None:
    with pytest.raises(ValidationError):
        STATES.validate_json('"resting"')
