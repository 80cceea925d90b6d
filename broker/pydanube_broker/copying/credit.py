"""Flow control of a copy: credit in bytes for each topic, and for the stream. Pure.

The receiver grants credit, and the sender spends it. A chunk leaves only while both its topic and the stream have
credit left. The chunk that spends the last of it may exceed it by its own size, so that a large message needs no large
credit. What a topic may send is bounded by its own credit: a topic whose chunks are not taken holds up no other.
"""

from __future__ import annotations

from typing import Final

from pydanube_core.errors import InvalidArgument

CHUNK_BYTES: Final = 256 << 10
# Credit of a topic: what a receiver holds of it in memory, beside the piece that it assembles.
TOPIC_BYTES: Final = 2 << 20
# Credit of a stream: the topics that are copied at once share it.
STREAM_BYTES: Final = 16 << 20
# The most that a peer may grant in total. Far above both, and far below where sums of it would matter.
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
        """Close a topic; unknown ones are ignored."""
        self._topics.pop(topic_id, None)

    def grant(self, topic_id: int, count: int) -> None:
        """Add credit to a topic, or with 0 to the stream. A topic that was closed meanwhile is ignored.

        Raises `InvalidArgument`: the count is negative, or there is more than `MOST_BYTES` now.
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
    """The credit to give back as chunks are taken: in lumps of half the bound, so that grants are few."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._taken = 0

    def taken(self, count: int) -> int:
        """Note bytes that were taken; return the credit to grant now, 0 for none."""
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
