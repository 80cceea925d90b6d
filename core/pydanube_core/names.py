"""Names of topics, namespaces, subscriptions, producers and consumers.

A topic is `/namespace/name`. Each part is letters, digits, `_` and `-` of ASCII, 1 to 128 characters. That is
stricter than the reference broker, which lets empty parts and any Unicode letter pass
(docs/research/data-plane.md#5-topic-names-partitions-creation). A partition is the topic `<base>-part-<N>`: N in decimal
without leading zeros, so that `/default/orders` and `/default/orders-eu` never meet (docs/research/behaviours.md#row-29).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from pydanube_core.errors import InvalidArgument, InvalidName

DEFAULT_NAMESPACE: Final = "default"
SYSTEM_NAMESPACE: Final = "system"
# Record of every call of an operation. With several brokers with "-<id>"
AUDIT_TOPIC: Final = "/system/audit"
MAX_PART_CHARS: Final = 128  # a part becomes a folder name in the object store: 255 bytes is the usual bound
MAX_CLIENT_NAME_CHARS: Final = 256
MAX_PARTITIONS: Final = 1000  # per topic: each takes a transaction at creation and is a topic afterwards
SubscriptionType = Literal["exclusive", "shared", "failover", "key-shared"]
# By their number on the wire
SUBSCRIPTION_TYPES: Final[tuple[SubscriptionType, ...]] = get_args(SubscriptionType)
REPLAYED_FROM: Final = "x-replayed-from"  # attribute of a replayed message: /namespace/topic@offset

_PART: Final = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_PARTITION: Final = re.compile(r"(?P<base>.+)-part-(?P<index>0|[1-9][0-9]{0,5})\Z")
_RULE: Final = "use /namespace/topic, each part 1-128 letters, digits, '_' or '-'"


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A checked topic name. `str()` gives the full form `/namespace/name`."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str, *, field: str = "topic") -> TopicName:
        """Parse `/ns/topic`, `ns/topic` or `topic` (in namespace `default`).

        Raises:
            InvalidName: the text breaks the rule. `details` has `field`, `value` and the rule.
            InvalidArgument: it is not text.
        """
        _check_text(text, field)
        bare = text[1:] if text.startswith("/") else text
        parts = bare.split("/")
        if len(parts) == 1 and not text.startswith("/"):
            parts = [DEFAULT_NAMESPACE, *parts]
        if len(parts) != 2 or not all(_PART.match(part) for part in parts):
            raise InvalidName(
                f"{text!r} is not a topic name: {_RULE}{_about_dots(text)}",
                field=field,
                value=text,
                rule=_RULE,
            )
        return cls(parts[0], parts[1])

    def __str__(self) -> str:
        return f"/{self.namespace}/{self.name}"

    @property
    def is_audit(self) -> bool:
        """Whether it is a broker's audit topic."""
        text = str(self)
        return text == AUDIT_TOPIC or text.removeprefix(f"{AUDIT_TOPIC}-").isdecimal()

    @property
    def is_system(self) -> bool:
        """Whether the topic is the broker's own, which clients neither create nor write to."""
        return self.namespace == SYSTEM_NAMESPACE

    @property
    def partition(self) -> int | None:
        """The partition's index, or None for a name without a partition suffix."""
        match = _PARTITION.match(self.name)
        return int(match["index"]) if match else None

    @property
    def base(self) -> TopicName:
        """The partitioned topic that this name is a part of, or the name itself if it is no partition."""
        match = _PARTITION.match(self.name)
        return TopicName(self.namespace, match["base"]) if match else self

    def part(self, index: int) -> TopicName:
        """The name of partition `index` (0 to 999 999) of this topic.

        Raises `InvalidName` if the topic's own name leaves no room for the suffix.
        """
        assert 0 <= index < 1_000_000
        name = f"{self.name}-part-{index}"
        if len(name) > MAX_PART_CHARS:
            raise InvalidName(
                f"{name!r} has {len(name)} characters, at most {MAX_PART_CHARS} are taken: shorten the topic's name",
                field="topic",
                value=str(self),
                rule=_RULE,
            )
        return TopicName(self.namespace, name)


def check_namespace(text: str, *, field: str = "namespace") -> str:
    """Return the namespace without a leading slash. Raises `InvalidName` if it is not valid."""
    bare = text[1:] if text.startswith("/") else text
    if not _PART.match(bare):
        raise InvalidName(
            f"{text!r} is not a namespace: use 1-128 letters, digits, '_' or '-'", field=field, value=text
        )
    return bare


def _about_dots(text: str) -> str:
    if "." not in text or not re.fullmatch(r"[A-Za-z0-9_./-]+", text):
        return ""
    return f"; Danube's protocol has no dots, its clients and brokers refuse them: write {text.replace('.', '-')!r}"


def _check_text(value: object, field: str) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(
            f"{field} is text, got {type(value).__name__}", field=field, value=repr(value)[:200]
        )


def check_subscription(text: str, *, field: str = "subscription") -> str:
    """Subscriptions are named by official clients too, which do not restrict them: printable, 1-256 chars."""
    return check_client_name(text, field=field)


def check_client_name(text: str, *, field: str) -> str:
    """Check a producer's, consumer's or subscription's name: 1-256 printable characters, no `/`."""
    _check_text(text, field)
    if not 1 <= len(text) <= MAX_CLIENT_NAME_CHARS or not text.isprintable() or "/" in text:
        raise InvalidName(
            f"{field} {text!r}: use 1-256 printable characters without '/'", field=field, value=text
        )
    return text
