"""One client in one one-shot round: catch up, check the committee, train, and send one message.

Afterwards the client learns by polling whether the round is complete; nothing more is asked of it.
"""

from __future__ import annotations

from time import perf_counter

from client_sdk.api.effects import Program, Traffic, through, work
from client_sdk.history import History
from client_sdk.local_state.seen_committees import remember_committee
from client_sdk.participation.committee_keys import committee_of, oneshot_context, require_known_people
from client_sdk.participation.events import ClipWarning, Progress, RoundReport
from client_sdk.participation.ledger import deliver
from client_sdk.participation.local_work import LocalWork
from client_sdk.participation.model_binding import own_digest
from protocols.messages import RoundView
from protocols.sums.oneshot.client import contribute
from protocols.sums.oneshot.plan import encode

__all__ = ["take_oneshot_part"]


def take_oneshot_part(
    client: LocalWork, view: RoundView, history: History, progress: Progress | None
) -> Program[RoundReport]:
    """Send this client's only message of the one-shot round `view`; return the report.

    Raises `PolicyRefused`, `Abstained`, `RefusalError` for a committee that the client does not accept, the errors of
    catching up and of the upload, and `ParameterError` when training diverges.
    """
    require_known_people(client.membership_check, client.policy)
    client.policy.check_round(view)
    spec, traffic, started = client.spec(view), Traffic(), perf_counter()
    caught_up = yield from through(client.follower.follow(view.number - 1, snapshot_wait=60.0), traffic)
    client.require_data(spec, caught_up.state, history)
    context = oneshot_context(client.terms, view, own_digest(client.terms, spec, caught_up.state))
    committee = yield from through(committee_of(client.calls, context, client.membership_check), traffic)
    remember_committee(client.client_store, committee)
    current = perf_counter()
    local = yield from work(lambda: client.train(spec, client.follower.view(caught_up.state), history))
    trained = perf_counter()
    client_id = client.membership.client_id
    route = client.terms.recipe.route(spec, client_id)
    policy = client.policy.for_oneshot_rounds(client.terms.schedule)
    steps = encode(context.plan, route, local.blocks)
    upload = yield from work(
        lambda: contribute(committee, client_id, client.identity.signing_key, policy, steps).encode()
    )
    sealed = perf_counter()
    if progress and client.policy.too_much_clipped(local.clipped, local.values):
        progress(ClipWarning(view.number, local.clipped, local.values))
    task_id = client.terms.task_id
    yield from through(deliver(client.calls, client.client_store, task_id, view.number, client_id, upload), traffic)
    uploaded = perf_counter()
    finish_seconds = yield from client.settle(local)
    return RoundReport(
        round=view.number,
        client_id=client_id,
        loss=local.loss,
        samples=local.samples,
        values=local.values,
        clipped=local.clipped,
        scaled=local.scaled,
        contribution_bytes=len(upload),
        bytes_up=traffic.up,
        bytes_down=traffic.down,
        bytes_spared=caught_up.bytes_spared,
        catch_up_seconds=current - started,
        train_seconds=trained - current + finish_seconds,
        seal_seconds=sealed - trained,
        upload_seconds=uploaded - sealed,
        caught_up=caught_up.plan.kind,
    )
