"""Pieces of a seal that a waiting client makes ahead: each is used once, by one process, and never written down."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
import time
from itertools import count

import pytest

from client_sdk.rounds.unmasked import WorkAhead


def wait_for(ahead: WorkAhead, pieces: int) -> None:
    deadline = time.monotonic() + 30
    while len(ahead) < pieces:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_each_piece_leaves_once_and_is_made_anew() -> None:
    numbers = count()
    with WorkAhead(lambda: next(numbers), 5) as ahead:
        wait_for(ahead, 5)
        time.sleep(0.02)
        assert (len(ahead), repr(ahead)) == (5, "<WorkAhead 5 of 5>")
        for write in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                write(ahead)
        first = ahead.take(4)
        wait_for(ahead, 5)
        second = ahead.take(9)
        assert len(first) == 4 and len({*first, *second}) == 4 + len(second) >= 9
    assert len(ahead) == 0
    assert not any(thread.name == "work-ahead" for thread in threading.enumerate())


def test_a_forked_process_has_no_pieces() -> None:
    code = """
import os, sys, time
from client_sdk.rounds.unmasked import WorkAhead
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
