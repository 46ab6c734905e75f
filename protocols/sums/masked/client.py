"""A client in a masked round: one state per stage, each usable for one step. `Done` has no step.

    advertise -> Advertised -> share -> Shared -> open_inbox -> Opened -> contribute -> Contributed
        semi-malicious: -> confirm -> Confirmed -> unmask -> Done         curious: -> unmask_unconfirmed -> Done

The client makes every check itself and does not trust the server (following fcp/secagg of
google-parfait/federated-compute). A step that raises ends the round for this client: `RefusalError` if the server
breaks a rule of the protocol or the client's policy, `ThresholdError` if too few neighbours are left, `CodecError` for
malformed bytes. A state can be used once, even if the step fails, and cannot be copied or pickled, so that no mask is
used for two vectors and no second unmask request is answered. To resend a lost message, send the bytes that the step
returned.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.keys import SEED_BYTES, verifies
from protocols.crypto.random import Randomness
from protocols.crypto.sealing import SealingKey
from protocols.errors import ParameterError, RefusalError, ThresholdError
from protocols.sums.base import Buffer
from protocols.sums.groups import each_group
from protocols.sums.masked import wire
from protocols.sums.masked.masks import Mask, add_masks, mask_context, pair_secret
from protocols.sums.masked.parameters import ClientPolicy
from protocols.sums.masked.plan import RoundContext
from protocols.sums.masked.roster import (
    Roster,
    RosterEntry,
    open_handout,
    sign_advertisement,
    signed_survivors,
    verify_advertisement,
)
from protocols.sums.masked.shares import (
    SharePair,
    open_pair,
    open_pair_secret,
    seal_pair,
    seal_pair_secret,
    split_secrets,
)
from protocols.sums.wire import pack

IsMember = Callable[[RosterEntry], bool]
"""Whether a member's identity key is accepted: by its certificate, or by pinned keys."""


class _SingleUse:
    """A token that can be taken once."""

    def __init__(self) -> None:
        self._left = [True]

    def take(self) -> None:
        try:
            self._left.pop()  # atomic: of two threads, one gets the error
        except IndexError:
            raise RefusalError("this state was already used: a client takes each step of a round once") from None

    def __reduce__(self) -> NoReturn:
        raise TypeError("the state of a masked round cannot be copied or pickled")


@dataclass(frozen=True, repr=False, eq=False)
class _State:
    """The fields of every state. States have no repr, because they hold secrets."""

    context: RoundContext
    policy: ClientPolicy
    identity: Ed25519PrivateKey
    _single_use: _SingleUse = field(default_factory=_SingleUse, init=False)


@dataclass(frozen=True, repr=False, eq=False)
class Advertised(_State):
    """The state after `advertise`: keys are made and advertised; the roster comes next."""

    client_id: str
    mask_secret: SealingKey
    sealing_secret: SealingKey
    seed: bytes
    advertisement: bytes


@dataclass(frozen=True, repr=False, eq=False)
class Shared(_State):
    """The state after `share`: the secrets are shared among the neighbours; their shares come next."""

    roster: Roster
    index: int
    mask_secret: SealingKey
    sealing_secret: SealingKey
    seed: bytes


@dataclass(frozen=True, repr=False, eq=False)
class _HoldsShares(_State):
    """A state in which this client holds shares of its neighbours."""

    roster: Roster
    index: int
    sharers: bytes
    pairs: dict[int, SharePair]
    """From a neighbour that shared to the shares that this client holds of it; no entry if they did not open."""

    @property
    def unopened(self) -> tuple[str, ...]:
        """Ids of the neighbours whose sealed shares did not open: the client reports them before it trains."""
        return _names(self, (place for place in _sharing(self) if place not in self.pairs))


def _sharing(state: _HoldsShares) -> list[int]:
    """Return the places of the neighbours that shared."""
    sharing = wire.decode_set(state.sharers, len(state.roster))
    return [place for place in state.roster.neighbours_of(state.index) if place in sharing]


def _names(state: _HoldsShares, places: Iterable[int]) -> tuple[str, ...]:
    return tuple(state.roster.entries[place].client_id for place in places)


@dataclass(frozen=True, repr=False, eq=False)
class Opened(_HoldsShares):
    """The state after `open_inbox`: the neighbours' shares are here; this client's vector comes next."""

    secrets: dict[int, bytes]
    """Neighbour that shared -> the secret of the mask in common with it; no entry if it did not open."""
    seed: bytes

    @property
    def unopened(self) -> tuple[str, ...]:
        """Ids of the neighbours of which something did not open: the client reports them before it trains."""
        return _names(self, (at for at in _sharing(self) if at not in self.pairs or at not in self.secrets))

    @property
    def unmasked(self) -> tuple[str, ...]:
        """Ids of the neighbours with which this client has no mask: with any, it leaves the round."""
        return _names(self, (place for place in _sharing(self) if place not in self.secrets))


@dataclass(frozen=True, repr=False, eq=False)
class Contributed(_HoldsShares):
    """The state after `contribute`: it holds no secrets of the masks any more; the survivors come next."""


@dataclass(frozen=True, repr=False, eq=False)
class Confirmed(_HoldsShares):
    """The state after `confirm`: one set of survivors is signed; the neighbours' signatures of it come next."""

    survivors: bytes


@dataclass(frozen=True)
class Done:
    """The state after `unmask`: the only unmask request of the round is answered. It holds nothing."""


def advertise(
    context: RoundContext,
    client_id: str,
    identity: Ed25519PrivateKey,
    policy: ClientPolicy,
    random: Randomness = os.urandom,
) -> tuple[Advertised, bytes]:
    """Return the state with new keys for this round, and their advertisement (2,528 bytes).

    Raises `RefusalError` if the round does not satisfy the policy.
    """
    policy.check_parameters(context.plan.parameters)
    policy.check_cohort(context.cohort // context.plan.groups, each_group(context.plan.groups, "the round asks"))
    mask_secret, sealing_secret = SealingKey(random(SEED_BYTES)), SealingKey(random(SEED_BYTES))
    seed, keys = random(SEED_BYTES), (mask_secret.public, sealing_secret.public)
    body = sign_advertisement(identity, context, client_id, *keys, seed).encode()
    return Advertised(context, policy, identity, client_id, mask_secret, sealing_secret, seed, body), body


def share(
    state: Advertised, roster_body: Buffer, is_member: IsMember, random: Randomness = os.urandom
) -> tuple[Shared, bytes]:
    """Return the next state and what is sealed for the neighbours: `share_bytes(k, later)` bytes.

    Shares of both secrets for each neighbour, and for each that is later in the roster the secret of a common mask.

    roster_body: as `Roster.handout` made it for this client. Raises `RefusalError` if this client is not in the roster
    exactly once with its own keys, if the keys of a neighbour are not those that the roster names, if the roster does
    not satisfy the policy, if `is_member` rejects a member, or if a neighbour did not sign its keys for this round and
    model.
    """
    state._single_use.take()
    roster = open_handout(state.context, roster_body, state.client_id, state.advertisement)
    index = _own_place(state, roster)
    state.policy.check_cohort(
        roster.smallest_group(range(len(roster))), each_group(state.context.plan.groups, "the roster has")
    )
    state.policy.check_neighbourhood(roster.neighbourhood)
    for place, entry in enumerate(roster.entries):
        if place != index and not is_member(entry):
            raise RefusalError(f"member {place} of the roster has no valid proof of membership")
    neighbours = roster.neighbours_of(index)
    for place in neighbours:
        _check_signature(roster, place)
    pairs = split_secrets(state.seed, state.mask_secret.seed, roster.threshold, neighbours, random)
    slots = [
        seal_pair(pair, state.sealing_secret, roster, index, place)
        for pair, place in zip(pairs, neighbours, strict=True)
    ]
    slots += [seal_pair_secret(state.mask_secret, roster, index, place) for place in roster.later(index)]
    after = Shared(
        state.context, state.policy, state.identity, roster, index, state.mask_secret, state.sealing_secret, state.seed
    )
    return after, b"".join(slots)


def _own_place(state: Advertised, roster: Roster) -> int:
    """Return this client's place in the roster; `RefusalError` if it has another identity there.

    The roster's encoding ensures that it appears at most once.
    """
    index = roster.index(state.client_id)
    if roster.entries[index].identity_key != state.identity.public_key().public_bytes_raw():
        raise RefusalError("this client is in the roster with keys that are not its own")
    return index


def _check_signature(roster: Roster, place: int) -> None:
    entry = roster.entries[place]
    if not verify_advertisement(roster.context, entry.client_id, entry.identity_key, entry.advertisement):
        raise RefusalError(f"member {place} of the roster did not sign these keys for this round and model")


def open_inbox(state: Shared, inbox: Buffer) -> Opened:
    """Return the next state, with the shares of the neighbours that shared, and the secrets of the masks.

    A neighbour's shares that do not open are ignored, as if they were lost; the state names that neighbour
    (`Opened.unopened`). Without the secret of a mask there is no next step (`Opened.unmasked`). Raises `RefusalError`
    if the set of sharers breaks a rule or the policy, `ThresholdError` if fewer than t neighbours shared.
    """
    state._single_use.take()
    roster = state.roster
    earlier = roster.earlier(state.index)
    sharers_body, slots, sealed_secrets = wire.split_inbox(inbox, len(roster), roster.degree, len(earlier))
    sharers = wire.decode_set(sharers_body, len(roster))
    if state.index not in sharers:
        raise RefusalError("this client sent its shares, but the server's list of sharers leaves it out")
    state.policy.check_cohort(roster.smallest_group(sharers), each_group(state.context.plan.groups, "shares came from"))
    neighbours = roster.neighbours_of(state.index)
    _require(state, "sharing", sum(place in sharers for place in neighbours))

    pairs: dict[int, SharePair] = {}
    for place, sealed in zip(neighbours, slots, strict=True):
        if sealed is not None and place not in sharers:
            raise RefusalError(f"the server sent shares of member {place}, but its list of sharers leaves it out")
        pair = None if sealed is None else open_pair(sealed, state.sealing_secret, roster, place, state.index)
        if pair is not None:
            pairs[place] = pair
    own, digest = state.mask_secret, roster.digest
    secrets = {at: pair_secret(own.seed, digest, state.index, at) for at in roster.later(state.index) if at in sharers}
    for place, sealed in zip(earlier, sealed_secrets, strict=True):
        secret = None if sealed is None else open_pair_secret(sealed, own, roster, place, state.index)
        if secret is not None and place in sharers:
            secrets[place] = secret
    common = state.context, state.policy, state.identity, roster, state.index
    return Opened(*common, sharers_body, pairs, secrets, state.seed)


def contribute(
    state: Opened, elements: NDArray[np.unsignedinteger[Any]], threads: int = 1
) -> tuple[Contributed, bytes]:
    """Return the next state and the masked vector, packed: `plan.contribution_bytes(route)` bytes.

    elements: ring elements (layout.length,), as `MaskedPlan.encode` returns them; they are not modified. The masks are
    this client's own and one for each neighbour that shared. Raises `ParameterError` for elements of another shape or
    type, `RefusalError` if the secret of a mask did not open: the others add that mask.
    """
    state._single_use.take()
    if state.unmasked:
        raise RefusalError(f"{len(state.unmasked)} neighbours sealed no secret of a mask that opens: leave the round")
    plan = state.context.plan
    if elements.shape != (plan.layout.length,):
        raise ParameterError(f"{plan.layout.length} ring elements were expected, got shape {elements.shape}")
    masked = elements.copy()
    add_masks(masked, _masks(state), threads)
    common = state.context, state.policy, state.identity, state.roster, state.index
    return Contributed(*common, state.sharers, state.pairs), pack(masked, plan.bits)


def _masks(state: Opened) -> list[Mask]:
    """Return the self mask and one mask per pair; the earlier member of the roster adds it, the later subtracts it."""
    context = mask_context(state.context, state.roster.digest, state.sharers)
    pairs = ((place, state.secrets[place]) for place in _sharing(state))
    return [(state.seed, context, 1), *((key, context, 1 if state.index < place else -1) for place, key in pairs)]


def confirm(state: Contributed, survivors: Buffer) -> tuple[Confirmed, bytes]:
    """Return the next state and the signature (64 bytes) of the set of survivors.

    Raises `RefusalError` or `ThresholdError` if the set breaks a rule, the policy or the threshold.
    """
    state._single_use.take()
    body = bytes(survivors)
    _check_survivors(state, body)
    signature = state.identity.sign(signed_survivors(state.roster, state.sharers, body))
    after = Confirmed(
        state.context, state.policy, state.identity, state.roster, state.index, state.sharers, state.pairs, body
    )
    return after, signature


def _check_survivors(state: Contributed, body: bytes) -> None:
    """Raise unless this client is in the set, all its clients shared, and it satisfies the policy and the threshold."""
    survivors = wire.decode_set(body, len(state.roster))
    if state.index not in survivors:
        raise RefusalError("this client contributed, but the server's list of survivors leaves it out")
    if not survivors <= wire.decode_set(state.sharers, len(state.roster)):
        raise RefusalError("the server's list of survivors has a client that is not in its list of sharers")
    state.policy.check_cohort(
        state.roster.smallest_group(survivors), each_group(state.context.plan.groups, "contributions came from")
    )
    _require(state, "collecting", sum(place in survivors for place in state.roster.neighbours_of(state.index)))


def unmask(state: Confirmed, confirmations: Buffer) -> tuple[Done, bytes]:
    """Return the last state and one share, never two, of each neighbour that shared: `reply_bytes(k)` bytes.

    confirmations: of all members of the roster. Raises `ThresholdError` unless at least t neighbours among the
    survivors, and a quorum (`MaskedPlan.quorum`) of the client's group, or of the roster where the same data are summed
    again, signed the same set as this client; a signature of anything else is ignored. So a server opens one sum in a
    round.
    """
    state._single_use.take()
    roster = state.roster
    slots = wire.split_slots(confirmations, len(roster), wire.CONFIRMATION_BYTES, "the confirmations")
    survivors = wire.decode_set(state.survivors, len(roster))
    neighbours = frozenset(roster.neighbours_of(state.index))
    agreed = _count_signers(state, slots, neighbours & survivors, len(neighbours))
    _require(state, "confirming", agreed)
    quorum = state.context.plan.quorum(len(roster))
    signers = 1 + agreed
    counted = survivors if state.context.plan.signing_groups == 1 else survivors & roster.same_group(state.index)
    others = counted - neighbours - {state.index}
    signers += _count_signers(state, slots, others, quorum - signers)
    if signers < quorum:
        raise ThresholdError("confirming", quorum, signers, roster.entries[state.index].client_id)
    return Done(), _reply(roster, state.index, state.pairs, survivors)


def _count_signers(state: Confirmed, slots: Sequence[bytes | None], places: Iterable[int], enough: int) -> int:
    """Return how many members at `places` signed the set that this client signed; stops counting at `enough`."""
    message, count = signed_survivors(state.roster, state.sharers, state.survivors), 0
    for place in sorted(places):
        signature = slots[place]
        if count >= enough:
            break
        if signature is not None:
            count += verifies(state.roster.entries[place].identity_key, signature, message)
    return count


def unmask_unconfirmed(state: Contributed, survivors: Buffer) -> tuple[Done, bytes]:
    """Return what `unmask` does, without confirmations: for mode curious, which trusts the server's set of survivors.

    Raises `RefusalError` in any other mode, and what `confirm` raises.
    """
    state._single_use.take()
    if state.context.plan.mode != "curious":
        raise RefusalError("this task's mode needs confirmed survivors: use unmask with the confirmations")
    body = bytes(survivors)
    _check_survivors(state, body)
    return Done(), _reply(state.roster, state.index, state.pairs, wire.decode_set(body, len(state.roster)))


def _reply(roster: Roster, index: int, pairs: dict[int, SharePair], survivors: frozenset[int]) -> bytes:
    """Return the share of the seed of each survivor, and of the mask key of each other neighbour that shared."""
    slots = [
        None if place not in pairs else pairs[place].of_seed if place in survivors else pairs[place].of_mask_key
        for place in roster.neighbours_of(index)
    ]
    return wire.join_slots(slots, wire.reply_bytes(1))


def _require(state: Shared | Contributed | Confirmed, stage: str, present: int) -> None:
    if present < state.roster.threshold:
        raise ThresholdError(stage, state.roster.threshold, present, state.roster.entries[state.index].client_id)
