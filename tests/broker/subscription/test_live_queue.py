"""The queue of a consumer of a non-reliable topic has room again for what was taken from it."""

from __future__ import annotations

from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.subscription.live_queue import LiveQueue, all_of


def test_a_batch_leaves_room_for_its_bytes_when_the_last_of_its_messages_is_taken() -> None:
    batch = CachedBatch(0, 2, 2, 0, 1000, (b"",))
    queue = LiveQueue(max_messages=10, max_bytes=1000)
    for _ in range(3):
        assert queue.offer(batch, all_of(batch)) == 2
        assert queue.room(batch) == 0
        assert queue.take(1) is not None
        assert (queue.room(batch), queue.messages, queue.bytes) == (0, 1, 1000)
        assert queue.take(1) is not None
        assert (queue.messages, queue.bytes, queue.take(1)) == (0, 0, None)
