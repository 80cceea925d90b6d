"""The SDK without await: the same names, from any thread, and inside Jupyter.

    from pydanube.sync import connect

    with connect() as client, client.producer("orders") as producer:
        producer.send(b"one")

Each client runs an event loop in its own background thread. Calls are handed over and waited for, which costs some
tens of microseconds each. So use `send_many`, and iterate: messages are fetched from the loop by the delivery, and acks
go back together. A call that is interrupted (Ctrl-C) is cancelled in the loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from pydanube_core.errors import ClosedResource

from pydanube import client as _client
from pydanube.blocking.loop import Loop, Pace
from pydanube.blocking.messages import Acks, Batch, Message, message_of
from pydanube.blocking.wrapping import Blocking, InLoop, Wrapped, at_once, same
from pydanube.consumer import Consumer as _Consumer
from pydanube.consumer import Reader as _Reader
from pydanube.facts import ClientEvent, Receipt, SendSummary
from pydanube.handler_loop import Handler
from pydanube.handler_options import HandlerArguments
from pydanube.keywords import keywords_named
from pydanube.message import Batch as _Batch
from pydanube.message import Message as _Message
from pydanube.payloads.shapes import Value
from pydanube.producer import Producer as _Producer
from pydanube.receiving.receiver import Receiver as _Receiver
from pydanube.retry import Retry
from pydanube.schemas import Schemas as _Schemas
from pydanube.sending.arrow_columns import is_arrow
from pydanube.sending.outbound import PendingSend as _PendingSend
from pydanube.sending.window import Payload
from pydanube.signals import first_signal
from pydanube.wire.bearer import TokenSource
from pydanube.wire.endpoint import Tls

if TYPE_CHECKING:
    from pydanube.admin.generated.sync_operations import SyncAdmin

__all__ = [
    "Batch",
    "Client",
    "Consumer",
    "Message",
    "PendingSend",
    "Producer",
    "Reader",
    "connect",
    "connect_admin",
]

T = TypeVar("T")
R = TypeVar("R", bound=_Receiver)


@keywords_named
def connect(
    url: str | None = None,
    *,
    token: TokenSource | None = None,
    tls: Tls | None = None,
    principal: str | None = None,
    retry: Retry | None = None,
    tracing: bool = False,
) -> Client:
    """Connect to a cluster as `pydanube.connect` does, to be used as `with connect() as client`."""

    def make() -> _client.Client:
        return _client.connect(url, token=token, tls=tls, principal=principal, retry=retry, tracing=tracing)

    make()  # bad arguments are refused here, not in the thread
    return Client(make)


def connect_admin(
    url: str | None = None,
    *,
    token: TokenSource | None = None,
    tls: Tls | None = None,
    principal: str | None = None,
    timeout_s: float = 10.0,
) -> AbstractContextManager[SyncAdmin]:
    """Connect to a cluster's operations as `pydanube.admin.connect_admin` does, for `with connect_admin() as admin`."""
    from pydanube.admin.connecting import connect_admin_sync  # the classes of results take a while to make

    return connect_admin_sync(url, token=token, tls=tls, principal=principal, timeout_s=timeout_s)


class Schemas(InLoop[_Schemas]):
    """Register and read schemas: `pydanube.Schemas` without `await`."""

    register = Blocking(_Schemas.register)
    latest = Blocking(_Schemas.latest)
    get = Blocking(_Schemas.get)
    decode = Blocking(_Schemas.decode)


class PendingSend(InLoop[_PendingSend]):
    """A message that was handed over: `pydanube.PendingSend` with `result()` in place of await."""

    def done(self) -> bool:
        """Whether the receipt, or an error, has arrived."""
        return self._inner.done()

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the receipt and return it, or raise the error.

        Raises:
            TimeoutError: none within `timeout_s`. The message is still on its way.
        """

        async def wait() -> Receipt:
            async with asyncio.timeout(timeout_s):
                return await self._inner

        return self._loop.call(wait())


class Producer(InLoop[_Producer]):
    """Publish to one topic, from any thread: `pydanube.Producer` without `await`."""

    def __enter__(self) -> Self:
        self._loop.call(self._inner.__aenter__())
        return self

    def __exit__(self, *failure: Any) -> None:
        self._loop.call(self._inner.__aexit__(*failure))

    topic: Final[str] = same("topic")
    name: Final[str] = same("name")
    partitions: Final[int | None] = same("partitions")
    max_message_bytes: Final[int] = same("max_message_bytes")
    stored_before: Final[tuple[int, ...]] = same("stored_before")
    send = Blocking(_Producer.send)

    send_nowait = Wrapped(at_once(_Producer.send_nowait), PendingSend)

    @keywords_named
    def send_many(
        self,
        messages: Iterable[Payload | _Message | Message | Value | None],
        *,
        keys: Iterable[str | None] | None = None,
        attributes: Iterable[Mapping[str, str] | None] | None = None,
        partition: int | None = None,
    ) -> SendSummary:
        """Publish payloads or messages, and return when all are stored. The client's thread consumes the iterable."""
        given = messages if is_arrow(messages) else _unwrapped(messages)
        return self._loop.call(
            self._inner.send_many(given, keys=keys, attributes=attributes, partition=partition)
        )

    unstored = at_once(_Producer.unstored)
    flush = Blocking(_Producer.flush)
    statistics = at_once(_Producer.statistics)


def _unwrapped(
    messages: Iterable[Payload | _Message | Message | Value | None],
) -> Iterator[Payload | _Message | Value | None]:
    for entry in messages:
        yield entry._inner if isinstance(entry, Message) else entry


class _Receiving(InLoop[R]):
    """The base of consumers and readers."""

    def __init__(self, loop: Loop, inner: R) -> None:
        super().__init__(loop, inner)
        self._acks = Acks(loop)
        self._fetched: deque[_Message] = deque()
        self._pace = Pace()

    def __enter__(self) -> Self:
        self._loop.call(self._inner.__aenter__())
        return self

    def __exit__(self, *failure: Any) -> None:
        async def leave() -> None:
            await self._acks.drain()
            await self._inner.__aexit__(*failure)

        self._fetched.clear()
        self._loop.call(leave())
        if failure[0] is None:
            self._acks.check()

    topic: Final[str] = same("topic")
    topics: Final[tuple[str, ...]] = same("topics")
    name: Final[str] = same("name")
    starts: Final[dict[tuple[str, int | None], int]] = same("starts")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        self._acks.check()
        self._forget_void()
        while not self._fetched:
            if not self._loop.call(self._fetch()):
                raise StopIteration
        return Message(self._fetched.popleft(), self._acks)

    async def _fetch(self) -> bool:
        """Fetch as many messages as will be handled soon. Return False at the end."""
        most = self._pace.next_messages(time.monotonic())
        async for message in self._inner:
            self._fetched.append(message)
            if most > 1:
                self._fetched += await self._inner.receive(most - 1, max_wait_s=0)
            return True
        return False

    @keywords_named
    def receive(
        self, max_messages: int = 100, max_bytes: int | None = None, max_wait_s: float = 1.0
    ) -> list[Message]:
        """Return up to `max_messages` messages, as `pydanube.Consumer.receive` does. [] after `max_wait_s`."""
        self._acks.check()
        self._forget_void()
        if not self._fetched:
            found = self._loop.call(self._inner.receive(max_messages, max_bytes, max_wait_s))
            return [Message(message, self._acks) for message in found]
        taken: list[Message] = []
        size = 0
        while self._fetched and len(taken) < max_messages:
            size += len(self._fetched[0].payload)
            if taken and max_bytes is not None and size > max_bytes:
                break
            taken.append(Message(self._fetched.popleft(), self._acks))
        return taken

    def batches(self) -> Iterator[Batch]:
        """Yield batches as they arrive, as `pydanube.Consumer.batches` does. Blocks while there is none."""

        async def following() -> _Batch | None:
            async for batch in self._inner.batches():
                return batch
            return None

        while True:
            self._acks.check()
            self._forget_void()
            if self._fetched:  # left over from an earlier iteration
                delivered = self._fetched[0]._from
                low = bisect_left(delivered.offsets, self._fetched[0].offset)
                high = low
                while self._fetched and self._fetched[0]._from is delivered:
                    self._fetched.popleft()
                    high += 1
                batch: _Batch | None = _Batch(delivered.part(low, high), 0)
            else:
                batch = self._loop.call(following())
            if batch is None:
                return
            yield Batch(batch, self._acks)

    def _forget_void(self) -> None:
        """Drop messages fetched in a session that a seek or reconnect has ended. The broker sends them again."""
        if self._fetched and not self._fetched[0]._from.current:
            self._fetched = deque(message for message in self._fetched if message._from.current)

    # Messages that an iteration has already fetched, a twentieth of a second's work, are still handed out.
    pause = at_once(_Receiver.pause)

    resume = at_once(_Receiver.resume)  # an iteration that waits in another thread goes on

    paused: Final[bool] = same("paused")

    def seek(
        self, position: str | datetime, *, partition: int | None = None, topic: str | None = None
    ) -> None:
        """Send the acks given so far and move the cursor. Arguments and errors as for `pydanube.Consumer.seek`."""

        async def seek() -> None:
            await self._acks.drain()
            await self._inner.seek(position, partition=partition, topic=topic)

        self._loop.call(seek())
        if partition is None and topic is None:
            self._fetched.clear()
        else:
            self._fetched = deque(message for message in self._fetched if message._from.current)

    statistics = at_once(_Receiver.statistics)


class Consumer(_Receiving[_Consumer]):
    """Receive messages of a subscription, from any thread: `pydanube.Consumer` without `await`."""

    subscription: Final[str] = same("subscription")
    active: Final[bool] = same("active")

    def flush_acks(self) -> None:
        """Send all acknowledgements, and wait until the broker has stored them."""

        async def flush() -> None:
            await self._acks.drain()
            await self._inner.flush_acks()

        self._loop.call(flush())
        self._acks.check()


class Reader(_Receiving[_Reader]):
    """Read a topic without a subscription: `pydanube.Reader` without `await`."""


class Client:
    """A connection to a cluster, for use from any thread: `pydanube.Client` without `await`."""

    def __init__(self, make: Callable[[], _client.Client]) -> None:
        self._make = make
        self._open: tuple[Loop, _client.Client] | None = None

    def __enter__(self) -> Self:
        if self._open is not None:
            raise ClosedResource("this client is in use already. Call connect() again for another")
        loop = Loop()

        async def enter() -> _client.Client:
            return await self._make().__aenter__()

        self._open = loop, loop.call(enter())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. Producers that are still open drop messages that are not stored."""
        opened, self._open = self._open, None
        if opened is not None:
            loop, inner = opened
            try:
                loop.call(inner.aclose())
            finally:
                loop.close()

    @property
    def _loop(self) -> Loop:
        return self._both()[0]

    @property
    def _inner(self) -> _client.Client:
        return self._both()[1]

    def _both(self) -> tuple[Loop, _client.Client]:
        if self._open is None:
            raise ClosedResource("the client is used outside its block: `with connect() as client`")
        return self._open

    @property
    def admin(self) -> SyncAdmin:
        """The cluster's operations over this client's connection, as `pydanube.Client.admin`, blocking."""
        from pydanube.admin.generated.sync_operations import SyncAdmin

        loop, inner = self._both()

        async def made() -> SyncAdmin:  # in the loop, to which its connection belongs
            return SyncAdmin(loop, inner.admin)

        return loop.call(made())

    @property
    def schemas(self) -> Schemas:
        """The registry of the cluster."""
        loop, inner = self._both()
        return Schemas(loop, inner.schemas)

    def run(
        self,
        handler: Handler,
        topics: str | Sequence[str] | None,
        subscription: str,
        *,
        stop: threading.Event | None = None,
        **changes: Unpack[HandlerArguments],
    ) -> None:
        """Handle messages with a function, as `pydanube.Client.run` does.

        In the main thread, signals end it. A plain function gets a `Message` of this module.
        """
        (loop, inner), ending = self._both(), asyncio.Event()

        def end() -> None:
            if stop is not None:
                stop.wait()
            with suppress(RuntimeError):  # the client is closed
                loop.soon(ending.set)

        with ExitStack() as until:
            if stop is not None:
                threading.Thread(target=end, daemon=True).start()
            elif threading.current_thread() is threading.main_thread():
                until.enter_context(first_signal(end))
            loop.call(inner.run(handler, topics, subscription, stop=ending, **changes))

    def events(self) -> Iterator[ClientEvent]:
        """Yield events, and block between them, until the client closes."""
        loop, inner = self._both()
        events = inner.events()

        async def following() -> ClientEvent | None:
            return await anext(events, None)

        while True:
            try:
                event = loop.call(following())
            except ClosedResource:
                return
            if event is None:
                return
            yield event

    # To be used as `with client.producer(…)`, and so on.
    producer = Wrapped(at_once(_client.Client.producer), Producer)
    consumer = Wrapped(at_once(_client.Client.consumer), Consumer)
    reader = Wrapped(at_once(_client.Client.reader), Reader)
    request = Wrapped(Blocking(_client.Client.request), message_of)
    health = at_once(_client.Client.health)
    statistics = at_once(_client.Client.statistics)
    metrics = at_once(_client.Client.metrics)
