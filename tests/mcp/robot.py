"""A program that administers by following `next`, and knows nothing else of the cluster or its tools."""

from __future__ import annotations

from typing import Any

import anyio
from mcp import Client


async def robot(
    client: Client, tool: str, arguments: dict[str, Any], *, rounds: int = 10
) -> list[dict[str, Any]]:
    """Diagnose, make the calls that the worst finding proposes, and again, until nothing is wrong; returns what was said."""
    said: list[dict[str, Any]] = []

    async def call(step: dict[str, Any]) -> list[dict[str, Any]]:
        fenced = step.get("untrusted", {}).get("arguments", {})  # names that could be sentences stand there
        result = await client.call_tool(step["tool"], {**step["arguments"], **fenced})
        body = result.structured_content or {}
        said.append(body)
        if "plan_token" in body:  # what was planned is applied
            return [{"tool": "apply_plan", "arguments": {"plan_token": body["plan_token"]}}]
        return list(body.get("error", {}).get("next", []))

    before = None
    for _ in range(rounds):
        await call({"tool": tool, "arguments": arguments})
        if said[-1].get("verdict") == "healthy" and len(said) > 1:
            break
        finding = next(iter(said[-1].get("findings", [])), None)
        if finding and finding["rule"] == before:  # seen twice: what is gone by itself needs nothing
            for step in finding["next"]:
                for further in await call(step):
                    await call(further)
        before = finding and finding["rule"]
        await anyio.sleep(1)
    return said
