"""The connections of a client, one to each broker, and which one leads to a topic's owner."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydanube_core.errors import (
    ClosedResource,
    ClusterError,
    DeadlineExceeded,
    DispatchMismatch,
    InvalidArgument,
    NoOwner,
    NotOwner,
    Retryable,
    Unavailable,
)
from pydanube_core.generated import danube_stream_pb2 as pb

from pydanube.outage import Waiter
from pydanube.retry import Retry
from pydanube.wire.gone_owner import GoneOwner
from pydanube.wire.transport import Transport, TransportFactory, gave_up

if TYPE_CHECKING:
    from pydanube.options import ConsumerOptions
    from pydanube.topic_watch import Partitions, TopicChoice, TopicWatch

ASK_TIMEOUT_S: Final = 10.0
WATCHED_S: Final = 0.25  # a pause of this length or more ends early if the topic gets another owner
LEAST_PAUSE_S: Final = 0.02
LATE_S: Final = 5.0  # for an answer after its wait is over: the broker may be busy with all clients
WAITED_SHARE: Final = 0.8  # of the time left, for which a broker is asked to wait: its answer takes time, too
#: a pause while no broker serves the topic. A broker answers after so long at the latest
UNSERVED_S: Final = 10.0
MOST_KNOWN: Final = 64  # brokers that are tried in turn
MOST_NAMED: Final = 10_000  # topics whose owners were named by errors

_Answer = TypeVar("_Answer")


class Connections:
    """Connections made on demand, usable between `open` and `aclose`."""

    def __init__(self, urls: Sequence[str], make: TransportFactory, retry: Retry) -> None:
        self.url = urls[0]  # of the broker that looks topics up
        # All brokers that can look topics up, in the order in which they were learned
        self._known = dict.fromkeys(urls)
        self._make = make
        self._retry = retry
        self._transports: dict[str, Transport] = {}
        # concrete topic → url, and the owner's id if it is not registered. From the latest Resolve, used once
        self._owners: dict[str, tuple[str, str]] = {}
        # Topic or partition → highest epoch in which an error has named its owner
        self._named: dict[str, int] = {}
        self.usable = False

    def __len__(self) -> int:
        return len(self._transports)

    async def aclose(self) -> None:
        transports = list(self._transports.values())
        self._transports.clear()
        for transport in transports:
            await transport.aclose()

    async def call(self, path: str, request: bytes, timeout_s: float) -> bytes:
        """Make a unary call to one of the brokers that were given or learned."""
        return await self._asked(lambda transport: transport.call(path, request, timeout_s=timeout_s))

    async def _asked(self, ask: Callable[[Transport], Coroutine[Any, Any, _Answer]]) -> _Answer:
        """Call the broker that was reached last; if it cannot be reached or hangs, the next call tries the next one."""
        url = self.url
        try:
            return await ask(self.to(url))
        except (Unavailable, DeadlineExceeded) as error:
            if error.details.get("broker") == url and self.url == url:
                known = list(self._known)
                self.url = known[(known.index(url) + 1) % len(known)]
            raise

    def to(self, url: str) -> Transport:
        """Return the transport to the broker at a URL."""
        if not self.usable:
            raise ClosedResource("the client is used outside its block: `async with connect() as client`")
        transport = self._transports.get(url)
        if transport is None:
            transport = self._transports[url] = self._make(url)
        return transport

    def preparer(
        self, request: pb.ResolveRequest, waiter: Waiter
    ) -> Callable[[], Coroutine[Any, Any, tuple[str, Partitions]]]:
        """Return a function that looks up a topic's full name and partitions, and compares them with the request."""

        async def prepare() -> tuple[str, Partitions]:
            with waiter.asking(request.topic) as waiting:
                response = await self.with_retry(lambda: self._resolve(request), waiting)
            if (
                request.partitions
                and (len(response.partitions) if response.partitioned else 1) != request.partitions
            ):
                raise InvalidArgument(
                    f"{response.topic} has {len(response.partitions)} partitions, not {request.partitions}",
                    field="partitions",
                    value=request.partitions,
                )
            if request.dispatch_strategy and response.dispatch_strategy not in (
                "",
                request.dispatch_strategy,
            ):
                raise DispatchMismatch(
                    f"{response.topic} is {response.dispatch_strategy}, not {request.dispatch_strategy}",
                    topic=response.topic,
                    field="dispatch_strategy",
                    value=request.dispatch_strategy,
                )
            return response.topic, [
                (index if response.partitioned else None, partition.topic)
                for index, partition in enumerate(response.partitions)
            ]

        return prepare

    async def with_retry(
        self, ask: Callable[[], Coroutine[Any, Any, _Answer]], waiting: Callable[[str], None]
    ) -> _Answer:
        """Retry a call as long as the client's `Retry` allows. `waiting` gets each failure's message."""
        since, attempt = time.monotonic(), 0
        while True:
            try:
                return await ask()
            except Retryable as error:
                attempt += 1
                waiting(error.message)
                left_s = since + self._retry.max_elapsed_s - time.monotonic()
                if left_s <= 0:
                    raise gave_up(error, time.monotonic() - since) from None
                delay_s = self._retry.delay_s(
                    attempt, draw=random.random(), retry_after_ms=error.retry_after_ms
                )
                await asyncio.sleep(min(delay_s, left_s))

    def watch(
        self, choice: TopicChoice, asked: ConsumerOptions, waiter: Waiter, *, several: bool
    ) -> TopicWatch:
        """Return the watch by which a consumer finds new topics and partitions."""

        async def match(patterns: Sequence[str], limit: int) -> tuple[dict[str, int], bool]:
            from pydanube_core.services import STREAM  # builds the classes of every .proto file

            request = pb.MatchRequest(patterns=patterns, limit=limit).SerializeToString()

            async def ask() -> bytes:
                return await self.call(STREAM["Match"].path, request, ASK_TIMEOUT_S)

            # For one topic this looks for further partitions, for which the consumer does not wait.
            with waiter.asking(str(choice)) if several else nullcontext(_unheard) as waiting:
                found = pb.MatchResponse.FromString(await self.with_retry(ask, waiting))
            return dict(zip(found.topics, chain(found.partitions, repeat(0)), strict=False)), found.more

        async def prepare(topic: str, create: bool) -> tuple[str, Partitions]:
            return await self.preparer(pb.ResolveRequest(topic=topic, create=create), waiter)()

        from pydanube.topic_watch import TopicWatch

        return TopicWatch(
            choice,
            match=match,
            prepare=prepare,
            create=asked.create,
            max_topics=asked.max_topics,
            refresh_s=asked.refresh_s,
            several=several,
        )

    async def _resolve(
        self, request: pb.ResolveRequest, *, timeout_s: float = ASK_TIMEOUT_S
    ) -> pb.ResolveResponse:
        wanted = request.SerializeToString()
        data = await self._asked(lambda transport: transport.resolve(wanted, timeout_s=timeout_s))
        response = pb.ResolveResponse.FromString(data)
        for partition in response.partitions:
            if partition.broker_url and len(self._known) < MOST_KNOWN:
                self._known.setdefault(partition.broker_url)
            self._owners[partition.topic] = partition.broker_url or self.url, partition.waits_for
        return response

    async def locate(self, concrete_topic: str) -> Transport:
        """Return the transport to the topic's owner, looked up for each connection because the topic may have moved.

        Raises `NoOwner` if the pause before this retry has ended without an owner: no broker could open the topic.
        """
        found = self._owners.pop(concrete_topic, None)
        if found is None:
            await self._resolve(pb.ResolveRequest(topic=concrete_topic))
            found = self._owners.pop(concrete_topic, (self.url, ""))
        url, waits_for = found
        if not url:
            raise NoOwner(
                f"topic {concrete_topic} is not served by any broker yet: try again in a moment",
                topic=concrete_topic,
            )
        return GoneOwner(self.to(url), concrete_topic, waits_for) if waits_for else self.to(url)

    async def pause(
        self, concrete_topic: str, failure: ClusterError, delay_s: float, left_s: float = math.inf
    ) -> None:
        """Wait before a retry, but no longer than until the topic is at another broker than the one that failed.

        If no broker serves the topic, wait until one does, at most `UNSERVED_S`: retries in between only cost the brokers
        time, in which they take thousands of topics over. Each new owner that an error names is tried at once.

        Args:
            left_s: the time until the retry gives up. No pause is longer.
        """
        if isinstance(failure, NotOwner) and self._is_new(concrete_topic, failure):
            await asyncio.sleep(LEAST_PAUSE_S)
            return
        begun_s = time.monotonic()
        delay_s = min(delay_s, left_s)
        away = str(failure.details.get("broker", ""))
        is_unserved = isinstance(failure, NoOwner) or failure.details.get("state") == "gone"
        is_watched = (away and delay_s >= WATCHED_S) or (
            is_unserved and min(self._unserved_s, left_s) >= WATCHED_S
        )
        if is_watched and await self._is_elsewhere(
            concrete_topic, away, delay_s, begun_s + left_s, is_unserved=is_unserved
        ):
            delay_s = min(delay_s, time.monotonic() - begun_s + LEAST_PAUSE_S)
        await asyncio.sleep(max(0.0, begun_s + delay_s - time.monotonic()))

    @property
    def _unserved_s(self) -> float:
        """The longest pause while no broker serves a topic. Little of the time that a failure may last."""
        retry = self._retry
        return min(UNSERVED_S, retry.max_elapsed_s / 10) if retry.max_delay_s >= WATCHED_S else 0.0

    async def _is_elsewhere(
        self, topic: str, away: str, wait_s: float, end_s: float, *, is_unserved: bool
    ) -> bool:
        """Wait until another broker than `away` serves the topic, and return whether one does.

        Args:
            end_s: when this returns at the latest, also if the broker that looks the topic up hangs.
            is_unserved: no broker serves the topic. The wait ends, too, when `away` is registered again. It is longer
                then, also if that turns out during the wait.
        """
        begun_s, gap_s = time.monotonic(), WATCHED_S
        late_s = min(LATE_S, self._retry.max_elapsed_s / 10)
        while True:
            most_s = max(wait_s, self._unserved_s) if is_unserved else wait_s
            asked_s = time.monotonic()
            left_s, until_end_s = begun_s + most_s - asked_s, end_s - asked_s
            if left_s <= 0 or until_end_s <= 0:
                return False
            # Not to the end: thousands of calls that clients end would cost them their connections.
            wait_ms = math.ceil(min(left_s, until_end_s * WAITED_SHARE) * 1000)
            request = pb.ResolveRequest(topic=topic, away=away, wait_ms=wait_ms)
            try:
                response = await self._resolve(request, timeout_s=min(left_s + late_s, until_end_s))
            except ClusterError:  # the retry finds out why
                return False
            is_back = is_unserved and not any(each.waits_for for each in response.partitions)
            if any(each.broker_url and (each.broker_url != away or is_back) for each in response.partitions):
                return True
            is_unserved = any(each.waits_for or not each.broker_url for each in response.partitions)
            if not any(each.broker_url for each in response.partitions):
                self._owners[topic] = "", ""  # to open it at the broker that was asked costs both time
            # A broker bounds the wait. One that does not wait at all is asked ever more rarely.
            answered_s = time.monotonic()
            if answered_s < asked_s + gap_s:
                await asyncio.sleep(max(0.0, min(asked_s + gap_s, begun_s + most_s, end_s) - answered_s))
                gap_s *= 2

    def _is_new(self, concrete_topic: str, failure: NotOwner) -> bool:
        """Return whether the epoch that an error names is above those named before, so that brokers cannot disagree long."""
        epoch = int(failure.details.get("epoch", 0))
        if epoch <= self._named.get(concrete_topic, 0):
            return False
        if len(self._named) >= MOST_NAMED:
            self._named.clear()
        self._named[concrete_topic] = epoch
        return True


def _unheard(reason: str) -> None:
    """Ignore a reason for waiting."""
