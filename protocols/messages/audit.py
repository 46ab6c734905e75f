"""Messages about what operators did."""

from __future__ import annotations

from pydantic import Field

from protocols.messages.base import Message


class AuditEntry(Message):
    """An action of an operator, or how often attempts of one kind were refused in a day."""

    id: int = Field(ge=1, description="Number of the entry; later entries have larger ones.")
    at: float = Field(description="Time of the action, or of the first attempt; seconds since the epoch.")
    until: float = Field(description="Time of the last attempt; `at` for an action.")
    operator: str | None = Field(
        description="Name of the operator's token, or account at the command line; null: no valid token."
    )
    via: str = Field(description="`api`, `dashboard`, `command line` or `server`.")
    address: str = Field(
        description="IP address that the request came from (the /64 network of an IPv6 address, where attempts are "
        "counted); at the command line the name of the machine."
    )
    action: str = Field(description="What was done, such as `task closed`; for refused requests method and route.")
    task_id: str | None
    task_name: str | None
    target: str | None = Field(description="Id or name of what was changed, besides the task.")
    details: dict[str, str | float | int | bool] = Field(description="What else is known of the action.")
    refused: str | None = Field(description="Problem type of refused attempts; null: the action was done.")
    times: int = Field(ge=1, description="Number of attempts; 1 for an action.")


class AuditPage(Message):
    """Entries, oldest first. While `next` is not null, request the next page with `after` set to it."""

    entries: list[AuditEntry]
    next: int | None = None
