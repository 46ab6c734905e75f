"""Tasks and invitations made in the dashboard."""

from __future__ import annotations

import html
import re
from typing import Any

import httpx
import pytest

from aggregator_service.dashboard.creation_forms import LONGEST_ITEMS_FILE
from aggregator_service.storage.directory import DirectoryBlobs
from protocols.advice import RECOMMENDED
from protocols.catalogue import Catalogue
from protocols.recipes.registry import OWN as RECIPES
from protocols.task_terms import carriers
from tests.support.api import Api, checked, signed_enrolment
from tests.support.dashboard import OURS, enter

pytestmark = pytest.mark.usefixtures("nobody")

GOOD = {"recipe": "colr", "mechanism": "plain", "name": "from-a-form", "recipe.items": "40"}

MASKED = {"mechanism": "masked", "schedule.cohort_size": "20", "schedule.min_clients": "15"}


def send(api: Api, place: str, **fields: str) -> httpx.Response:
    return api.http.post(f"/dashboard{place}", data={"form_token": enter(api), **fields}, headers=OURS)


def task_named(api: Api, name: str) -> dict[str, Any]:
    (task,) = api.http.get("/v1/tasks", params={"name": name}, headers=api.operator).json()["tasks"]
    return dict(task)


def refused(api: Api, answer: httpx.Response, words: str) -> str:
    """Check that the form of the task "not-made" is shown again with these words, and what was filled in; return it."""
    page = html.unescape(answer.text)
    assert answer.status_code == 422
    (shown,) = re.findall(r'role="alert".*?<span>(.*?)</span>', page)
    assert words.lower() in shown.lower()
    assert 'value="12"' in page
    assert api.http.get("/v1/tasks", params={"name": "not-made"}, headers=api.operator).json()["tasks"] == []
    return page


def test_a_task_has_what_the_form_says_and_recommended_values_otherwise(api: Api) -> None:
    more = {"schedule.rounds": "7", "recipe.rank": " 3 ", "evaluation.every": "2", "data_set": "films"}
    answer = send(api, "/new", **GOOD, **more, **{"schedule.sampling": ""})
    task = task_named(api, "from-a-form")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/dashboard/tasks/{task['task_id']}")
    assert task["recipe"] == {"name": "colr", "parameters": {**RECOMMENDED["colr"], "items": 40, "rank": 3}}
    schedule, evaluation = task["schedule"], task["evaluation"]
    assert (schedule["rounds"], schedule["sampling"], evaluation["every"]) == (7, "round-robin", 2)
    assert (task["data_set"], task["organiser"]) == ("films", None)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"recipe.items": ""}, "items: is required"),
        ({"recipe.itmes": "4"}, "itmes: unknown name"),
        ({"schedule.cohort_size": "2", "schedule.min_clients": "3"}, "min_clients is greater than cohort_size"),
        ({"name": "Two Words"}, "name: "),
        ({"organiser": "nonsense"}, "the organiser's public key is what hushrec organiser init printed"),
        ({"mechanism.set": "compact"}, "takes no parameters"),
        ({"evaluation.keep": "best"}, "evaluation: every: is required"),
        ({"privacy.epsilon": "0"}, "privacy: epsilon: must be greater than 0"),
        ({"privacy.epsilon": "0.05", **MASKED}, "raise epsilon or min_clients, or shrink the model"),
    ],
)
def test_a_wrong_value_is_named_and_the_others_are_kept(api: Api, fields: dict[str, str], words: str) -> None:
    refused(api, send(api, "/new", **{**GOOD, "name": "not-made", "schedule.rounds": "12", **fields}), words)


def test_a_privacy_block_has_defaults_and_a_panel_shows_what_is_spent(api: Api) -> None:
    given = {"privacy.epsilon": "4", "privacy.rounds": "5", "privacy.corrupt": "0.2"}
    answer = checked(send(api, "/new", **{**GOOD, **MASKED, "name": "noisy"}, **given), 303)
    block = task_named(api, "noisy")["privacy"]
    assert (block["epsilon"], block["delta"], block["rounds"], block["corrupt"]) == (4.0, 1e-5, 5, 0.2)
    assert "Epsilon spent" in api.http.get(answer.headers["location"]).text
    other = api.http.get(f"/dashboard/tasks/{api.create_task('not-noisy').id}").text
    assert "Epsilon spent" not in other
    assert 'id="privacy"' not in other


ITEMS = '\ufeffid,title\nSKU-1,Kettle\nü,"Pot, big"\n'


def with_file(api: Api, text: str | bytes, **fields: str) -> httpx.Response:
    body = text.encode() if isinstance(text, str) else text
    data = {"form_token": enter(api), **GOOD, "recipe.items": "", **fields}
    return api.http.post("/dashboard/new", data=data, files={"items_file": ("items.csv", body)}, headers=OURS)


def test_a_file_of_items_becomes_the_catalogue_of_the_task_and_an_empty_one_none(api: Api) -> None:
    checked(with_file(api, ITEMS, name="with-items"), 303)
    task = task_named(api, "with-items")
    catalogue = Catalogue(("SKU-1", "ü"), ("Kettle", "Pot, big"))
    assert task["catalogue_digest"] == catalogue.digest
    assert "catalogue" not in (task["waiting_for"] or "")
    assert task["recipe"]["parameters"]["items"] == 2
    stored = api.http.get(f"/v1/tasks/{task['task_id']}/catalogue", headers=api.operator)
    assert stored.content == catalogue.encode()
    data = {"form_token": enter(api), **GOOD, "name": "without-file"}
    checked(api.http.post("/dashboard/new", data=data, files={"items_file": ("", b"")}, headers=OURS), 303)
    assert "catalogue_digest" not in task_named(api, "without-file")


@pytest.mark.parametrize(
    ("text", "fields", "words"),
    [
        ("id,title\na,A\nb\n", {}, "items.csv, line 3: 1 fields; expected 2, as in the heading"),
        ("", {}, "items.csv has no items"),
        ("a\nb\n", {"recipe.items": "3"}, "items is 3, but the file has 2 items: leave items out"),
        ("a\nb\n", {"recipe": "arrays", "recipe.shapes": '{"w": [2]}'}, "leave the file of items out"),
        ("id,title\nA,Kettle\nA,Pot\n", {}, "items.csv, line 3: the id 'A' is on line 2 already"),
    ],
)
def test_the_form_shows_the_fault_of_a_file(api: Api, text: str | bytes, fields: dict[str, str], words: str) -> None:
    page = refused(api, with_file(api, text, **{"name": "not-made", "schedule.rounds": "12", **fields}), words)
    assert ("Choose the file again" in page) == ("recipe" not in fields)


def test_a_task_that_cannot_be_created_leaves_no_catalogue(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[str] = []
    delete = DirectoryBlobs.delete
    monkeypatch.setattr(DirectoryBlobs, "delete", lambda blobs, *keys: deleted.extend(keys) or delete(blobs, *keys))
    api.create_task("taken-with-items")
    assert "exists already" in with_file(api, ITEMS, name="taken-with-items").text
    (key,) = deleted
    assert key.startswith("catalogues/")


def test_only_operators_may_send_a_long_form(api: Api) -> None:
    long = "x" * 200_000
    api.http.cookies.clear()
    foreign = api.http.post("/dashboard/new", data=GOOD, files={"items_file": ("items", long.encode())}, headers=OURS)
    assert foreign.status_code == 303
    assert foreign.headers["location"].startswith("/dashboard/sign-in")
    many = "\n".join(f"SKU-{number}" for number in range(20_000))
    assert with_file(api, many, name="many").status_code == 303
    assert task_named(api, "many")["recipe"]["parameters"]["items"] == 20_000
    refused = checked(with_file(api, b"x" * (LONGEST_ITEMS_FILE + 1), name="longer"), 413)
    assert "longer than 16777216 bytes" in refused.text


def test_every_combination_has_a_form_without_hidden_required_fields(api: Api) -> None:
    enter(api)
    pairs = [*((one, sorted(carriers(one))[-1]) for one in RECIPES), *(("colr", one) for one in carriers("colr"))]
    for recipe, mechanism in pairs:
        page = api.http.get("/dashboard/new", params={"recipe": recipe, "mechanism": mechanism})
        assert page.status_code == 200, (recipe, mechanism)
        shown, *folded = page.text.split("<details")
        required = ["name", "recipe.shapes"] if recipe == "arrays" else ["name"]
        assert re.findall(r'name="([a-z_.]+)"[^>]* required', shown) == required, (recipe, mechanism)
        if recipe != "arrays":  # the number of items, or a file of them
            assert re.search(r'<input id="recipe.items" name="recipe.items".*?<input id="items_file"', shown, re.DOTALL)
            assert re.search(r'<form [^>]*enctype="multipart/form-data"', shown)
            assert re.search(r'<input id="items_file" name="items_file" type="file"', shown)
        assert not [part for part in folded if " required" in part.partition("</details>")[0]]
        assert mechanism != "plain" or 'name="privacy.epsilon"' not in page.text
        assert (recipe, mechanism) != ("colr", "masked") or 'name="privacy.epsilon"' in page.text


def test_combinations_that_do_not_exist_are_refused(api: Api) -> None:
    enter(api)
    for recipe, mechanism, words in (
        ("svd", "ckks", "&#39;svd&#39; cannot be combined with &#39;ckks&#39;"),
        ("scolr", "ckks", "only in masked rounds; choose one of: masked, plain"),
        ("nothing", "ckks", "from the lists"),
        ("colr", "", "from the lists"),
    ):
        page = checked(api.http.get("/dashboard/new", params={"recipe": recipe, "mechanism": mechanism}), 422)
        assert words in page.text
    forged = send(api, "/new", recipe="svd", mechanism="ckks")
    assert (forged.status_code, "cannot be combined" in forged.text) == (422, True)
    assert forged.headers["content-type"].startswith("text/html")


def test_an_invitation_is_shown_once_and_works(api: Api) -> None:
    task = api.create_task("inviting")
    answer = send(api, f"/tasks/{task.id}/invite", role="member", uses="2", hours="1.5")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    (invitation,) = re.findall(r"hri_[\w-]+", answer.text)
    assert "hushrec join http://test --invitation INVITATION" in answer.text
    assert api.http.post("/v1/enrolments", json=signed_enrolment(invitation)).status_code == 201
    (listed,) = api.http.get(f"{task.path}/invitations", headers=api.operator).json()["invitations"]
    assert (listed["role"], listed["uses"], listed["used"]) == ("member", 2, 1)
    assert 5000 < listed["expires_seconds"] <= 5400
    assert "hri_" not in api.http.get(f"/dashboard/tasks/{task.id}").text


def test_a_wrong_invitation_shows_the_form_again_and_a_closed_task_invites_nobody(api: Api) -> None:
    task = api.create_task("strict")
    for wrong in (
        *({"uses": uses} for uses in ("0", "x", "1.5")),
        *({"hours": hours} for hours in ("-1", "nan", "1e99")),
        {"role": "king"},
    ):
        answer = send(api, f"/tasks/{task.id}/invite", **{"role": "member", "uses": "1", "hours": "24", **wrong})
        assert answer.status_code == 422, wrong
        assert 'role="alert"' in answer.text
    assert api.http.get(f"{task.path}/invitations", headers=api.operator).json()["invitations"] == []
    task.close()
    assert send(api, f"/tasks/{task.id}/invite", role="member", uses="1", hours="1").status_code == 409
    assert api.http.get(f"/dashboard/tasks/{task.id}/invite").status_code == 409


def test_only_roles_that_the_task_has_are_offered(api: Api) -> None:
    enter(api)
    for mechanism, roles in (
        ("plain", ["member"]),
        ("ckks", ["member", "holder"]),
        ("oneshot", ["member", "committee"]),
    ):
        task = api.create_task(f"roles-{mechanism}", mechanism_name=mechanism, cohort=40, min_clients=20)
        page = api.http.get(f"/dashboard/tasks/{task.id}/invite").text
        assert re.findall(r'<option value="(\w+)"', page) == roles
