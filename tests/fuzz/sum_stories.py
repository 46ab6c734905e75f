"""Stories of one-shot rounds and of federated evaluation."""

from __future__ import annotations

import numpy as np

from protocols.layout import whole_route
from protocols.messages.rounds import Evaluation
from protocols.recipes.evaluated import with_evaluation
from protocols.sums.plain import PLAIN
from tests.fuzz.steps import Story, get
from tests.fuzz.world import World
from tests.support.api import TestTask
from tests.support.oneshot import enrol_clients, enrol_committee, oneshot_task, publish_keys

__all__ = ["evaluated", "oneshot"]


def oneshot(world: World, name: str = "oneshot") -> Story:
    """A one-shot round: the committee names a client whose share does not open, confirms the others, and unmasks."""
    task = oneshot_task(world.api, name, 5, rounds=2)
    yield
    members = enrol_committee(task, 5)
    yield
    publish_keys(members, 1)
    assert members[0].publish(1).status_code == 200
    yield
    clients = enrol_clients(task, 5)
    get(world, f"{task.path}/committee", clients[0].auth)
    yield
    task.wait_round(1, "collecting")
    answer = get(world, f"{task.path}/rounds/1/committee", clients[0].auth)
    yield
    known = {**clients[0].auth, "If-None-Match": answer.headers["etag"]}
    get(world, f"{task.path}/rounds/1/committee", known, 304)
    for one in clients[:-1]:
        assert one.take(1).status_code == 201
        yield
    upload = clients[-1].make(1)
    cheat = clients[-1].resigned(1, upload, sealed={0: bytes(len(upload.ticket.sealed[0]))})
    assert clients[-1].send(1, cheat.encode()).status_code == 201
    task.wait_round(1, "confirming")
    yield
    (finder, bad), *_ = [(one, bad) for one in members if (bad := one.inspect(1).bad)]  # places are in order of ids
    named = finder.name_bad(1, bad)
    assert named.status_code == 200, named.text
    yield
    others = [one for one in members if one is not finder]  # they can open all shares, so the set stays
    for one in others:
        assert one.confirm(1).status_code == 201
        yield
    task.wait_round(1, "unmasking")
    for one in others:
        assert one.unmask(1).status_code == 201
        yield
    task.wait_round(1, "complete")
    yield


def evaluated(world: World, name: str = "evaluated") -> Story:
    """A plain task with federated evaluation: the model after round 1 is better than the first and the last one."""
    evaluation = Evaluation(every=1, keep="best")
    task = world.api.create_task(
        name, cohort=2, rounds=3, collect_seconds=3600, clip=1.0, evaluation=evaluation.model_dump()
    )
    yield
    members = task.enrol(2)
    for number, quality in enumerate((0.1, 0.9, 0.5), 1):
        task.wait_round(number, "collecting")
        body = _measured(task, number, evaluation, quality)
        for member in members:
            assert member.put(number, body).status_code == 201
            yield
        task.wait_round(number, "complete")
    get(world, f"{task.path}/snapshots/best", members[0].auth)
    yield


def _measured(task: TestTask, number: int, evaluation: Evaluation, quality: float) -> bytes:
    """A contribution without change whose metrics are all `quality`."""
    layout = with_evaluation(task.recipe, evaluation, 3).layout(number)
    (block,) = layout.blocks
    vector, start = np.zeros(block.length), 0
    for segment in block.segments:
        vector[start : start + segment.length] = {"evaluated": 1.0, "measured": quality}.get(segment.name, 0.0)
        start += segment.length
    return PLAIN.seal(PLAIN.plan({}, layout, 2), whole_route(layout), [vector], None)
