"""Histories of clients, and checks of the log and of consumers against them.

Everything a message should look like follows from its producer's name and its number, so that a read back needs no
memory of what was sent: `Stamp`. The history keeps what the clients were told, and the checks look for

- loss: acknowledged and not readable, or not where the receipt said;
- phantom: readable and never sent, or not as it was sent;
- doubling: more than once in the log, though the producer is idempotent;
- reordering: of the messages of one producer in one partition;
- gaps in the offsets;
- deliveries out of order: of one key, a message that comes for the first time behind a later one;
- a cursor behind a durable ack (a message came again after it was confirmed) or ahead of the acks (one never came).

Nothing here is probabilistic: a violation is a defect. Each check collects all it finds and raises once.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final, Self
from zlib import crc32

from pydanube import Message

__all__ = ["ConsumerLog", "History", "Outcome", "Row", "Stamp", "Violation"]

_HEAD: Final = struct.Struct("<IIQ")  # crc of the rest, bytes of the name, number
_SHOWN: Final = 12

Place = tuple[str, int | None]  # topic, partition


class Violation(AssertionError):
    """A promise was broken; the text lists how."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """One message's identity and, derived from it, its content.

    Args:
        style: `plain` (payload only), `keyed`, `full` (keys on some, attributes on some).
        max_bytes: payloads are up to this long, by number.
    """

    producer: str
    number: int
    style: str = "plain"
    max_bytes: int = 200

    def _random(self) -> Random:
        return Random(f"{self.producer}/{self.number}")

    @property
    def payload(self) -> bytes:
        name = self.producer.encode()
        size = self._random().randrange(self.max_bytes + 1)
        pattern = crc32(name + self.number.to_bytes(8, "little")).to_bytes(4, "little")
        body = name + (pattern * (size // 4 + 1))[:size]
        rest = struct.pack("<IQ", len(name), self.number) + body
        return struct.pack("<I", crc32(rest)) + rest

    @property
    def key(self) -> str | None:
        match self.style:
            case "plain":
                return None
            case "keyed":
                return f"k{self.number % 17}"
            case _:
                # "" is a key, and not the same as none
                return (None, "", f"ключ-{self.number % 5}")[self.number % 3]

    @property
    def attributes(self) -> dict[str, str]:
        if self.style != "full" or self.number % 4 == 0:
            return {}
        return {"n": str(self.number), "empty": "", **({"ß": "ü" * 9} if self.number % 7 == 0 else {})}

    def message(self) -> Message:
        return Message.new(self.payload, key=self.key, attributes=self.attributes or None)

    @staticmethod
    def parse(payload: bytes) -> tuple[str, int]:
        """(producer, number) of a payload that is whole."""
        crc, name_bytes, number = _HEAD.unpack_from(payload)
        if crc32(payload[4:]) != crc:
            raise Violation(f"a payload of {len(payload)} bytes is damaged: {payload[:60]!r}")
        return payload[_HEAD.size : _HEAD.size + name_bytes].decode(), number


@dataclass(frozen=True, slots=True)
class Row:
    """A message as it was read."""

    offset: int
    producer: str
    number: int
    payload: bytes
    key: str | None
    attributes: Mapping[str, str]
    append_time_ms: int

    @classmethod
    def of(cls, message: Message) -> Self:
        producer, number = Stamp.parse(message.payload)
        return cls(
            message.offset,
            producer,
            number,
            message.payload,
            message.key,
            message.attributes,
            int(message.append_time.timestamp() * 1000),
        )


@dataclass(slots=True)
class Outcome:
    """The receipts of one producer. `acknowledged`: number → offset, None if the answer did not name it."""

    topic: str
    style: str
    max_bytes: int
    sent: int = 0
    acknowledged: dict[int, int | None] = field(default_factory=dict)
    partition: dict[int, int | None] = field(default_factory=dict)
    not_stored: set[int] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerLog:
    """The messages that one subscription's consumer saw, per partition."""

    topic: str
    subscription: str
    delivered: dict[int | None, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    acked: dict[int | None, set[int]] = field(default_factory=lambda: defaultdict(set))
    confirmed: dict[int | None, set[int]] = field(default_factory=lambda: defaultdict(set))
    violations: list[str] = field(default_factory=list)
    _highest: dict[tuple[int | None, str | None], int] = field(default_factory=dict)

    def deliver(self, partition: int | None, offset: int, *, key: str | None = None) -> None:
        """A message was handed to the application. `key`: in whose order it stands; None: in that of all."""
        if not self.delivered[partition][offset]:
            before = self._highest.get((partition, key), -1)
            if offset < before:
                self.violations.append(
                    f"{self.subscription}: offset {offset} of partition {partition} came first after {before} (key {key!r})"
                )
            self._highest[partition, key] = max(offset, before)
        if offset in self.confirmed[partition]:
            self.violations.append(
                f"{self.subscription}: offset {offset} of partition {partition} came again after its ack was "
                "confirmed durable"
            )
        self.delivered[partition][offset] += 1


class History:
    """All producers and subscriptions of one scenario."""

    def __init__(self, seed: object) -> None:
        self.seed = seed
        self.producers: dict[str, Outcome] = {}
        self.consumers: list[ConsumerLog] = []

    def producer(self, name: str, topic: str, *, style: str = "plain", max_bytes: int = 200) -> Outcome:
        return self.producers.setdefault(name, Outcome(topic, style, max_bytes))

    def consumer(self, topic: str, subscription: str) -> ConsumerLog:
        log = ConsumerLog(topic, subscription)
        self.consumers.append(log)
        return log

    def stamp(self, name: str) -> Stamp:
        """The next message of a producer; noted as sent."""
        outcome = self.producers[name]
        stamp = Stamp(name, outcome.sent, outcome.style, outcome.max_bytes)
        outcome.sent += 1
        return stamp

    @property
    def acknowledged(self) -> int:
        return sum(len(outcome.acknowledged) for outcome in self.producers.values())

    # -- checks ----------------------------------------------------------------------------------------------

    def check_log(self, topic: str, partitions: Mapping[int | None, Iterable[Row]]) -> None:
        """Hold what is readable, partition by partition from the first offset, against what the clients know."""
        found: list[str] = []
        seen: dict[tuple[str, int], tuple[int | None, int]] = {}
        for partition, rows in partitions.items():
            last: dict[str, int] = {}
            last_time = 0
            for expected, row in enumerate(rows):
                who = f"{row.producer}/{row.number}"
                where = f"offset {row.offset} of partition {partition}"
                if row.offset != expected:
                    found.append(f"gap: {where} came where {expected} was due")
                outcome = self.producers.get(row.producer)
                if outcome is None or row.number >= outcome.sent or outcome.topic != topic:
                    found.append(f"phantom: {who} at {where} was never sent to {topic}")
                    continue
                stamp = Stamp(row.producer, row.number, outcome.style, outcome.max_bytes)
                if (row.payload, row.key, dict(row.attributes)) != (
                    stamp.payload,
                    stamp.key,
                    stamp.attributes,
                ):
                    found.append(f"changed: {who} at {where} is not as it was sent (key {row.key!r})")
                if row.number in outcome.not_stored:
                    found.append(f"phantom: {who} at {where} was said not to be stored")
                if (row.producer, row.number) in seen:
                    found.append(f"doubled: {who} at {where} and {seen[row.producer, row.number]}")
                seen[row.producer, row.number] = (partition, row.offset)
                if row.number <= last.get(row.producer, -1):
                    found.append(f"reordered: {who} at {where} behind number {last[row.producer]}")
                last[row.producer] = row.number
                if row.append_time_ms < last_time:
                    found.append(f"append_time fell at {where}")
                last_time = row.append_time_ms
        for name, outcome in self.producers.items():
            if outcome.topic != topic:
                continue
            for number, offset in outcome.acknowledged.items():
                place = seen.get((name, number))
                if place is None:
                    found.append(f"lost: {name}/{number} was acknowledged at offset {offset}")
                elif offset is not None and place != (outcome.partition.get(number), offset):
                    found.append(
                        f"moved: {name}/{number} is at {place}, its receipt said "
                        f"{(outcome.partition.get(number), offset)}"
                    )
        self._raise(found)

    def check_consumers(self, topic: str, ends: Mapping[int | None, int]) -> None:
        """Every subscription of the topic has seen every offset below the ends, and no confirmed one again."""
        found: list[str] = []
        for log in self.consumers:
            if log.topic != topic:
                continue
            found += log.violations
            for partition, end in ends.items():
                delivered = log.delivered[partition]
                missing = [offset for offset in range(end) if offset not in delivered]
                if missing:
                    found.append(
                        f"{log.subscription}: {len(missing)} messages of partition {partition} never came, first "
                        f"{missing[:5]}"
                    )
                beyond = [offset for offset in delivered if not 0 <= offset < end]
                if beyond:
                    found.append(
                        f"{log.subscription}: offsets beyond the end {end} came: {sorted(beyond)[:5]}"
                    )
        self._raise(found)

    def check_no_failures(self) -> None:
        """Producers that retry long enough were never told of a failure."""
        self._raise([f"{name}: {text}" for name, o in self.producers.items() for text in o.failures])

    def _raise(self, found: list[str]) -> None:
        if found:
            more = f"\n… and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise Violation(f"seed {self.seed}: {len(found)} violations\n" + "\n".join(found[:_SHOWN]) + more)
