"""Spans that meet through the attributes of messages, and counters that Prometheus can read."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.parser import text_string_to_metric_families
from pydanube import MessageTooLarge
from pydanube.client_metrics import MOST_SERIES, ClosedCounts
from pydanube.statistics import ProducerStatistics
from pydanube.testing import InMemoryCluster
from pydanube.tracing import process

pytestmark = pytest.mark.anyio

EXPORTER = InMemorySpanExporter()


@pytest.fixture
def spans() -> Any:
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
        trace.set_tracer_provider(provider)
    EXPORTER.clear()

    def finished() -> list[ReadableSpan]:
        return list(EXPORTER.get_finished_spans())

    return finished


async def test_handling_is_a_child_of_sending(memory: InMemoryCluster, spans: Any) -> None:
    async with memory.connect(tracing=True) as client:
        async with client.producer("orders") as producer:
            await producer.send(b"1", key="k", attributes={"mine": "kept"})
            await producer.send_nowait(b"2")
            await producer.send_many([b"3"])
        async with client.consumer("orders", "billing") as consumer:
            messages = [await anext(consumer) for _ in range(3)]
            for message in messages:
                with process(message, subscription="billing"):
                    await message.ack()
    sent, handled = spans()[:3], spans()[3:]
    assert [span.name.split()[0] for span in sent] == ["send", "create", "create"]
    assert {span.kind for span in sent} == {SpanKind.PRODUCER}
    for before, after in zip(sent, handled, strict=True):
        assert after.name == "process /default/orders"
        assert after.kind is SpanKind.CONSUMER
        assert after.parent.span_id == before.context.span_id
        assert after.context.trace_id == before.context.trace_id
        assert after.attributes["messaging.consumer.group.name"] == "billing"
    assert sent[0].attributes["messaging.danube.message.offset"] == 0
    assert handled[0].attributes["messaging.danube.message.key"] == "k"
    assert messages[0].attributes["mine"] == "kept"
    assert set(messages[0].attributes) == {"mine", "traceparent"}


async def test_failures_are_noted(memory: InMemoryCluster, spans: Any) -> None:
    async with memory.connect(tracing=True) as client, client.producer("orders") as producer:
        with pytest.raises(MessageTooLarge):
            await producer.send(bytes(4_000_001))
        await producer.send(b"1")
        async with client.reader("orders", stop="head") as reader:
            async for message in reader:
                with pytest.raises(ZeroDivisionError), process(message):
                    _ = 1 / 0
    statuses = {span.name: span.status.status_code for span in spans() if span.events}
    assert statuses == {"send /default/orders": StatusCode.ERROR, "process /default/orders": StatusCode.ERROR}


async def test_without_tracing_there_are_no_spans_and_no_attributes(
    memory: InMemoryCluster, spans: Any
) -> None:
    async with memory.connect() as client:
        async with client.producer("orders") as producer:
            await producer.send(b"1")
        async with client.reader("orders", stop="head") as reader:
            async for message in reader:
                assert message.attributes == {}
    assert spans() == []


async def test_counters_are_read_by_prometheus_and_outlive_their_consumers(memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        for _ in range(2):
            async with client.producer("orders") as producer:
                await producer.send_many([b"x"] * 5)
        async with client.consumer("orders", "billing") as consumer:
            for _ in range(4):
                await (await anext(consumer)).ack()
            families = {family.name: family for family in text_string_to_metric_families(client.metrics())}
        acknowledged = families["danube_client_producer_acknowledged_messages"]
        assert (acknowledged.type, acknowledged.samples[0].value) == ("counter", 10)
        assert acknowledged.samples[0].labels == {"topic": "/default/orders"}
        taken = families["danube_client_consumer_taken_messages"].samples[0]
        assert (taken.value, taken.labels) == (4, {"topic": "/default/orders", "subscription": "billing"})
        assert families["danube_client_consumer_buffered_messages"].type == "gauge"
        assert families["danube_client_consumers"].samples[0].value == 1
        after = client.metrics()
        assert (
            'danube_client_consumer_taken_messages_total{topic="/default/orders",subscription="billing"} 4'
            in after
        )
        assert "buffered_messages" not in after


def test_the_number_of_series_is_bounded() -> None:
    counts = ClosedCounts()
    statistics = ProducerStatistics(**dict.fromkeys(ProducerStatistics.__dataclass_fields__, 1))
    for number in range(MOST_SERIES + 10):
        counts.add(("producer", f"t{number}", ""), statistics)
    found = dict(counts.items())
    assert len(found) == MOST_SERIES + 1
    assert found["producer", "", ""]["sent_messages"] == 10
