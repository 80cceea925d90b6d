"""Choose the partition of a message.

Keys are hashed with FNV-1a, 64 bits, over their UTF-8 bytes, modulo the number of partitions, like in the official
clients (docs/research/data-plane.md#72-sendmessage), so that every client sends a key to the same partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final

from pydanube_core.errors import InvalidArgument

_ATTRIBUTE_OVERHEAD_BYTES: Final = 8
_BASIS: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3
_MASK: Final = (1 << 64) - 1


@lru_cache(maxsize=16_384)
def fnv1a_64(key: bytes) -> int:
    """Return FNV-1a of `key`. Cached: the loop costs ≈ 60 ns a byte, and keys repeat."""
    value = _BASIS
    for byte in key:
        value = (value ^ byte) * _PRIME & _MASK
    return value


def encode_key(key: str) -> bytes:
    """The bytes of a message's key.

    Raises:
        InvalidArgument: it is not text, or cannot be encoded as UTF-8.
    """
    try:
        return key.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        why = f": {error}" if isinstance(error, UnicodeError) else ""
        raise InvalidArgument(
            f"a key is text, got {key!r:.200}{why}", field="key", value=repr(key)[:200]
        ) from error


def attributes_bytes(attributes: Mapping[str, str]) -> int:
    """Return the bytes that a message's attributes take of a window.

    Raises:
        InvalidArgument: they are not text to text.
    """
    try:
        text = "".join((*attributes, *attributes.values()))
        size = len(text) if text.isascii() else len(text.encode())
    except (AttributeError, TypeError, UnicodeEncodeError) as error:
        why = f": {error}" if isinstance(error, UnicodeError) else ""
        raise InvalidArgument(
            f"attributes are text by text, got {attributes!r:.200}{why}",
            field="attributes",
            value=repr(attributes)[:200],
        ) from error
    return size + _ATTRIBUTE_OVERHEAD_BYTES * len(attributes)


def bytes_beside_payload(key: str | None, attributes: Mapping[str, str] | None) -> int:
    """Return the bytes that a message's key and attributes take of a window.

    Raises:
        InvalidArgument: they are not text.
    """
    size = 0 if key is None else len(encode_key(key))
    return size + attributes_bytes(attributes) if attributes else size


class Routing(StrEnum):
    """How partitions are chosen: `key` by hash, `round-robin` in turn, `explicit` by the caller.

    Messages without a key are in turn with `key`, too: message by message for a `Router`, batch by batch for a producer
    whose access mode is shared.
    """

    KEY = "key"
    ROUND_ROBIN = "round-robin"
    EXPLICIT = "explicit"

    @classmethod
    def parse(cls, text: str) -> Routing:
        try:
            return cls(text)
        except ValueError:
            raise InvalidArgument(
                f"routing {text!r}: use key, round-robin or explicit", field="routing", value=text
            ) from None


class Router:
    """Chooses partitions. The turn starts at 0, as in the official clients."""

    __slots__ = ("_next", "_partitions", "_routing")

    def __init__(self, routing: Routing, partitions: int) -> None:
        assert partitions >= 1
        self._routing = routing
        self._partitions = partitions
        self._next = 0

    def pick(self, key: str | None, partition: int | None, *, down: Collection[int] = ()) -> int:
        """The partition's index. Messages in turn leave out the partitions that are `down`, unless all are.

        Raises:
            InvalidArgument: `partition` is out of range, or missing although routing is explicit.
        """
        if partition is not None:
            if type(partition) is not int or not 0 <= partition < self._partitions:
                raise InvalidArgument(
                    f"partition {partition}: the topic has {self._partitions}, numbered from 0",
                    field="partition",
                    value=partition,
                )
            return partition
        if self._routing is Routing.EXPLICIT:
            raise InvalidArgument(
                "routing is explicit: give partition= with each message", field="partition", value=None
            )
        if key is not None and self._routing is Routing.KEY:
            return fnv1a_64(encode_key(key)) % self._partitions
        return self._turn(down)

    def _turn(self, down: Collection[int]) -> int:
        index = self._turns(down)[0] if down else self._next
        self._next = (index + 1) % self._partitions
        return index

    def _turns(self, down: Collection[int]) -> list[int]:
        """Return the partitions in the order of their turns."""
        turns = [(self._next + turn) % self._partitions for turn in range(self._partitions)]
        return [index for index in turns if index not in down] or turns

    def spread(
        self,
        keys: Sequence[bytes | None] | None,
        count: int,
        *,
        free: list[int] | None = None,
        down: Collection[int] = (),
    ) -> list[list[int]]:
        """Spread `count` messages. Return for each partition the indices of its messages, ascending.

        Not for explicit routing. With `key` routing, messages without a key are put into a list `free` instead, by
        index.
        """
        assert self._routing is not Routing.EXPLICIT
        found: list[list[int]] = [[] for _ in range(self._partitions)]
        if free is not None and keys is None and self._routing is Routing.KEY:
            free += range(count)
            return found
        if keys is None or self._routing is not Routing.KEY:
            turns = self._turns(down)
            for turn, index in enumerate(turns):
                found[index].extend(range(turn, count, len(turns)))
            self._next = turns[count % len(turns)]
            return found
        for at, key in enumerate(keys):
            if key is None and free is not None:
                free.append(at)
            elif key is None:
                found[self._turn(down)].append(at)
            else:
                found[fnv1a_64(key) % self._partitions].append(at)
        return found
