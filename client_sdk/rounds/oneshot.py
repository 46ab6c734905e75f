"""One client in one one-shot round: catch up, check the committee, train, and send one message.

Afterwards the client learns by polling whether the round is complete; nothing more is asked of it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.wire import Program, work
from client_sdk.errors import Conflict, NotFound, RoundLost
from client_sdk.history import History
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.rounds.events import Progress, RoundReport
from client_sdk.rounds.ledger import deliver
from client_sdk.rounds.member import Member, require_known_people
from client_sdk.rounds.part import OwnRound, Part
from client_sdk.store.committees import remember_committee
from protocols.crypto.certificates import CERTIFICATE_BYTES, CertifiedRole
from protocols.errors import CertificateError, CodecError, ParameterError, RefusalError
from protocols.messages import RoundView
from protocols.sums.oneshot.client import contribute
from protocols.sums.oneshot.committee import Committee, make_committee, split_keys
from protocols.sums.oneshot.plan import KEY_BYTES, SIGNATURE_BYTES, OneshotContext, OneshotPlan, encode
from protocols.sums.oneshot.wire import CommitteeKey, Statement

__all__ = [
    "committee_of",
    "is_certified",
    "oneshot_context",
    "take_oneshot_part",
]


def take_oneshot_part(part: Part, view: RoundView, history: History, progress: Progress | None) -> Program[RoundReport]:
    """Send this client's only message of the one-shot round `view`; return the report.

    Raises `PolicyRefused`, `Abstained`, `RefusalError` for a committee that the client does not accept, the errors of
    catching up and of the upload, and `ParameterError` when training diverges.
    """
    member, own = part.member, OwnRound(part, view, history, progress)
    require_known_people(member)
    member.policy.check_round(view)
    spec = part.spec(view)
    with own.timed("catch_up"):
        caught_up = yield from own.catch_up()
        part.require_data(spec, caught_up.state, history)
        context = oneshot_context(member.terms, view, part.model_digest(spec, caught_up.state))
        committee = yield from own.metered(committee_of(member, context))
        remember_committee(member.store, committee)
    with own.timed("train"):
        local = yield from part.train(spec, caught_up.state, history)
    with own.timed("seal"):
        upload = yield from work(lambda: _seal(part, committee, encode(context.plan, part.route(spec), local.blocks)))
    own.warn_of_clipping(local)
    with own.timed("upload"):
        yield from own.metered(deliver(member, view.number, upload))
    yield from own.settle(local)
    return own.report(caught_up, local, len(upload))


def _seal(part: Part, committee: Committee, steps: NDArray[np.int64]) -> bytes:
    member = part.member
    policy = member.policy.for_oneshot_rounds(member.terms.schedule)
    return contribute(committee, member.client_id, member.identity.signing_key, policy, steps).encode()


# --- fetching the committee of a one-shot round and checking it ------------------------------------------------------

_LENGTH_BYTES: Final = 2
_LONGEST_KEY: Final = 1 + 64 + 3 * KEY_BYTES + CERTIFICATE_BYTES + SIGNATURE_BYTES
"""Longest encoded key of a member, in bytes."""


def oneshot_context(terms: TaskTerms, view: RoundView, model_digest: bytes) -> OneshotContext:
    """Return the facts of round `view` that everything sent in it is bound to, from this party's own terms.

    model_digest: of the terms and the model, 32 bytes. Raises `ContractBroken` for a round that contradicts the terms,
    `RefusalError` for a number of clients that the task does not allow, `ParameterError` for another mechanism.
    """
    spec = terms.round_spec(view)
    plan = OneshotPlan.of(terms.sum_plan_at(spec.sum_index))
    try:
        return OneshotContext(terms.task_id, view.number, spec.sum_index, plan, model_digest, view.cohort)
    except ParameterError as error:
        raise RefusalError(str(error)) from error


def committee_of(member: Member, context: OneshotContext) -> Program[Committee]:
    """Fetch and check the committee of a round; see `make_committee` for the checks.

    Raises `RefusalError` for a committee that cannot be accepted, and `RoundLost` when the round is over.
    """
    size, number = context.plan.committee, context.round_number
    longest = size * (_LENGTH_BYTES + _LONGEST_KEY)
    try:
        body = yield from member.calls.stage_body(context.task_id, number, "committee", longest)
        keys = split_keys(body)
    except (NotFound, Conflict) as error:
        raise RoundLost(f"the committee of round {number} cannot be fetched: {error}") from error
    except CodecError as error:
        raise RefusalError(f"the server returned no valid committee for round {number}: {error}") from error
    return (
        yield from work(lambda: make_committee(context, keys, lambda key: is_certified(member.check, key, "committee")))
    )


def is_certified(check: MembershipCheck, keys: CommitteeKey | Statement, role: CertifiedRole) -> bool:
    """Return whether the organiser certified these keys for `role`; always True in tasks without an organiser."""
    try:
        check.require(keys.identity_key, keys.mailbox_key, keys.certificate, (role,))
    except (CertificateError, CodecError):
        return False
    return True
