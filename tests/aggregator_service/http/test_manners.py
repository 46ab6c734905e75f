"""Conventions of HTTP that client libraries rely on."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from protocols.messages import base, stages
from tests.support.api import Api, TestTask, digest_field
from tests.support.inside import aggregator_inside
from tests.support.masked import enrol_masked, masked_task

ROOT = Path(__file__).parents[3]
DOCUMENT = json.loads((ROOT / "openapi" / "openapi.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with aggregator_inside(tmp_path_factory.mktemp("manners") / "data") as inside:
        yield inside


@pytest.fixture(scope="module")
def task(api: Api) -> TestTask:
    return api.create_task("manners", cohort=3)


def slug(answer: httpx.Response) -> str:
    return str(answer.json()["type"]).rpartition(":")[2]


def test_there_is_an_answer_before_the_first_round(api: Api) -> None:
    early = api.create_task("early", cohort=2)
    (member,) = early.enrol(1)
    path = f"{early.path}/rounds/current"
    first = api.http.get(path, headers=member.auth)
    assert (first.status_code, first.content, first.headers["etag"]) == (204, b"", 'W/"0"')
    same = {**member.auth, "If-None-Match": first.headers["etag"]}
    assert api.http.get(f"{path}?wait=0.01", headers=same).status_code == 304
    answers: list[httpx.Response] = []
    poll = threading.Thread(target=lambda: answers.append(api.http.get(f"{path}?wait=20", headers=same)))
    poll.start()
    early.enrol(1)
    poll.join(timeout=60)
    (opened,) = answers
    assert opened.status_code == 200 and opened.json()["number"] == 1


def test_a_401_says_what_a_signature_covers(api: Api, task: TestTask) -> None:
    poll = api.http.get(f"{task.path}/rounds/current?wait=1")
    assert poll.status_code == 401
    expected = 'hushrec=("@method" "@authority" "@path" "@query");created;keyid;tag="hushrec"'
    assert poll.headers["accept-signature"] == expected
    fields = {"Content-Digest": digest_field(b"x"), "Upload-Offset": "0", "Upload-Complete": "?0"}
    path = f"{task.path}/rounds/1/contributions/c_{'0' * 20}"
    chunk = api.http.patch(path, content=b"x", headers={**fields, "Content-Type": "application/partial-upload"})
    covered = '("@method" "@authority" "@path" "content-digest" "upload-complete" "upload-offset")'
    assert covered in chunk.headers["accept-signature"]
    assert "accept-signature" not in api.http.get(task.path, headers=api.operator).headers


def test_bodies_have_media_types_of_their_own(api: Api) -> None:
    masked = masked_task(api, "typed", 5)
    members = enrol_masked(masked, 5)
    masked.wait_round(1, "advertising")
    bodies = {place: member.make(1, "advertise") for place, member in members.items()}
    for place, member in members.items():
        path = f"{masked.path}/rounds/1/stages/advertise/{member.client_id}"
        headers = {**member.auth, "Content-Digest": digest_field(bodies[place])}
        wrong = {**headers, "Content-Type": stages.STAGE_TYPES["share"]}
        refused = api.http.put(path, content=bodies[place], headers=wrong)
        assert (refused.status_code, slug(refused)) == (415, "unsupported-media-type")
        typed = {**headers, "Content-Type": stages.STAGE_TYPES["advertise"]}
        assert api.http.put(path, content=bodies[place], headers=typed).status_code == 201
    masked.wait_round(1, "sharing")
    roster = api.http.get(f"{masked.path}/rounds/1/roster", headers=members[0].auth)
    assert roster.headers["content-type"] == "application/vnd.hushrec.roster"


def test_a_contribution_has_a_media_type(api: Api) -> None:
    plain = api.create_task("typed-contribution", cohort=2)
    (member, _) = plain.enrol(2)
    plain.wait_round(1, "collecting")
    path = f"{plain.path}/rounds/1/contributions/{member.client_id}"
    body = bytes(api.http.get(f"{plain.path}/rounds/1", headers=member.auth).json()["contribution_bytes"])
    headers = {**member.auth, "Content-Digest": digest_field(body)}
    assert api.http.put(path, content=body, headers={**headers, "Content-Type": "text/plain"}).status_code == 415
    typed = {**headers, "Content-Type": stages.CONTRIBUTION}
    assert api.http.put(path, content=body, headers=typed).status_code == 201


def test_uploads_in_chunks_answer_as_the_draft_says(api: Api) -> None:
    plain = api.create_task("chunked", cohort=2)
    (member, _) = plain.enrol(2)
    plain.wait_round(1, "collecting")
    length = api.http.get(f"{plain.path}/rounds/1", headers=member.auth).json()["contribution_bytes"]
    path = f"{plain.path}/rounds/1/contributions/{member.client_id}"
    asked = api.http.head(path, headers=member.auth)
    assert asked.status_code == 204
    names = ("upload-offset", "upload-complete", "upload-length", "cache-control")
    assert [asked.headers[name] for name in names] == ["0", "?0", str(length), "no-store"]
    chunk = {"Content-Type": "application/partial-upload", "Upload-Offset": "7", "Upload-Complete": "?0"}
    ahead = api.http.patch(path, content=b"x", headers={**member.auth, **chunk, "Content-Digest": digest_field(b"x")})
    assert ahead.status_code == 409
    assert ahead.headers["upload-offset"] == "0"
    told = ahead.json()
    assert told["type"] == "https://iana.org/assignments/http-problem-types#mismatching-upload-offset"
    assert (told["expected-offset"], told["provided-offset"]) == (0, 7)


def test_limits_and_completion_of_an_upload(api: Api) -> None:
    plain = api.create_task("limits", cohort=2)
    (member, _) = plain.enrol(2)
    plain.wait_round(1, "collecting")
    body = member.contribution(1, 1.0)
    path = f"{plain.path}/rounds/1/contributions/{member.client_id}"
    limits = dict(
        part.split("=") for part in api.http.head(path, headers=member.auth).headers["upload-limit"].split(", ")
    )
    assert {limits["max-size"], limits["min-size"]} == {str(len(body))}
    assert int(limits["min-append-size"]) * 1001 >= len(body) and int(limits["max-age"]) > 0

    def patch(chunk: bytes, offset: int, *, last: bool = False, **more: str) -> httpx.Response:
        fields = {"Content-Type": stages.PARTIAL_UPLOAD, "Upload-Offset": str(offset)}
        fields |= {"Upload-Complete": "?1" if last else "?0", "Content-Digest": digest_field(chunk)}
        fields |= {"Repr-Digest": digest_field(body)} if last else {}
        headers = {**member.auth, **fields, **{name.replace("_", "-"): value for name, value in more.items()}}
        return api.http.patch(path, content=chunk, headers=headers)

    part = patch(body[:8], 0, Upload_Length=str(len(body)))
    assert (part.status_code, part.headers["upload-complete"], part.headers["upload-offset"]) == (204, "?0", "8")
    other = patch(body[8:], 8, last=True, Upload_Length=str(len(body) + 1))
    assert (other.status_code, other.json()["expected_bytes"]) == (400, len(body))
    assert other.json()["type"] == "https://iana.org/assignments/http-problem-types#inconsistent-upload-length"
    long = patch(body[8:] + b"more", 8)
    assert (long.status_code, "max-size" in long.headers["upload-limit"]) == (413, True)
    typed = patch(body[8:], 8, last=True, Content_Type="text/plain")
    assert (typed.status_code, typed.headers["accept-patch"]) == (415, "application/partial-upload")
    for status in (201, 200):
        done = patch(body[8:], 8, last=True)
        assert (done.status_code, done.headers["upload-complete"]) == (status, "?1")
    late = patch(b"x", 8)
    assert (late.status_code, late.headers["upload-complete"]) == (409, "?1")
    assert (late.json()["expected-offset"], late.json()["provided-offset"]) == (len(body), 8)
    asked = api.http.request("OPTIONS", path)
    assert (asked.status_code, asked.headers["accept-patch"]) == (405, "application/partial-upload")


def test_every_digest_in_json_has_one_form() -> None:
    (pattern,) = {base.HexDigest.__metadata__[0].metadata[0].pattern}
    found = {}
    for name, schema in DOCUMENT["components"]["schemas"].items():
        for field, entry in schema.get("properties", {}).items():
            if field.endswith("digest"):
                texts = entry.get("anyOf", [entry])
                found[name, field] = [one.get("pattern") for one in texts if one.get("type") == "string"]
    assert len(found) > 8
    assert all(patterns == [pattern] for patterns in found.values()), found
    assert re.fullmatch(pattern, hashlib.sha256().hexdigest())


@pytest.mark.parametrize("wait", ["31", "30.5", "99"])
def test_too_long_a_wait_is_refused(api: Api, wait: str) -> None:
    fast = api.create_task(f"wait-{wait.replace('.', '-')}", cohort=2)
    (member, _) = fast.enrol(2)
    fast.wait_round(1, "collecting")
    path = f"{fast.path}/rounds/current"
    cached = api.http.get(path, headers=member.auth)
    assert cached.status_code == 200
    for headers in (member.auth, {**member.auth, "If-None-Match": cached.headers["etag"]}, api.operator):
        answer = api.http.get(f"{path}?wait={wait}", headers=headers)
        assert (answer.status_code, slug(answer)) == (422, "invalid-parameters")


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/tasks", "GET, HEAD, POST"),
        ("/v1/tasks/t_1/rounds/1/contributions/c_1", "HEAD, PATCH, PUT"),
        ("/v1/tasks/t_1/revocations", "GET, HEAD, PUT"),
        ("/v1/tasks/t_1/close", "POST"),
        ("/healthz", "GET, HEAD"),
    ],
)
def test_allow_lists_every_method(api: Api, path: str, methods: str) -> None:
    answer = api.http.request("DELETE", path, headers=api.operator)
    assert (answer.status_code, answer.headers["allow"]) == (405, methods)


def test_unknown_query_parameters_are_refused(api: Api, task: TestTask) -> None:
    (member,) = task.enrol(1)
    for path in (f"{task.path}?verbose=1", f"{task.path}/rounds?limit=1&limit=2", f"{task.path}/rounds/current?wiat=5"):
        answer = api.http.get(path, headers=member.auth)
        assert (answer.status_code, slug(answer)) == (422, "invalid-parameters"), path
        assert answer.json()["errors"][0]["field"].startswith("query")
    assert api.http.get(f"{task.path}/rounds?limit=1&after=0", headers=member.auth).status_code == 200
    assert api.http.get("/healthz?x=1").status_code == 422
