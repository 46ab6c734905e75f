"""A task with a fleet whose clients, key holder and committee are enrolled: where a demo and every benchmark begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.lab.local_server import DemoServer
from client_sdk.operator import Operator
from client_sdk.organiser import TrialOrganiser
from client_sdk.rounds.member import CertificateSource
from protocols.crypto.certificates import CertifiedRole
from protocols.messages import TaskRequest, TaskView
from protocols.sums.registry import mechanism as registered_mechanism

Stage = Callable[[str], None]
"""Is called with what is being done, in words."""


@contextmanager
def enrolled_fleet(
    server: DemoServer,
    request: TaskRequest,
    interactions: Sequence[object],
    options: FleetOptions,
    organiser: TrialOrganiser | None,
    stage: Stage = lambda _: None,
    asks_operator: bool = False,
) -> Iterator[tuple[Operator, Fleet, TaskView]]:
    """Create a task and a fleet with one client for each of `interactions`, and enrol it.

    organiser: that of the request; None for a task without. asks_operator: whether the cohort of a round is asked from
    the operator, once, in place of each client asking for itself.
    """
    with Operator(server.url, server.operator_token) as operator:
        task = operator.create_task(request)
        if asks_operator:
            options = replace(options, cohort=partial(operator.cohort, task.task_id))
        with Fleet(server.url, interactions, options) as fleet:
            certificates = None if organiser is None else organiser.source
            enrol(operator, fleet, task.task_id, len(interactions), request.mechanism.name, certificates, stage)
            yield operator, fleet, task


def enrol(
    operator: Operator,
    fleet: Fleet,
    task_id: str,
    clients: int,
    mechanism: str,
    certificates: Callable[[CertifiedRole], CertificateSource] | None,
    stage: Stage = lambda _: None,
) -> None:
    """Invite and enrol the `clients` of `fleet`, and the committee or the key holder that the mechanism needs."""

    def report(what: str) -> Callable[[int], None]:
        return lambda done: stage(f"{what} {done} of {clients} clients")

    keyed = registered_mechanism(mechanism).needs_keyring
    members = operator.invite(task_id, clients).invitation
    holder = operator.invite(task_id, 1, "holder").invitation if keyed else None
    stage(f"enrolling {clients} clients")
    fleet.enrol(members, holder, certificates, report("enrolling"))
    size = fleet.clients[0].member.terms.sum_plan.committee
    if size:
        fleet.enrol_committee(operator.invite(task_id, size, "committee").invitation, certificates)
    if keyed:
        fleet.give_keys(report("sealing the keys to"))
