"""A client in a masked round: one state a stage, each good for one step. Done has no steps.

    advertise -> Advertised -> share -> Shared -> contribute -> Contributed
        semi-malicious: -> confirm -> Confirmed -> unmask -> Done         curious: -> unmask_unconfirmed -> Done

Every check is made here, whatever the server says (after fcp/secagg of google-parfait/federated-compute). A step that
raises ends the round for this client: `RefusalError` when the server breaks a rule or the client's policy,
`ThresholdError` when too few neighbours are there, `CodecError` for bytes of another form. A state is spent by the
first try, failed or not, and cannot be copied or pickled: so no mask is used for two vectors, and no second unmask
request is answered. What a step returned is what is sent again when the network loses it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.domain import SEED_BYTES
from protocols.errors import ParameterError, RefusalError, ThresholdError
from protocols.sums.base import Buffer
from protocols.sums.masked import messages
from protocols.sums.masked.context import RoundContext
from protocols.sums.masked.key_agreement import (
    clamped,
    mask_context,
    pair_mask_key,
    sign_advertisement,
    sign_survivors,
    verify_advertisement,
    verify_survivors,
)
from protocols.sums.masked.masks import Mask, add_masks
from protocols.sums.masked.messages import KEY_BYTES
from protocols.sums.masked.packing import pack
from protocols.sums.masked.policy import ClientPolicy
from protocols.sums.masked.roster import Roster, RosterEntry, open_roster
from protocols.sums.masked.shamir import Randomness
from protocols.sums.masked.shares import SharePair, open_pair, seal_pair, split_secrets

__all__ = [
    "Advertised",
    "Confirmed",
    "Contributed",
    "Done",
    "Shared",
    "IsMember",
    "advertise",
    "confirm",
    "contribute",
    "share",
    "unmask",
    "unmask_unconfirmed",
]

IsMember = Callable[[RosterEntry], bool]
"""Whether a member's identity key is what it should be: `check_membership` with the secret, or pinned keys."""


class _Once:
    """Taken once."""

    def __init__(self) -> None:
        self._left = [True]

    def take(self) -> None:
        try:
            self._left.pop()  # one atomic step, so that of two threads one is refused
        except IndexError:
            raise RefusalError("this state was used: a client takes each step of a round once") from None

    def __reduce__(self) -> NoReturn:
        raise TypeError("the state of a masked round is never copied, pickled or stored")


@dataclass(frozen=True, repr=False, eq=False)
class _State:
    """What all states hold. Nothing of it is shown."""

    context: RoundContext
    policy: ClientPolicy
    identity: Ed25519PrivateKey
    _once: _Once = field(default_factory=_Once, init=False)


@dataclass(frozen=True, repr=False, eq=False)
class Advertised(_State):
    """Keys were made up and advertised; waits for the roster."""

    client_id: str
    mask_secret: X25519PrivateKey
    sealing_secret: X25519PrivateKey
    seed: bytes
    advertisement: bytes


@dataclass(frozen=True, repr=False, eq=False)
class Shared(_State):
    """Secrets were shared among the neighbours; waits for their shares."""

    roster: Roster
    index: int
    mask_secret: X25519PrivateKey
    sealing_secret: X25519PrivateKey
    seed: bytes


@dataclass(frozen=True, repr=False, eq=False)
class Contributed(_State):
    """The masked vector is made, its secrets are gone from here; waits for the survivors.

    pairs: by neighbour that shared, the shares this client holds of it (none for one whose sealed shares did not open).
    """

    roster: Roster
    index: int
    sharers: bytes
    pairs: dict[int, SharePair]


@dataclass(frozen=True, repr=False, eq=False)
class Confirmed(_State):
    """One set of survivors is signed; waits for the neighbours' signatures of the same."""

    roster: Roster
    index: int
    sharers: bytes
    pairs: dict[int, SharePair]
    survivors: bytes


@dataclass(frozen=True)
class Done:
    """The one unmask request of the round is answered. There is nothing more to do, and nothing left to give away."""


def advertise(
    context: RoundContext,
    client_id: str,
    identity: Ed25519PrivateKey,
    policy: ClientPolicy,
    random: Randomness = os.urandom,
) -> tuple[Advertised, bytes]:
    """Fresh keys for this round, and their advertisement of 160 bytes. `RefusalError` for a round below policy."""
    policy.check_ring(context.plan.bits, context.plan.mode)
    policy.check_cohort(context.cohort, "the round asks")
    mask_secret = X25519PrivateKey.from_private_bytes(clamped(random(KEY_BYTES)))
    sealing_secret, seed = X25519PrivateKey.from_private_bytes(random(KEY_BYTES)), random(SEED_BYTES)
    keys = (mask_secret.public_key().public_bytes_raw(), sealing_secret.public_key().public_bytes_raw())
    body = sign_advertisement(identity, context, client_id, *keys, seed).encode()
    return Advertised(context, policy, identity, client_id, mask_secret, sealing_secret, seed, body), body


def share(
    state: Advertised, roster_body: Buffer, is_member: IsMember, random: Randomness = os.urandom
) -> tuple[Shared, bytes]:
    """Shares of both secrets, sealed for each neighbour: `share_bytes(k)` bytes.

    Refused: a roster in which this client does not stand exactly once with exactly its keys, that is below policy, has
    a member whom nobody vouches for, or a neighbour who did not sign its keys for this very round and model.
    """
    state._once.take()
    roster = open_roster(state.context, roster_body)
    index = _own_place(state, roster)
    state.policy.check_cohort(len(roster), "the roster has")
    state.policy.check_neighbourhood(roster.neighbourhood)
    for place, entry in enumerate(roster.entries):
        if place != index and not is_member(entry):
            raise RefusalError(f"nobody vouches for member {place} of the roster: no such identity is known here")
    neighbours = roster.neighbours_of(index)
    for place in neighbours:
        _check_signature(roster, place)
    pairs = split_secrets(state.seed, state.mask_secret.private_bytes_raw(), roster.threshold, neighbours, random)
    slots = [
        seal_pair(pair, state.sealing_secret, roster, index, place)
        for pair, place in zip(pairs, neighbours, strict=True)
    ]
    after = Shared(
        state.context, state.policy, state.identity, roster, index, state.mask_secret, state.sealing_secret, state.seed
    )
    return after, b"".join(slots)


def _own_place(state: Advertised, roster: Roster) -> int:
    """Own entry, once (the roster's form sees to that) and as it was advertised."""
    try:
        index = roster.index(state.client_id)
    except ParameterError as error:
        raise RefusalError("this client is not in the roster it was given") from error
    entry = roster.entries[index]
    own = (state.identity.public_key().public_bytes_raw(), state.advertisement)
    if (entry.identity_key, entry.advertisement) != own:
        raise RefusalError("this client stands in the roster with keys that are not its own")
    return index


def _check_signature(roster: Roster, place: int) -> None:
    entry = roster.entries[place]
    if not verify_advertisement(roster.context, entry.client_id, entry.identity_key, entry.advertisement):
        raise RefusalError(f"member {place} of the roster did not sign these keys for this round and model")


def contribute(
    state: Shared, inbox: Buffer, elements: NDArray[np.unsignedinteger[Any]], threads: int = 1
) -> tuple[Contributed, bytes]:
    """The masked vector, packed: `plan.contribution_bytes(route)` bytes.

    elements: (layout.length,) ring elements, as `MASKED.encode` gives them; left as they are. Masked with this client's
    own mask and one for each neighbour that shared. A neighbour's shares that do not open are left out, as if they were
    lost: what it loses is its own.
    """
    state._once.take()
    plan, roster = state.context.plan, state.roster
    if elements.shape != (plan.layout.length,):
        raise ParameterError(f"{plan.layout.length} ring elements were expected, got shape {elements.shape}")
    sharers_body, slots = messages.split_inbox(inbox, len(roster), roster.degree)
    sharers = messages.decode_set(sharers_body, len(roster))
    if state.index not in sharers:
        raise RefusalError("this client shared, and the server says that it did not")
    state.policy.check_cohort(len(sharers), "shares came from")
    neighbours = roster.neighbours_of(state.index)
    sharing = [place for place in neighbours if place in sharers]
    _require(state, "sharing", len(sharing))

    pairs = {}
    for place, sealed in zip(neighbours, slots, strict=True):
        if sealed is None:
            continue
        if place not in sharers:
            raise RefusalError(f"the server hands out shares of member {place} and says that it did not share")
        pair = open_pair(sealed, state.sealing_secret, roster, place, state.index)
        if pair is not None:
            pairs[place] = pair

    masked = elements.copy()
    add_masks(masked, _masks(state, sharers_body, sharing), threads)
    after = Contributed(state.context, state.policy, state.identity, roster, state.index, sharers_body, pairs)
    return after, pack(masked, plan.bits)


def _masks(state: Shared, sharers: bytes, sharing: list[int]) -> list[Mask]:
    """The self mask, and one for each pair: the earlier member of the roster adds it, the later one subtracts it."""
    context = mask_context(state.context, state.roster.digest, sharers)
    own = state.roster.entries[state.index].advertised.mask_key
    masks: list[Mask] = [(state.seed, context, 1)]
    for place in sharing:
        key = pair_mask_key(state.mask_secret, own, state.roster.entries[place].advertised.mask_key)
        masks.append((key, context, 1 if state.index < place else -1))
    return masks


def confirm(state: Contributed, survivors: Buffer) -> tuple[Confirmed, bytes]:
    """The signature (64 bytes) of the survivors, once they pass `_check_survivors`."""
    state._once.take()
    body = bytes(survivors)
    _check_survivors(state, body)
    signature = sign_survivors(state.identity, state.context, state.roster.digest, state.sharers, body)
    after = Confirmed(
        state.context, state.policy, state.identity, state.roster, state.index, state.sharers, state.pairs, body
    )
    return after, signature


def _check_survivors(state: Contributed, body: bytes) -> None:
    """This client is in the set, everyone in it shared, and it is above the policy's floor and the threshold."""
    survivors = messages.decode_set(body, len(state.roster))
    if state.index not in survivors:
        raise RefusalError("this client contributed, and the server says that it did not")
    if not survivors <= messages.decode_set(state.sharers, len(state.roster)):
        raise RefusalError("the server counts a client among the survivors that it said had not shared")
    state.policy.check_cohort(len(survivors), "contributions came from")
    _require(state, "collecting", sum(place in survivors for place in state.roster.neighbours_of(state.index)))


def unmask(state: Confirmed, confirmations: Buffer) -> tuple[Done, bytes]:
    """One share, never two, of each neighbour that shared: `reply_bytes(k)` bytes.

    Only when at least t neighbours among the survivors signed the set that this client signed; a signature of anything
    else counts as none.
    """
    state._once.take()
    roster = state.roster
    survivors = messages.decode_set(state.survivors, len(roster))
    slots = messages.split_slots(confirmations, roster.degree, messages.CONFIRMATION_BYTES, "the confirmations")
    agreed = 0
    for place, signature in zip(roster.neighbours_of(state.index), slots, strict=True):
        key = roster.entries[place].identity_key
        if signature is not None and place in survivors:
            agreed += verify_survivors(key, signature, state.context, roster.digest, state.sharers, state.survivors)
    _require(state, "confirming", agreed)
    return Done(), _reply(roster, state.index, state.pairs, survivors)


def unmask_unconfirmed(state: Contributed, survivors: Buffer) -> tuple[Done, bytes]:
    """As `unmask`, on the server's word alone: for tasks in curious mode, where the server is trusted to keep to it."""
    state._once.take()
    if state.context.plan.mode != "curious":
        raise RefusalError("this task's mode asks for confirmed survivors: nothing is unmasked without")
    body = bytes(survivors)
    _check_survivors(state, body)
    return Done(), _reply(state.roster, state.index, state.pairs, messages.decode_set(body, len(state.roster)))


def _reply(roster: Roster, index: int, pairs: dict[int, SharePair], survivors: frozenset[int]) -> bytes:
    """The seed's share of a survivor, the mask key's of any other: which, is for this client's own state to say."""
    slots = [
        None if place not in pairs else pairs[place].of_seed if place in survivors else pairs[place].of_mask_key
        for place in roster.neighbours_of(index)
    ]
    return messages.join_slots(slots, messages.reply_bytes(1))


def _require(state: Shared | Contributed | Confirmed, stage: str, present: int) -> None:
    if present < state.roster.threshold:
        raise ThresholdError(stage, state.roster.threshold, present, state.roster.entries[state.index].client_id)
