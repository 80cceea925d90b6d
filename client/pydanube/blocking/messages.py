"""Messages and batches with blocking methods, for `pydanube.sync`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar, overload

from pydanube.blocking.loop import Loop
from pydanube.blocking.wrapping import Blocking, same
from pydanube.facts import SchemaRef
from pydanube.message import Batch as _Batch
from pydanube.message import Message as _Message

T = TypeVar("T")


class Acks:
    """Acknowledgements by the application's threads, handed to the loop together. The first failure is raised later."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._given: deque[_Message | _Batch] = deque()
        self._scheduled = False
        self._error: Exception | None = None

    def give(self, item: _Message | _Batch) -> None:
        """Acknowledge a message with the next exchange."""
        self.check()
        self._given.append(item)
        if not self._scheduled:  # two threads may both see this and schedule twice, which does no harm
            self._scheduled = True
            self.loop.soon(self._start)

    def check(self) -> None:
        """Raise the failure of an earlier acknowledgement, if there was one."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _start(self) -> None:
        self._scheduled = False
        while self._given:
            work = self._given.popleft().ack()
            try:
                work.send(None)  # an ack never suspends: it only notes the offset
            except StopIteration:
                pass
            except Exception as error:
                self._error = error

    async def drain(self) -> None:
        """Hand over the acknowledgements given so far. Runs in the loop."""
        self._start()


class Message:
    """A received message: `pydanube.Message` with blocking methods."""

    __slots__ = ("_acks", "_inner")

    def __init__(self, inner: _Message, acks: Acks) -> None:
        self._inner = inner
        self._acks = acks

    def __repr__(self) -> str:
        return repr(self._inner)

    payload: Final[bytes] = same("payload")
    offset: Final[int] = same("offset")
    topic: Final[str] = same("topic")
    partition: Final[int | None] = same("partition")
    is_null: Final[bool] = same("is_null")
    key: Final[str | None] = same("key")
    attributes: Final[Mapping[str, str]] = same("attributes")
    producer: Final[str] = same("producer")
    publish_time: Final[datetime] = same("publish_time")
    append_time: Final[datetime] = same("append_time")
    delivery_count: Final[int] = same("delivery_count")
    schema: Final[SchemaRef | None] = same("schema")
    wants_reply: Final[bool] = same("wants_reply")

    @overload
    def value(self) -> Any: ...

    @overload
    def value(self, into: Callable[..., T]) -> T: ...

    def value(self, into: Callable[..., Any] | None = None) -> Any:
        """Decode the payload by its schema version, as `pydanube.Message.value`. Blocks while the schema is fetched."""
        decoding = self._inner._from.lane.decode(self._inner, into)
        return self._loop.call(decoding)

    def ack(self) -> None:
        """Acknowledge the message, in the background. `consumer.flush_acks()` waits until it is durable."""
        self._acks.give(self._inner)

    nack = Blocking(_Message.nack)
    extend = Blocking(_Message.extend)
    reply = Blocking(_Message.reply)
    terminate = Blocking(_Message.terminate)

    @property
    def _loop(self) -> Loop:
        return self._acks.loop


def message_of(loop: Loop, inner: _Message) -> Message:
    """Return a message with blocking methods, outside of any consumer."""
    return Message(inner, Acks(loop))


class Batch:
    """A batch: `pydanube.Batch` with blocking methods."""

    __slots__ = ("_acks", "_inner")

    def __init__(self, inner: _Batch, acks: Acks) -> None:
        self._inner = inner
        self._acks = acks

    def __len__(self) -> int:
        return len(self._inner)

    topic: Final[str] = same("topic")
    partition: Final[int | None] = same("partition")
    payloads: Final[list[bytes]] = same("payloads")
    offsets: Final[Sequence[int]] = same("offsets")
    keys: Final[list[str | None]] = same("keys")
    nulls: Final[list[bool]] = same("nulls")
    attributes: Final[list[Mapping[str, str]]] = same("attributes")
    append_time: Final[datetime] = same("append_time")
    delivery_count: Final[int] = same("delivery_count")

    def messages(self) -> list[Message]:
        """Return the messages of the batch, one object each."""
        return [Message(message, self._acks) for message in self._inner.messages()]

    def part(self, start: int, end: int) -> Batch:
        """Return the messages [start, end) as a batch, as `pydanube.Batch.part` does."""
        return Batch(self._inner.part(start, end), self._acks)

    def ack(self) -> None:
        """Acknowledge all messages of the batch, in the background, as `pydanube.Batch.ack` does."""
        self._acks.give(self._inner)

    nack = Blocking(_Batch.nack)

    @property
    def _loop(self) -> Loop:
        return self._acks.loop
