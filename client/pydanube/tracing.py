"""OpenTelemetry: spans for sending and processing, linked through attributes of the messages.

    async with connect(tracing=True) as client:
        async with client.producer("orders") as producer:
            await producer.send(b"one")                  # span `send /default/orders`
        async with client.consumer("orders", "billing") as consumer:
            async for message in consumer:
                with process(message):                   # span `process /default/orders`, child of the other
                    await message.ack()

Names and fields are those of OpenTelemetry's conventions for messaging. `send` has a span for its duration. With
`send_nowait` and `send_many`, each message has a span for its creation. The context travels in the attributes
`traceparent` and `tracestate` (or those of the application's propagator), so other languages join too. Needs the extra
`otel`. The application decides which spans are kept, and where they go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from pydanube_core.errors import MissingExtra
from pydanube_core.extras import install_command

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from pydanube.facts import Receipt


SYSTEM: Final = "danube"


class Carried(dict[str, str]):
    """Attributes that already have the context of a span."""


class Received(Protocol):
    """A received message, of the SDK with or without await."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int | None: ...
    @property
    def offset(self) -> int: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def key(self) -> str | None: ...
    @property
    def attributes(self) -> Mapping[str, str]: ...
    @property
    def delivery_count(self) -> int: ...


class Sending(Protocol):
    """A producer, as tracing uses it."""

    @property
    def topic(self) -> str: ...

    async def send(
        self,
        payload: Any,
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        partition: int | None = None,
        timeout_s: float | None = None,
    ) -> Receipt: ...


class Tracing:
    """The spans of a client's producers."""

    def __init__(self) -> None:
        self._trace, self._propagate, self._tracer = _opentelemetry()

    async def send(
        self,
        producer: Sending,
        payload: Any,
        key: str | None,
        attributes: Mapping[str, str] | None,
        partition: int | None,
        timeout_s: float | None,
    ) -> Receipt:
        """Call `producer.send` within a span, which records a failure."""
        with self._span("send", producer.topic, key) as span:
            receipt = await producer.send(
                payload,
                key=key,
                attributes=self._carried(attributes),
                partition=partition,
                timeout_s=timeout_s,
            )
            _note_place(span, receipt.partition, receipt.offset)
            return receipt

    def created(
        self, topic: str, key: str | None, attributes: Mapping[str, str] | None
    ) -> Mapping[str, str] | None:
        """Return the attributes of a message to be sent, with the context of its span."""
        if isinstance(attributes, Carried):
            return attributes
        with self._span("create", topic, key):
            return self._carried(attributes)

    def _span(self, operation: str, topic: str, key: str | None) -> Any:
        return self._tracer.start_as_current_span(
            f"{operation} {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=_facts(operation, topic, key),
        )

    def _carried(self, attributes: Mapping[str, str] | None) -> Carried:
        carried = Carried(attributes or {})
        self._propagate.inject(carried)
        return carried


@contextmanager
def process(message: Received, *, subscription: str = "") -> Iterator[Span]:
    """Context with a span around the handling of a message, child of the span that sent it. It records an exception.

    Args:
        message: of `pydanube` or `pydanube.sync`.
        subscription: shown with the span.

    Raises:
        MissingExtra: OpenTelemetry is not installed.
    """
    trace, propagate, tracer = _opentelemetry()
    facts: dict[str, str | int] = {
        **_facts("process", message.topic, message.key),
        "messaging.message.body.size": len(message.payload),
        "messaging.danube.delivery_count": message.delivery_count,
    }
    if subscription:
        facts["messaging.consumer.group.name"] = subscription
    with tracer.start_as_current_span(
        f"process {message.topic}",
        context=propagate.extract(message.attributes),
        kind=trace.SpanKind.CONSUMER,
        attributes=facts,
    ) as span:
        _note_place(span, message.partition, message.offset)
        yield span


def _facts(operation: str, topic: str, key: str | None) -> dict[str, str | int]:
    facts: dict[str, str | int] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
    if key is not None:
        facts["messaging.danube.message.key"] = key
    return facts


def _note_place(span: Span, partition: int | None, offset: int) -> None:
    if partition is not None:
        span.set_attribute("messaging.destination.partition.id", str(partition))
    span.set_attribute("messaging.danube.message.offset", offset)


def _opentelemetry() -> tuple[Any, Any, Any]:
    try:
        from opentelemetry import propagate, trace
    except ImportError as error:
        raise MissingExtra(
            f"spans need opentelemetry-api: {install_command('otel')}", extra="otel", module="opentelemetry"
        ) from error
    return trace, propagate, trace.get_tracer("pydanube")
