"""One identity at one server: its store, its policy, how it sends requests, and the memberships that it has stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from client_sdk.agreement.policy import Policy
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import Timeouts
from client_sdk.api.retry import RetryPolicy
from client_sdk.api.upload import DEFAULT_CHUNK_BYTES
from client_sdk.errors import NotEnrolled
from client_sdk.store import DirectoryStore, Store, default_store
from client_sdk.store.client_store import ClientStore
from client_sdk.store.identity import Identity, Membership, membership_of
from protocols.errors import ParameterError


@dataclass(frozen=True)
class ClientOptions:
    """How a client sends requests."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """When a failed request is repeated."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    """Of every connection."""
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    """Contributions longer than this are uploaded in resumable chunks."""
    allow_http: bool = False
    """Whether the addresses of the server and of the organiser's endpoint may begin with http:// when their host is not
    this machine; anyone on the way can then read tokens and contributions."""


@dataclass(frozen=True)
class Account:
    """One identity at one server, with its store and its policy, for sync clients, async clients and fleets."""

    calls: ApiCalls
    """The API, without a token. See `Account.at` for the rest."""
    identity: Identity
    store: ClientStore
    policy: Policy
    options: ClientOptions

    @classmethod
    def at(
        cls,
        url: str,
        identity: Identity | None,
        store: Store | None,
        policy: Policy | None = None,
        options: ClientOptions | None = None,
        home: str | Path | None = None,
    ) -> Account:
        """Return the account of `identity` at `url`; see `Client` for the arguments and the errors."""
        options = options or ClientOptions()
        calls = ApiCalls(url, None, options.retry, options.chunk_bytes, allow_http=options.allow_http)
        if home is not None:
            if identity is not None or store is not None:
                raise ParameterError("home keeps the identity and the store: leave out identity= and store=")
            folder = Path(home).expanduser()
            identity, store = Identity.load_or_create(folder / "identity.key"), DirectoryStore(folder / "store")
        if identity is None or not hasattr(identity, "fingerprint"):
            given = "none" if identity is None else f"a {type(identity).__name__}"
            raise ParameterError(
                f"a client needs an identity, got {given}: pass home='FOLDER', which makes one and keeps it, or "
                "identity=Identity.load_or_create('FILE')"
            )
        if store is not None and not hasattr(store, "read"):
            raise ParameterError(
                f"the store must be a DirectoryStore('FOLDER') or a MemoryStore(), got a {type(store).__name__}"
            )
        kept = ClientStore(default_store() if store is None else store, identity.fingerprint, calls.url)
        return cls(calls, identity, kept, policy or Policy(), options)


def find_membership(account: Account, task: str | None) -> Membership:
    """Return the stored membership of the task with that name or id (None: the only one) on the account's server.

    Raises `NotEnrolled` when none is stored, `ParameterError` when several tasks have that name.
    """
    url = account.calls.url
    stored = account.store.memberships()
    here = [membership for membership in stored if membership.url == url]
    found = membership_of(here, task)
    if found is None:
        known = ", ".join(sorted(membership.task_name for membership in here)) or "none"
        wanted = "any task" if task is None else f"task {task!r}"
        elsewhere = ", ".join(sorted({other.url for other in stored if other.url != url}))
        moved = f"; on other addresses: {elsewhere} (if it has moved: hushrec membership move)" if elsewhere else ""
        raise NotEnrolled(
            f"no membership of {wanted} on this server is stored on this device (stored: {known}{moved}); "
            "to join one, pass invitation=..."
        )
    return found


def own_calls(account: Account, membership: Membership) -> ApiCalls:
    """Return the calls of this member: with its token, and signed by its identity."""
    return account.calls.enrolled(membership.client_id, membership.token, account.identity.signing_key)
