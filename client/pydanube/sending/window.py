"""The window of one producer: the room for unanswered messages, and the senders that wait for room, in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final, NoReturn

from pydanube_core.batch import MAX_BATCH_BYTES
from pydanube_core.errors import ClosedResource, ClusterError, MessageTooLarge, WindowFull

from pydanube.routing import bytes_beside_payload
from pydanube.sending.outbound import MESSAGE_OVERHEAD_BYTES
from pydanube.wire.transport import copy_of

Payload = bytes | bytearray | memoryview

# a message of the largest size, with its share of columns, still makes a legal batch
LARGEST_BYTES: Final = MAX_BATCH_BYTES - 4096


class Window:
    """At most `messages` and `bytes` are handed over and unanswered. A larger message passes when it is empty.

    It is shut before `open` and after `shut_down`, for the reason in `shut`. `send_nowait` reads and writes
    `free_messages` and `free_bytes` itself. If they do not suffice, `reserve` raises the reason.
    """

    __slots__ = (
        "blocked", "bytes", "free_bytes", "free_messages", "max_message_bytes", "messages", "shut", "topic", "waiting",
    )  # fmt: skip

    def __init__(self, topic: str, messages: int, bytes: int) -> None:
        self.topic = topic
        self.messages = messages
        self.bytes = bytes
        self.free_messages = 0  # a producer outside its block takes the slow path, which raises the reason
        self.free_bytes = 0
        self.max_message_bytes = 0  # of a payload
        self.shut: ClusterError | None = ClosedResource(
            f"the producer on {topic} is used outside its block", topic=topic
        )
        self.blocked: deque[tuple[asyncio.Future[None], int, int]] = deque()
        self.waiting = 0  # senders that wait for room, or got it and have not run since

    def open(self, topic: str, max_message_bytes: int) -> None:
        """Accept messages. `topic` is the full name."""
        self.topic, self.max_message_bytes, self.shut = topic, max_message_bytes, None
        self.free_messages, self.free_bytes = self.messages, self.bytes

    def shut_down(self, error: ClusterError) -> None:
        """Accept no more messages: the producer was closed, fenced, or met a fatal error."""
        if self.shut is None:
            self.shut = error
        self.free_messages = self.free_bytes = 0
        while self.blocked:
            waiter, _, _ = self.blocked.popleft()
            if not waiter.done():
                waiter.set_exception(copy_of(error))

    def measure(self, payload: Payload, key: str | None, attributes: Mapping[str, str] | None) -> int:
        """Return the bytes that a message takes of the window. Raises `MessageTooLarge`, `InvalidArgument`."""
        payload_bytes = payload.nbytes if isinstance(payload, memoryview) else len(payload)
        size = payload_bytes + bytes_beside_payload(key, attributes)
        if self.shut is None and self.too_large(payload_bytes, size):
            self.refuse_size(size)
        return size + MESSAGE_OVERHEAD_BYTES

    def too_large(self, payload_bytes: int, size: int) -> bool:
        """Return whether a message exceeds the topic's limit or a batch's. `size`: payload, key and attributes."""
        return payload_bytes > self.max_message_bytes or size > LARGEST_BYTES

    def refuse_size(self, size: int) -> NoReturn:
        """Raise `MessageTooLarge`."""
        raise MessageTooLarge(
            f"{self.topic}: a message of {size} bytes. The topic takes {self.max_message_bytes} of payload. Send less, "
            "or raise max_message_size of the topic and topics.max_message_bytes of its broker",
            field="payload",
            value=size,
            topic=self.topic,
            max_message_bytes=self.max_message_bytes,
        )

    def fits(self, count: int, size: int) -> bool:
        """Return whether there is room."""
        empty = self.free_messages == self.messages and self.free_bytes == self.bytes
        return (self.free_messages >= count and self.free_bytes >= size) or empty

    def reserve(self, count: int, size: int) -> None:
        """Take room without waiting. Raises `WindowFull`, or the error for which the window is shut."""
        if self.shut is not None:
            raise copy_of(self.shut)
        if not self.fits(count, size):
            raise WindowFull(
                f"{self.topic}: {self.messages - self.free_messages} messages of "
                f"{self.bytes - self.free_bytes} bytes wait for their receipts. Await some of them",
                topic=self.topic,
                window_messages=self.messages,
                window_bytes=self.bytes,
            )
        self.free_messages -= count
        self.free_bytes -= size

    async def room(self, count: int, size: int) -> None:
        """Take room, waiting in turn."""
        if self.shut is not None or (not self.waiting and self.fits(count, size)):
            self.reserve(count, size)
            return
        waiter = asyncio.get_running_loop().create_future()
        self.blocked.append((waiter, count, size))
        self.waiting += 1
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back(count, size)  # granted in the same tick as the cancellation
            raise
        finally:
            self.waiting -= 1
            self.pass_on()  # the next sender may need less room

    def give_back(self, count: int, size: int) -> None:
        """Return room to the window, and wake the next senders."""
        if self.shut is not None:
            return  # no room ever again
        self.free_messages += count
        self.free_bytes += size
        assert self.free_messages <= self.messages
        self.pass_on()

    def pass_on(self) -> None:
        """Wake waiting senders in order, as far as there is room."""
        while self.blocked and self.shut is None:
            waiter, count, size = self.blocked[0]
            if not waiter.done():
                if not self.fits(count, size):
                    break
                self.free_messages -= count
                self.free_bytes -= size
                waiter.set_result(None)
            self.blocked.popleft()
