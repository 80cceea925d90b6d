"""The client: connections to brokers, and the producers and consumers that use them."""

from __future__ import annotations

import asyncio
import os
import random
import time
import warnings
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain, repeat
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from pydanube_core.errors import ClosedResource, DispatchMismatch, InvalidArgument, Retryable
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName, check_subscription
from pydanube_core.services import STREAM

from pydanube.addresses import DEFAULT_BROKER_URL
from pydanube.bearer import TokenSource, token_from
from pydanube.client_metrics import ClosedCounts, Labels, exposition
from pydanube.consumer import Consumer, Reader
from pydanube.endpoint import Tls, parse_url, with_scheme
from pydanube.events import EventHub
from pydanube.facts import (
    ClientEvent,
    ClientEventKind,
    ClientStatistics,
    ConsumerStatistics,
    ProducerStatistics,
    SchemaRef,
    from_ms,
)
from pydanube.http2_transport import Http2Transport
from pydanube.options import (
    ClientSide,
    ConsumerArguments,
    ConsumerOptions,
    ProducerArguments,
    ProducerOptions,
    ReaderArguments,
    ReaderOptions,
    changed,
)
from pydanube.outage import Outage, Waiter
from pydanube.producer import Producer
from pydanube.receiver import Receiver
from pydanube.retry import Retry
from pydanube.schemas import Schema, Schemas, schema_of
from pydanube.tls import tls_from
from pydanube.topic_watch import Partitions, TopicChoice, TopicWatch
from pydanube.tracing import Tracing
from pydanube.transport import Transport, TransportFactory, gave_up

_RESOLVE_TIMEOUT_S: Final = 10.0

_Answer = TypeVar("_Answer")
_Partitions = tuple[str, Partitions]


def connect(
    url: str | None = None,
    *,
    token: TokenSource | None = None,
    tls: Tls | None = None,
    principal: str | None = None,
    retry: Retry | None = None,
    tracing: bool = False,
) -> Client:
    """A client of the cluster at `url`; use it as `async with connect() as client`.

    Nothing is sent before the first producer, consumer or reader is opened.

    Args:
        url: `http://host:port` of any broker, or `host:port`; None: `DANUBE_BROKER_URL`, or http://127.0.0.1:6650.
            `https://` and `danubes://` mean TLS, for every broker of the cluster.
        token: shown to the broker, over TLS or to this machine only; a function is asked anew whenever a stream or call
            begins. None: `DANUBE_TOKEN`, or the content of the file `DANUBE_TOKEN_FILE`.
        tls: certificates; `https://` alone uses the system's authorities. None: `DANUBE_CA`, `DANUBE_CERT`,
            `DANUBE_KEY` where the url means TLS.
        principal: who acts, for the audit.
        retry: how long retryable failures are tried again; `Retry(max_elapsed_s=60)` by default.
        tracing: make OpenTelemetry spans of what is sent, see `pydanube.tracing`.

    Raises:
        MissingExtra: tracing without OpenTelemetry.
        InvalidArgument: the url is none, or another argument is of the wrong kind.
    """
    if url is None or url == "":
        url = os.environ.get("DANUBE_BROKER_URL") or DEFAULT_BROKER_URL
    url = with_scheme(url)
    _, secure = parse_url(url)
    if token is None:
        token = token_from()
    elif not callable(token):
        _check_kind("token", token, str, "text or a function that gives it")
    _check_kind("tls", tls, Tls, "a pydanube.Tls")
    _check_kind("principal", principal, str, "text")
    _check_kind("retry", retry, Retry, "a pydanube.Retry")

    if secure and tls is None:  # given, so that an answer that names another address does not lead out of TLS
        tls = tls_from() or Tls()
    make = partial(Http2Transport, token=token, tls=tls, principal=principal)
    return Client(url, make, retry or Retry(), Tracing() if tracing else None)


class Client:
    """Connections to a cluster; made by `connect`. Bound to the event loop whose block it is used in."""

    def __init__(
        self, url: str, transport: TransportFactory, retry: Retry, tracing: Tracing | None = None
    ) -> None:
        self._url = url
        self._tracing = tracing
        self._closed_counts = ClosedCounts()
        self._make = transport
        self._retry = retry
        self._transports: dict[str, Transport] = {}
        self._owners: dict[str, str] = {}  # concrete topic → url, as a Resolve just said; used once
        self._events = EventHub()
        self._producers: set[Producer] = set()
        self._receivers: set[Receiver] = set()
        self._reconnects = 0
        self._outage = Outage(url, retry.max_elapsed_s)
        self._open = False
        self._known_schemas: OrderedDict[SchemaRef, Schema] = OrderedDict()
        self._unclosed = weakref.finalize(self, _warn_unclosed, url)
        self._unclosed.detach()

    # -- the block -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._open:
            raise ClosedResource("this client is in use already; call connect() again for another")
        self._open = True
        self._unclosed = weakref.finalize(self, _warn_unclosed, self._url)
        self._unclosed.atexit = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection. Producers that are still open drop what they have not stored."""
        self._open = False
        self._unclosed.detach()
        for receiver in list(self._receivers):
            await receiver.aclose()
        for producer in list(self._producers):
            await producer.aclose()
        self._events.close()
        transports = list(self._transports.values())
        self._transports.clear()
        for transport in transports:
            await transport.aclose()

    # -- what it is for --------------------------------------------------------------------------------------

    def producer(
        self, topic: str, options: ProducerOptions | None = None, **changes: Unpack[ProducerArguments]
    ) -> Producer:
        """A producer; `async with` opens it and creates the topic where the cluster allows that.

        Args:
            topic: `/ns/topic`, `ns/topic` or `topic` (in `default`).
            options: None: the defaults.
            changes: fields of `ProducerOptions` by name, instead of those of `options`.

        Raises:
            InvalidArgument, InvalidName: nothing was asked of the broker.
        """
        chosen = changed(options or ProducerOptions(), changes, "producer")
        name = str(TopicName.parse(topic))
        subject, version = schema_of(chosen.schema)
        request = pb.ResolveRequest(
            topic=name,
            create=True,
            partitions=chosen.partitions or 0,
            dispatch_strategy=chosen.dispatch_strategy or "",
            schema_subject=subject,
            schema_version=version,
        )
        waiter = self._outage.waiter(f"the producer on {name}")
        producer = Producer(name, chosen, self._side(request, waiter), self._forget_producer(waiter))
        self._producers.add(producer)
        return producer

    def consumer(
        self,
        topic: str | Sequence[str] | None = None,
        subscription: str = "",
        options: ConsumerOptions | None = None,
        *,
        pattern: str | None = None,
        **changes: Unpack[ConsumerArguments],
    ) -> Consumer:
        """A consumer of a subscription, over all partitions; `async with` opens it and makes the subscription.

        Of several topics it has a subscription of that name on each. Each keeps its own order. Topics of a pattern that
        are made later join by themselves, from their first message; those that are deleted leave, and come back if
        they are made again.

        Args:
            topic: as for `producer`; or several in a list.
            pattern: instead of it, a glob: `orders*`, `/ns/*`.
            subscription: its name; the cursor belongs to it and stays.
            options: None: the defaults.
            changes: fields of `ConsumerOptions` by name, instead of those of `options`.

        Raises:
            InvalidArgument, InvalidName: nothing was asked of the broker.
            ConsumerBusy: on entering; somebody else has the exclusive subscription.
        """
        check_subscription(subscription)
        asked = changed(options or ConsumerOptions(), changes, "consumer")
        several = pattern is not None or isinstance(topic, list | tuple)
        if not several:
            name = str(TopicName.parse(topic))  # type: ignore[arg-type]  # says itself what it wants instead of None
            choice = TopicChoice([name], None, asked.max_topics)
        else:
            choice = TopicChoice(topic, pattern, asked.max_topics)
            name = str(choice)
            if asked.create and not choice.names:
                raise InvalidArgument(
                    "create= makes topics by their names, not by a pattern", field="create", value=True
                )
        waiter = self._outage.waiter(f"the consumer {subscription} of {name}")
        request = pb.ResolveRequest(topic=name, create=asked.create)
        consumer = Consumer(
            asked.receiver(name, subscription),
            self._side(request, waiter),
            self._forget_receiver(waiter),
            self._watch(choice, asked, waiter, several=several),
        )
        self._receivers.add(consumer)
        return consumer

    def reader(
        self, topic: str, options: ReaderOptions | None = None, **changes: Unpack[ReaderArguments]
    ) -> Reader:
        """A plain reader over all partitions: no subscription, nothing left behind.

        Args:
            topic: as for `producer`.
            options: None: the defaults.
            changes: fields of `ReaderOptions` by name, instead of those of `options`.

        Raises:
            InvalidArgument, InvalidName: nothing was asked of the broker.
        """
        name = str(TopicName.parse(topic))
        chosen = changed(options or ReaderOptions(), changes, "reader").receiver(name)
        waiter = self._outage.waiter(f"the reader of {name}")
        request = pb.ResolveRequest(topic=name)
        reader = Reader(chosen, self._side(request, waiter), self._forget_receiver(waiter))
        self._receivers.add(reader)
        return reader

    def events(self) -> AsyncIterator[ClientEvent]:
        """What happens to the connections, from the call on; ends when the client closes."""
        return self._events.listen()

    @property
    def schemas(self) -> Schemas:
        """The registry of the cluster. Made anew each time: kept here it would be a cycle, and an abandoned client
        would no longer be noticed at once."""
        return Schemas(self._call, self._known_schemas)

    def statistics(self) -> ClientStatistics:
        """Connections, producers and consumers at this moment, and reconnects so far."""
        return ClientStatistics(
            url=self._url,
            connections=len(self._transports),
            producers=len(self._producers),
            consumers=len(self._receivers),
            reconnects=self._reconnects,
        )

    def metrics(self) -> str:
        """The counters of all its producers and consumers in the text format that Prometheus reads (0.0.4): to be
        answered by the application's own `/metrics`. What was counted by those that are closed stays."""
        open_ones: list[tuple[Labels, ProducerStatistics | ConsumerStatistics]] = [
            *((("producer", each.topic, ""), each.statistics()) for each in self._producers),
            *((each.labels, each.statistics()) for each in self._receivers),
        ]
        return exposition(self.statistics(), open_ones, self._closed_counts)

    # -- inside ----------------------------------------------------------------------------------------------

    async def _call(self, path: str, request: bytes, timeout_s: float) -> bytes:
        return await self._transport(self._url).call(path, request, timeout_s=timeout_s)

    def _transport(self, url: str) -> Transport:
        if not self._open:
            raise ClosedResource("the client is used outside its block: `async with connect() as client`")
        transport = self._transports.get(url)
        if transport is None:
            transport = self._transports[url] = self._make(url)
        return transport

    def _side(self, request: pb.ResolveRequest, waiter: Waiter) -> ClientSide:
        def emit(kind: ClientEventKind, role: str, topic: str, url: str, attempt: int, reason: str) -> None:
            if kind is ClientEventKind.RECONNECTING:
                waiter.begin(topic, url, reason)
            elif kind is ClientEventKind.CONNECTED:
                waiter.end(topic)
            self._emit(kind, role, topic, url, attempt, reason)

        return ClientSide(
            prepare=self._preparer(request, waiter),
            locate=self._locate,
            emit=emit,
            retry=self._retry,
            schema=self._schema,
            decode=self._decode,
            tracing=self._tracing,
        )

    async def _schema(self, ref: SchemaRef) -> Schema:
        return await self.schemas.get(ref)

    async def _decode(self, message: Any, into: Callable[..., Any] | None) -> Any:
        return await self.schemas.decode(message, into=into)

    def _forget_producer(self, waiter: Waiter) -> Callable[[Producer], None]:
        def forget(producer: Producer) -> None:
            waiter.end_all()
            if producer in self._producers:
                self._producers.discard(producer)
                self._closed_counts.add(("producer", producer.topic, ""), producer.statistics())

        return forget

    def _forget_receiver(self, waiter: Waiter) -> Callable[[Receiver], None]:
        def forget(receiver: Receiver) -> None:
            waiter.end_all()
            if receiver in self._receivers:
                self._receivers.discard(receiver)
                self._closed_counts.add(receiver.labels, receiver.statistics())

        return forget

    def _watch(
        self, choice: TopicChoice, asked: ConsumerOptions, waiter: Waiter, *, several: bool
    ) -> TopicWatch:
        async def match(patterns: Sequence[str], limit: int) -> tuple[dict[str, int], bool]:
            request = pb.MatchRequest(patterns=patterns, limit=limit).SerializeToString()

            async def ask() -> bytes:
                return await self._call(STREAM["Match"].path, request, _RESOLVE_TIMEOUT_S)

            # Beside the consumer's own connections, to look whether there is more is not what it waits for.
            with waiter.asking(str(choice)) if several else nullcontext(_unheard) as waiting:
                found = pb.MatchResponse.FromString(await self._with_retry(ask, waiting))
            return dict(zip(found.topics, chain(found.partitions, repeat(0)), strict=False)), found.more

        async def prepare(topic: str, create: bool) -> _Partitions:
            return await self._preparer(pb.ResolveRequest(topic=topic, create=create), waiter)()

        return TopicWatch(
            choice,
            match=match,
            prepare=prepare,
            create=asked.create,
            max_topics=asked.max_topics,
            refresh_s=asked.refresh_s,
            several=several,
        )

    def _preparer(
        self, request: pb.ResolveRequest, waiter: Waiter
    ) -> Callable[[], Coroutine[Any, Any, _Partitions]]:
        async def prepare() -> _Partitions:
            with waiter.asking(request.topic) as waiting:
                response = await self._with_retry(lambda: self._resolve(request), waiting)
            if (
                request.partitions
                and (len(response.partitions) if response.partitioned else 1) != request.partitions
            ):
                raise InvalidArgument(
                    f"{response.topic} has {len(response.partitions)} partitions, not {request.partitions}",
                    field="partitions", value=request.partitions,
                )  # fmt: skip
            if request.dispatch_strategy and response.dispatch_strategy not in (
                "",
                request.dispatch_strategy,
            ):
                raise DispatchMismatch(
                    f"{response.topic} is {response.dispatch_strategy}, not {request.dispatch_strategy}",
                    topic=response.topic, field="dispatch_strategy", value=request.dispatch_strategy,
                )  # fmt: skip
            return response.topic, [
                (index if response.partitioned else None, partition.topic)
                for index, partition in enumerate(response.partitions)
            ]

        return prepare

    async def _with_retry(
        self, ask: Callable[[], Coroutine[Any, Any, _Answer]], waiting: Callable[[str], None]
    ) -> _Answer:
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

    async def _resolve(self, request: pb.ResolveRequest) -> pb.ResolveResponse:
        transport = self._transport(self._url)
        data = await transport.resolve(request.SerializeToString(), timeout_s=_RESOLVE_TIMEOUT_S)
        response = pb.ResolveResponse.FromString(data)
        for partition in response.partitions:
            self._owners[partition.topic] = partition.broker_url or self._url
        return response

    async def _locate(self, concrete_topic: str) -> Transport:
        """The transport to the topic's owner, asked anew for each connection: it may have moved."""
        url = self._owners.pop(concrete_topic, None)
        if url is None:
            await self._resolve(pb.ResolveRequest(topic=concrete_topic))
            url = self._owners.pop(concrete_topic, self._url)
        return self._transport(url)

    def _emit(
        self, kind: ClientEventKind, role: str, topic: str, url: str, attempt: int, reason: str
    ) -> None:
        if kind is ClientEventKind.RECONNECTING:
            self._reconnects += 1
        now = from_ms(time.time_ns() // 1_000_000)
        self._events.emit(
            ClientEvent(
                kind=kind,
                role=role,
                topic=topic,
                url=url or self._url,
                time=now,
                attempt=attempt,
                reason=reason,
            )
        )


def _unheard(reason: str) -> None:
    """Take a reason for waiting that nobody needs to be told."""


def _check_kind(field: str, value: object, kind: type, words: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise InvalidArgument(f"{field} is {words}, got {value!r:.200}", field=field, value=repr(value)[:200])


def _warn_unclosed(url: str) -> None:
    warnings.warn(
        f"a client of {url} was not closed: use `async with connect()`", ResourceWarning, stacklevel=2
    )
