"""Flow control of a copy: credit in bytes for each topic, and for the stream. Pure.

The receiver grants credit, and the sender spends it. A chunk leaves only while both its topic and the stream have
credit left. The chunk that spends the last of it may exceed it by its own size, so that a large message needs no large
credit. Each topic has its own credit, so a topic with a slow receiver does not block the others.
"""

from __future__ import annotations

from typing import Final

from pydanube_core.errors import InvalidArgument

CHUNK_BYTES: Final = 256 << 10
# Credit of a topic in bytes: the maximum of its data in a receiver's memory, beside the piece that it assembles.
TOPIC_BYTES: Final = 2 << 20
# Credit of a stream in bytes, shared by its topics.
STREAM_BYTES: Final = 16 << 20
# Maximum of a topic's or a stream's credit in bytes. Sums of it are far from any overflow.
MOST_BYTES: Final = 1 << 30

assert CHUNK_BYTES <= TOPIC_BYTES <= STREAM_BYTES <= MOST_BYTES


class SenderCredit:
    """The credit that the sender of one stream has left. Topics are opened and closed."""

    def __init__(self) -> None:
        self._stream = STREAM_BYTES
        self._topics: dict[int, int] = {}

    def open(self, topic_id: int, credit: int) -> None:
        """Open a topic with its first credit. Raises `InvalidArgument`."""
        _check(credit, credit)
        self._topics[topic_id] = credit

    def close(self, topic_id: int) -> None:
        """Close a topic. A topic that is not open is ignored."""
        self._topics.pop(topic_id, None)

    def grant(self, topic_id: int, count: int) -> None:
        """Add credit to a topic, or with 0 to the stream. A topic that is no longer open is ignored.

        Raises `InvalidArgument`: the count is negative, or the sum is above `MOST_BYTES`.
        """
        if not topic_id:
            _check(count, self._stream + count)
            self._stream += count
        elif topic_id in self._topics:
            _check(count, self._topics[topic_id] + count)
            self._topics[topic_id] += count

    def may_send(self, topic_id: int) -> bool:
        """Return whether a chunk of the topic may leave."""
        return self._stream > 0 and self._topics.get(topic_id, 0) > 0

    def sent(self, topic_id: int, count: int) -> None:
        """Spend credit on a chunk."""
        assert self.may_send(topic_id), "a chunk without credit"
        self._stream -= count
        self._topics[topic_id] -= count


class ReceiverCredit:
    """Credit that a receiver grants again as it takes chunks: half the bound in one grant, so that grants are few."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._taken = 0

    def taken(self, count: int) -> int:
        """Add the bytes of a chunk. Return the credit to grant now, 0 for none."""
        self._taken += count
        if self._taken < self._bound // 2:
            return 0
        grant, self._taken = self._taken, 0
        return grant


def _check(count: int, total: int) -> None:
    if count < 0 or total > MOST_BYTES:
        raise InvalidArgument(
            f"credit {count}: a copy's stream and each of its topics have at most {MOST_BYTES} bytes",
            field="credit",
            value=count,
        )
