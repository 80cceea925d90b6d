"""The client: connections to brokers, and the producers and consumers that use them."""

from __future__ import annotations

import asyncio
import os
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, Unpack

from pydanube_core.errors import ClosedResource, InvalidArgument, Misuse
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName, check_subscription
from pydanube_core.recent import RecentDict

from pydanube.addresses import DEFAULT_BROKER_URL
from pydanube.client_admin import client_admin
from pydanube.client_metrics import ClosedCounts, exposition
from pydanube.events import EventHub
from pydanube.facts import ClientEvent, ClientEventKind, SchemaRef, from_ms
from pydanube.keywords import keywords_named
from pydanube.outage import Outage, Waiter
from pydanube.retry import Retry
from pydanube.tracing import Tracing
from pydanube.wire.bearer import TokenSource, token_from_environment
from pydanube.wire.clusters import Clusters
from pydanube.wire.connections import Connections
from pydanube.wire.endpoint import Tls, each_cluster, parse_url
from pydanube.wire.http2_transport import Http2Transport
from pydanube.wire.tls import tls_from_environment
from pydanube.wire.transport import TransportFactory

# Producers, consumers and handler loops are imported when a program makes its first one. Most programs need one of
# the three, and without them `from pydanube import connect` takes two thirds of the time.
if TYPE_CHECKING:
    from pydanube.admin.generated.operations import Admin
    from pydanube.client_metrics import Labels, Statistics
    from pydanube.consumer import Consumer, Reader
    from pydanube.failure_policy import FailurePolicy
    from pydanube.handler_loop import Handler, HandlerLoop
    from pydanube.handler_options import HandlerArguments
    from pydanube.message import Message
    from pydanube.options import (
        ClientSide,
        ConsumerArguments,
        ConsumerOptions,
        ProducerArguments,
        ProducerOptions,
        ReaderArguments,
        ReaderOptions,
    )
    from pydanube.producer import Producer
    from pydanube.receiving.receiver import Receiver
    from pydanube.requests import Requests
    from pydanube.schemas import Schema, Schemas
    from pydanube.statistics import ClientStatistics, Health

HandlerT = TypeVar("HandlerT", bound="Handler")
CountedT = TypeVar("CountedT", "Producer", "Receiver")
_KEPT_SCHEMAS: Final = 256  # versions of schemas that a client remembers


class _Registered(NamedTuple):
    """A handler that `serve` runs."""

    handler: Handler
    topics: str | Sequence[str] | None
    subscription: str
    changes: Mapping[str, Any]


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
    """Return a client of the cluster at `url`, to be used as `async with connect() as client`.

    Nothing is sent before the first producer, consumer or reader is opened.

    Args:
        url: `http://host:port` of any broker, or `host:port`. None: `DANUBE_BROKER_URL`, or http://127.0.0.1:6650.
            Several, as `danube://b1:6650,b2:6650`: if one cannot be reached, the next one is tried. The other brokers
            of the cluster are learned from the answers. `https://` and `danubes://` mean TLS, for every broker of the
            cluster. Several clusters, as `danube://eu-1,eu-2|us-1,us-2`: each topic is used at the cluster to which it was
            failed over last. The first one makes new topics, once all have said that there is none.
        token: sent to the broker, only over TLS or to this machine. A function is called for each stream and call.
            None: `DANUBE_TOKEN`, or the content of the file `DANUBE_TOKEN_FILE`.
        tls: certificates. `https://` alone uses the system's authorities. None: `DANUBE_CA`, `DANUBE_CERT`,
            `DANUBE_KEY` if the url means TLS.
        principal: who acts, for the audit.
        retry: how long retryable failures are retried, by default `Retry(max_elapsed_s=60)`.
        tracing: make OpenTelemetry spans of sent messages, see `pydanube.tracing`.

    Raises:
        MissingExtra: tracing without OpenTelemetry.
        InvalidArgument: the url is not one, or another argument has the wrong type.
    """
    if url is None or url == "":
        url = os.environ.get("DANUBE_BROKER_URL") or DEFAULT_BROKER_URL
    clusters = each_cluster(url)
    _, secure = parse_url(clusters[0][0])
    if token is None:
        token = token_from_environment()
    elif not callable(token):
        _check_kind("token", token, str, "text or a function that gives it")
    _check_kind("tls", tls, Tls, "a pydanube.Tls")
    _check_kind("principal", principal, str, "text")
    _check_kind("retry", retry, Retry, "a pydanube.Retry")

    if secure and tls is None:  # set, so that an answer with another address cannot lead out of TLS
        tls = tls_from_environment() or Tls()
    make = partial(Http2Transport, token=token, tls=tls, principal=principal)
    return Client(
        "|".join(map(",".join, clusters)), make, retry or Retry(), Tracing() if tracing else None, principal
    )


class Client:
    """Connections to a cluster, made by `connect`. Bound to the event loop of its `async with` block."""

    def __init__(
        self,
        url: str,
        transport: TransportFactory,
        retry: Retry,
        tracing: Tracing | None = None,
        principal: str | None = None,
    ) -> None:
        self._url = url
        self._tracing = tracing
        self._principal = principal
        self._closed_counts = ClosedCounts()
        groups = [group.split(",") for group in url.split("|")]
        self._connections = (
            Connections(groups[0], transport, retry)
            if len(groups) == 1
            else Clusters(groups, transport, retry)
        )
        self._retry = retry
        self._events = EventHub()
        self._producers: set[Producer] = set()
        self._receivers: set[Receiver] = set()
        self._requests: Requests | None = None
        self._handlers: list[_Registered] = []
        self._loops: dict[HandlerLoop, str] = {}  # running ones, and failed ones with the reason
        self._reconnects = 0
        self._outage = Outage(url, retry.max_elapsed_s)
        self._known_schemas: RecentDict[SchemaRef, Schema] = RecentDict(_KEPT_SCHEMAS)
        self._unclosed = weakref.finalize(self, _warn_unclosed, url)
        self._unclosed.detach()

    # -- the block -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._connections.usable:
            raise ClosedResource("this client is in use already. Call connect() again for another")
        self._connections.usable = True
        self._unclosed = weakref.finalize(self, _warn_unclosed, self._url)
        self._unclosed.atexit = False
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection. Producers that are still open drop messages that are not stored."""
        self._connections.usable = False
        self._unclosed.detach()
        if self._requests is not None:
            await self._requests.aclose()
        for receiver in list(self._receivers):
            await receiver.aclose()
        for producer in list(self._producers):
            await producer.aclose()
        self._events.close()
        await self._connections.aclose()

    # -- producers, consumers, readers, handlers -------------------------------------------------------------

    def producer(
        self, topic: str, options: ProducerOptions | None = None, **changes: Unpack[ProducerArguments]
    ) -> Producer:
        """Return a producer. `async with` opens it, and creates the topic if the cluster permits that.

        Args:
            topic: `/ns/topic`, `ns/topic` or `topic` (in `default`).
            options: None: the defaults.
            changes: fields of `ProducerOptions` by name, instead of those of `options`.

        Raises:
            InvalidArgument, InvalidName: raised before any call to the broker.
        """
        from pydanube.options import ProducerOptions, changed
        from pydanube.producer import Producer
        from pydanube.schemas import schema_of

        chosen = changed(options or ProducerOptions(), changes, "producer")
        name = str(TopicName.parse(topic))
        subject, version = schema_of(chosen.schema)
        request = pb.ResolveRequest(
            topic=name,
            create=True,
            partitions=chosen.partitions or 0,
            unused_ttl_s=chosen.unused_ttl_s,
            dispatch_strategy=chosen.dispatch_strategy or "",
            schema_subject=subject,
            schema_version=version,
        )
        waiter = self._outage.waiter(f"the producer on {name}")
        producer = Producer(
            name, chosen, self._side(request, waiter), self._forgetting(waiter, self._producers)
        )
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
        """Return a consumer of a subscription over all partitions. `async with` opens it and creates the subscription.

        With several topics it has a subscription of that name on each, and each topic keeps its order. Later topics
        that match the pattern join automatically, from their first message. Deleted topics leave, and join again if
        they are created again.

        Args:
            topic: as for `producer`, or several in a list.
            pattern: instead of `topic`, a glob: `orders*`, `/ns/*`.
            subscription: its name. The cursor belongs to the subscription and stays.
            options: None: the defaults.
            changes: fields of `ConsumerOptions` by name, instead of those of `options`.

        Raises:
            InvalidArgument, InvalidName: raised before any call to the broker.
            ConsumerBusy: on entering, if another consumer has the exclusive subscription.
        """
        from pydanube.consumer import Consumer
        from pydanube.options import ConsumerOptions, changed
        from pydanube.topic_watch import TopicChoice

        asked = changed(options or ConsumerOptions(), changes, "consumer", "subscription", "pattern")
        if subscription == "":
            raise InvalidArgument(
                f"a consumer needs the name of its subscription: consumer({topic!r}, 'billing')",
                field="subscription",
                value="",
            )
        check_subscription(subscription)
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
            self._forgetting(waiter, self._receivers),
            self._connections.watch(choice, asked, waiter, several=several),
            # not `self.admin`, which would be a cycle: an abandoned client would not be collected immediately
            partial(client_admin, self._connections, self._principal),
            asked.failure_policy,
        )
        self._receivers.add(consumer)
        return consumer

    def reader(
        self, topic: str, options: ReaderOptions | None = None, **changes: Unpack[ReaderArguments]
    ) -> Reader:
        """Return a reader over all partitions. It has no subscription and leaves no trace.

        Args:
            topic: as for `producer`.
            options: None: the defaults.
            changes: fields of `ReaderOptions` by name, instead of those of `options`.

        Raises:
            InvalidArgument, InvalidName: raised before any call to the broker.
        """
        from pydanube.consumer import Reader
        from pydanube.options import ReaderOptions, changed

        name = str(TopicName.parse(topic))
        chosen = changed(options or ReaderOptions(), changes, "reader").receiver(name)
        waiter = self._outage.waiter(f"the reader of {name}")
        request = pb.ResolveRequest(topic=name)
        reader = Reader(chosen, self._side(request, waiter), self._forgetting(waiter, self._receivers))
        self._receivers.add(reader)
        return reader

    @keywords_named
    async def request(
        self, service: str, payload: bytes, *, key: str | None = None, timeout_s: float = 2.0
    ) -> Message:
        """Send a request to a service's topic, and return the reply of one of its consumers.

        Consumers reply by returning bytes from a handler (`run`) or with `message.reply`. Those of one subscription
        share the requests. An exception in a handler is no reply: the request is redelivered like any message.

        Raises:
            DeadlineExceeded: no reply within `timeout_s`. The request may have been handled.
            ClusterError: it could not be sent.
        """
        return await self._asking().request(service, payload, key, timeout_s)

    async def run(
        self,
        handler: Handler,
        topics: str | Sequence[str] | None,
        subscription: str,
        *,
        stop: asyncio.Event | None = None,
        **changes: Unpack[HandlerArguments],
    ) -> None:
        """Handle the messages of a subscription with a function, until SIGTERM, SIGINT or `stop`.

        A message is acknowledged when the function returns. If it raises, the message is redelivered after a back-off,
        and is a dead letter after `retries`. `RetryLater` and `DeadLetter` override this. An answer given by the function
        itself stands. Messages taken before the stop are answered. A second signal ends the process as usual.

        Args:
            handler: called with the message. Unless it is `async`, it runs in a thread and gets a message of
                `pydanube.sync`.
            topics: one, or several in a list. None with `pattern=`, as for a consumer.
            subscription: its name. It is shared unless `type` is given.
            stop: ends it instead of signals, which are then not handled.
            changes: fields of `HandlerOptions` and of `ConsumerOptions` by name.

        Raises:
            ClusterError: the consumer ended for good, or the failure policy was refused.
        """
        from pydanube.handler_loop import run_all

        await run_all([self._loop(_Registered(handler, topics, subscription, changes))], stop)

    def handler(
        self, topics: str | Sequence[str] | None, subscription: str, **changes: Unpack[HandlerArguments]
    ) -> Callable[[HandlerT], HandlerT]:
        """Register the decorated function for `serve`. Arguments as for `run`."""
        from pydanube.handler_options import handler_options

        options, _ = handler_options(changes)

        def keep(handler: HandlerT) -> HandlerT:
            options.for_handler(handler)
            self._handlers.append(_Registered(handler, topics, subscription, changes))
            return handler

        return keep

    async def serve(self, *, stop: asyncio.Event | None = None) -> None:
        """Run all functions registered with `@client.handler(…)` concurrently. If one fails, the others end too.

        Raises:
            Misuse: no function is registered.
            ClusterError: as `run`.
        """
        from pydanube.handler_loop import run_all

        if not self._handlers:
            raise Misuse("nothing to serve: put @client.handler(topics, subscription) above a function")
        await run_all([self._loop(each) for each in self._handlers], stop)

    def health(self) -> Health:
        """Return whether the client works: nothing waits for a broker, and no handler loop has failed or hangs."""
        from pydanube.statistics import Health

        reasons = [
            *self._outage.waiting(),
            *(f"the handler of {loop.labels[1]} failed: {why}" for loop, why in self._loops.items() if why),
            *(why for loop in self._loops if (why := loop.hung()) is not None),
        ]
        return Health(ok=not reasons, reasons=tuple(reasons))

    @property
    def admin(self) -> Admin:
        """The cluster's operations, as from `pydanube.admin.connect_admin`, over this client's connection."""
        return client_admin(self._connections, self._principal)

    def events(self) -> AsyncIterator[ClientEvent]:
        """Yield events of the connections from now on, until the client closes."""
        return self._events.listen()

    @property
    def schemas(self) -> Schemas:
        """The registry of the cluster.

        Made for each access. Kept here it would be a cycle: an abandoned client would not be collected immediately.
        """
        from pydanube.schemas import Schemas

        return Schemas(self._connections.call, self._known_schemas)

    def statistics(self) -> ClientStatistics:
        """Connections, producers and consumers at this moment, and reconnects so far."""
        from pydanube.statistics import ClientStatistics

        return ClientStatistics(
            url=self._url,
            connections=len(self._connections),
            producers=len(self._producers),
            consumers=len(self._receivers),
            reconnects=self._reconnects,
        )

    def metrics(self) -> str:
        """Return the counters of all its producers and consumers in the text format of Prometheus (0.0.4).

        The application's own `/metrics` returns them. Counts of closed producers and consumers stay.
        """
        counted: list[Producer | Receiver | HandlerLoop] = [*self._producers, *self._receivers, *self._loops]
        open_ones: list[tuple[Labels, Statistics]] = [(each.labels, each.statistics()) for each in counted]
        return exposition(self.statistics(), open_ones, self._closed_counts)

    # -- inside ----------------------------------------------------------------------------------------------

    def _loop(self, asked: _Registered) -> HandlerLoop:
        from pydanube.handler_loop import HandlerLoop
        from pydanube.handler_options import handler_options

        handler, topics, subscription, changes = asked
        options, of_consumer = handler_options(changes)
        options.for_handler(handler)
        policy: FailurePolicy = {**options.policy(), **(of_consumer.pop("failure_policy", None) or {})}
        consumer = self.consumer(
            topics,
            subscription,
            options.consumer(create=topics is not None),
            **of_consumer,
            failure_policy=policy,
        )

        def ended(loop: HandlerLoop, error: BaseException | None) -> None:
            if error is None:
                del self._loops[loop]
                self._closed_counts.add(loop.labels, loop.statistics())
            else:
                self._loops[loop] = str(error)

        publisher = None if options.publish is None else partial(self.producer, options.publish)
        loop = HandlerLoop(handler, consumer, options, ended, publisher)
        self._loops[loop] = ""
        return loop

    def _side(self, request: pb.ResolveRequest, waiter: Waiter) -> ClientSide:
        from pydanube.options import ClientSide

        def emit(kind: ClientEventKind, role: str, topic: str, url: str, attempt: int, reason: str) -> None:
            if kind is ClientEventKind.RECONNECTING:
                waiter.begin(topic, url, reason)
            elif kind is ClientEventKind.CONNECTED:
                waiter.end(topic)
            self._emit(kind, role, topic, url, attempt, reason)

        return ClientSide(
            prepare=self._connections.preparer(request, waiter),
            locate=self._connections.locate,
            pause=self._connections.pause,
            emit=emit,
            retry=self._retry,
            schema=self._schema,
            decode=self._decode,
            reply=self._reply,
            tracing=self._tracing,
        )

    async def _schema(self, ref: SchemaRef) -> Schema:
        return await self.schemas.get(ref)

    def _asking(self) -> Requests:
        if self._requests is None:
            from pydanube.requests import Requests

            self._requests = Requests(self.producer, self.consumer)
        return self._requests

    async def _reply(self, inbox: str, request: str, payload: bytes) -> None:
        await self._asking().reply(inbox, request, payload)

    async def _decode(self, message: Any, into: Callable[..., Any] | None) -> Any:
        return await self.schemas.decode(message, into=into)

    def _forgetting(self, waiter: Waiter, among: set[CountedT]) -> Callable[[CountedT], None]:
        """Return the callback for a closed producer or receiver. `among` holds the open ones."""

        def forget(one: CountedT) -> None:
            waiter.end_all()
            if one in among:
                among.discard(one)
                self._closed_counts.add(one.labels, one.statistics())

        return forget

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


def _check_kind(field: str, value: object, kind: type, words: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise InvalidArgument(f"{field} is {words}, got {value!r:.200}", field=field, value=repr(value)[:200])


def _warn_unclosed(url: str) -> None:
    warnings.warn(
        f"a client of {url} was not closed: use `async with connect()`", ResourceWarning, stacklevel=2
    )
