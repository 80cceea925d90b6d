"""Who plays a task: a model behind an OpenAI- or Anthropic-compatible endpoint, or the calls that stand in scripted.yaml."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import httpx
from mcp import Client

__all__ = ["Model", "Nothing", "PlayFailed", "Played", "Player", "Scripted"]

MAX_TURNS: Final = 40  # of one task; a model that is still calling tools then has lost its way
MAX_ANSWER_TOKENS: Final = 4096  # Anthropic's form wants a limit
REQUEST_TIMEOUT_S: Final = 120.0


class PlayFailed(Exception):
    """The player could not go on: its endpoint failed, or a scripted call answered otherwise; the message says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a player did: its last answer, and what that took."""

    answer: str
    calls: int
    tokens: int | None = None  # None: no model played


class Player(Protocol):
    """Plays a task over an MCP session."""

    name: str

    async def play(self, task: str, prompt: str, client: Client) -> Played: ...


class Nothing:
    """Calls nothing and answers nothing; no task may be passed so."""

    name = "nothing"

    async def play(self, task: str, prompt: str, client: Client) -> Played:
        return Played(answer="", calls=0)


class Scripted:
    """Makes the calls that are written for a task. `${2.items.0.offset}` stands for a value of the second result."""

    name = "scripted"

    def __init__(self, scripts: Mapping[str, Mapping[str, Any]]) -> None:
        self._scripts = scripts

    async def play(self, task: str, prompt: str, client: Client) -> Played:
        script = self._scripts[task]
        results: list[Any] = []
        for tool, arguments in script["calls"]:
            results.append(await call(client, tool, filled(arguments, results)))
        return Played(answer=_as_text(filled(script["answer"], results)), calls=len(results))


_REFERENCE: Final = re.compile(r"\$\{(\d+)\.([^}]+)\}")


def filled(value: Any, results: Sequence[Any]) -> Any:
    """Put values of earlier results in the place of references."""
    if isinstance(value, Mapping):
        return {name: filled(each, results) for name, each in value.items()}
    if isinstance(value, list):
        return [filled(each, results) for each in value]
    if not isinstance(value, str):
        return value
    if whole := _REFERENCE.fullmatch(value):
        return _referred(whole, results)
    return _REFERENCE.sub(lambda found: _as_text(_referred(found, results)), value)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _referred(reference: re.Match[str], results: Sequence[Any]) -> Any:
    value: Any = list(results)
    for part in (str(int(reference[1]) - 1), *reference[2].split(".")):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, TypeError, ValueError):
            raise PlayFailed(f"{reference[0]}: there is no {part!r} in {json.dumps(value)[:1500]}") from None
    return value


async def call(client: Client, tool: str, arguments: dict[str, Any]) -> Any:
    """Call a tool and return its result as JSON."""
    result = await client.call_tool(tool, arguments)
    if result.structured_content is not None:
        return result.structured_content
    return {"text": "".join(getattr(part, "text", "") for part in result.content)}


class Model:
    """A model behind an endpoint. Its form follows from the address: `…/messages` is Anthropic's, all else OpenAI's.

    Two forms are 60 lines here; the libraries that speak both (litellm, any-llm) bring a hundred packages for them.
    """

    def __init__(self, endpoint: str, model: str, key: str | None, web: httpx.AsyncClient) -> None:
        self.name = model
        address = endpoint.rstrip("/")
        self._anthropic = address.endswith("/messages")
        suffixed = address.endswith(("/messages", "/chat/completions"))
        self._url = address if suffixed else f"{address}/chat/completions"
        self._web = web
        self._headers: dict[str, str] = {}
        if self._anthropic:
            self._headers["anthropic-version"] = "2023-06-01"
        if key:
            self._headers |= {"x-api-key": key} if self._anthropic else {"authorization": f"Bearer {key}"}

    async def play(self, task: str, prompt: str, client: Client) -> Played:
        turn = self._ask_anthropic if self._anthropic else self._ask_openai
        tools = (await client.list_tools()).tools
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
        calls = tokens = 0
        for _ in range(MAX_TURNS):
            said, wanted, used = await turn(messages, tools, client.instructions)
            tokens += used
            if not wanted:
                return Played(answer=said, calls=calls, tokens=tokens)
            results = []
            for identity, tool, arguments in wanted:
                calls += 1
                results.append((identity, await self._called(client, tool, arguments)))
            messages += self._answered(results)
        return Played(answer="", calls=calls, tokens=tokens)

    async def _called(self, client: Client, tool: str, arguments: Any) -> str:
        if not isinstance(arguments, dict):
            return f"the arguments of {tool} are no JSON object"
        return json.dumps(await call(client, tool, arguments), ensure_ascii=False)

    def _answered(self, results: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        if self._anthropic:
            blocks = [{"type": "tool_result", "tool_use_id": one, "content": text} for one, text in results]
            return [{"role": "user", "content": blocks}]
        return [{"role": "tool", "tool_call_id": one, "content": text} for one, text in results]

    async def _ask_openai(
        self, messages: list[dict[str, Any]], tools: Sequence[Any], instructions: str | None
    ) -> tuple[str, list[tuple[str, str, Any]], int]:
        first = [{"role": "system", "content": instructions}] if instructions else []
        functions = [
            {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
            for tool in tools
        ]
        body = await self._post(
            {
                "model": self.name,
                "messages": first + messages,
                "tools": [{"type": "function", "function": each} for each in functions],
            }
        )
        try:
            message, usage = body["choices"][0]["message"], body["usage"]
            wanted = [
                (each["id"], each["function"]["name"], _json(each["function"]["arguments"]))
                for each in message.get("tool_calls") or []
            ]
            used = usage["prompt_tokens"] + usage["completion_tokens"]
        except (KeyError, IndexError, TypeError) as error:
            raise self._strange(body) from error
        messages.append(message)
        return message.get("content") or "", wanted, used

    async def _ask_anthropic(
        self, messages: list[dict[str, Any]], tools: Sequence[Any], instructions: str | None
    ) -> tuple[str, list[tuple[str, str, Any]], int]:
        body = await self._post(
            {
                "model": self.name,
                "max_tokens": MAX_ANSWER_TOKENS,
                "messages": messages,
                **({"system": instructions} if instructions else {}),
                "tools": [
                    {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
                    for tool in tools
                ],
            }
        )
        try:
            blocks, usage = body["content"], body["usage"]
            said = "".join(block["text"] for block in blocks if block["type"] == "text")
            wanted = [
                (block["id"], block["name"], block["input"])
                for block in blocks
                if block["type"] == "tool_use"
            ]
            cached = ("cache_read_input_tokens", "cache_creation_input_tokens")
            used = (
                usage["input_tokens"] + usage["output_tokens"] + sum(usage.get(each) or 0 for each in cached)
            )
        except (KeyError, TypeError) as error:
            raise self._strange(body) from error
        messages.append({"role": "assistant", "content": blocks})
        return said, wanted, used

    async def _post(self, body: dict[str, Any]) -> Any:
        try:
            answer = await self._web.post(
                self._url, json=body, headers=self._headers, timeout=REQUEST_TIMEOUT_S
            )
        except httpx.HTTPError as error:
            raise PlayFailed(f"{self._url} did not answer: {error!r}; check --endpoint") from error
        if answer.status_code != 200:
            raise PlayFailed(f"{self._url} answered {answer.status_code}: {answer.text[:500]}")
        try:
            return answer.json()
        except ValueError as error:
            raise self._strange(answer.text) from error

    def _strange(self, body: Any) -> PlayFailed:
        form = "Anthropic's" if self._anthropic else "OpenAI's"
        return PlayFailed(
            f"{self._url} answered in another form than {form}: {str(body)[:500]}. An address that ends in "
            "/messages is asked in Anthropic's form, any other in OpenAI's."
        )


def _json(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return None  # the model is told so
