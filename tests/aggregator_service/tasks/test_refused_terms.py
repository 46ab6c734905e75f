"""A stored task whose terms an earlier version allowed: it is listed with the reason, and fails at its next round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.tasks import list_tasks, task_view
from tests.support.world import World


@pytest.mark.parametrize(
    ("recipe", "changes", "reason"),
    [
        ("fedmf", {"item_bias": "counts", "count_sums": 5}, "set count_sums to 1"),
    ],
)
def test_a_task_of_an_earlier_version_opens_no_further_round(
    tmp_path: Path, recipe: str, changes: dict[str, Any], reason: str
) -> None:
    world = World(tmp_path)
    try:
        task_id = world.task(members=4)
        with world.database.write() as session:
            task = session.get_one(TaskRow, task_id)
            task.recipe_name, task.mechanism_name = recipe, "masked"
            task.recipe_parameters = {**task.recipe_parameters, **changes}
        with world.database.read() as session:
            (view,) = (task_view(session, task) for task in list_tasks(session))
        assert len(view.warnings) == 1 and reason in view.warnings[0]
        world.run(task_id)
        with world.database.read() as session:
            task = session.get_one(TaskRow, task_id)
            assert (task.state, task_view(session, task).completed_rounds) == ("failed", 0)
    finally:
        world.close()
