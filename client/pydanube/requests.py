"""Request and reply: a request is a message on a service's topic, its reply a message in the requester's inbox.

The inbox is a topic of this client alone, created with the first request. It is non-reliable, since a reply without a
waiter is worth nothing, and has a time to live, so that the broker deletes it when the client is gone. Consumers that
reply share the service's subscription, which divides the requests among them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

from pydanube_core.batch.timing import TTL_MS
from pydanube_core.errors import ClosedResource, ClusterError, DeadlineExceeded, WindowFull
from pydanube_core.names import TopicName

from pydanube.arguments import check_number
from pydanube.consumer import Consumer
from pydanube.message import INBOX, REPLY_TO, REQUEST, Message
from pydanube.options import ConsumerOptions, ProducerOptions
from pydanube.producer import Producer
from pydanube.tasks import TaskOwner, shared
from pydanube.wire.transport import copy_of

MOST_PRODUCERS: Final = 256  # services called and inboxes answered. The least recently used one is closed
INBOX_TTL_S: Final = 60
#: The producer of a requester's inbox is closed after this time without a reply. While open, the inbox counts as used
IDLE_S: Final = 15.0
LONGEST_S: Final = 86_400
LATE_S: Final = 0.01  # a request may end so late, so that many do not cost a check each
INBOX_OPTIONS: Final = ProducerOptions(dispatch_strategy="non_reliable", unused_ttl_s=INBOX_TTL_S)
_SERVICE: Final = ProducerOptions(dispatch_strategy=None)

log = logging.getLogger("pydanube")


class Requests:
    """The requests and replies of one client, used in its block and closed with it."""

    def __init__(
        self,
        producer: Callable[[str, ProducerOptions], Producer],
        consumer: Callable[[str, str, ConsumerOptions], Consumer],
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        # Open ones by service, as it was named, and by inbox, the least recently used first
        self._producers: OrderedDict[str, Producer] = OrderedDict()
        self._opening: dict[str, asyncio.Task[Producer]] = {}
        self._replied_at: dict[str, float] = {}  # by inbox, for those with an open producer
        self._look: asyncio.TimerHandle | None = None  # for idle ones among them
        self._inbox: str | None = None  # while it is open
        self._opening_inbox: asyncio.Task[str] | None = None
        # Ids of requests are random: others may see the name of this client's inbox and let a service reply to it.
        self._numbers = map(f"{os.urandom(8).hex()}-{{}}".format, itertools.count(1))
        self._waiting: dict[str, tuple[asyncio.Future[Message], float]] = {}  # by number, with the time-out
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskOwner()

    async def aclose(self) -> None:
        """Fail all requests that wait for a reply. The client closes producers and consumers."""
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        for reply, _ in self._waiting.values():
            if not reply.done():
                reply.set_exception(ClosedResource("the client was closed before the reply came"))
        self._producers.clear()
        await self._tasks.aclose()

    async def request(self, service: str, payload: bytes, key: str | None, timeout_s: float) -> Message:
        """Send a request and return its reply. Arguments and errors are those of `Client.request`."""
        check_number("timeout_s", timeout_s, 0.001, LONGEST_S)
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Message] = loop.create_future()
        until_s = loop.time() + timeout_s
        try:
            inbox, producer = self._inbox, self._at_hand(service)
            if inbox is None or producer is None:
                TopicName.parse(service)  # raises if it is wrong
                async with asyncio.timeout_at(until_s):
                    inbox, producer = await self._inbox_opened(), await self._open(service, _SERVICE)
            ttl_ms = str(math.ceil(timeout_s * 1000))
            attributes = {REPLY_TO: inbox, REQUEST: number, TTL_MS: ttl_ms}
            try:
                sent = producer.send_nowait(payload, key=key, attributes=attributes)
            except WindowFull:
                async with asyncio.timeout_at(until_s):
                    sent = await producer._send_in_turn(payload, key, attributes, None)
            # The receipt wakes no task: the request is being handled, perhaps in this very loop.
            sent.when_failed(partial(self._refused, service, reply))
            self._waiting[number] = reply, until_s  # in the turn in which it was sent: no reply is here yet
            self._end_by(until_s)
            return await reply
        except TimeoutError:
            name = str(TopicName.parse(service))
            raise DeadlineExceeded(
                f"{name} did not reply within {timeout_s:g} s. The request may have been received",
                topic=name,
                outcome="unknown",
            ) from None
        finally:
            self._waiting.pop(number, None)

    def _end_by(self, until_s: float) -> None:
        """Schedule the check for expired requests: one timer for all, as one each would cost as much as encoding the request."""
        if self._timer is None or until_s < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(until_s, self._end_late)

    def _end_late(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        next_s = math.inf
        for reply, until_s in self._waiting.values():
            if until_s > now_s:
                next_s = min(next_s, until_s)
            elif not reply.done():
                reply.set_exception(TimeoutError())
        if next_s < math.inf:
            self._end_by(max(next_s, now_s + LATE_S))

    async def reply(self, inbox: str, request: str, payload: bytes) -> None:
        """Send a reply to the requester's inbox, in the background. A failure is logged, since no caller waits."""
        try:
            producer = self._at_hand(inbox)
            if producer is None:
                producer = await self._open(inbox, INBOX_OPTIONS)
            self._note_reply(inbox)
            sent = producer.send_nowait(payload, attributes={REQUEST: request})
        except ClusterError as error:
            self._lost(inbox, error)
        else:
            sent.when_failed(partial(self._lost, inbox))

    def _note_reply(self, inbox: str) -> None:
        loop = asyncio.get_running_loop()
        self._replied_at[inbox] = loop.time()
        if self._look is None:
            self._look = loop.call_later(IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        """Close the producers of inboxes without a recent reply: their clients may be gone."""
        loop = asyncio.get_running_loop()
        for inbox, at in list(self._replied_at.items()):
            if inbox not in self._producers:
                del self._replied_at[inbox]
            elif loop.time() - at >= IDLE_S:
                del self._replied_at[inbox]
                self._drop(inbox)
        self._look = loop.call_later(IDLE_S, self._close_idle) if self._replied_at else None

    def _refused(self, service: str, reply: asyncio.Future[Message], error: ClusterError) -> None:
        self._drop(service)
        if not reply.done():
            reply.set_exception(copy_of(error))

    def _lost(self, inbox: str, error: ClusterError) -> None:
        self._drop(inbox)
        log.warning("a reply to %s was lost: %s", inbox, error)

    def _at_hand(self, topic: str) -> Producer | None:
        """Return the topic's open producer, None without one, and mark it as recently used."""
        producer = self._producers.get(topic) if isinstance(topic, str) else None
        if producer is None:
            return None
        if producer._window.shut is not None:
            self._drop(topic)
            return None
        self._producers.move_to_end(topic)
        return producer

    def _drop(self, topic: str) -> None:
        """Close the topic's producer, so that the next message gets another: its topic is gone, or it failed."""
        producer = self._producers.pop(topic, None)
        if producer is not None:
            self._close(producer)

    def _close(self, producer: Producer) -> None:
        self._tasks.start(producer.__aexit__(None, None, None), name="closing a producer")

    async def _open(self, topic: str, options: ProducerOptions) -> Producer:
        producer, task = self._at_hand(topic), self._opening.get(topic)
        if producer is not None:
            return producer
        if task is None:
            producer = self._producer(topic, options)
            producer.receipts_may_wait = True
            task = self._opening[topic] = self._tasks.start(producer.__aenter__(), name=f"opening {topic}")
            task.add_done_callback(partial(self._opened, topic))
        return await shared(task)

    def _opened(self, topic: str, task: asyncio.Task[Producer]) -> None:
        del self._opening[topic]
        if task.cancelled() or task.exception() is not None:
            return
        self._producers[topic] = task.result()
        while len(self._producers) > MOST_PRODUCERS:
            _, oldest = self._producers.popitem(last=False)
            self._close(oldest)

    async def _inbox_opened(self) -> str:
        if self._inbox is not None:
            return self._inbox
        if self._opening_inbox is None or self._opening_inbox.done():
            self._opening_inbox = self._tasks.start(self._open_inbox(), name="opening an inbox")
        return await shared(self._opening_inbox)

    async def _open_inbox(self) -> str:
        inbox = f"{INBOX}{os.urandom(12).hex()}"
        await self._open(inbox, INBOX_OPTIONS)  # creates it
        consumer = self._consumer(inbox, "inbox", ConsumerOptions())
        consumer.hear(self._replied)
        await consumer.__aenter__()
        self._inbox = inbox
        self._tasks.start(self._listen(consumer), name=f"replies to {inbox}")
        return inbox

    def _replied(self, message: Message) -> None:
        waiting = self._waiting.get(message.attributes.get(REQUEST, ""))
        if waiting is not None and not waiting[0].done():  # else it comes too late
            waiting[0].set_result(message)

    async def _listen(self, consumer: Consumer) -> None:
        try:
            async for _ in consumer:
                pass  # `hear` takes the messages: only the end is handled here
        except ClusterError as error:
            log.warning("the inbox %s is gone: %s", consumer.topic, error)
        finally:
            self._inbox = None  # the next request makes another
