"""Counters of MCP calls stay few, whatever names clients give themselves."""

from __future__ import annotations

from pydanube_broker.status.metrics import MCP_CLIENTS, OTHER, BrokerMetrics


def test_programs_beyond_the_first_are_counted_together() -> None:
    metrics = BrokerMetrics(topic_series_limit=10)
    for n in range(MCP_CLIENTS + 40):
        metrics.mcp_call("list_topics", f"program-{n}", "OK", 2_000)
    metrics.mcp_call("list_topics", "program-0", "TOPIC_NOT_FOUND", 300_000)
    assert len(metrics.mcp_calls) == MCP_CLIENTS + 2
    assert metrics.mcp_calls["list_topics", OTHER, "OK"] == 40
    (family,) = [metrics.mcp_family()]
    values = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert values["1024"] == 0
    assert values["4096"] == MCP_CLIENTS + 40
    assert values["+Inf"] == values["danube_mcp_result_bytes_count"] == MCP_CLIENTS + 41
    assert values["danube_mcp_result_bytes_sum"] == 2_000 * (MCP_CLIENTS + 40) + 300_000
