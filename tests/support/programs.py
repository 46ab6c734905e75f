"""Runs the SDK's programs without IO: a function is the server. Pauses are recorded; views are made up."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from client_sdk.api.wire import Failed, Pause, Program, Request, Response, Work
from protocols.codec import b64encode
from protocols.messages import RoundView, TaskView
from protocols.messages.base import PROBLEM_TYPES, ProblemDocument, problem_uri


def problem(slug: str, detail: str = "", **headers: str) -> Response:
    """Return the answer of a server that refuses with the problem `slug`; `headers` are added with - for _."""
    status, title = PROBLEM_TYPES[slug]
    document = ProblemDocument(type=problem_uri(slug), title=title, status=status, detail=detail)
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, {"content-type": "application/problem+json", **fields}, document.model_dump_json().encode())


class ProgramRunner:
    """Runs programs against `answer`, which returns a response or raises `ConnectionFailed`.

    requests, pauses: what the programs have yielded so far.
    """

    def __init__(self, answer: Callable[[Request], Response]) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.pauses: list[float] = []

    @staticmethod
    def _received(request: Request, response: Response) -> Response:
        """Pass the body to the request's sink, as a driver does."""
        if request.sink is None or response.status >= 400:
            return response
        request.sink.begin()
        request.sink.add(response.body)
        return Response(response.status, response.headers)

    def run(self, program: Program[Any]) -> Any:
        reply: Any = None
        error: Exception | None = None
        try:
            effect = next(program)
            while True:
                reply, error = None, None
                match effect:
                    case Request():
                        self.requests.append(effect)
                        try:
                            reply = self._received(effect, self.answer(effect))
                        except Exception as raised:
                            error = raised
                    case Pause():
                        self.pauses.append(effect.seconds)
                    case Failed():
                        reply = False
                    case Work():
                        try:
                            reply = effect.call()
                        except Exception as raised:
                            error = raised
                effect = program.throw(error) if error else program.send(reply)
        except StopIteration as done:
            return done.value


SEED = bytes(range(32))


def task_view(
    recipe: str = "colr",
    parameters: Mapping[str, Any] | None = None,
    mechanism: str = "plain",
    how: Mapping[str, Any] | None = None,
    **changes: Any,
) -> TaskView:
    """An open task of ten members in cohorts of ten; by default one of CoLR over six items."""
    ordinary: dict[str, Any] = {
        "task_id": "t_1",
        "name": "movies",
        "state": "open",
        "recipe": {"name": recipe, "parameters": dict(parameters or {"items": 6, "dim": 4, "rank": 2})},
        "mechanism": {"name": mechanism, "parameters": dict(how or {})},
        "schedule": {"cohort_size": 10, "min_clients": 3},
        "seed": b64encode(SEED),
        "plan": {},
        "opened_by": "members" if mechanism in ("ckks", "paillier") else "anyone",
        "members": 10,
        "keyed_members": 10,
        "completed_rounds": 0,
        "failed_rounds": 0,
    }
    return TaskView.model_validate({**ordinary, **changes})


def round_view(
    number: int,
    state: str = "collecting",
    seed: bytes = bytes(32),
    survivors: int = 4,
    aggregate: bytes | None = None,
    **changes: Any,
) -> RoundView:
    """A round of a cohort of ten. survivors, aggregate: of one that is complete."""
    done = state == "complete"
    ordinary: dict[str, Any] = {
        "task_id": "t_1",
        "number": number,
        "step": number,
        "state": state,
        "seed": b64encode(seed),
        "cohort": 10,
        "received": survivors,
        "survivors": survivors if done else 0,
        "folded": survivors if done else 0,
        "seconds_left": None if done else 60.0,
        "aggregate_bytes": len(aggregate) if done and aggregate is not None else None,
        "aggregate_digest": hashlib.sha256(aggregate).hexdigest() if done and aggregate is not None else None,
    }
    return RoundView.model_validate({**ordinary, **changes})
