"""Twelve questions of an operator: what the original's list of tools gives, and what ours does, counted.

The original's side is read from its published tools (docs/research has what our side keeps of them): how many calls lead to
the answer, or why none does. Our side is asked: each question is put to a real broker over MCP, its answer is held against
the truth, and the bytes of its results are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mcp import Client

__all__ = ["ORIGINAL_LIST_BYTES", "QUESTIONS", "Asked", "Question", "ask", "table"]

#: 58 tools: names, descriptions, input schemas, about 12 700 tokens of 4 bytes
ORIGINAL_LIST_BYTES: Final = 50_800
Calls = Callable[[dict[str, Any]], list[tuple[str, dict[str, Any]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`theirs`: the calls of the original; empty: none answers it, and `why` says so. `ours`: tools and arguments.

    `right`: whether the last result holds the answer, given the truth that the scene counted.
    """

    text: str
    theirs: tuple[str, ...]
    why: str
    ours: tuple[tuple[str, dict[str, Any]], ...]
    right: Callable[[dict[str, Any], dict[str, Any]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    question: Question
    calls: int
    result_bytes: int
    right: bool


def _rule(body: dict[str, Any], rule: str) -> dict[str, Any]:
    return next((one for one in body["findings"] if one["rule"] == rule), {"evidence": {}})


QUESTIONS: Final = (
    Question(
        text="How many messages is billing behind?",
        theirs=(),
        why="analyze_consumer_lag reports no lag, and a sum over all subscriptions needs a Prometheus beside it",
        ours=(("get_consumer_lag", {"topic": "orders", "subscription": "billing"}),),
        right=lambda body, truth: body["items"][0]["lag_messages"] == truth["unread"],
    ),
    Question(
        text="Why is billing behind?",
        theirs=(),
        why="owner, strategy and balance are shown, no cause",
        ours=(("analyze_consumer_lag", {"topic": "orders", "subscription": "billing"}),),
        right=lambda body, truth: (
            _rule(body, "no_consumers")["evidence"].get("lag_messages") == truth["unread"]
        ),
    ),
    Question(
        text="Which message blocks invoicing, and what is in it?",
        theirs=(),
        why="no lag per message, and messages cannot be read",
        ours=(
            ("analyze_consumer_lag", {"topic": "invoices", "subscription": "ledger"}),
            ("peek_messages", {"topic": "invoices", "from": "offset:3", "limit": 1}),
        ),
        right=lambda body, truth: body["items"][0]["untrusted"]["text"] == truth["poison"],
    ),
    Question(
        text="Is the cluster well?",
        theirs=("health_check",),
        why="counts brokers and namespaces, but passes without a leader, and ignores lag and disk",
        ours=(("health_check", {}),),
        right=lambda body, truth: (
            {one["rule"] for one in body["findings"]} >= {"no_consumers", "poison_message"}
        ),
    ),
    Question(
        text="Which topics are there?",
        theirs=("list_namespaces", "list_topics"),
        why="",
        ours=(("list_topics", {}),),
        right=lambda body, truth: {item["topic"] for item in body["items"]} == set(truth["topics"]),
    ),
    Question(
        text="What would be lost if orders were deleted?",
        theirs=("describe_topic", "list_subscriptions"),
        why="names, without the number of messages, and deletion has no dry run",
        ours=(("plan_operation", {"operation": "topics.delete", "arguments": {"topic": "orders"}}),),
        right=lambda body, truth: body["blast_radius"]["messages"] == truth["orders"],
    ),
    Question(
        text="Somebody deleted archive by mistake: bring it back.",
        theirs=(),
        why="deletion is final",
        ours=(
            ("query_audit", {"operation": "topics.delete", "topic": "archive"}),
            ("undo_change", {"call_id": "{deleted}"}),
        ),
        right=lambda body, truth: body["operation"] == "topics.delete",
    ),
    Question(
        text="Who changed the limits of payments?",
        theirs=(),
        why="nothing is recorded",
        ours=(("query_audit", {"operation": "topics.set_policies", "topic": "payments"}),),
        right=lambda body, truth: body["items"][0]["principal"] == truth["who"],
    ),
    Question(
        text="Why are publishes to payments refused?",
        theirs=(),
        why="refusals are not counted for a caller, and policies of topics are not shown",
        ours=(("diagnose_producer", {"topic": "payments"}),),
        right=lambda body, truth: _rule(body, "publish_throttled")["evidence"].get("max_publish_rate") == 5,
    ),
    Question(
        text="What schema do messages of orders have to fit?",
        theirs=("get_topic_schema_config", "get_schema"),
        why="",
        ours=(("get_schema", {"subject": "orders-value"}),),
        right=lambda body, truth: json.loads(body["untrusted"]["schema_definition"]) == truth["schema"],
    ),
    Question(
        text="How much disk is left, and is what is acknowledged durable?",
        theirs=(),
        why="no tool shows disk or durability; logs come from docker or kubectl on the tool's machine",
        ours=(("get_broker_status", {}),),
        right=lambda body, truth: body["disk"]["free_bytes"] > 0 and body["durability"] == "fsynced",
    ),
    Question(
        text="Which subscriptions does orders have, and who reads them?",
        theirs=("list_subscriptions",),
        why="names only, without the consumers",
        ours=(("list_subscriptions", {"topic": "orders"}),),
        right=lambda body, truth: body["items"][0]["consumers"] == 0,
    ),
)


async def ask(client: Client, question: Question, truth: dict[str, Any]) -> Asked:
    """Put one question, and judge what the last call said."""
    size = 0
    body: dict[str, Any] = {}
    for tool, arguments in question.ours:
        given = {
            name: truth.get("deleted") if value == "{deleted}" else value for name, value in arguments.items()
        }
        result = await client.call_tool(tool, given)
        body = result.structured_content or {}
        size += len(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())
        if result.is_error:
            return Asked(question=question, calls=len(question.ours), result_bytes=size, right=False)
        if tool == "query_audit" and body["items"]:
            truth = truth | {"deleted": body["items"][0]["call_id"]}
    return Asked(
        question=question,
        calls=len(question.ours),
        result_bytes=size,
        right=bool(question.right(body, truth)),
    )


def table(asked: list[Asked], list_bytes: int) -> str:
    """The comparison, as a table of a page."""
    lines = [
        "| question | original: calls | missing | ours: calls | bytes of results | right |",
        "|---|---|---|---|---|---|",
    ]
    for one in asked:
        question = one.question
        theirs = str(len(question.theirs)) if question.theirs else "no answer"
        lines.append(
            f"| {question.text} | {theirs} | {question.why or '–'} | {one.calls} | {one.result_bytes} | "
            f"{'yes' if one.right else 'NO'} |"
        )
    answered = [one for one in asked if one.question.theirs]
    lines.append(
        f"| **all {len(asked)}** | **{len(answered)} answered, {sum(len(one.question.theirs) for one in answered)} calls** "
        f"| list of tools: about {ORIGINAL_LIST_BYTES} bytes | **{sum(one.calls for one in asked)} calls** | "
        f"**{sum(one.result_bytes for one in asked)}**, list of tools: {list_bytes} | "
        f"**{sum(one.right for one in asked)} of {len(asked)}** |"
    )
    return "\n".join(lines)
