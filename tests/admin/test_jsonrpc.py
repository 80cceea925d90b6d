from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_admin.arguments import parse_call
from pydanube_admin.jsonrpc import MAX_BATCH_BYTES, JsonRpc
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.remote import OpsClient
from pydanube_core.errors import ClusterError, TopicNotFound

from tests.support.waiting import turns_during

pytestmark = pytest.mark.anyio


class Recorder:
    """A caller that answers whatever the admin core would take, and remembers what it was asked."""

    def __init__(self, outcome: dict[str, Any] | Exception | None = None) -> None:
        self.calls: list[tuple[str, dict[str, Any], str | None]] = []
        self.outcome = {"ok": True} if outcome is None else outcome

    async def call_json(
        self,
        operation: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        principal: str | None = None,
    ) -> bytes:
        parse_call(operation, arguments or {})
        self.calls.append((operation, dict(arguments or {}), principal))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return json.dumps(self.outcome).encode()


async def ask(message: Any, caller: Recorder | None = None) -> Any:
    raw = message if isinstance(message, bytes) else json.dumps(message).encode()
    answer = await JsonRpc(caller or Recorder()).handle(raw, principal="ann")
    return None if answer is None else json.loads(answer)


def call(method: str = "topics.list", id: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


async def test_a_call_is_answered_under_its_id() -> None:
    caller = Recorder()
    for id in (1, "a", None, 2.5, -7, 10**30, "\ud800"):
        assert await ask(call(id=id, limit=3), caller) == {"jsonrpc": "2.0", "result": {"ok": True}, "id": id}
    assert caller.calls[0] == ("topics.list", {"limit": 3}, "ann")


async def test_params_may_be_absent() -> None:
    assert (await ask({"jsonrpc": "2.0", "id": 1, "method": "topics.list"}))["result"] == {"ok": True}


async def test_a_notification_is_made_and_not_answered() -> None:
    caller = Recorder()
    assert await ask({"jsonrpc": "2.0", "method": "topics.create", "params": {"topic": "x"}}, caller) is None
    assert len(caller.calls) == 1
    for silent in ("no.such", "topics.describe"):
        assert await ask({"jsonrpc": "2.0", "method": silent}, caller) is None
    failing = Recorder(TopicNotFound("gone"))
    assert await ask({"jsonrpc": "2.0", "method": "topics.list"}, failing) is None


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff\xfe\x00", -32700),
        (b"[" * 5_000, -32700),
        (b'{"jsonrpc":"2.0","id":NaN,"method":"topics.list"}', -32700),
        (b'{"jsonrpc":"2.0","id":1e999,"method":"topics.list"}', -32700),
        (b"[]", -32600),
        (b"1", -32600),
        (b'"x"', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"topics.list"}', -32600),
        (b'{"id":1,"method":"topics.list"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"topics.list"}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"topics.list"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"topics.list","params":3}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"topics.lisst"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"rpc.secret"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"topics.list","params":[1]}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"topics.describe"}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"topics.list","params":{"limit":0}}', -32602),
    ],
)
async def test_codes_of_the_standard(message: bytes, code: int) -> None:
    answer = await ask(message)
    assert answer["error"]["code"] == code
    assert answer["error"]["data"]["code"] in ("INVALID_ARGUMENT", "NOT_IMPLEMENTED")
    assert answer["id"] == (1 if b'"id":1,' in message else None)


async def test_params_of_null_are_none() -> None:
    assert "error" not in await ask(b'{"jsonrpc":"2.0","id":1,"method":"topics.list","params":null}')


async def test_positional_params_are_shown_how_they_are_named() -> None:
    answer = await ask({"jsonrpc": "2.0", "id": 1, "method": "topics.create", "params": ["orders", 3]})
    assert '{"topic": "orders", "partitions": 3}' in answer["error"]["message"]


async def test_a_misspelled_method_is_answered_with_the_one_that_was_meant() -> None:
    assert "'topics.list'" in (await ask(call("topics.lst")))["error"]["message"]
    assert "'topics.list'" in (await ask(call("list_topics")))["error"]["message"]


async def test_an_error_of_an_operation_is_whole_in_data() -> None:
    error = TopicNotFound(
        "there is no topic /default/x", topic="/default/x", next=[{"operation": "topics.create"}]
    )
    answer = await ask(call(), Recorder(error))
    assert answer["error"] == {
        "code": -32000,
        "message": "there is no topic /default/x",
        "data": {
            "code": "TOPIC_NOT_FOUND",
            "message": "there is no topic /default/x",
            "retryable": False,
            "details": {"topic": "/default/x"},
            "next": [{"operation": "topics.create"}],
        },
    }


async def test_a_defect_shows_nothing_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    answer = await ask(call(), Recorder(KeyError("secret")))
    assert answer["error"]["data"]["code"] == "INTERNAL"
    assert "secret" not in json.dumps(answer)
    assert "secret" in caplog.text


async def test_a_batch_is_answered_in_order_without_its_notifications() -> None:
    caller = Recorder()
    answers = await ask(
        [call(id=1), {"jsonrpc": "2.0", "method": "topics.list"}, call("nope", id=2), 7, call(id="z")], caller
    )
    assert [(answer["id"], "result" in answer) for answer in answers] == [
        (1, True),
        (2, False),
        (None, False),
        ("z", True),
    ]
    assert len(caller.calls) == 3


async def test_a_batch_of_notifications_has_no_answer_and_a_batch_has_a_hundred_calls_at_most() -> None:
    assert await ask([{"jsonrpc": "2.0", "method": "topics.list"}] * 100) is None
    caller = Recorder()
    answer = await ask([call()] * 101, caller)
    assert answer["error"]["code"] == -32600
    assert caller.calls == []


async def test_a_batch_whose_answers_are_too_large_is_not_made_to_its_end() -> None:
    caller = Recorder({"text": "x" * 1_000_000})
    answers = await ask([call(id=number) for number in range(8)], caller)
    assert [answer["id"] for answer in answers] == list(range(8))
    made = sum("result" in answer for answer in answers)
    assert made == len(caller.calls) == MAX_BATCH_BYTES // 1_000_000 + 1
    refused = answers[-1]["error"]["data"]
    assert (refused["code"], refused["details"]["limit"]) == ("LIMIT_REACHED", MAX_BATCH_BYTES)
    assert "was not made" in refused["message"]


async def test_others_have_their_turn_between_two_calls_of_a_batch() -> None:
    """Refusals never wait for anything by themselves."""
    assert await turns_during(ask([call("nope", id=number) for number in range(50)])) >= 49


async def test_discovery_describes_every_method_offered() -> None:
    document = (await ask(call("rpc.discover")))["result"]
    assert document["openrpc"].startswith("1.")
    methods = {method["name"]: method for method in document["methods"]}
    assert set(methods) == set(OPERATIONS)
    create = methods["topics.create"]
    assert create["params"][0]["name"] == "topic"
    assert create["params"][0]["required"] is True
    assert create["paramStructure"] == "by-name"
    assert create["result"]["schema"]["properties"]["topic_id"] == {"type": "string"}


async def test_over_the_real_admin_core(ops: OpsClient) -> None:
    ops.face = "jsonrpc"
    rpc = JsonRpc(ops)
    with anyio.fail_after(60):
        answers = json.loads(
            await rpc.handle(
                json.dumps(
                    [
                        call("topics.create", id=1, topic="new"),
                        call("topics.describe", id=2, topic="new"),
                        call("topics.delete", id=3, topic="new"),
                        call("topics.describe", id=4, topic="bad name!"),
                        call("topics.list", id=5, page="rubbish"),
                    ]
                ).encode()
            )
            or b""
        )
    assert answers[0]["result"]["topic"] == answers[1]["result"]["topic"] == "/default/new"
    assert [(answer["error"]["code"], answer["error"]["data"]["code"]) for answer in answers[2:]] == [
        (-32000, "PLAN_REQUIRED"),
        (-32000, "INVALID_NAME"),
        (-32000, "PAGE_INVALID"),
    ]


def check_response(answer: Any) -> None:
    """One response object of the standard."""
    assert answer["jsonrpc"] == "2.0"
    assert ("result" in answer) != ("error" in answer)
    assert answer["id"] is None or isinstance(answer["id"], (str, int, float))
    if "error" in answer:
        assert isinstance(answer["error"]["code"], int)
        assert isinstance(answer["error"]["message"], str)
        ClusterError.from_dict(answer["error"]["data"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | JSON,
        "id": JSON,
        "method": st.sampled_from(["topics.list", "topics.create", "rpc.discover", "plans.create"]) | JSON,
        "params": st.dictionaries(st.sampled_from(["topic", "limit", "plan_only"]), JSON) | JSON,
    },
)
MESSAGES = (
    st.binary(max_size=200)
    | st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))
    | (JSON | NEARLY | st.lists(NEARLY, max_size=6)).map(lambda value: json.dumps(value).encode())
)


@given(MESSAGES)
def test_any_bytes_get_a_valid_answer(message: bytes) -> None:
    async def main() -> bytes | None:
        return await JsonRpc(Recorder()).handle(message)

    raw = anyio.run(main)
    if raw is None:
        return
    answer = json.loads(raw)
    for one in answer if isinstance(answer, list) else [answer]:
        check_response(one)
