"""Every call of the HTTP API, as a program that returns a typed message or raises the error of the problem document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from client_sdk.api.answers import checked_bytes, parse_answer
from client_sdk.api.effects import LONGEST_JSON, Program
from client_sdk.api.member_calls import MemberCalls
from client_sdk.api.requests import LONGEST_ENTRY, LONGEST_WAIT, long_poll, path_of_task, with_query
from client_sdk.api.retry import send
from client_sdk.api.upload import upload
from client_sdk.errors import NotFound
from protocols.messages import (
    AttestationPage,
    BadShares,
    LedgerPage,
    RefusalNotice,
    RefusalReason,
    RoundPage,
    RoundView,
    SnapshotView,
    UploadReceipt,
)
from protocols.messages.attestations import LARGEST_ATTESTATION_PAGE, LONGEST_ATTESTATION
from protocols.messages.media_types import STAGE_TYPES
from protocols.messages.stages import StageMessage

__all__ = ["LONGEST_WAIT", "ApiCalls", "CurrentRound", "Handout"]

Handout = Literal["roster", "inbox", "survivors", "committee", "confirmations"]


@dataclass(frozen=True)
class CurrentRound:
    """The newest round and the ETag that identifies this version of it."""

    round: RoundView
    etag: str | None


@dataclass(frozen=True, repr=False)
class ApiCalls(MemberCalls):
    """Every call of a client or operator. See `ApiRequests` for the fields and the errors."""

    # --- rounds --------------------------------------------------------------------------------------------------

    def current_round(self, task_id: str, etag: str | None = None, wait: float = 0.0) -> Program[CurrentRound | None]:
        """Return the newest round; None if it is unchanged since `etag`, or there is none, within `wait` seconds."""
        headers = {"if-none-match": etag} if etag else {}
        request = self._request(
            "GET", with_query(path_of_task(task_id, "rounds", "current"), wait=long_poll(wait)), headers, wait=wait
        )
        try:
            response = yield from send(request, self.retry)
        except NotFound:  # the answer of earlier servers before the first round
            return None
        if response.status in (204, 304):
            return None
        return CurrentRound(parse_answer(request, response, RoundView), response.headers.get("etag"))

    def rounds(self, task_id: str, after: int = 0, limit: int = 100, state: str | None = None) -> Program[RoundPage]:
        """Return a page of at most `limit` rounds after number `after`, in order; with `state`, only those in it."""
        path = with_query(path_of_task(task_id, "rounds"), after=after, limit=limit, state=state)
        return self._get(path, RoundPage, max_bytes=max(LONGEST_JSON, limit * LONGEST_ENTRY))

    def round(self, task_id: str, number: int) -> Program[RoundView]:
        """Return one round; `NotFound` before it has opened."""
        return self._get(path_of_task(task_id, "rounds", number), RoundView)

    def contribute(
        self, task_id: str, number: int, client_id: str, body: bytes, statements: Mapping[str, str] | None = None
    ) -> Program[UploadReceipt]:
        """Upload a contribution, resumed after a broken connection; see `client_sdk.api.upload.upload`.

        statements: header fields by lower-case name that are signed, where the round needs them: "aggregate-chain"
        (`protocols.crypto.aggregate_chain`).
        """
        url = self.url + path_of_task(task_id, "rounds", number, "contributions", client_id)
        headers = self._authorization() | dict(statements or {})
        return upload(url, headers, body, self.retry, self.chunk_bytes, self.signer)

    def attestations(self, task_id: str, number: int, after: str, limit: int) -> Program[AttestationPage]:
        """Return at most `limit` (up to 100) attestations of a completed round, of clients with ids after `after`."""
        path = with_query(path_of_task(task_id, "rounds", number, "attestations"), after=after, limit=limit)
        return self._get(path, AttestationPage, max_bytes=LARGEST_ATTESTATION_PAGE * LONGEST_ATTESTATION)

    def ledger(self, task_id: str, after: int = 0) -> Program[LedgerPage]:
        """Return a page of a task's released sums after round `after` (operators)."""
        return self._get(with_query(path_of_task(task_id, "ledger"), after=after), LedgerPage)

    def own_ledger(self, task_id: str, after: int = 0) -> Program[LedgerPage]:
        """Return a page of the released sums after round `after` that contain this client's contributions."""
        return self._get(with_query(path_of_task(task_id, "members", "me", "ledger"), after=after), LedgerPage)

    # --- masked rounds -------------------------------------------------------------------------------------------

    def put_stage(self, task_id: str, number: int, stage: StageMessage, client_id: str, body: bytes) -> Program[None]:
        """Store this client's message of one stage of a masked round. Sending the same bytes again is allowed."""
        yield from self._put(
            path_of_task(task_id, "rounds", number, "stages", stage, client_id), body, STAGE_TYPES[stage]
        )

    def name_bad_shares(self, task_id: str, number: int, named: BadShares) -> Program[RoundView]:
        """Report clients whose sealed shares do not open. Naming them again changes nothing."""
        return self._post(path_of_task(task_id, "rounds", number, "bad-shares"), named, RoundView, idempotent=True)

    def stage_body(
        self, task_id: str, number: int, what: Handout, max_bytes: int, length: int | None = None
    ) -> Program[bytes]:
        """Download at most `max_bytes` of what the server provides for a stage of a masked round.

        length: the exact length, where it is known; `ContractBroken` for another.
        """
        request = self._request("GET", path_of_task(task_id, "rounds", number, what), max_bytes=max_bytes)
        response = yield from send(request, self.retry)
        return checked_bytes(request, response, length, None)

    def refuse(self, task_id: str, number: int, reason: RefusalReason) -> Program[RoundView]:
        """Tell the server that this client leaves a round on its own decision."""
        path = path_of_task(task_id, "rounds", number, "refusals")
        return self._post(path, RefusalNotice(reason=reason), RoundView, idempotent=True)

    def aggregate(self, task_id: str, number: int, length: int, digest: str | None) -> Program[bytes]:
        """Download a released aggregate of `length` bytes, checked against its Content-Digest and `digest` (hex)."""
        request = self._request("GET", path_of_task(task_id, "rounds", number, "aggregate"), max_bytes=length)
        response = yield from send(request, self.retry)
        return checked_bytes(request, response, length, digest)

    # --- snapshots -----------------------------------------------------------------------------------------------

    def latest_snapshot(
        self, task_id: str, at_least: int = 0, wait: float = 0.0, group: int | None = None
    ) -> Program[SnapshotView | None]:
        """Return the newest snapshot of round `at_least` or later; None if there is none within `wait` seconds.

        group: the device group whose view of it is meant, where the caller is in none (operators, the committee).
        """
        path = with_query(
            path_of_task(task_id, "snapshots", "latest"), at_least=at_least or None, group=group, wait=long_poll(wait)
        )
        request = self._request("GET", path, wait=wait)
        try:
            response = yield from send(request, self.retry)
        except NotFound:
            return None
        return parse_answer(request, response, SnapshotView)

    def best_snapshot(self, task_id: str) -> Program[SnapshotView | None]:
        """Return the snapshot of the best measured model; None if the server keeps none."""
        request = self._request("GET", path_of_task(task_id, "snapshots", "best"))
        try:
            response = yield from send(request, self.retry)
        except NotFound:
            return None
        return parse_answer(request, response, SnapshotView)

    def snapshot(self, task_id: str, view: SnapshotView, max_bytes: int) -> Program[bytes | None]:
        """Download the snapshot that `view` announces, at most `max_bytes`; None when it is no longer kept."""
        request = self._request("GET", path_of_task(task_id, "snapshots", view.round), max_bytes=max_bytes)
        try:
            response = yield from send(request, self.retry)
        except NotFound:
            return None
        return checked_bytes(request, response, view.bytes, view.digest)

    def put_snapshot(self, task_id: str, number: int, sealed: bytes) -> Program[None]:
        """Publish the sealed snapshot of round `number`; `Conflict` when that round has one."""
        yield from self._put(path_of_task(task_id, "snapshots", number), sealed)
