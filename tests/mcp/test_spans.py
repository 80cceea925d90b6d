"""Calls over MCP in OpenTelemetry, where the process has a tracer: names and fields of its conventions for MCP."""

from __future__ import annotations

import pytest
from mcp import Client
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydanube_mcp import build_server

pytestmark = pytest.mark.anyio


async def test_a_call_is_a_span_of_the_server_with_its_tool_and_what_became_of_it(admin_url: str) -> None:
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):  # there is one a process
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    spans = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    async with build_server(admin_url) as server, Client(server) as client:
        await client.call_tool("describe_topic", {"topic": "orders"})
        await client.call_tool("describe_topic", {"topic": "nope"})
    found = [
        span
        for span in spans.get_finished_spans()
        if span.kind is trace.SpanKind.SERVER and span.name == "tools/call describe_topic"
    ]
    assert len(found) == 2, [span.name for span in spans.get_finished_spans()]
    for span in found:
        assert span.attributes is not None
        assert span.attributes["mcp.method.name"] == "tools/call"
        assert span.attributes["gen_ai.tool.name"] == "describe_topic"
    assert [span.status.is_ok for span in found] == [True, False]
