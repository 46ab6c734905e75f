"""Runs the SDK's programs without IO: a function is the server, and pauses are recorded instead of waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from client_sdk.api.wire import Failed, Pause, Program, Request, Response, Work
from protocols.messages.problem import PROBLEM_TYPES, ProblemDocument, problem_uri

__all__ = ["ProgramRunner", "problem"]


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
        """Run `program` to its end and return its result."""
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
