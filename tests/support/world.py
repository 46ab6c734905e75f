"""The round engine without HTTP: database, blobs, a manual clock, contributions stored directly, rows made up."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.access.audit_trail import Actor
from aggregator_service.compute.workers import FoldPool
from aggregator_service.migrations.migrate import migrate
from aggregator_service.rounds.engine import RoundEngine
from aggregator_service.storage.blobs import BlobStore, new_key, tag_of
from aggregator_service.storage.database import Database
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.round_rows import cohort_clients, last_round, list_rounds
from aggregator_service.storage.schema import ClientRow, ContributionRow, RoundRow, TaskRow
from aggregator_service.storage.stores import delete_orphans
from aggregator_service.tasks.plans import plan_round, round_spec
from aggregator_service.tasks.task_views import create_task, plan_request, task_view
from protocols.layout import REPEATED_ROWS, VectorLayout
from protocols.messages import TaskRequest, TaskView
from protocols.recipes.rows import FactorModel
from tests.support.clock import ManualClock
from tests.support.server import empty_database


def sum_again(monkeypatch: pytest.MonkeyPatch, recipe: type[FactorModel]) -> None:
    """Let every sum of `recipe` that trains count as one over the same rows; also where a plan has kept the recipe."""

    def changes(self: FactorModel) -> VectorLayout:
        return replace(self.change_layout(), sum_class=REPEATED_ROWS)

    monkeypatch.setattr(recipe, "changes", property(changes))


def an_operator(at: float = 0.0) -> Actor:
    """Who acts in tests of what stands below the routes."""
    return Actor("tester", "api", "192.0.2.1", at)


SECONDS = 100.0
"""Deadline of a round."""


def request_json(
    name: str,
    recipe: str,
    parameters: Mapping[str, object],
    mechanism: str = "plain",
    mechanism_parameters: Mapping[str, object] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """The JSON of a request for a task. changes: fields of the request, and of its schedule."""
    own = {field: changes.pop(field) for field in TaskRequest.model_fields.keys() & changes.keys()}
    return {
        "name": name,
        "recipe": {"name": recipe, "parameters": parameters},
        "mechanism": {"name": mechanism, "parameters": mechanism_parameters or {}},
        **own,
        "schedule": {"min_clients": 2, **changes},
    }


class World:
    """Database, blobs, clock and engine."""

    def __init__(
        self, root: Path, batch: int = 3, *, database_url: str | None = None, blobs: BlobStore | None = None
    ) -> None:
        """database, blobs: by default SQLite and a directory, both in `root`."""
        if database_url is None:
            (root / "test.db").write_bytes(empty_database())
        self.database = Database(database_url or f"sqlite:///{root / 'test.db'}", connections=4)
        if database_url is not None:
            migrate(self.database)
        self.blobs = blobs or DirectoryBlobs(root / "blobs")
        self.blobs.prepare()
        self.database.listeners.append(lambda effects: delete_orphans(effects, self.blobs))
        self.clock = ManualClock()
        self.executor = ThreadPoolExecutor(1)
        pool = FoldPool(1, self.executor)
        self.engine = RoundEngine(
            self.database,
            self.blobs,
            self.clock,
            pool,
            may_act=lambda: True,
            works=lambda: True,
            batch=batch,
            recheck=1.0,
        )
        self.uploads = root / "uploads"

    def task(
        self,
        members: int | Mapping[str, tuple[bytes, int]],
        name: str = "engine",
        recipe: tuple[str, Mapping[str, object]] = ("fedmf", {"items": 2, "dim": 2, "clip": 5000.0, "row_clip": 1e6}),
        mechanism: str = "plain",
        **changes: Any,
    ) -> str:
        """Create a task, by default a plain one, with so many members or those of `task_of`; return its id.

        changes: of the request, and of its schedule.
        """
        schedule = {"cohort_size": 4, "collect_seconds": SECONDS, **changes}
        request = request_json(name, *recipe, mechanism, **schedule)
        if isinstance(members, int):
            members = {f"c_{index:02}": (bytes([index] * 32), (index * 7) % 11) for index in range(members)}
        return self.task_of(TaskRequest.model_validate(request), members)

    def task_of(self, request: TaskRequest, members: Mapping[str, tuple[bytes, int]]) -> str:
        """Create a task whose members have these ids, identity keys and places in turn; return its id.

        An id that begins with a dot follows the task's.
        """
        with self.database.write() as session:
            task = create_task(session, request, plan_request(request), an_operator(self.clock.now()))
            for sequence, (client_id, (identity_key, turn)) in enumerate(members.items(), start=1):
                session.add(
                    client_row(
                        f"{task.id}{client_id}" if client_id.startswith(".") else client_id,
                        task.id,
                        sequence=sequence,
                        identity_key=identity_key,
                        turn=turn,
                    )
                )
            return task.id

    def store(self, session: Session, round_: RoundRow, client: str, body: bytes, tag: bytes | None = None) -> None:
        """Store a contribution of a client. tag: another one than that of `body`."""
        key = new_key("contributions", round_.task_id, round_.number, client)
        session.add(
            ContributionRow(
                round_id=round_.id,
                client_id=client,
                digest=self.blobs.put(key, body),
                bytes=len(body),
                stored_at=self.clock.now(),
                blob_key=key,
                tag=tag_of(body) if tag is None else tag,
            )
        )

    def contribute(
        self, task_id: str, *clients: str, vector: Callable[[int], NDArray[np.float64]] | None = None
    ) -> None:
        """Store a contribution for each client: `vector` of the number in its id; by default 2^(number mod 16)."""
        round_ = self.round(task_id)
        with self.database.write() as session:
            plan = plan_round(session.get_one(TaskRow, task_id), round_)
            for client in clients:
                route, number = plan.recipe.route(round_spec(round_), client), int(re.split("[._]", client)[-1])
                (block,) = plan.sum_plan.layout.contribution_blocks(route)
                usual = np.where(block.integral_mask(), 1.0, 2.0 ** (number % 16))
                values = usual if vector is None else vector(number)
                body = plan.mechanism.seal(plan.sum_plan, route, [values], None)
                tag = tag_of(body) if number % 2 else None  # None: stored before there were tags
                self.store(session, round_, client, body, tag)

    def run(self, task_id: str) -> float | None:
        """Execute actions until none is due; return the last result of the engine."""

        async def steps() -> float | None:
            for _ in range(50):
                pause = await self.engine.advance(task_id)
                if pause is None or pause > 0:
                    return pause
            raise AssertionError("the engine does not come to rest")

        return asyncio.run(steps())

    def round(self, task_id: str) -> RoundRow:
        """The newest round."""
        with self.database.read() as session:
            found = last_round(session, task_id)
            assert found is not None
            return found

    def row(self, task_id: str) -> TaskRow:
        with self.database.read() as session:
            return session.get_one(TaskRow, task_id)

    def view(self, task_id: str) -> TaskView:
        with self.database.read() as session:
            return task_view(session, session.get_one(TaskRow, task_id))

    def rounds(self, task_id: str, state: str | None = None) -> list[RoundRow]:
        """All rounds (in a state), in order."""
        with self.database.read() as session:
            return list_rounds(session, task_id, 0, 1000, state)

    def left(self) -> set[str]:
        """The ids of the clients that are in no sum over their data any more."""
        with self.database.read() as session:
            return set(session.scalars(select(ClientRow.id).where(ClientRow.left_data_in.is_not(None))))

    def cohort(self, task_id: str) -> list[str]:
        with self.database.read() as session:
            return cohort_clients(session, self.round(task_id).id)

    def state(self, task_id: str) -> str:
        return self.row(task_id).state

    def total(self, task_id: str, number: int) -> NDArray[np.float64]:
        """The sum that a round released."""
        (row,) = [row for row in self.rounds(task_id) if row.number == number]
        plan = plan_round(self.row(task_id), row)
        assert row.aggregate_key is not None and row.aggregate_digest is not None
        body = bytes(self.blobs.view(row.aggregate_key, row.aggregate_digest))
        return plan.mechanism.open(plan.sum_plan, body, row.survivors, None)

    def close(self) -> None:
        self.executor.shutdown()
        self.database.close()


def task_row(task_id: str = "t_1", **values: Any) -> TaskRow:
    """An open plain task."""
    ordinary: dict[str, Any] = {
        "name": task_id.replace("_", "-"),
        "state": "open",
        "recipe_name": "fedmf",
        "recipe_parameters": {},
        "mechanism_name": "plain",
        "mechanism_parameters": {},
        "schedule": {},
        "seed": bytes(32),
        "opened_by": "anyone",
        "needs_keyring": False,
        "repeatable": False,
        "created_at": 0.0,
        "completed_rounds": 0,
        "version": 0,
    }
    return TaskRow(id=task_id, **(ordinary | values))


def client_row(client_id: str, task_id: str = "t_1", **values: Any) -> ClientRow:
    """A member with keys and token derived from its id."""
    own = hashlib.sha256(client_id.encode())
    ordinary: dict[str, Any] = {
        "sequence": int.from_bytes(own.digest()[:3], "big"),
        "role": "member",
        "identity_key": own.digest(),
        "mailbox_key": bytes(32),
        "token_hash": own.hexdigest(),
        "enrolled_at": 0.0,
        "turn": 0,
    }
    return ClientRow(id=client_id, task_id=task_id, **(ordinary | values))


def round_row(task_id: str = "t_1", **values: Any) -> RoundRow:
    """A collecting round."""
    ordinary: dict[str, Any] = {
        "number": 1,
        "sum_index": 1,
        "sum_rule": "trained",
        "state": "collecting",
        "seed": bytes(32),
        "opened_at": 0.0,
        "deadline": 2e9,
        "cohort": 2,
    }
    return RoundRow(task_id=task_id, **(ordinary | values))
