"""Messages and batches whose verbs block; `pydanube.sync` shows them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, overload

from pydanube.facts import SchemaRef
from pydanube.message import Batch as _Batch
from pydanube.message import Message as _Message
from pydanube.sync_loop import Loop

T = TypeVar("T")


class Acks:
    """Acks given by the application's threads, handed to the loop together; the first failure is raised later."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._given: deque[_Message | _Batch] = deque()
        self._scheduled = False
        self._error: Exception | None = None

    def give(self, item: _Message | _Batch) -> None:
        """Acknowledge a message with the next exchange."""
        self.check()
        self._given.append(item)
        if not self._scheduled:  # two threads may both see this and schedule twice, which does no harm
            self._scheduled = True
            self._loop.soon(self._start)

    def check(self) -> None:
        """Raise what an earlier acknowledgement met with."""
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
        """Hand over what was acknowledged, in the loop."""
        self._start()


class Message:
    """As `pydanube.Message`, with verbs that block."""

    __slots__ = ("_acks", "_inner")

    def __init__(self, inner: _Message, acks: Acks) -> None:
        self._inner = inner
        self._acks = acks

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def payload(self) -> bytes:
        """As `pydanube.Message.payload`."""
        return self._inner.payload

    @property
    def offset(self) -> int:
        """As `pydanube.Message.offset`."""
        return self._inner.offset

    @property
    def topic(self) -> str:
        """As `pydanube.Message.topic`."""
        return self._inner.topic

    @property
    def partition(self) -> int | None:
        """As `pydanube.Message.partition`."""
        return self._inner.partition

    @property
    def key(self) -> str | None:
        """As `pydanube.Message.key`."""
        return self._inner.key

    @property
    def attributes(self) -> Mapping[str, str]:
        """As `pydanube.Message.attributes`."""
        return self._inner.attributes

    @property
    def producer(self) -> str:
        """As `pydanube.Message.producer`."""
        return self._inner.producer

    @property
    def publish_time(self) -> datetime:
        """As `pydanube.Message.publish_time`."""
        return self._inner.publish_time

    @property
    def append_time(self) -> datetime:
        """As `pydanube.Message.append_time`."""
        return self._inner.append_time

    @property
    def delivery_count(self) -> int:
        """As `pydanube.Message.delivery_count`."""
        return self._inner.delivery_count

    @property
    def schema(self) -> SchemaRef | None:
        """As `pydanube.Message.schema`."""
        return self._inner.schema

    @overload
    def value(self) -> Any: ...

    @overload
    def value(self, into: Callable[..., T]) -> T: ...

    def value(self, into: Callable[..., Any] | None = None) -> Any:
        """As `pydanube.Message.value`."""
        decoding = self._inner._from.lane.decode(self._inner, into)
        return self._acks._loop.call(decoding)

    def ack(self) -> None:
        """Gathered; `consumer.flush_acks()` waits until it is durable."""
        self._acks.give(self._inner)

    def nack(self, delay_ms: int | None = None, reason: str = "") -> None:
        """As `pydanube.Message.nack`."""
        self._acks._loop.call(self._inner.nack(delay_ms, reason))

    def extend(self, ms: int) -> None:
        """As `pydanube.Message.extend`."""
        self._acks._loop.call(self._inner.extend(ms))

    def terminate(self, reason: str = "") -> None:
        """As `pydanube.Message.terminate`."""
        self._acks._loop.call(self._inner.terminate(reason))


class Batch:
    """As `pydanube.Batch`, with verbs that block."""

    __slots__ = ("_acks", "_inner")

    def __init__(self, inner: _Batch, acks: Acks) -> None:
        self._inner = inner
        self._acks = acks

    def __len__(self) -> int:
        return len(self._inner)

    @property
    def topic(self) -> str:
        """As `pydanube.Batch.topic`."""
        return self._inner.topic

    @property
    def partition(self) -> int | None:
        """As `pydanube.Batch.partition`."""
        return self._inner.partition

    @property
    def payloads(self) -> list[bytes]:
        """As `pydanube.Batch.payloads`."""
        return self._inner.payloads

    @property
    def offsets(self) -> Sequence[int]:
        """As `pydanube.Batch.offsets`."""
        return self._inner.offsets

    @property
    def keys(self) -> list[str | None]:
        """As `pydanube.Batch.keys`."""
        return self._inner.keys

    @property
    def attributes(self) -> list[Mapping[str, str]]:
        """As `pydanube.Batch.attributes`."""
        return self._inner.attributes

    @property
    def append_time(self) -> datetime:
        """As `pydanube.Batch.append_time`."""
        return self._inner.append_time

    @property
    def delivery_count(self) -> int:
        """As `pydanube.Batch.delivery_count`."""
        return self._inner.delivery_count

    def messages(self) -> list[Message]:
        """As `pydanube.Batch.messages`."""
        return [Message(message, self._acks) for message in self._inner.messages()]

    def ack(self) -> None:
        """As `pydanube.Batch.ack`."""
        self._acks.give(self._inner)

    def nack(self, delay_ms: int | None = None, reason: str = "") -> None:
        """As `pydanube.Batch.nack`."""
        self._acks._loop.call(self._inner.nack(delay_ms, reason))
