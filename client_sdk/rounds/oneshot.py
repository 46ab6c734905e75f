"""One client in one one-shot round: catch up, check the committee, train, and send one message.

Afterwards the client learns by polling whether the round is complete; nothing more is asked of it.
"""

from __future__ import annotations

from time import perf_counter
from typing import Final

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Program, Traffic, through, work
from client_sdk.errors import Conflict, NotFound, PolicyRefused, RoundLost
from client_sdk.history import History
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.rounds.checks import own_digest
from client_sdk.rounds.events import ClipWarning, Progress, RoundReport
from client_sdk.rounds.ledger import deliver
from client_sdk.rounds.member import LocalWork
from client_sdk.store.committees import remember_committee
from protocols.crypto.certificates import CERTIFICATE_BYTES, CertifiedRole
from protocols.errors import CertificateError, CodecError, ParameterError, RefusalError
from protocols.messages import RoundView
from protocols.sums.oneshot.client import contribute
from protocols.sums.oneshot.committee import Committee, make_committee
from protocols.sums.oneshot.context import OneshotContext
from protocols.sums.oneshot.handouts import split_keys
from protocols.sums.oneshot.messages import CommitteeKey, Statement
from protocols.sums.oneshot.plan import KEY_BYTES, SIGNATURE_BYTES, OneshotPlan, encode

__all__ = [
    "committee_of",
    "is_certified",
    "oneshot_context",
    "require_known_people",
    "take_oneshot_part",
]


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


# --- fetching the committee of a one-shot round and checking it ------------------------------------------------------

_LENGTH_BYTES: Final = 2
_LONGEST_KEY: Final = 1 + 64 + 3 * KEY_BYTES + CERTIFICATE_BYTES + SIGNATURE_BYTES
"""Longest encoded key of a member, in bytes."""


def require_known_people(membership_check: MembershipCheck, policy: Policy) -> None:
    """Raise `PolicyRefused` if only the server says who takes part, and the policy does not trust it with that."""
    if membership_check.pin is None and not policy.trust_roster:
        raise PolicyRefused(
            "the task has no organiser, so only the server says who the clients and the committee are; allow it with "
            "--trust-roster, or Policy(trust_roster=True), or ask for a task with an organiser and join with its "
            "certificate (--issuer, or certificate=...)"
        )


def oneshot_context(terms: TaskTerms, view: RoundView, model_digest: bytes) -> OneshotContext:
    """Return the facts of round `view` that everything sent in it is bound to, from this party's own terms.

    model_digest: of the terms and the model, 32 bytes. Raises `ContractBroken` for a round that contradicts the terms,
    `RefusalError` for a number of clients that the task does not allow, `ParameterError` for another mechanism.
    """
    spec = terms.round_spec(view)
    plan = terms.sum_plan_at(spec.sum_index)
    if not isinstance(plan, OneshotPlan):
        raise ParameterError(f"task {terms.name!r} uses the mechanism {terms.mechanism.name!r}, not one-shot sums")
    try:
        return OneshotContext(terms.task_id, view.number, spec.sum_index, plan, model_digest, view.cohort)
    except ParameterError as error:
        raise RefusalError(str(error)) from error


def committee_of(calls: ApiCalls, context: OneshotContext, membership_check: MembershipCheck) -> Program[Committee]:
    """Fetch and check the committee of a round; see `make_committee` for the checks.

    Raises `RefusalError` for a committee that cannot be accepted, and `RoundLost` when the round is over.
    """
    size, number = context.plan.committee, context.round_number
    longest = size * (_LENGTH_BYTES + _LONGEST_KEY)
    try:
        body = yield from calls.stage_body(context.task_id, number, "committee", longest)
        keys = split_keys(body)
    except (NotFound, Conflict) as error:
        raise RoundLost(f"the committee of round {number} cannot be fetched: {error}") from error
    except CodecError as error:
        raise RefusalError(f"the server returned no valid committee for round {number}: {error}") from error
    return (
        yield from work(
            lambda: make_committee(context, keys, lambda key: is_certified(membership_check, key, "committee"))
        )
    )


def is_certified(membership_check: MembershipCheck, keys: CommitteeKey | Statement, role: CertifiedRole) -> bool:
    """Return whether the organiser certified these keys for `role`; always True in tasks without an organiser."""
    try:
        membership_check.require(keys.identity_key, keys.mailbox_key, keys.certificate, (role,))
    except (CertificateError, CodecError):
        return False
    return True
