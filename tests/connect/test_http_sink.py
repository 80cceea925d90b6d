"""`http-sink` against a server that misbehaves on purpose."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube_connect import Record
from pydanube_connect.testing import deliver
from pydanube_core.errors import InvalidArgument, Unauthenticated, Unavailable

from tests.connect.targets import Answer, Asked, HttpTarget

pytestmark = pytest.mark.anyio


def file(
    target: HttpTarget, path: str = "/", delivery: dict[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    return {
        "name": "a", "connector": "http-sink", "topic": "t", "settings": {"url": target.url + path, **settings},
        "delivery": {"backoff_s": 0.001, "on_error": "dead_letter", **(delivery or {})},
    }  # fmt: skip


async def test_each_record_is_a_request_with_an_idempotency_key(target: HttpTarget) -> None:
    await deliver(file(target, headers={"X-Api": "k"}), [{"id": 1}, {"id": 2}], first=10)
    assert [asked.json for asked in target.asked] == [{"id": 1}, {"id": 2}]
    assert [asked.headers["idempotency-key"] for asked in target.asked] == [
        "/default/t/0/10",
        "/default/t/0/11",
    ]
    assert target.asked[0].headers["content-type"] == "application/json"
    assert target.asked[0].headers["x-api"] == "k"


async def test_templates_fill_path_and_body(target: HttpTarget) -> None:
    body = {"who": "{name}", "text": "{$key}: {name}!", "fix": 1, "list": ["{n}"], "all": "{$value}"}
    await deliver(
        file(target, "/items/{name}?at={$offset}", method="PUT", body=body),
        [{"name": "a/b ü", "n": 2.5}],
        keys=["k"],
    )
    (asked,) = target.asked
    assert (asked.method, asked.path) == ("PUT", "/items/a%2Fb%20%C3%BC?at=0")
    assert asked.json == {
        "who": "a/b ü", "text": "k: a/b ü!", "fix": 1, "list": [2.5], "all": {"name": "a/b ü", "n": 2.5},
    }  # fmt: skip


async def test_a_missing_field_refuses_the_record(target: HttpTarget) -> None:
    outcome = await deliver(file(target, "/items/{name}"), [{"name": "a"}, {"nam": "b"}])
    assert len(target.asked) == 1
    assert outcome.refused[0].reason == "the record has no field 'name'; did you mean 'nam'?"


async def test_deletions_use_their_method(target: HttpTarget) -> None:
    await deliver(file(target, "/items/{$key}", delete_method="DELETE"), [Record(None, "k1")])
    assert [(asked.method, asked.path, asked.body) for asked in target.asked] == [
        ("DELETE", "/items/k1", b"")
    ]


async def test_batches_are_arrays_or_lines_and_bad_records_are_found(target: HttpTarget) -> None:
    def no_sevens(asked: Asked) -> Answer:
        return Answer(422, {}, b"seven") if any(item["id"] == 7 for item in asked.json) else Answer(201)

    target.answer = no_sevens
    outcome = await deliver(file(target, batch="array"), [{"id": n} for n in range(16)])
    assert [each.record.value for each in outcome.refused] == [{"id": 7}]
    assert "422" in outcome.refused[0].reason
    assert "seven" in outcome.refused[0].reason
    target.asked.clear()
    target.answer = lambda _: Answer()
    await deliver(file(target, batch="lines"), [{"id": 1}, {"id": 2}])
    assert target.asked[0].body == b'{"id":1}\n{"id":2}\n'


async def test_what_was_written_beside_refused_records_and_before_a_retry_is_counted(
    target: HttpTarget,
) -> None:
    busy = [Answer(503)]

    def answer(asked: Asked) -> Answer:
        if asked.json["id"] == 7:
            return Answer(422, {}, b"seven")
        return busy.pop() if busy and asked.json["id"] == 3 else Answer(201)

    target.answer = answer
    outcome = await deliver(file(target), [{"id": n} for n in range(16)])
    assert [each.record.value for each in outcome.refused] == [{"id": 7}]
    assert (outcome.statistics.records, outcome.statistics.refused) == (15, 1)


async def test_busy_answers_are_tried_again_after_what_they_ask(target: HttpTarget) -> None:
    answers = [Answer(429, {"Retry-After": "0"}), Answer(503), Answer(500), Answer(204, {}, b"")]
    target.answer = lambda _: answers.pop(0)
    outcome = await deliver(file(target), [{"id": 1}])
    assert outcome.statistics.retries == 3
    assert len({asked.headers["idempotency-key"] for asked in target.asked}) == 1


async def test_records_that_were_written_are_not_sent_again_after_a_failure(target: HttpTarget) -> None:
    failed: list[Asked] = []

    def once(asked: Asked) -> Answer:
        if asked.json["id"] == 3 and not failed:
            failed.append(asked)
            return Answer(503)
        return Answer()

    target.answer = once
    await deliver(
        file(target, concurrent=4), [{"id": n} for n in range(8)], keys=[f"k{n % 3}" for n in range(8)]
    )
    good = [asked.json["id"] for asked in target.asked if asked is not failed[0]]
    assert sorted(good) == list(range(8))
    for key in range(3):
        assert [n for n in good if n % 3 == key] == [n for n in range(8) if n % 3 == key], "order of a key"


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_credentials_stop_the_connector_before_anything_moves(
    target: HttpTarget, status: int
) -> None:
    target.head = Answer(status)
    with pytest.raises(Unauthenticated, match=r"refuses the credentials.*settings.headers"):
        await deliver(file(target), [{"id": 1}])
    assert target.asked == []


async def test_an_answer_in_html_stops_the_connector_before_anything_moves(target: HttpTarget) -> None:
    target.head = Answer(200, {"Content-Type": "text/html; charset=utf-8"})
    with pytest.raises(InvalidArgument, match="answers HTML"):
        await deliver(file(target), [{"id": 1}])
    assert target.asked == []
    await deliver(file(target, html=True), [{"id": 1}])


@pytest.mark.parametrize(
    ("answer", "said"),
    [(Answer(404), "404"), (Answer(302, {"Location": "http://else/"}), "http://else/"), (Answer(405), "405")],
)
async def test_a_wrong_address_stops_the_connector(target: HttpTarget, answer: Answer, said: str) -> None:
    target.answer = lambda _: answer
    with pytest.raises(InvalidArgument, match=r"settings\.url") as caught:
        await deliver(file(target), [{"id": 1}])
    assert said in caught.value.message
    assert len(target.asked) == 1


async def test_an_address_without_a_server_is_tried_within_the_budget() -> None:
    with HttpTarget() as gone:
        url = gone.url
    made = {
        "name": "a", "connector": "http-sink", "topic": "t", "settings": {"url": url},
        "delivery": {"backoff_s": 0.001, "retries": 2},
    }  # fmt: skip
    with pytest.raises(Unavailable, match=r"failed 3 times.*cannot be reached"):
        await deliver(made, [{"id": 1}])


def test_contradicting_settings_are_a_sentence(target: HttpTarget) -> None:
    from pydanube_connect.file import declared

    with pytest.raises(InvalidArgument, match="many records to one address"):
        declared(file(target, "/{id}", batch="array"), path="a.toml").make()
