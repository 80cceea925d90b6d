"""Quotas: how much of a broker a namespace or a principal may use. Pure.

A quota has limits, which are enforced, and warnings, which are only reported. Beyond its limit a quantity (`topics`) is
refused, a rate (`…_per_s`) is slowed down, and an hourly count of changes (`…_per_h`) is refused. 0 is no limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from pydanube_core.errors import InvalidArgument
from pydanube_core.security.identity import Identity
from pydanube_core.stored_json import StoredJson
from pydanube_core.units import parse_bytes

# Prefix of keys in the metadata store, one for each namespace and principal
QUOTAS: Final = "security/quotas/"

QuotaKind = Literal["namespace", "principal"]

OF_BOTH: Final = ("producers", "messages_in_per_s", "bytes_in_per_s", "messages_out_per_s", "bytes_out_per_s")
#: quotas of each kind: a topic belongs only to its namespace, a connection only to its principal
QUOTA_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "namespace": ("topics", "subscriptions", "stored_bytes", *OF_BOTH),
    "principal": (
        "connections",
        "requests_per_s",
        "changes_per_h",
        "destroyed_messages_per_h",
        *OF_BOTH,
    ),
}
HOURLY: Final = frozenset({"changes_per_h", "destroyed_messages_per_h"})
RATES: Final = frozenset(
    {"messages_in_per_s", "bytes_in_per_s", "messages_out_per_s", "bytes_out_per_s", "requests_per_s"}
)
LONGEST_DEBT_MS: Final = 10_000  # of messages or bytes that came in. Above it, the next batch is refused
#: limits of a topic, in the original's order. Each is an unsigned 32-bit number there, 0 for no limit
TOPIC_LIMITS: Final = (
    "max_producers_per_topic", "max_subscriptions_per_topic", "max_consumers_per_topic",
    "max_consumers_per_subscription", "max_publish_rate", "max_subscription_dispatch_rate",
    "max_message_size",
)  # fmt: skip
MOST: Final = (1 << 53) - 1  # largest integer that JSON carries without loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota(StoredJson):
    """The limits of one namespace or one principal.

    Attributes:
        name: the namespace, or the principal with its type, `user:ann`. Empty: every holder without its own quota.
        limits: name of the quota → enforced limit.
        warnings: the same, but only reported.
    """

    kind: QuotaKind
    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    warnings: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_quota(self.kind, self.limits, field="limits")
        check_quota(self.kind, self.warnings, field="warnings")

    @property
    def label(self) -> str:
        """The quota holder as errors and findings name it."""
        return f"{self.kind} {self.name}" if self.name else f"every {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """The use of one quota holder at a broker. `slowed`, `refused`, `warned`: quota → (times, waited ms)."""

    kind: QuotaKind
    name: str
    used: Mapping[str, int]
    slowed: Mapping[str, tuple[int, int]]
    refused: Mapping[str, tuple[int, int]]
    warned: Mapping[str, tuple[int, int]]


class QuotasPort(Protocol):
    """The quotas, for the admin core."""

    def request(self, identity: Identity | None) -> None:
        """Count a call of an operation. Raises `QuotaExceeded`."""

    def change(self, identity: Identity | None, destroyed_messages: int | None) -> None:
        """Count a change that is about to be made. Raises `QuotaExceeded`, and then nothing was counted.

        `destroyed_messages`: None if they cannot be counted, which passes no quota for them.
        """

    async def look(self) -> None:
        """Load the quotas again if they have changed."""

    def of(self, kind: QuotaKind, name: str) -> Quota:
        """Return the quota in effect: the holder's own, else the general one, else that of the settings."""

    def uses(self) -> Sequence[QuotaUse]:
        """Return the use of every namespace and principal that has sessions at this broker, or had some recently."""


def quota_key(kind: str, name: str) -> str:
    return f"{QUOTAS}{kind}/{name}"


def check_quota(kind: str, given: Mapping[str, Any], *, field: str) -> None:
    """Check a quota. Raises `InvalidArgument` for an unknown name, or a value that is no count."""
    known = QUOTA_KEYS[kind]
    for key, value in given.items():
        if key not in known:
            raise InvalidArgument(
                f"a {kind} has no quota {key!r}. Use {', '.join(known)}", field=f"{field}.{key}", value=value
            )
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
            raise InvalidArgument(
                f"{key}: {value!r} is not a count. Give 0 (no limit) or more",
                field=f"{field}.{key}",
                value=value,
            )


def parse_quota(kind: QuotaKind, text: str) -> dict[str, int]:
    """Parse the limits in a setting: `topics=100, bytes_in_per_s=10MiB`. Raises `InvalidArgument`."""
    found: dict[str, int] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals:
            raise InvalidArgument(
                f"{part.strip()!r}: write name=number, as {QUOTA_KEYS[kind][0]}=100",
                field=kind,
                value=part.strip(),
            )
        found[key] = parse_bytes(value, field=key)
    check_quota(kind, found, field=kind)
    return found
