"""The calls of the HTTP API for the committee of a task with one-shot sums."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Self

from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Program, Sink
from client_sdk.api.requests import path_of_task
from client_sdk.api.retry import send
from protocols.messages import CommitteeView

__all__ = ["CommitteeCalls"]

_LONGEST_VIEW: Final = 1 << 20


@dataclass(frozen=True, repr=False)
class CommitteeCalls(ApiCalls):
    """The calls of a member of the committee. See `ApiCalls` for the errors."""

    @classmethod
    def of(cls, calls: ApiCalls) -> Self:
        """Return the committee's calls with the address, token and signer of `calls`."""
        return cls(**{each.name: getattr(calls, each.name) for each in fields(calls)})

    def committee(self, task_id: str) -> Program[CommitteeView]:
        """Return who is in the committee, and of which rounds each member has published its key."""
        return self._get(path_of_task(task_id, "committee"), CommitteeView, max_bytes=_LONGEST_VIEW)

    def put_committee_key(self, task_id: str, number: int, client_id: str, key: bytes) -> Program[None]:
        """Publish this member's key of a round that has not opened; `Conflict` when it has another, or is open."""
        yield from self._put(path_of_task(task_id, "committee", client_id, "keys", number), key)

    def statements(self, task_id: str, number: int, max_bytes: int) -> Program[bytes]:
        """Download what the proposed survivors signed, at most `max_bytes`. The answer has no digest: it is signed."""
        request = self._request("GET", path_of_task(task_id, "rounds", number, "statements"), max_bytes=max_bytes)
        return (yield from send(request, self.retry)).body

    def sealed_shares(self, task_id: str, number: int, client_id: str, length: int, sink: Sink) -> Program[None]:
        """Download the survivors' shares sealed for this member, at most `length` bytes, into `sink`.

        The answer has no digest: the client signed the digest of each share.
        """
        path = path_of_task(task_id, "rounds", number, "shares", client_id)
        yield from send(self._request("GET", path, max_bytes=length, sink=sink), self.retry)
