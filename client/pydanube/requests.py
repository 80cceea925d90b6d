"""Request and reply: a request is a message on a service's topic, its reply one on the inbox of whoever asked.

The inbox is a topic of this client alone, made with the first request: non-reliable, since a reply that nobody waits for
is worth nothing, and with a time to live, so that the broker deletes it when the client is gone. Those who answer share
the service's subscription, which divides the requests among them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from secrets import token_hex
from typing import Any, Final

from pydanube_core.errors import ClusterError, DeadlineExceeded
from pydanube_core.names import TopicName

from pydanube.arguments import check_number
from pydanube.consumer import Consumer
from pydanube.message import INBOX, REPLY_TO, REQUEST, Message
from pydanube.options import ConsumerOptions, ProducerOptions
from pydanube.producer import Producer
from pydanube.tasks import TaskOwner

MOST_PRODUCERS: Final = (
    256  # services asked and inboxes answered; the one that was not needed for longest is closed
)
INBOX_TTL_S: Final = 60
_INBOX: Final = ProducerOptions(dispatch_strategy="non_reliable", unused_ttl_s=INBOX_TTL_S)
_SERVICE: Final = ProducerOptions(dispatch_strategy=None)

log = logging.getLogger("pydanube")


class Requests:
    """Of one client; used in its block, closed with it."""

    def __init__(
        self,
        producer: Callable[[str, ProducerOptions], Producer],
        consumer: Callable[[str, str, ConsumerOptions], Consumer],
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._producers: OrderedDict[str, asyncio.Task[Producer]] = OrderedDict()
        self._inbox: asyncio.Task[str] | None = None
        # Of requests: the inbox is this client's alone, but others may see its name and let a service reply to it.
        self._numbers = map(f"{token_hex(8)}-{{}}".format, itertools.count(1))
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._tasks = TaskOwner()

    async def aclose(self) -> None:
        """Wait for nothing more; producers and consumers are the client's to close."""
        await self._tasks.aclose()

    async def request(self, service: str, payload: bytes, key: str | None, timeout_s: float) -> Message:
        """See `Client.request`."""
        check_number("timeout_s", timeout_s, 0.001, 86_400)
        name, number = str(TopicName.parse(service)), next(self._numbers)
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            async with asyncio.timeout(timeout_s):
                if self._inbox is None or _failed(self._inbox):
                    self._inbox = self._tasks.start(self._open_inbox(), name="opening an inbox")
                attributes = {REPLY_TO: await asyncio.shield(self._inbox), REQUEST: number}
                producer = await self._open(name, _SERVICE)
                try:
                    await producer.send(
                        payload, key=key, attributes=attributes, ttl_ms=math.ceil(timeout_s * 1000)
                    )
                except ClusterError:
                    self._producers.pop(name, None)
                    raise
                return await reply
        except TimeoutError:
            raise DeadlineExceeded(
                f"{name} did not reply within {timeout_s:g} s; whether it got the request is not known",
                topic=name, outcome="unknown",
            ) from None  # fmt: skip
        finally:
            del self._waiting[number]

    async def reply(self, inbox: str, request: str, payload: bytes) -> None:
        """See `Message.reply`."""
        try:
            producer = await self._open(inbox, _INBOX)
            batch = producer.send_nowait(payload, attributes={REQUEST: request})._batch
        except ClusterError as error:
            self._lost(inbox, error)
            return

        def answered(_: asyncio.Future[None]) -> None:
            if batch.error is not None:
                batch.error_seen = True
                self._lost(inbox, batch.error)

        batch.waiter().add_done_callback(answered)  # a task for each reply would cost more than sending it

    def _lost(self, inbox: str, error: ClusterError) -> None:
        self._producers.pop(inbox, None)
        log.warning("a reply to %s was lost: %s", inbox, error)

    async def _open(self, topic: str, options: ProducerOptions) -> Producer:
        task = self._producers.get(topic)
        if task is None or _failed(task):
            opening = self._producer(topic, options).__aenter__()
            task = self._producers[topic] = self._tasks.start(opening, name=f"opening {topic}")
        self._producers.move_to_end(topic)
        while len(self._producers) > MOST_PRODUCERS:
            _, oldest = self._producers.popitem(last=False)
            if oldest.done() and not _failed(oldest):
                self._tasks.start(oldest.result().__aexit__(None, None, None), name="closing a producer")
        return await asyncio.shield(task)

    async def _open_inbox(self) -> str:
        inbox = f"{INBOX}{token_hex(12)}"
        await self._open(inbox, _INBOX)  # which makes it
        consumer = self._consumer(inbox, "inbox", ConsumerOptions())
        await consumer.__aenter__()
        self._tasks.start(self._listen(consumer), name=f"replies to {inbox}")
        return inbox

    async def _listen(self, consumer: Consumer) -> None:
        try:
            async for message in consumer:
                waiting = self._waiting.get(message.attributes.get(REQUEST, ""))
                if waiting is not None and not waiting.done():  # else it comes too late
                    waiting.set_result(message)
        except ClusterError as error:
            log.warning("the inbox %s is gone: %s", consumer.topic, error)
        finally:
            self._inbox = None  # the next request makes another


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
