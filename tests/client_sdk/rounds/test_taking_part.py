"""Clients, sync and async, against a real server: from the invitation to the recommendation."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from client_sdk import (
    Client,
    ClientOptions,
    Identity,
    MemoryStore,
    MFConfig,
    NotEnrolled,
    Operator,
    Policy,
    PolicyRefused,
)
from client_sdk.api.http import SyncDriver
from client_sdk.api.retry import RetryPolicy
from client_sdk.api.wire import Work, work
from client_sdk.errors import (
    ContributionConflict,
    Forbidden,
    GaveUp,
    ModelUnavailable,
    RoundClosed,
    TaskFailed,
    Unauthenticated,
)
from client_sdk.organiser import TrialOrganiser
from client_sdk.rounds import key_holder
from client_sdk.rounds.contribution import OwnRound
from client_sdk.rounds.events import ClipWarning, Event, KeyringRefused, ModelBehind, RoundMissed, TaskEnded
from client_sdk.rounds.join import _require_organiser
from client_sdk.rounds.member import MembershipCheck, request_for
from client_sdk.rounds.newest import top_items
from protocols.codec import b64decode
from protocols.crypto.envelope import EnvelopeSender
from protocols.errors import CertificateError, KeyringError, ParameterError
from protocols.sums.paillier.mechanism import PaillierMechanism
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import (
    ITEMS,
    TRIAL,
    deliver_keys,
    interactions,
    joined,
    new_client,
    play_round,
    small_task,
    take_part_together,
)

PLAIN = Policy(mechanisms=frozenset({"plain", "ckks", "paillier"}), snapshot_every=1)


VOTED = {"dim": 2, "clip": 2.0, "share": 0.2, "support_from": "vote", "reveal_touched": True}


@pytest.mark.parametrize(
    ("recipe", "mechanism", "how", "parameters"),
    [
        ("colr", "ckks", {"wire": "expanded"}, None),
        ("topk", "paillier", {"key_bits": 2048}, VOTED),
    ],
)
def test_three_clients_finish_a_task(
    server: AggregatorProcess,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    mechanism: str,
    how: dict[str, Any],
    parameters: dict[str, Any] | None,
) -> None:
    """Contributions go up in chunks; those of Paillier are sealed with what was made ahead."""
    ahead: list[str] = []
    seal_ahead = PaillierMechanism.seal_ahead

    def noted(self: PaillierMechanism, *given: Any) -> bytes:
        ahead.append(self.name)
        return seal_ahead(self, *given)

    monkeypatch.setattr(PaillierMechanism, "seal_ahead", noted)
    task = small_task(
        operator, f"finished-{recipe}-{mechanism}", users=3, recipe=recipe, mechanism=mechanism,
        mechanism_parameters=how, recipe_parameters=parameters,
    )  # fmt: skip
    chunks = ClientOptions(chunk_bytes={"paillier": 500, "ckks": 5_000}[mechanism])
    with joined(server.url, task, 3, PLAIN, chunks) as parts:
        reports = take_part_together(parts, interactions(3))
        for part, items in zip(parts, interactions(3), strict=True):
            assert not set(part.recommend(5).items.tolist()) & set(items.tolist())
    assert [[report.round for report in mine] for mine in reports] == [[1, 2]] * 3
    assert all(chunks.chunk_bytes < report.contribution_bytes <= report.bytes_up for mine in reports for report in mine)
    assert set(ahead) == ({mechanism} if mechanism == "paillier" else set())
    assert [(view.state, view.survivors) for view in operator.rounds(task.task_id)] == [("complete", 3)] * 2
    assert operator.task(task.task_id).state == "complete"


def test_the_wait_for_a_free_thread_is_not_counted_as_time_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("client_sdk.rounds.contribution.perf_counter", lambda: clock[0])

    def train() -> str:
        clock[0] += 2.0
        return "trained"

    nothing: Any = None
    own = OwnRound(nothing, nothing, nothing)
    program = work(own.timed("train")(train))
    effect = next(program)
    assert isinstance(effect, Work)
    clock[0] += 50.0  # no thread is free
    reply = effect.call()
    clock[0] += 50.0  # the event loop is busy
    with pytest.raises(StopIteration) as ended:
        program.send(reply)
    assert (ended.value.value, own.seconds["train"], own.seconds["seal"]) == ("trained", 2.0, 0.0)


class LosingTheFirstAnswer(httpx.HTTPTransport):
    """Breaks the connection of the first upload before its answer is here."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads: list[tuple[str, int]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if "/contributions/" in request.url.path:
            self.uploads.append((request.method, len(request.content)))
            if len(self.uploads) == 1:
                answer.read()
                raise httpx.ReadError("cut")
        return answer


def test_a_contribution_whose_answer_is_lost_is_resumed_at_the_servers_offset(
    server: AggregatorProcess, operator: Operator
) -> None:
    task, transport = small_task(operator, "cut", users=3, rounds=1), LosingTheFirstAnswer()
    with (
        SyncDriver(transport=transport) as driver,
        joined(server.url, task, 2, PLAIN) as others,
        Client(server.url, Identity.generate(), MemoryStore(), PLAIN, driver=driver) as client,
    ):
        (report,), *_ = take_part_together([task.join(client), *others], interactions(3))
    length = report.contribution_bytes
    assert transport.uploads == [("PUT", length), ("HEAD", 0), ("PATCH", 0)]
    assert report.bytes_up >= length


class Filtered(httpx.HTTPTransport):
    """Answers the first two requests of each kind in the server's place, and contributions above `limit` bytes."""

    PAGES = (403, 410, 302, 409, 404, 200, 413, 401, 502, 405)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.seen, self.pages = limit, Counter[str](), 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        kind = f"{request.method} {re.sub('[0-9]+|cl_[^/]+', '*', request.url.path)}"
        self.seen[kind] += 1
        too_long = "/contributions/" in kind and len(request.content) > self.limit
        if self.seen[kind] > 2 and not too_long:
            return super().handle_request(request)
        self.pages += 1
        status = 413 if too_long else self.PAGES[self.pages % len(self.PAGES)]
        if status == 413 and not too_long:
            status = 403
        headers = {"content-type": "text/html", "location": "https://login.example/"}
        return httpx.Response(status, headers=headers, content=b"<html>blocked by policy</html>")


@pytest.mark.parametrize("mechanism", ["ckks", "masked"])
def test_pages_of_a_proxy_end_no_part_in_a_task(server: AggregatorProcess, operator: Operator, mechanism: str) -> None:
    """Whatever their status: none is taken for the server's word, and what is too long is sent in smaller chunks."""
    how = {"dropout": 0.0} if mechanism == "masked" else {}
    task = small_task(
        operator, f"filtered-{mechanism}", users=3, rounds=2, mechanism=mechanism, mechanism_parameters=how,
        collect_seconds=200, stage_seconds=200,
    )  # fmt: skip
    transport, told = Filtered(limit=5_000 if mechanism == "ckks" else 1 << 20), list[Event]()
    options = ClientOptions(RetryPolicy(base_seconds=0.01, cap_seconds=0.05))
    policy = replace(PLAIN, mechanisms=frozenset({mechanism}), trust_models=True)
    with (
        SyncDriver(transport=transport) as driver,
        joined(server.url, task, 2, policy) as others,
        Client(server.url, Identity.generate(), MemoryStore(), policy, options, driver) as client,
    ):
        parts = [*others, task.join(client)]
        *_, reports = take_part_together(
            parts,
            interactions(3),
            lambda part, items: part.take_part(items, told.append if part is parts[-1] else None),
        )
    assert [report.round for report in reports] == [1, 2], told
    assert not any(isinstance(event, RoundMissed) for event in told), told
    assert transport.pages > 2 * 8
    assert mechanism == "masked" or min(report.contribution_bytes for report in reports) > transport.limit


def test_a_client_rejoins_without_an_invitation_and_recommends_while_the_server_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home, told = tmp_path / "home 1", list[Event]()
    with running_aggregator(tmp_path / "data") as server, ExitStack() as resources:
        operator = resources.enter_context(Operator(server.url, server.operator_token))
        task = small_task(operator, "movies", users=3, rounds=1, mechanism="ckks")
        clients = [resources.enter_context(Client(server.url, home=tmp_path / f"home {place}")) for place in range(3)]
        parts, items = [task.join(client, place) for place, client in enumerate(clients)], interactions(3)[1]
        take_part_together(parts, interactions(3), lambda part, items: part.take_part(items, told.append))
        assert sum(isinstance(event, TaskEnded) for event in told) == 3
        told.clear()
        online = list(parts[1].recommend(5))
        with Client(server.url, home=home) as client:
            again = client.join("movies")
            assert client.join().membership.client_id == again.membership.client_id == parts[1].membership.client_id
            sent = client.traffic
            assert list(again.recommend(5, items, refresh=False)) == online
            assert client.traffic == sent
            stored = client.open()
            assert list(stored.recommend(5, items, progress=told.append)) == online
            assert told == [], "the server answers"
            for wrong in (client.open, client.join):
                with pytest.raises(NotEnrolled, match="other"):
                    wrong("other")
            for act in (lambda: stored.take_part(items), stored.serve):
                with pytest.raises(ParameterError, match=r"opened as it is stored: join\(\) it to take part"):
                    act()
            with pytest.raises(ParameterError, match="interactions are required"):
                again.recommend(10)
    caplog.clear()
    with Client(server.url, home=home, options=ClientOptions(RetryPolicy(attempts=1))) as client:
        for asks in (lambda: client.join("movies"), lambda: client.open().model()):
            with pytest.raises(GaveUp):
                asks()
        assert list(client.open("movies").recommend(5, items, progress=told.append)) == online
    (behind,) = told
    assert isinstance(behind, ModelBehind)
    assert re.match(r"the model of round 1, stored .* ago, is used: no answer from http", behind.reason)
    assert any(one.getMessage() == f"task movies: {behind.reason}" for one in caplog.records)
    assert all(path.stat().st_mode & 0o077 == 0 for path in home.rglob("*") if path.is_file())


def test_a_revoked_member_recommends_from_its_model_and_is_not_told_to_join_again(
    server: AggregatorProcess, operator: Operator
) -> None:
    task = small_task(operator, "left", users=3, rounds=1)
    own, told = interactions(3), list[Event]()
    with joined(server.url, task, 3, PLAIN) as parts:
        take_part_together(parts, own)
        online = list(parts[1].recommend(5))
        operator.revoke_member(task.task_id, parts[1].membership.client_id)
        assert list(parts[1].recommend(5, progress=told.append)) == online
        (behind,) = told
        assert isinstance(behind, ModelBehind) and "the membership was revoked" in behind.reason
        with pytest.raises(Unauthenticated, match="the membership was revoked") as caught:
            parts[1].current_round()
        assert "a revoked identity cannot join again" in (caught.value.remedy or "")


def test_the_key_holder_gives_its_keyring_to_those_whom_the_organiser_certified_and_others_cannot_enrol(
    server: AggregatorProcess, operator: Operator
) -> None:
    """A server that lists members of its own making: the holder seals nothing for them."""
    task, other = small_task(operator, "certified", users=3, mechanism="ckks"), TrialOrganiser("tests")
    with (
        new_client(server.url, PLAIN) as first,
        new_client(server.url, PLAIN) as good,
        new_client(server.url, PLAIN) as stranger,
    ):
        holder, honest = task.join(first, 0), task.join(good)
        with pytest.raises(KeyringError, match="create the keyring first"):
            holder.model()
        with pytest.raises(ParameterError, match="not its key holder"):
            honest.create_keyring()
        for certificate, fault in (
            (other.source(), "not signed by the organiser"),
            (None, "needs a membership certificate"),
            (TRIAL.source("holder"), "for the role holder, not member"),
        ):
            with pytest.raises(Forbidden, match=fault):
                stranger.join(invitation=task.invitation, certificate=certificate)
        fingerprint, own = holder.create_keyring(), holder.part.member
        holder.part.member = replace(own, check=MembershipCheck(other.pin))  # for which nobody here is certified
        events: list[Event] = []
        assert deliver_keys(holder, events.append) == []
        assert events == [KeyringRefused(honest.membership.client_id)]
        holder.part.member = own
        assert deliver_keys(holder) == [honest.membership.client_id]
        honest.model()
        keys = [each._account.store.keyring(task.task_id) for each in (first, good)]
        assert keys[0] is not None and keys[0] == keys[1]
        assert keys[0].fingerprint == fingerprint
        view = operator.task(task.task_id)
        for organiser in (None, other.pin):
            with pytest.raises(PolicyRefused, match="names an organiser that the server does not"):
                _require_organiser(honest.membership, view.model_copy(update={"organiser": organiser}))
        _require_organiser(honest.membership, view)
    operator.close_task(task.task_id)


def test_an_envelope_of_anybody_but_the_certified_holder_is_refused(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server and one member together put keys of their own into a mailbox: they open nothing of what is sent."""
    task = small_task(operator, "substituted", users=3, mechanism="ckks")
    with new_client(server.url, PLAIN) as first, new_client(server.url, PLAIN) as good:
        holder, honest = task.join(first, 0), task.join(good)
        holder.create_keyring()
        insider = Identity.generate()
        issued = TRIAL.issue(request_for(insider, TRIAL.scope, "member"))
        sender = EnvelopeSender(insider.signing_key, insider.mailbox_key, b64decode(issued.certificate))
        monkeypatch.setattr(key_holder, "envelope_sender", lambda _: sender)
        assert deliver_keys(holder) == [honest.membership.client_id]
        with pytest.raises(CertificateError, match="for the role member, not holder"):
            honest.model()
    operator.close_task(task.task_id)


def test_items_that_were_seen_are_never_recommended() -> None:
    """Whatever the scores are: NaN sorts behind everything, and a recipe may score an item as -inf."""
    seen, scores = np.array([0, 3], np.int32), np.array([9, -np.inf, 1, np.nan, 1, -np.inf], np.float32)
    found = top_items(scores, seen, 4)
    assert found.items.tolist() == [2, 4, 1, 5]
    assert found.scores.tolist() == [1, 1, -np.inf, -np.inf]
    for k in (0, 5, 1.5, 2.0, "2", None):
        with pytest.raises(ParameterError, match=r"k must be in 1\.\.4"):
            top_items(scores, seen, k)  # type: ignore[arg-type]
    assert top_items(scores, seen, np.int64(1)).items.tolist() == [2]
    with pytest.raises(ParameterError, match=r"scores of 2 items are NaN, the first is that of item 1: .* diverged"):
        top_items(np.array([0, np.nan, 1, np.nan], np.float32), np.array([0], np.int32), 1)


def test_new_items_have_the_places_that_are_asked_for() -> None:
    scores, seen = np.array([9, 8, 7, 6, 5, 4, 3], np.float32), np.array([1], np.int32)
    predicted = np.array([False, True, False, False, True, True, False])

    def best(k: int, places: int) -> list[int]:
        return top_items(scores, seen, k, places, predicted).items.tolist()

    assert [best(3, places) for places in range(4)] == [[0, 2, 3], [0, 2, 4], [0, 4, 5], [0, 4, 5]]
    assert best(5, 1) == [0, 2, 3, 4, 5]  # which are there without their places
    assert top_items(scores, seen, 3, 2, None).items.tolist() == [0, 2, 3]
    for places in (-1, 4):
        with pytest.raises(ParameterError, match=r"places for new items must be in 0\.\.3"):
            best(3, places)


def test_clip_warnings_conflicts_and_closed_rounds(server: AggregatorProcess, operator: Operator) -> None:
    wild = MFConfig(learning_rate=200.0)
    task = small_task(operator, "single", users=3, rounds=1)
    chosen = interactions(3)
    with joined(server.url, task, 3, PLAIN, training=wild) as parts:
        view = parts[0].current_round(wait=10.0)
        with pytest.raises(ModelUnavailable, match="no round of this task has completed yet"):
            parts[0].recommend(10, chosen[0])
        events: list[Event] = []
        assert play_round(parts[0], view, chosen[0], events.append).clipped > 0
        assert isinstance(events[0], ClipWarning)
        with pytest.raises(ContributionConflict):
            play_round(parts[0], view, chosen[0])
        with pytest.raises(ParameterError, match=f"0..{ITEMS - 1}"):
            play_round(parts[1], view, [ITEMS])
        left = operator.extend_round(task.task_id, 1, 600).seconds_left
        assert left is not None and left > 600
        aborted = operator.abort_round(task.task_id, 1)
        assert (aborted.state, aborted.failure) == ("failed", "aborted by an operator")
        operator.close_task(task.task_id)
        with pytest.raises(RoundClosed):
            play_round(parts[1], view, chosen[1])
        missed: list[Event] = []
        parts[2].take_part(chosen[2], missed.append)
        assert [type(event) for event in missed] == [TaskEnded]


def test_a_small_round_is_refused_and_reported(server: AggregatorProcess, operator: Operator) -> None:
    """The task states cohorts of 5; the server opens a round of 3, because it has no more members."""
    task = small_task(
        operator, "few", users=5, start_clients=3, min_clients=3, collect_seconds=0.5, max_failed_rounds=1
    )
    with joined(server.url, task, 3, PLAIN) as (one, *_):
        one.part.member = replace(one.part.member, policy=Policy(min_cohort=4, mechanisms=PLAIN.mechanisms))
        events: list[Event] = []
        with pytest.raises(TaskFailed, match="0 of 3 clients contributed in time, but 3 are needed") as failed:
            one.take_part(interactions(1)[0], events.append)
    assert (failed.value.task, failed.value.reports) == ("few", ())
    assert "at least 4" in [event for event in events if isinstance(event, RoundMissed)][0].reason
    assert isinstance(events[-1], TaskEnded)
