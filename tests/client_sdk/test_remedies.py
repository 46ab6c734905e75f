"""Errors say what to do: as a note for users of the library, and the same words for those of the command."""

from __future__ import annotations

import asyncio
import traceback

import pytest

from client_sdk import AsyncClient, Client, ClientOptions, Identity, MemoryStore
from client_sdk.api.retry import RetryPolicy
from client_sdk.errors import ConnectionFailed, ContractBroken, GaveUp, LocalFileError, NotEnrolled
from protocols.errors import CodecError, EnvelopeError, KeyringError
from tests.support.server import free_port

ONCE = ClientOptions(RetryPolicy(attempts=1))


def test_a_remedy_is_a_note_and_no_part_of_the_sentence() -> None:
    error = EnvelopeError("the envelope does not open")
    assert str(error) == "the envelope does not open"
    assert error.remedy is not None
    assert "hushrec keyring serve" in error.remedy
    assert error.remedy in "".join(traceback.format_exception(error))
    assert EnvelopeError.remedy != KeyringError.remedy


def test_an_error_can_replace_or_leave_out_its_classs_remedy() -> None:
    assert LocalFileError("x", remedy="Free space.").__notes__ == ["Free space."]
    assert LocalFileError("x", remedy="").remedy is None
    assert CodecError("x").remedy is None


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_server_that_does_not_answer_is_named_in_plain_words(asynchronous: bool) -> None:
    url = f"http://127.0.0.1:{free_port()}"

    async def join() -> None:
        async with AsyncClient(url, Identity.generate(), MemoryStore(), options=ONCE) as client:
            await client.join(invitation="hri_x")

    with pytest.raises(GaveUp) as caught:
        if asynchronous:
            asyncio.run(join())
        else:
            with Client(url, Identity.generate(), MemoryStore(), options=ONCE) as client:
                client.join(invitation="hri_x")
    asked = "is the server running, is the address right?"
    assert str(caught.value) == f"no answer from {url} after 1 attempt: connection refused; {asked}"
    assert caught.value.remedy == ConnectionFailed.remedy


def test_after_an_answer_the_servers_words_and_remedy_are_kept() -> None:
    error = GaveUp(3, ContractBroken("GET", "https://example.org/v1", 503, "a page of a proxy"))
    assert str(error) == "gave up after 3 attempts: GET https://example.org/v1: 503 a page of a proxy"
    assert error.remedy == ContractBroken.remedy


def test_without_an_invitation_the_error_says_to_pass_one() -> None:
    with (
        Client("http://127.0.0.1:9", Identity.generate(), MemoryStore(), options=ONCE) as client,
        pytest.raises(NotEnrolled, match=r"no membership of any task .*pass invitation=") as caught,
    ):
        client.join()
    assert caught.value.remedy is not None
    assert "client.join(invitation=...)" in caught.value.remedy
