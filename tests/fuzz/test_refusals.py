"""A caller without the permission changes nothing, however well-formed its request is."""

from __future__ import annotations

import json
import re

import pytest

from tests.fuzz.judge import OPERATIONS
from tests.fuzz.test_json import bodies
from tests.fuzz.world import NOBODY, Principal, World
from tests.support.api import digest_field
from tests.support.promises import CALLERS, promised

PROMISED = promised()


@pytest.fixture(scope="module")
def callers(world: World) -> dict[str, Principal]:
    """Return one caller of each kind; the clients are members of one task, the committee of one of its own."""
    for role in ("read-only", "operator"):
        made = world.api.http.post("/v1/operators", json={"name": role, "role": role}, headers=world.api.operator)
        assert made.status_code == 201
    holder = world.of_kind("holder")[0]
    member = next(one for one in world.of_kind("member") if one.known.task == holder.known.task)
    made = {kind: world.of_kind(kind)[0] for kind in ("read-only", "operator", "admin")}
    return {"nobody": NOBODY, "holder": holder, "member": member, "committee": world.of_kind("committee")[0], **made}


def test_nobody_changes_anything_that_is_not_theirs_to_change(world: World, callers: dict[str, Principal]) -> None:
    known = {
        "number": "1",
        "stage": "advertise",
        "name": "read-only",
        "invitation": "i_0",
    }
    good = {re.sub(r"t_[0-9a-f]+", "{task}", path): body for path, body in bodies(world).items()}
    before, tried = world.rows.strict(), 0
    for method, template in OPERATIONS:
        for kind in CALLERS:
            if kind in PROMISED[method, template]:
                continue
            own = callers[kind if kind == "committee" else "member"].known
            names = known | {"task": own.task, "client": own.client}
            path = re.sub(r"\{(\w+)\}", lambda found: str(names[found.group(1)]), template)  # noqa: B023
            body = json.dumps(good.get(template, {})).encode() if method == "POST" else b"sealed"
            headers = {**callers[kind].auth, "Content-Type": "application/json"}
            if method in ("PUT", "PATCH"):
                headers |= {"Content-Digest": digest_field(body), "Content-Type": "application/partial-upload"}
                headers |= {"Upload-Offset": "0", "Upload-Complete": "?0"}
            content = body if method in ("POST", "PUT", "PATCH") else None
            answer = world.api.http.request(method, path, content=content, headers=headers)
            assert answer.status_code == (401 if kind == "nobody" else 403), (kind, method, path, answer.text)
            tried += 1
    assert tried > 50
    assert world.rows.strict() == before
    assert not list((world.server.data_dir / "uploads").glob("body*")), "a body that nobody may send is kept"
