"""Pieces of a seal that a waiting client makes ahead: each is used once, by one process, and never written down."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
import time
from itertools import count

import numpy as np
import pytest

from client_sdk.rounds.ahead import WorkAhead
from protocols.sums.base import WorksAhead
from protocols.sums.paillier.encryption import decrypt
from protocols.sums.paillier.keys import load_secret_key
from protocols.sums.paillier.mechanism import PAILLIER
from tests.protocols.sums.paillier.cases import made_up_keyring, small_plan, some_vector

PLAN = small_plan()
KEYRING = made_up_keyring(PLAN)
ROUTE = ((0,),)


def wait_for(ahead: WorkAhead, pieces: int) -> None:
    deadline = time.monotonic() + 30
    while len(ahead) < pieces:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_each_piece_leaves_once_and_is_made_anew() -> None:
    numbers = count()
    with WorkAhead(lambda: next(numbers), 5) as ahead:
        wait_for(ahead, 5)
        first = ahead.take(4)
        wait_for(ahead, 5)
        second = ahead.take(9)
        assert len(first) == 4 and len({*first, *second}) == 4 + len(second) >= 9
    assert len(ahead) == 0
    assert not any(thread.name == "work-ahead" for thread in threading.enumerate())


def test_no_more_than_a_contribution_needs_is_made() -> None:
    numbers = count()
    with WorkAhead(lambda: next(numbers), 3) as ahead:
        wait_for(ahead, 3)
        time.sleep(0.05)
        assert len(ahead) == 3
    assert next(numbers) == 3


def test_a_contribution_made_ahead_sums_like_any_other() -> None:
    assert isinstance(PAILLIER, WorksAhead)
    assert PAILLIER.pieces(PLAN) == PLAN.ciphertexts
    ready = [PAILLIER.make_piece(PLAN, KEYRING) for _ in range(PLAN.ciphertexts - 1)]
    assert all(decrypt(load_secret_key(PLAN, KEYRING), piece) == 0 for piece in ready)

    def take(wanted: int) -> list[object]:
        taken, ready[:] = ready[:wanted], ready[wanted:]
        return taken

    bodies = [PAILLIER.seal_ahead(PLAN, ROUTE, [some_vector(seed)], KEYRING, take) for seed in range(2)]
    assert not ready  # one is missing, and made
    for body in bodies:
        PAILLIER.check(PLAN, ROUTE, body)
    partial = PAILLIER.fold(PLAN, None, [(ROUTE, body) for body in bodies])
    opened = PAILLIER.open(PLAN, PAILLIER.release(PLAN, partial), 2, KEYRING)
    assert np.abs(opened - some_vector(0) - some_vector(1)).max() <= PLAN.predicted_error


def test_pieces_are_never_written_down() -> None:
    with WorkAhead(lambda: 271828, 1) as ahead:
        wait_for(ahead, 1)
        for write in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                write(ahead)
        assert repr(ahead) == "<WorkAhead 1 of 1>"


def test_a_forked_process_has_no_pieces() -> None:
    code = """
import os, sys, time
from client_sdk.rounds.ahead import WorkAhead
with WorkAhead(lambda: 1, 3) as ahead:
    while len(ahead) < 3:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        os._exit(len(ahead) + len(ahead.take(3)))
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status) or len(ahead) != 3)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
