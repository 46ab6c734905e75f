"""Makes some fields of generated requests valid, so that requests succeed: known ids, tokens, signatures, digests.

The other fields stay as schemathesis generated them.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from schemathesis import Case

from tests.fuzz.world import NOBODY, Principal, World
from tests.support.api import TestMember, digest_field, signed_enrolment
from tests.support.promises import promised

__all__ = ["ValidFields"]

_PROMISED: Final = promised()
_TASKS: Final = 40
"""Limit on created tasks, because the round engine has to advance each of them."""
_SPLIT: Final = 17
"""Offset at which a chunked upload is split."""


class ValidFields:
    """Chooses with `random` who sends a case, and how many of its fields are replaced by valid ones."""

    def __init__(self, world: World, random: Random) -> None:
        self._world, self._random = world, random

    def _often(self, share: float) -> bool:
        return self._random.random() < share

    def fill_in(self, case: Case) -> Principal:
        """Replace some fields of the case by valid ones, and return the sender."""
        template, method = str(case.operation.path), str(case.method).upper()
        self._protect_stories(case, method)
        sender = self._sender(case, _PROMISED[method, template])
        self._fill_path(case, sender)
        self._protect_stories(case, method)
        case.headers.update(self._token_of(sender))
        if method in ("PUT", "PATCH"):
            self._fill_raw(case, method, sender)
        elif method == "POST":
            self._fill_json(case, template)
        return sender

    def _sender(self, case: Case, allowed: set[str]) -> Principal:
        task = case.path_parameters.get("task") if self._often(0.8) else None
        if self._often(0.75):
            fitting = self._world.of_kind(*allowed, task=task)
            return self._random.choice(fitting or [self._world.admin])
        everybody = [*self._world.principals.values(), NOBODY]
        return self._random.choice(everybody)

    def _token_of(self, sender: Principal) -> dict[str, str]:
        """Return the sender's token, sometimes an invalid one."""
        if self._often(0.95):
            return sender.auth
        token = sender.token or "hro_nobody-has-ever-had-this-token"
        damaged = (token[:-1], token + "A", token.swapcase(), token + "\t x", "", "x" * 5000)
        scheme = self._random.choice(("Bearer", "bearer", "Basic", "Bearer Bearer"))
        return {"Authorization": f"{scheme} {self._random.choice(damaged)}"}

    def _protect_stories(self, case: Case, method: str) -> None:
        """Let only reads, and requests that must be refused, touch the tasks of stories."""
        task, name = case.path_parameters.get("task"), case.path_parameters.get("name")
        if task in self._world.story_tasks and method not in ("GET", "HEAD"):
            case.path_parameters["task"] = self._random.choice(self._world.open_tasks)
        if name in self._world.story_names:
            case.path_parameters["name"] = "nobody"

    def _fill_path(self, case: Case, sender: Principal) -> None:
        known: dict[str, Any] = {
            "task": sender.known.task or self._random.choice(self._world.open_tasks),
            "client": sender.known.client or self._any_client(),
            "number": self._random.choice((1, 1, 1, 2, 3)),
            "stage": self._random.choice(("advertise", "share", "confirm", "unmask")),
            "invitation": "i_00000000000000000000",
            "name": self._random.choice(self._world.names or ["nobody"]),
        }
        for name in case.path_parameters:
            if self._often(0.6):
                case.path_parameters[name] = known[name]

    def _any_client(self) -> str:
        clients = [one.known.client for one in self._world.of_kind("member", "holder") if one.known.client]
        return self._random.choice(clients) if clients else "c_00000000000000000000"

    def _fill_raw(self, case: Case, method: str, sender: Principal) -> None:
        if self._often(0.7):
            case.body = self._body(case, sender)
        if self._often(0.85):
            body = case.body if isinstance(case.body, bytes) else b""
            case.headers["Content-Digest"] = digest_field(body)
            if method == "PATCH":
                first = self._often(0.5)
                case.headers["Upload-Offset"] = "0" if first else str(_SPLIT)
                case.headers["Upload-Complete"] = "?0" if first else "?1"
                case.body = body[:_SPLIT] if first else body[_SPLIT:]
                case.headers["Content-Digest"] = digest_field(case.body)
                case.headers["Repr-Digest"] = digest_field(body)

    def _body(self, case: Case, sender: Principal) -> bytes:
        """Return a contribution if the sender can make one, else bytes with the length of some message."""
        task, number = self._world.tasks.get(sender.known.task or ""), case.path_parameters.get("number")
        makes = task is not None and task.mechanism.name == "plain" and isinstance(number, int) and 0 < number < 9
        if task is not None and makes and sender.known.client and "/contributions/" in str(case.operation.path):
            member = TestMember(task, sender.known.client, sender.token)
            return member.contribution(int(number), float(self._random.choice((1, 2))))
        return self._random.randbytes(self._random.choice((1, 64, 160, 328, 500, 4096)))

    def _fill_json(self, case: Case, template: str) -> None:
        if template == "/v1/tasks":
            self._fill_task(case)
        elif template == "/v1/enrolments" and self._often(0.8) and self._world.invitations:
            _, _, invitation = self._random.choice(self._world.invitations)
            keys = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
            body = signed_enrolment(invitation, *keys)
            self._world.identities[body["identity_key"]] = keys[0]
            case.body = body if self._often(0.8) else self._with_one_of(body, case.body)

    def _fill_task(self, case: Case) -> None:
        full = len(self._world.tasks) >= _TASKS
        if full or self._often(0.8):
            name = f"fuzzed-{self._random.randrange(10**9)}"
            body = {
                "name": "plain" if full else name,  # a name that is taken
                "recipe": {"name": "fedmf", "parameters": {"items": 5, "dim": 3, "clip": 1000.0}},
                "mechanism": {"name": self._random.choice(("plain", "plain", "masked", "ckks")), "parameters": {}},
                "schedule": {"rounds": 2, "cohort_size": 4, "min_clients": 3, "start_clients": 3},
            }
            case.body = body if self._often(0.6) else self._with_one_of(body, case.body)

    def _with_one_of(self, body: dict[str, Any], generated: object) -> dict[str, Any]:
        """Return the valid body with one generated field."""
        if not isinstance(generated, dict) or not generated:
            return body
        name = self._random.choice(sorted(generated, key=str))
        return {**body, name: generated[name]}
