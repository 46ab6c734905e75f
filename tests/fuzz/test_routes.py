"""Every route of a real server, called in any order by any caller, while honest clients finish their rounds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from random import Random
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest
import requests

from tests.fuzz.honest import LIVES
from tests.fuzz.judge import OPERATIONS, PROMISED, Caller, schema
from tests.fuzz.world import EXAMPLES, SEED, World, each
from tests.support.api import TestMember, digest_field, signed_enrolment

if TYPE_CHECKING:
    from schemathesis import Case

_TASKS: Final = 40
"""Limit on created tasks, because the round engine has to advance each of them."""
_SPLIT: Final = 17
"""Offset at which a chunked upload is split."""
_EXCHANGES: Final = 300
"""Of honest clients, about."""


class ValidFields:
    """Chooses with `random` who sends a case, and how many of its fields are replaced by valid ones."""

    def __init__(self, world: World, random: Random) -> None:
        self._world, self._random = world, random

    def _often(self, share: float) -> bool:
        return self._random.random() < share

    def send(self, case: Case) -> None:
        """Replace some fields of the case by valid ones, and send it; the world judges the answer."""
        template, method = str(case.operation.path), str(case.method).upper()
        sender = self._sender(PROMISED[method, template])
        self._fill_path(case, sender, method)
        case.headers.update(self._token_of(sender))
        if method in ("PUT", "PATCH"):
            self._fill_raw(case, method, sender)
        elif method == "POST":
            self._fill_json(case, template)
        try:
            made = requests.Request(**case.as_transport_kwargs(self._world.server.url)).prepare()
            headers = [
                (name.encode("latin-1"), value.encode("latin-1") if isinstance(value, str) else value)
                for name, value in made.headers.items()
            ]
            self._world.api.http.request(str(made.method), str(made.url), content=made.body, headers=headers)
        except (requests.exceptions.InvalidHeader, UnicodeError, httpx.LocalProtocolError):  # not valid in HTTP
            return

    def _sender(self, allowed: set[str]) -> Caller:
        if self._often(0.75):
            return self._random.choice(self._world.of_kind(*allowed) or [self._world.admin])
        return self._random.choice([*self._world.callers.values(), Caller()])

    def _token_of(self, sender: Caller) -> dict[str, str]:
        if self._often(0.95):
            return sender.auth
        token = sender.token or "hro_nobody-has-ever-had-this-token"
        damaged = (token[:-1], token + "A", token.swapcase(), token + "\t x", "", "x" * 5000)
        scheme = self._random.choice(("Bearer", "bearer", "Basic", "Bearer Bearer"))
        return {"Authorization": f"{scheme} {self._random.choice(damaged)}"}

    def _fill_path(self, case: Case, sender: Caller, method: str) -> None:
        """Only reads, and requests that must be refused, touch the tasks of honest clients."""
        clients = [one.client for one in self._world.of_kind("member", "holder", "committee")]
        known: dict[str, Any] = {
            "task": sender.task or self._random.choice(self._world.open_tasks),
            "client": sender.client or self._random.choice(clients),
            "number": self._random.choice((1, 1, 1, 2, 3)),
            "stage": self._random.choice(("advertise", "share", "confirm", "unmask")),
            "invitation": "i_00000000000000000000",
            "name": self._random.choice(self._world.names),
        }
        for name in case.path_parameters:
            if self._often(0.6):
                case.path_parameters[name] = known[name]
        if case.path_parameters.get("task") in self._world.honest and method not in ("GET", "HEAD"):
            case.path_parameters["task"] = self._random.choice(self._world.open_tasks)

    def _fill_raw(self, case: Case, method: str, sender: Caller) -> None:
        if self._often(0.7):
            case.body = self._body(case, sender)
        if self._often(0.85):
            body = case.body if isinstance(case.body, bytes) else b""
            if method == "PATCH":
                first = self._often(0.5)
                case.headers["Upload-Offset"] = "0" if first else str(_SPLIT)
                case.headers["Upload-Complete"] = "?0" if first else "?1"
                case.headers["Repr-Digest"] = digest_field(body)
                case.body = body = body[:_SPLIT] if first else body[_SPLIT:]
            case.headers["Content-Digest"] = digest_field(body)

    def _body(self, case: Case, sender: Caller) -> bytes:
        """Return a contribution if the sender can make one, else bytes with the length of some message."""
        task, number = self._world.tasks.get(sender.task or ""), case.path_parameters.get("number")
        makes = task is not None and task.mechanism.name == "plain" and isinstance(number, int) and 0 < number < 9
        if task is not None and makes and sender.client and "/contributions/" in str(case.operation.path):
            member = TestMember(task, sender.client, sender.token)
            return member.contribution(int(number), self._random.choice((0.5, 1.0)))
        return self._random.randbytes(self._random.choice((1, 64, 160, 328, 500, 4096)))

    def _fill_json(self, case: Case, template: str) -> None:
        full = len(self._world.tasks) >= _TASKS
        body: dict[str, Any] = {}
        if template == "/v1/tasks" and (full or self._often(0.8)):
            body = {
                "name": "open-plain" if full else f"fuzzed-{self._random.randrange(10**9)}",  # or a name that is taken
                "recipe": {"name": "fedmf", "parameters": {"items": 5, "dim": 3, "clip": 1000.0}},
                "mechanism": {"name": self._random.choice(("plain", "plain", "masked", "ckks")), "parameters": {}},
                "schedule": {"rounds": 2, "cohort_size": 4, "min_clients": 3, "start_clients": 3},
            }
        elif template == "/v1/enrolments" and self._often(0.8):
            body = signed_enrolment(self._random.choice(self._world.invitations))
        if body:
            generated = case.body if isinstance(case.body, dict) and self._often(0.3) else {}
            name = self._random.choice(sorted(generated, key=str) or ["name"])
            case.body = body | ({name: generated[name]} if name in generated else {})


def cases() -> Iterator[Case]:
    """Yield generated calls of all operations in any order, about as many of each, without end."""
    strategies = [schema()[path][method].as_strategy() for method, path in OPERATIONS]
    for number in count():
        some: list[Case] = []
        for strategy in strategies:
            each(min(4, EXAMPLES // 15), strategy, some.append, SEED + number)
        Random(SEED + number).shuffle(some)
        yield from some


@pytest.mark.timeout(0 if EXAMPLES > 30 else 600)
def test_any_calls_while_honest_clients_finish_their_rounds(world: World) -> None:
    """Requests that match the OpenAPI document, and requests that do not. Every operation has succeeded at the end."""
    fields, calls = ValidFields(world, Random(SEED)), islice(cases(), EXAMPLES // 15 * len(OPERATIONS))
    at_once = max(1, EXAMPLES // 15 * len(OPERATIONS) // _EXCHANGES)

    def between() -> None:
        for case in islice(calls, at_once):
            fields.send(case)

    try:
        for life in LIVES:
            with world.honestly(between):
                life(world, f"honest-{life.__name__}", True)
        for case in calls:
            fields.send(case)
    except AssertionError as error:
        again = f"again: HUSHREC_SEED={SEED} HUSHREC_FUZZ_EXAMPLES={EXAMPLES}"
        pytest.fail("\n".join([str(error), "before:", *world.trail, again]), pytrace=False)
    for operation in OPERATIONS:
        seen = world.seen[operation]
        assert any(status < 300 for status in seen), f"{operation} never succeeded: {dict(seen)}"
