"""One subscription's failure policy as it is stored and shown: the original Danube's seven fields, and its window. Pure.

It is in the subscription's record in the metadata store, under `failure_policy`, with only the fields that
were set. The others have the broker's default, so that a changed default reaches every subscription that did
not choose. The window stands beside it: brokers of older builds refuse a policy with an unknown field, and keep an
unknown option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, get_type_hints
from zlib import crc32

from pydanube_core.errors import InvalidArgument
from pydanube_core.failure_policy import (
    COUNTS,
    DEAD_LETTER_TOPIC,
    MAX_UNACKED_MESSAGES,
    POLICY_FIELDS,
    POLICY_NAMES,
)
from pydanube_core.names import MAX_PART_CHARS, TopicName
from pydanube_core.refusals import system_is_closed

from pydanube_broker.subscription.policy import FailurePolicy, PoisonPolicy

OPTION: Final = "failure_policy"
_WORDS: Final = {
    name: kind for name, kind in get_type_hints(FailurePolicy).items() if issubclass(kind, StrEnum)
}
assert {field.name: field.choices for field in POLICY_FIELDS if field.choices} == {
    name: tuple(kind) for name, kind in _WORDS.items()
}, "the table has the policy's words"
MAX_COUNT: Final = (1 << 31) - 1  # three weeks in milliseconds


def stored_policy(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a subscription's options store."""
    beside = {name: options[name] for name in (MAX_UNACKED_MESSAGES,) if name in options}
    return {**options.get(OPTION, {}), **beside}


def policy_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that store these fields: the opposite of `stored_policy`."""
    beside = {name: stored[name] for name in (MAX_UNACKED_MESSAGES,) if name in stored}
    return {OPTION: {name: value for name, value in stored.items() if name not in beside}, **beside}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionPolicy:
    """The failure policy, and the topic for dead letters.

    A `dead_letter_topic` of None means the default one, see `default_dead_letter_topic`.
    """

    failure: FailurePolicy
    dead_letter_topic: TopicName | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any], defaults: Mapping[str, Any]) -> SubscriptionPolicy:
        """Return the policy that results from stored fields and the broker's defaults.

        Raises `InvalidArgument` for an unknown field or an invalid value.
        """
        for name in stored:
            if name not in POLICY_NAMES:
                raise InvalidArgument(
                    f"a failure policy has no {name!r}. Use {', '.join(POLICY_NAMES)}",
                    field=name,
                    value=stored[name],
                )
        fields: dict[str, Any] = {**defaults, **stored}
        for name, least in COUNTS.items():
            value = fields.get(name, least)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_COUNT:
                raise InvalidArgument(
                    f"{name}: {value!r} is not a count. Give {least} to {MAX_COUNT}", field=name, value=value
                )
        topic = fields.pop(DEAD_LETTER_TOPIC, None)
        for name, kind in _WORDS.items():
            if name in fields:
                fields[name] = _member(kind, fields[name], name)
        failure = FailurePolicy(**fields)
        if failure.base_redelivery_delay_ms > failure.max_redelivery_delay_ms:
            raise InvalidArgument(
                f"base_redelivery_delay_ms: {failure.base_redelivery_delay_ms} is above max_redelivery_delay_ms "
                f"({failure.max_redelivery_delay_ms})",
                field="base_redelivery_delay_ms",
                value=failure.base_redelivery_delay_ms,
            )
        target = None if topic is None else TopicName.parse(topic, field=DEAD_LETTER_TOPIC)
        return cls(failure=failure, dead_letter_topic=target)

    def check(self, topic: TopicName, subscription: str) -> None:
        """Check that dead letters may go to their topic.

        Raises:
            InvalidArgument: it is their own topic.
            PermissionDenied: it is a system topic, such as the default one of a subscription to the audit.
        """
        target = self.target(topic, subscription)
        if target.is_system and self._names_target:
            raise system_is_closed(str(target), field=DEAD_LETTER_TOPIC)
        if target == topic or target.base == topic.base:
            raise InvalidArgument(
                f"dead_letter_topic: {target} is the topic itself, its dead letters would be delivered again and "
                "again. Name another topic",
                field=DEAD_LETTER_TOPIC,
                value=str(target),
            )

    def target(self, topic: TopicName, subscription: str) -> TopicName:
        """Return the topic for this subscription's dead letters."""
        return self.dead_letter_topic or default_dead_letter_topic(topic, subscription)

    @property
    def _names_target(self) -> bool:
        """Return whether there are dead letters, or a topic for them was named."""
        return self.dead_letter_topic is not None or self.failure.poison_policy is PoisonPolicy.DEAD_LETTER

    def as_fields(self, topic: TopicName, subscription: str) -> dict[str, Any]:
        """Return all fields. `dead_letter_topic` is None unless the policy is dead_letter or sets it."""
        target = str(self.target(topic, subscription)) if self._names_target else None
        return {name: _plain(getattr(self.failure, name, target)) for name in POLICY_NAMES}


def default_dead_letter_topic(topic: TopicName, subscription: str) -> TopicName:
    """Return `<topic>-dlq-<subscription>`, one topic for all partitions, with `-` for invalid characters.

    If the name is changed or cut, a checksum of the whole keeps two subscriptions apart.
    """
    base = topic.base
    wanted = f"{base.name}-dlq-{subscription}"
    name = re.sub(r"[^A-Za-z0-9_-]", "-", wanted)
    if name != wanted or len(name) > MAX_PART_CHARS:
        name = f"{name[: MAX_PART_CHARS - 9]}-{crc32(wanted.encode()):08x}"
    return TopicName(base.namespace, name)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else value


def _member(kind: type[StrEnum], value: Any, field: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        words = ", ".join(kind)
        raise InvalidArgument(f"{field} {value!r}: use one of {words}", field=field, value=value) from None
