"""The account of `soak_load.py`: what producers were told and subscriptions were given.

Each message is `producer|number|padding`. A number that was acknowledged must come to every subscription at least once;
the first sight of a producer's numbers must go up where the subscription promises order. Both are kept as bits, so
that an hour's account weighs a few megabytes.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from pydanube import ClusterError

KEYS: Final = 40
SHOWN: Final = 20  # examples of a kind
_NOISE: Final = random.Random(7).randbytes(1 << 20)


class Bits:
    """A set of small numbers."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.count = 0

    def add(self, number: int) -> bool:
        """Add a number; return whether it is new."""
        index, bit = number >> 3, 1 << (number & 7)
        if index >= len(self._bytes):
            self._bytes.extend(bytes(index - len(self._bytes) + 4096))
        if self._bytes[index] & bit:
            return False
        self._bytes[index] |= bit
        self.count += 1
        return True

    def __contains__(self, number: int) -> bool:
        return number >> 3 < len(self._bytes) and bool(self._bytes[number >> 3] >> (number & 7) & 1)

    def missing_in(self, other: Bits) -> list[int]:
        """Numbers of this set that `other` has not."""
        left = int.from_bytes(self._bytes, "little") & ~int.from_bytes(other._bytes, "little")
        if not left:
            return []
        held = left.to_bytes(len(self._bytes), "little")
        return [i * 8 + bit for i, byte in enumerate(held) if byte for bit in range(8) if byte >> bit & 1]


@dataclass
class Seen:
    """The messages that one subscription was given. `ordered` names what they are in order by: the producer, the key, or nothing."""

    topic: str
    ordered: str | None
    numbers: dict[str, Bits] = field(default_factory=dict)
    duplicates: int = 0
    unordered: list[str] = field(default_factory=list)
    unordered_count: int = 0
    _last: dict[tuple[str, int], int] = field(default_factory=dict)

    def note(self, payload: bytes) -> tuple[str, int]:
        producer, number = identity(payload)
        bits = self.numbers.get(producer)
        if bits is None:
            bits = self.numbers[producer] = Bits()
        if not bits.add(number):
            self.duplicates += 1
        elif self.ordered is not None:
            line = (producer, number % KEYS if self.ordered == "key" else -1)
            if number < self._last.get(line, -1):
                self.unordered_count += 1
                if len(self.unordered) < SHOWN:
                    self.unordered.append(f"{producer}|{number} after {self._last[line]}")
            else:
                self._last[line] = number
        return producer, number


def identity(payload: bytes) -> tuple[str, int]:
    producer, number, _ = payload.split(b"|", 2)
    return producer.decode(), int(number)


@dataclass
class Account:
    """Everything that is to be told at the end."""

    acknowledged: dict[str, dict[str, Bits]] = field(default_factory=dict)  # topic, producer
    refused: dict[str, dict[str, Bits]] = field(default_factory=dict)
    next_number: Counter[str] = field(default_factory=Counter)
    seen: dict[str, Seen] = field(default_factory=dict)  # `topic subscription`
    errors: Counter[str] = field(default_factory=Counter)
    error_count: int = 0
    churned: int = 0
    read_back: int = 0
    live: Counter[str] = field(default_factory=Counter)
    loop_delay_ms: float = 0.0  # the longest since the last line
    slowest_send_ms: float = 0.0

    def error(self, where: str, error: BaseException | str) -> None:
        self.error_count += 1
        told = f"{error.code}: {error.message}" if isinstance(error, ClusterError) else repr(error)
        self.errors[f"{where}: {told}"[:600]] += 1
        print(time.strftime("%H:%M:%S"), where, told, flush=True)

    def subscription(self, topic: str, name: str, ordered: str | None) -> Seen:
        return self.seen.setdefault(f"{topic} {name}", Seen(topic, ordered))

    def stamp(self, producer: str, rng: random.Random) -> tuple[int, bytes, str]:
        number = self.next_number[producer]
        self.next_number[producer] += 1
        size = 40_000 if number % 500 == 499 else rng.randrange(60, 900)
        start = rng.randrange(len(_NOISE) - size)
        return (
            number,
            b"%s|%d|%s" % (producer.encode(), number, _NOISE[start : start + size]),
            f"k{number % KEYS}",
        )

    def acked(self, topic: str, producer: str, numbers: Iterable[int]) -> None:
        bits = self.acknowledged.setdefault(topic, {}).setdefault(producer, Bits())
        for number in numbers:
            bits.add(number)

    def missing(self) -> dict[str, dict[str, list[int]]]:
        """Subscription → producer → acknowledged numbers that never came."""
        found: dict[str, dict[str, list[int]]] = {}
        for name, seen in self.seen.items():
            for producer, bits in self.acknowledged.get(seen.topic, {}).items():
                if lost := bits.missing_in(seen.numbers.get(producer, Bits())):
                    found.setdefault(name, {})[producer] = lost
        return found

    def totals(self) -> dict[str, Any]:
        return {
            "acknowledged": sum(bits.count for each in self.acknowledged.values() for bits in each.values()),
            "delivered": sum(bits.count for seen in self.seen.values() for bits in seen.numbers.values()),
            "duplicates": sum(seen.duplicates for seen in self.seen.values()),
            "unordered": sum(seen.unordered_count for seen in self.seen.values()),
            "errors": self.error_count,
            "churned": self.churned,
            "read_back": self.read_back,
            "live_sent": self.live["sent"],
            "live_received": self.live["received"],
        }
