"""Twenty-five tasks in plain words, done by a program that knows nothing but what the tools say.

It asks `find_operations`, takes the first operation whose arguments it has, reads by `read_operation`, and changes by
`plan_operation` and `apply_plan`. The facts of a task (names, numbers) are what a person would have said with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from mcp import Client
from pydanube_mcp import build_server

from tests.admin.real_broker import Administered, administered
from tests.support.filled_cluster import add_subscription, add_topic

pytestmark = pytest.mark.anyio

MOST_CALLS: Final = 60
LEAST_SOLVED: Final = 23
SCHEMA: Final = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
BILLING: Final = {"topic": "orders", "subscription": "billing"}
Check = Callable[[dict[str, Any]], bool]


@dataclass
class Task:
    words: str
    facts: dict[str, Any]
    done: Check


@dataclass
class Program:
    """Does tasks, and counts its calls."""

    client: Client
    calls: int = 0
    last_call_id: str = ""
    said: list[str] = field(default_factory=list)

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        result = await self.client.call_tool(tool, arguments)
        assert isinstance(result.structured_content, dict)
        return result.structured_content

    async def do(self, task: Task) -> dict[str, Any]:
        facts = {name: self.last_call_id if value == "that" else value for name, value in task.facts.items()}
        found = await self.call("find_operations", {"query": task.words, "limit": 3})
        for item in found["items"]:
            schema = item["arguments"]
            arguments = {name: facts[name] for name in schema["properties"] if name in facts}
            if not set(schema.get("required", ())) <= set(arguments) or set(facts) - set(arguments):
                continue
            self.said.append(f"{task.words} → {item['operation']}")
            asked = {"operation": item["operation"], "arguments": arguments}
            if item["effect"] == "read":
                answer = await self.call("read_operation", asked)
                return dict(answer.get("result", answer))
            plan = await self.call("plan_operation", asked)
            if "plan_token" not in plan:
                return plan
            answer = await self.call("apply_plan", {"plan_token": plan["plan_token"]})
            self.last_call_id = answer.get("call_id") or ""
            return dict(answer.get("result", answer))
        self.said.append(f"{task.words} → nothing among {[item['operation'] for item in found['items']]}")
        return {}


def items(check: Callable[[list[dict[str, Any]]], bool]) -> Check:
    return lambda answer: check(answer.get("items", []))


def has(*names: str) -> Check:
    return lambda answer: "error" not in answer and all(name in answer for name in names)


TASKS: Final = [
    Task("which topics are the biggest", {"sort": "-bytes", "top": 1},
         items(lambda found: [one["topic"] for one in found] == ["/default/orders"])),
    Task("how far behind is billing", BILLING, items(lambda found: found[0]["lag_messages"] == 40)),
    Task("why is billing behind on orders", BILLING,
         lambda answer: any(one["rule"] == "no_consumers" for one in answer.get("findings", []))),
    Task("is anything wrong in the cluster", {}, has("verdict", "findings")),
    Task("show me the first message of orders", {"topic": "orders", "limit": 1},
         items(lambda found: found[0]["untrusted"]["text"] == "eight...")),
    Task("how long are messages of orders kept", {"topic": "orders"}, has("topic")),
    Task("which brokers are there", {}, items(lambda found: len(found) == 1)),
    Task("who is reading orders", {"topic": "orders"}, items(lambda found: found == [])),
    Task("which schemas exist", {}, items(lambda found: found[0]["subject"] == "orders-value")),
    Task("would this schema be compatible", {"subject": "orders-value", "schema_type": "json_schema",
         "schema_definition": SCHEMA}, lambda answer: answer.get("is_compatible") is True),
    Task("who created the topic trash", {"topic": "trash"},
         items(lambda found: found[0]["operation"] == "topics.create")),
    Task("is the broker running", {}, lambda answer: answer.get("ready") is True),
    Task("what is the ack timeout of billing", BILLING, has("ack_timeout_ms")),
    Task("who am I", {}, has("principal")),
    Task("which settings are in force", {}, has("settings")),
    Task("create a topic with four partitions", {"topic": "new", "partitions": 4},
         lambda answer: answer.get("partitions") == 4),
    Task("keep the messages of orders for 30 days", {"topic": "orders", "policies": {"retention_age_s": 2_592_000}},
         has("call_id")),
    Task("skip one message that blocks billing", BILLING | {"count": 1}, lambda answer: answer.get("skipped_messages") == 1),
    Task("start billing over from the beginning", BILLING | {"to": "earliest"},
         lambda answer: answer["cursors"][0]["next_unacked"] == 0),
    Task("mark everything as read for billing", BILLING, lambda answer: answer.get("skipped_messages") == 500),
    Task("delete the topic trash", {"topic": "trash"}, has("call_id")),
    Task("undo that, bring it back", {"call_id": "that"}, lambda answer: answer.get("operation") == "topics.delete"),
    Task("create a namespace for a team", {"namespace": "team"}, has("call_id")),
    Task("send a test message to orders", {"topic": "orders", "payload": "hello"}, has("offset")),
    Task("retry three times, then dead letter", BILLING | {"max_redelivery_count": 3, "poison_policy": "dead_letter"},
         lambda answer: answer.get("max_redelivery_count") == 3),
]  # fmt: skip


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        await add_topic(cluster, "/default/orders", messages=500)
        await add_subscription(cluster, "/default/orders", "billing", next_unacked=460)
        await cluster("topics.create", topic="trash")
        await cluster(
            "schemas.register", subject="orders-value", schema_type="json_schema", schema_definition=SCHEMA
        )
        yield cluster


async def test_tasks_in_plain_words_are_done_by_what_the_tools_say(cluster: Administered) -> None:
    missed: list[str] = []
    async with build_server(cluster.url, timeout_s=30) as server, Client(server) as client:
        program = Program(client)
        for task in TASKS:
            answer = await program.do(task)
            try:
                solved = task.done(answer)
            except (KeyError, IndexError):
                solved = False
            if not solved:
                missed.append(f"{program.said[-1]}: {str(answer)[:200]}")
    assert len(TASKS) == 25
    assert len(TASKS) - len(missed) >= LEAST_SOLVED, "\n".join(missed)
    assert program.calls <= MOST_CALLS, program.calls
