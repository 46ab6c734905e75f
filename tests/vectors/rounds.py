"""Vectors of masked and one-shot sums: streams, shares, rings; whole rounds, recorded from the run pages; failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protocols import pace
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.keys import digest
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.sums.masked import client, server
from protocols.sums.masked.masks import add_masks, mask_context, pair_secret, seed_commitment
from protocols.sums.masked.neighbourhood import Mode, choose_neighbourhood
from protocols.sums.masked.parameters import ClientPolicy
from protocols.sums.masked.plan import RoundContext, make_plan, model_digest
from protocols.sums.masked.roster import RosterEntry, neighbours, open_handout
from protocols.sums.masked.run import MaskedRun
from protocols.sums.masked.shamir import PRIME, SHARE_BYTES, combine, split
from protocols.sums.masked.shares import open_pair, open_pair_secret, sealed_pair_secret
from protocols.sums.masked.wire import ADVERTISEMENT_BYTES, SEALED_BYTES
from protocols.sums.oneshot import server as oneshot_server
from protocols.sums.oneshot.committee import check_committee_key, open_share
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.plan import OneshotContext, OneshotPolicy
from protocols.sums.oneshot.plan import make_plan as make_oneshot_plan
from protocols.sums.oneshot.polynomials import (
    SIGMA,
    add_products,
    canonical,
    gaussian,
    gaussian_table,
    primes_below,
    public_polynomials,
)
from protocols.sums.oneshot.run import OneshotRun
from protocols.sums.oneshot.wire import Statement, Upload, body_digest, survivors_digest
from protocols.sums.wire import pack, ring_dtype, unpack
from tests.vectors.common import SEED, Outputs, again, drawn_for, facts, unhex, vectors


@vectors("masks.json", "streams")
def _stream(secret: str, context: str, bits: int, start: int) -> Outputs:
    elements = np.zeros(5, ring_dtype(bits))
    add_masks(elements, [(unhex(secret), unhex(context), 1)], start=start)
    return {"elements": [str(element) for element in elements]}


@vectors("masks.json", "packed")
def _packed(bits: int, elements: list[str]) -> Outputs:
    return {"body": pack(np.array(list(map(int, elements)), ring_dtype(bits)), bits)}


@vectors("masks.json", "refused")
def _refused_mask(what: str, bits: int = 0, count: int = 0, body: str | None = None) -> None:
    target, context = np.zeros(2, np.uint32), b"task 1, round 1"
    if body is not None:
        unpack(unhex(body), bits, count)
    elif what == "a secret of 31 bytes":
        add_masks(target, [(SEED[:31], context, 1)])
    elif what == "the sign 0":
        add_masks(target, [(SEED, context, 0)])
    elif what == "a negative start":
        add_masks(target, [(SEED, context, 1)], start=-1)


@vectors("pace.json", "windows")
def _window(seed: str, client_id: str, clients: int, rate: float, stage_seconds: float) -> Outputs:
    return {"seconds": pace.window(unhex(seed), client_id, clients, rate, stage_seconds)}


@vectors("pace.json", "rests")
def _rest(members: int, rate: float, stage_seconds: float, unit: float) -> Outputs:
    return {"seconds": pace.rest(members, rate, stage_seconds, unit)}


@vectors("masks.json", "graphs")
def _graph(clients: int, degree: int, seed: str) -> Outputs:
    return {"neighbours": neighbours(clients, degree, unhex(seed))}


@vectors("masks.json", "neighbourhoods")
def _neighbourhood(clients: int, corrupt: float, dropout: float, mode: Mode, sigma: int, eta: int) -> Outputs:
    return choose_neighbourhood(clients, corrupt, dropout, mode, sigma, eta).describe()


@vectors("shamir.json")
def _prime() -> Outputs:
    return {"prime": str(PRIME)}


@vectors("shamir.json", "split")
def _split(secret: str, threshold: int, shares: dict[str, str]) -> Outputs:
    calls, name, points = iter(range(100)), "vector coefficients", list(map(int, shares))

    def random(length: int) -> bytes:
        part = next(calls)
        return (digest(name, part, 0) + digest(name, part, 1))[:length]

    made = split(unhex(secret), threshold, points, random)
    return {"shares": {str(point): share for point, share in zip(points, made, strict=True)}}


@vectors("shamir.json", "combine")
def _combined(threshold: int, shares: dict[str, str]) -> Outputs:
    return {"secret": combine({int(point): unhex(share) for point, share in shares.items()}, threshold)}


NAMES: Final = ("ann", "bob", "cyd", "dan")
GONE: Final = "cyd"
"""Shares, but does not contribute."""


def _context(mode: str, bits: int) -> RoundContext:
    layout = VectorLayout((Block("b", (Segment("v", 5, 1.0),)),), sum_class=TRAINED)
    plan = make_plan({"mode": mode, "bits": bits, "corrupt": 0.0, "dropout": 0.25}, layout, len(NAMES))
    return RoundContext("t_1", 7, SEED, plan, model_digest(b"terms", b"broadcast"), len(NAMES))


def _masked_run(context: RoundContext) -> MaskedRun:
    """A round of everybody, with made-up randomness, that has advertised."""
    ring = (1 << context.plan.bits) - 1
    identities = {name: Ed25519PrivateKey.from_private_bytes(digest("vector masked identity", name)) for name in NAMES}

    def encoded(name: str) -> NDArray[Any]:
        place = NAMES.index(name)
        return np.array([(i + 1) * (place + 3) * 2654435761 & ring for i in range(5)], context.plan.dtype)

    def entry(name: str, body: bytes) -> RosterEntry:
        return RosterEntry(name, identities[name].public_key().public_bytes_raw(), bytes(32), NO_CERTIFICATE, body)

    policy = ClientPolicy(masked_modes=frozenset({context.plan.mode}))
    random = partial(drawn_for, "vector masked")
    return MaskedRun(context, identities, policy, encoded, entry, lambda _: True, random).advertise()


@vectors("masked_keys.json")
def _masked_keys(sealed: Any, secrets: Any, refused: Any) -> Outputs:
    context = _context("semi-malicious", 32)
    run = _masked_run(context).share()
    roster, ann = run.roster, run.advertised["ann"]
    sharers, entry = roster.encode_set(NAMES), roster.entries[0]
    sealed = [sealed[0] | {"sealed": run.shares["ann"][:SEALED_BYTES].hex()}, *sealed[1:]]
    secret_of = sealed_pair_secret(roster, run.shares["ann"], 0, 1).hex()
    secrets = [secrets[0] | {"sealed": secret_of}, *secrets[1:]]

    def opened(sender: int, receiver: int, sealed: str) -> Outputs:
        secret = run.advertised[NAMES[receiver]].sealing_secret
        pair = open_pair(unhex(sealed), secret, roster, sender, receiver)
        return {"shares": None if pair is None else pair.of_seed + pair.of_mask_key}

    def opened_secret(sender: int, receiver: int, sealed: str) -> Outputs:
        own = run.advertised[NAMES[receiver]].mask_secret
        return {"secret": open_pair_secret(unhex(sealed), own, roster, sender, receiver)}

    def accepts(context: RoundContext, name: str) -> None:
        server.check_advertisement(context, name, entry.identity_key, entry.advertisement)

    def handed_out(body: bytes) -> None:
        open_handout(context, body, "ann", ann.advertisement)

    head, (first, *others) = roster.body[:4], [one.encode() for one in roster.entries]
    handed = roster.handout("ann")
    keys = handed[len(roster.body) :]
    bad: dict[str, Callable[[], object]] = {
        "ann's advertisement in another round": lambda: accepts(replace(context, round_number=8), "ann"),
        "ann's advertisement in another model": lambda: accepts(
            replace(context, model_digest=model_digest(b"terms", b"other broadcast")), "ann"
        ),
        "ann's advertisement as bob's": lambda: accepts(context, "bob"),
        "a roster: short": lambda: handed_out(handed[:-1]),
        "a roster: long": lambda: handed_out(handed + b"\0"),
        "a roster: ann twice": lambda: handed_out(head + 2 * first + b"".join(others[:2]) + keys),
        "a roster: descending": lambda: handed_out(head + b"".join([*others[::-1], first]) + keys),
        "a roster: keys of neighbours in another order": lambda: handed_out(
            roster.body + keys[ADVERTISEMENT_BYTES:] + keys[:ADVERTISEMENT_BYTES]
        ),
        "a roster: bob's, for ann": lambda: handed_out(roster.handout("bob")),
        "the same state again": lambda: client.share(ann, handed, lambda _: True),
        "an inbox of another length": lambda: client.open_inbox(run.shared["ann"], b""),
    }
    return {
        "context": {
            "task": context.task_id,
            "round": context.round_number,
            "seed": context.round_seed,
            **facts(context, "model_digest cohort"),
            "bits": context.plan.bits,
            "length": context.plan.layout.length,
            "mode": context.plan.mode,
            "binding": context.binding,
        },
        "clients": [
            {
                "id": name,
                "mask_secret": state.mask_secret.seed,
                "sealing_secret": state.sealing_secret.seed,
                "seed": state.seed,
                "commitment": seed_commitment(state.seed),
                "identity_key": state.identity.public_key().public_bytes_raw(),
                "advertisement": state.advertisement,
            }
            for name, state in run.advertised.items()
        ],
        "roster": facts(roster, "body degree threshold digest") | {"handout": handed},
        "pair_secret": {
            "of": ["ann", "bob"],
            "secret": pair_secret(ann.mask_secret.seed, roster.digest, 0, 1),
            "context": mask_context(context, roster.digest, sharers),
            "sharers": sharers,
        },
        "sealed": again(sealed, opened),
        "secrets": again(secrets, opened_secret),
        "refused": again(refused, lambda what: bad[what]() and {}),
    }


@vectors("masked_round.json", "rounds")
def _masked_round(mode: str, bits: int, refused: Any) -> Outputs:
    context, ring = _context(mode, bits), (1 << bits) - 1
    done = _masked_run(context).share().contribute(without={GONE})
    if mode == "semi-malicious":
        done.confirm()
    done.unmask()
    roster, shares, contributions, replies = done.roster, done.shares, done.contributions, done.replies
    correction = done.unmasking().correction
    total = correction + sum(unpack(body, bits, 5) for body in contributions.values())

    def altered(owner: str) -> dict[str, bytes]:
        """Return the replies with another share in bob's."""
        slot = roster.neighbours_of(roster.index("bob")).index(roster.index(owner)) * SHARE_BYTES
        body = replies["bob"]
        return {**replies, "bob": body[:slot] + bytes([body[slot] ^ 1]) + body[slot + 1 :]}

    def unmasked(what: str) -> Outputs:
        changed = {
            "bob's share of cyd's mask key": altered(GONE),
            "bob's share of ann's seed": altered("ann"),
            "bob never replied": {name: body for name, body in replies.items() if name != "bob"},
        }[what]
        named = server.unmask(roster, shares, contributions, changed).bad_shares
        return {"bad_shares": [[bad.owner, bad.holder] for bad in named]}

    return {
        "secrets": [
            {"id": name, "seed": state.seed, "mask_secret": state.mask_secret.seed}
            for name, state in done.advertised.items()
        ],
        "roster": roster.body,
        "roster_digest": roster.digest,
        "context": mask_context(context, roster.digest, roster.encode_set(NAMES)),
        **facts(done, "shares inboxes contributions survivors confirmations replies"),
        "elements": {name: done.encoded(name) for name in contributions},
        "correction": correction & context.plan.dtype.type(ring),
        "sum": total & context.plan.dtype.type(ring),
        "refused": again(refused, unmasked),
    }


def _hashed(values: NDArray[np.uint32]) -> bytes:
    """SHA-256 of residues, uint32 little-endian."""
    return sha256(values.astype("<u4").tobytes()).digest()


@vectors("oneshot_ring.json")
def _primes(primes: dict[str, list[int]]) -> Outputs:
    return {"primes": {degree: primes_below(int(degree), 6) for degree in primes}}


@vectors("oneshot_ring.json", "gaussian")
def _gaussian() -> Outputs:
    words = drawn_for("vector oneshot", "words")(8 * 12)
    table = [str(entry) for entry in gaussian_table()]
    return {"sigma": SIGMA, "table": table, "words": words, "samples": gaussian(12, lambda _: words)}


@vectors("oneshot_ring.json", "products")
def _product(binding: str, degree: int, polynomials: int, secret: list[int], primes: list[int]) -> Outputs:
    chosen = primes_below(degree, len(primes))
    public = public_polynomials(unhex(binding), degree, chosen, polynomials)
    target = np.zeros((len(chosen), degree + 5))
    add_products(target, public, np.array(secret), chosen)
    products = np.stack([canonical(plane, prime) for plane, prime in zip(target, chosen, strict=True)])
    return {
        "primes": chosen,
        "first": public[:, :, :3],
        "sha256": _hashed(public),
        "products_first": products[:, :3],
        "products_last": products[:, -5:],
        "products_sha256": _hashed(products),
    }


def _oneshot_identity(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(digest("vector oneshot identity", name))


@vectors("oneshot_round.json", "rounds")
def _oneshot_round(task: str, round: int, step: int, bits: int, clients: Any, refused: Any, not_opened: Any) -> Outputs:
    steps = {one["id"]: np.array(one["steps"]) for one in clients}
    layout = VectorLayout((Block("b", (Segment("v", len(clients[0]["steps"]), 1.0),)),), sum_class=TRAINED)
    plan = make_oneshot_plan({"bits": bits, "committee": 3, "corrupt": 0}, layout, len(steps))
    context = OneshotContext(task, round, step, plan, digest("vector oneshot model"), len(steps))
    members, route = ("m0", "m1", "m2"), 1
    run = OneshotRun(
        context,
        members,
        {name: _oneshot_identity(name) for name in (*members, *steps)},
        OneshotPolicy(min_corrupt_members=0),
        steps.__getitem__,
        random=partial(drawn_for, "vector oneshot"),
    )
    run.contribute(*steps)
    committee, uploads, total = run.committee, run.uploads, run.partial()
    confirmed = {name: run.confirm(name)[0] for name in members}
    summed = run.sum_shares(confirmed)
    checked = run.checked(summed)

    def statement_of(name: str, upload: Upload) -> Statement:
        key, ticket = _oneshot_identity(name).public_key().public_bytes_raw(), upload.ticket.encode()
        return oneshot_server.check_upload(
            committee, name, key, bytes(32), NO_CERTIFICATE, ticket, body_digest(upload.contribution)
        )

    ann = uploads["ann"]
    beyond = plan.ring.primes[0].to_bytes(4, "little") + ann.contribution[4:]
    swapped = replace(ann, ticket=replace(ann.ticket, sealed=ann.ticket.sealed[::-1]))
    twice = ONESHOT.fold(plan, None, [(route, uploads[name].contribution) for name in ("ann", "ann", "cyd")])
    few = {name: checked[name] for name in members[: plan.threshold - 1]}
    wrong = {name: checked[name] for name in members[: plan.threshold]} | {"m0": checked["m0"][:, ::-1]}
    bad: dict[str, Callable[[], object]] = {
        "a committee key of round 7 in round 8": lambda: check_committee_key("t_1", 8, run.keys["m0"]),
        "a residue equal to its prime": lambda: ONESHOT.check(plan, route, beyond),
        "a contribution of another length": lambda: ONESHOT.check(plan, route, ann.contribution[:-1]),
        "sealed shares in another order": lambda: statement_of("ann", swapped),
        "ann's upload as bob's": lambda: statement_of("bob", ann),
        "ann's contribution twice and none of bob's": lambda: oneshot_server.unmask(committee, twice, 3, checked),
        "fewer summed shares than t": lambda: oneshot_server.unmask(committee, total, 3, few),
        "t summed shares, one of them wrong": lambda: oneshot_server.unmask(committee, total, 3, wrong),
    }

    def closed(member: str, client: str, sealed: str) -> Outputs:
        share = ann.ticket.sealed[0]
        if sealed.endswith(", first bit changed"):
            share = bytes([share[0] ^ 1]) + share[1:]
        secret, place = run.secrets[member], committee.place(member)
        assert open_share(share, secret, committee, place, client, ann.ticket.ephemeral_key) is None
        return {"sealed": sealed}

    return {
        "length": layout.length,
        "corrupt": 0,
        **facts(context, "model_digest cohort binding"),
        **facts(plan, "committee threshold coefficients"),
        **facts(plan.ring, "degree primes per"),
        "members": [{"id": name, "label": name, "key": key.encode()} for name, key in run.keys.items()],
        "committee_digest": committee.digest,
        "clients": [
            {
                "id": name,
                "label": name,
                "steps": steps[name],
                **facts(upload.ticket, "ephemeral_key signature"),
                "sealed_sha256": [sha256(sealed).digest() for sealed in upload.ticket.sealed],
                "contribution": upload.contribution,
            }
            for name, upload in uploads.items()
        ],
        "partial": total,
        "survivors_digest": survivors_digest(run.statements()),
        "confirmations": {name: state.signature for name, state in confirmed.items()},
        "summed_shares_sha256": {name: sha256(body).digest() for name, body in summed.items()},
        "aggregate": run.unmask(checked).aggregate,
        "sums": sum(steps.values()),
        "refused": again(refused, lambda what: bad[what]() and {}),
        "not_opened": again(not_opened, closed),
    }
