from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from itertools import count
from weakref import WeakSet

import numpy as np
import pytest

from protocols.errors import ParameterError
from protocols.sums.base import WorksAhead
from protocols.sums.paillier import encryption
from protocols.sums.paillier import pool as pool_module
from protocols.sums.paillier.encryption import decrypt
from protocols.sums.paillier.keys import crt_randomiser, load_secret_key
from protocols.sums.paillier.mechanism import PAILLIER
from protocols.sums.paillier.pool import _OFFERED, RandomiserPool, take_pooled
from tests.protocols.sums.paillier.cases import made_up_keyring, small_plan, some_vector

PLAN = small_plan()
KEYRING = made_up_keyring(PLAN)
KEY = load_secret_key(PLAN, KEYRING)
ROUTE = ((0,),)


def test_each_randomiser_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with RandomiserPool(PLAN, KEYRING, capacity=7).fill() as pool:
        first, second = take_pooled(KEY, 4), take_pooled(KEY, 4)
        assert (len(first), len(second), len(pool)) == (4, 3, 0)
        assert len({*first, *second}) == 7
        assert take_pooled(KEY, 4) == []


def test_sealing_takes_from_the_pool_and_makes_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = count()
    real = crt_randomiser
    with RandomiserPool(PLAN, KEYRING, capacity=PLAN.ciphertexts + 1).fill() as pool:
        monkeypatch.setattr(encryption, "crt_randomiser", lambda key: (next(made), real(key))[1])
        bodies = [PAILLIER.seal(PLAN, ROUTE, [some_vector(seed)], KEYRING) for seed in range(2)]
        assert len(pool) == 0
        assert next(made) == PLAN.ciphertexts - 1
    partial = PAILLIER.fold(PLAN, None, [(ROUTE, body) for body in bodies])
    opened = PAILLIER.open(PLAN, PAILLIER.release(PLAN, partial), 2, KEYRING)
    assert np.abs(opened - some_vector(0) - some_vector(1)).max() <= PLAN.predicted_error


def test_a_running_pool_fills_up_and_stays_within_its_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    made, full, again = count(1), threading.Event(), threading.Event()

    def crt(key: object) -> int:
        number = next(made)
        {5: full, 7: again}.get(number, threading.Event()).set()
        return number

    monkeypatch.setattr(pool_module, "crt_randomiser", crt)
    pool = RandomiserPool(PLAN, KEYRING, capacity=5).start()
    assert full.wait(30)
    taken = pool.take(2)
    assert again.wait(30)  # what was taken is made anew
    assert taken == [1, 2]
    pool.stop()
    assert next(made) == 8
    assert len(pool) == 0
    assert not any(thread.name == "paillier-randomisers" for thread in threading.enumerate())


def test_the_real_thread_makes_real_randomisers() -> None:
    pool = RandomiserPool(PLAN, KEYRING, capacity=1)
    with pool.start():
        while not (taken := pool.take(1)):
            pass
        assert decrypt(KEY, taken[0]) == 0


def test_a_stopped_pool_serves_nobody_and_can_start_again() -> None:
    pool = RandomiserPool(PLAN, KEYRING, capacity=2).fill()
    pool.stop()
    assert (len(pool), take_pooled(KEY, 1)) == (0, [])
    with pool.fill():
        assert len(take_pooled(KEY, 1)) == 1
    pool.stop()


def test_one_pool_a_key() -> None:
    with RandomiserPool(PLAN, KEYRING, capacity=1).fill() as pool:
        with pytest.raises(ParameterError, match="another pool"):
            RandomiserPool(PLAN, KEYRING, capacity=1).fill()
        assert take_pooled(load_secret_key(PLAN, made_up_keyring(PLAN, "another key")), 1) == []
        with pool.start(), pytest.raises(ParameterError, match="already running"):
            pool.start()
    with pytest.raises(ParameterError, match="at least 1"):
        RandomiserPool(PLAN, KEYRING, capacity=0)


def test_a_waiting_client_has_one_pool_that_ends_with_its_wait() -> None:
    assert isinstance(PAILLIER, WorksAhead)
    with PAILLIER.working_ahead(PLAN, KEYRING):
        pool = _OFFERED[KEY.n]
        with PAILLIER.working_ahead(PLAN, KEYRING):  # a second client of the task in this process
            assert _OFFERED[KEY.n] is pool
        assert take_until_one(pool) is not None
    assert KEY.n not in _OFFERED
    assert len(pool) == 0


def take_until_one(pool: RandomiserPool) -> object:
    while not (taken := pool.take(1)):
        pass
    return taken[0]


def test_a_pool_is_never_written_down() -> None:
    pool = RandomiserPool(PLAN, KEYRING, capacity=1).fill()
    for write in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            write(pool)
    assert repr(pool) == "<RandomiserPool 1 of 1>"
    pool.stop()


def test_after_a_fork_every_pool_is_empty_and_offered_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the next test does in a child process, where coverage is not measured."""
    monkeypatch.setattr(pool_module, "_EVERY", WeakSet())
    monkeypatch.setattr(pool_module, "_OFFERED", {})
    pool = RandomiserPool(PLAN, KEYRING, capacity=2).fill()
    pool_module._after_fork()
    assert (len(pool), take_pooled(KEY, 1)) == (0, [])


def test_a_forked_process_starts_with_an_empty_pool() -> None:
    code = """
import os, sys
from protocols.sums.paillier.keys import load_secret_key
from protocols.sums.paillier.pool import RandomiserPool, take_pooled
from tests.protocols.sums.paillier.cases import made_up_keyring, small_plan
plan = small_plan()
keyring = made_up_keyring(plan)
pool = RandomiserPool(plan, keyring, capacity=3).fill()
child = os.fork()
if child == 0:
    os._exit(len(pool) + len(take_pooled(load_secret_key(plan, keyring), 3)) + (len(pool.fill()) != 3))
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status) or len(pool) != 3)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
