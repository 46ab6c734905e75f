"""Running the SDK's sans-IO programs by hand: a server played by a function, pauses only written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from client_sdk.api.effects import Pause, Program, Request, Response, Work
from protocols.messages.problem import PROBLEM_TYPES, ProblemDocument, problem_uri

__all__ = ["Stage", "problem"]


def problem(slug: str, detail: str = "", **headers: str) -> Response:
    """The answer of a server that refuses."""
    status, title = PROBLEM_TYPES[slug]
    document = ProblemDocument(type=problem_uri(slug), title=title, status=status, detail=detail)
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, {"content-type": "application/problem+json", **fields}, document.model_dump_json().encode())


class Stage:
    """Runs a program against `answer`, which returns a response or raises `ConnectionFailed`."""

    def __init__(self, answer: Callable[[Request], Response]) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.pauses: list[float] = []

    def run(self, program: Program[Any]) -> Any:
        """What the program returns."""
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
                            reply = self.answer(effect)
                        except Exception as raised:
                            error = raised
                    case Pause():
                        self.pauses.append(effect.seconds)
                    case Work():
                        reply = effect.call()
                effect = program.throw(error) if error else program.send(reply)
        except StopIteration as done:
            return done.value
