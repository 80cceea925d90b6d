"""The evaluations' player over recorded endpoints, one in OpenAI's form and one in Anthropic's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client
from pydanube_mcp import build_server

from evals.players import Model, PlayFailed

pytestmark = pytest.mark.anyio

RECORDED = json.loads(Path(__file__).with_name("recorded_endpoints.json").read_text(encoding="utf-8"))
PROMPT = "How many messages has billing of topic orders still to read?"


class Recorded:
    """Answers as the recording does, in its order, and keeps what it was asked."""

    def __init__(self, turns: list[Any]) -> None:
        self._turns = iter(turns)
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return httpx.Response(200, json=next(self._turns))

    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.asked]


@pytest.fixture
async def client(admin_url: str) -> AsyncIterator[Client]:
    async with build_server(admin_url) as server, Client(server) as client:
        yield client


@pytest.mark.parametrize(
    ("form", "endpoint"),
    [
        ("openai", "http://models.example/v1"),
        ("openai", "http://models.example/v1/chat/completions"),
        ("anthropic", "http://models.example/v1/messages"),
    ],
)
async def test_a_recorded_model_calls_tools_and_answers(client: Client, form: str, endpoint: str) -> None:
    recorded = Recorded(RECORDED[form])
    async with httpx.AsyncClient(transport=httpx.MockTransport(recorded)) as web:
        played = await Model(endpoint, "some-model", "secret", web).play("read-backlog", PROMPT, client)
    assert (played.answer, played.calls, played.tokens) == ("billing has 40 messages to read.", 2, 6280)

    first, second, third = recorded.bodies()
    tools = [each["function"] if form == "openai" else each for each in first["tools"]]
    assert {"get_consumer_lag", "describe_topic"} <= {each["name"] for each in tools}
    schema = "parameters" if form == "openai" else "input_schema"
    assert all(each["description"] and each[schema]["type"] == "object" for each in tools)
    assert first["model"] == "some-model"
    assert PROMPT in json.dumps(first["messages"])
    assert "TOPIC_NOT_FOUND" in json.dumps(second["messages"][-1])  # what the first call was answered
    result = third["messages"][-1]
    if form == "openai":
        assert (result["role"], result["tool_call_id"]) == ("tool", "call_2")
        lag = json.loads(result["content"])
    else:
        block = result["content"][0]
        assert (result["role"], block["type"], block["tool_use_id"]) == ("user", "tool_result", "toolu_2")
        lag = json.loads(block["content"])
    assert lag["items"][0]["lag_messages"] == 40
    shown = recorded.asked[0].headers
    assert shown.get("authorization" if form == "openai" else "x-api-key") in ("Bearer secret", "secret")
    assert str(recorded.asked[0].url).endswith("/chat/completions" if form == "openai" else "/messages")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(401, text="no such key"), "answered 401: no such key"),
        (httpx.Response(200, text="<html>"), "answered in another form than OpenAI's: <html>"),
        (
            httpx.Response(200, json={"content": []}),
            "answered in another form than OpenAI's: {'content': []}",
        ),
    ],
)
async def test_an_endpoint_that_fails_is_a_sentence(
    client: Client, answer: httpx.Response, said: str
) -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: answer)) as web:
        with pytest.raises(PlayFailed) as failed:
            await Model("http://models.example/v1", "some-model", None, web).play("t", PROMPT, client)
    assert said in str(failed.value)


async def test_a_model_that_never_ends_is_ended(client: Client) -> None:
    again = RECORDED["openai"][1]
    async with httpx.AsyncClient(
        transport=httpx.MockTransport(lambda _: httpx.Response(200, json=again))
    ) as web:
        played = await Model("http://models.example/v1", "some-model", None, web).play("t", PROMPT, client)
    assert (played.answer, played.calls) == ("", 40)
