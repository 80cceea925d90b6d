"""`consume` with key filters and without acks, and moving the cursors of partitions, typed against a real broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.running import Danube, Ran

KEYED = [("a1", "1"), ("b1", "2"), ("a2", "3"), ("c", "4"), ("a1", "5")]


def produce_keyed(live: Danube, topic: str) -> None:
    for key, text in KEYED:
        assert live("produce", topic, "-m", text, "--key", key).code == 0


def lag(live: Danube, topic: str) -> int:
    items = live("subscriptions", "lag", "--topic", topic, "--json").result["items"]
    return sum(int(item["lag_messages"]) for item in items)


def lines(ran: Ran) -> list[dict[str, Any]]:
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def test_key_filters_choose_what_a_consumer_gets(live: Danube) -> None:
    produce_keyed(live, "filtered")
    read = ["consume", "filtered", "-s", "s", "--sub-type", "key-shared", "--for", "60s", "--json"]
    got = lines(live(*read, "--key-filter", "a?", "--key-filter", "b*", "--count", "4"))
    assert [(line["key"], line["payload"]) for line in got] == [
        ("a1", "1"),
        ("b1", "2"),
        ("a2", "3"),
        ("a1", "5"),
    ]
    # Nobody attached wanted key c when it was read: it is acknowledged, and nothing waits for ever.
    assert lag(live, "filtered") == 0


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--key-filter", "a*"], "subscription"),
        (["-s", "s", "--key-filter", "a*"], "key_filters"),
        (["-s", "s", "--sub-type", "shared", "--key-filter", "a*"], "key_filters"),
    ],
)
def test_key_filters_that_mean_nothing_are_refused(live: Danube, words: list[str], field: str) -> None:
    produce_keyed(live, "refused")
    ran = live("consume", "refused", *words, "--exit", "--json")
    assert (ran.code, ran.error["code"]) == (2, "INVALID_ARGUMENT"), ran.err
    assert ran.error["details"]["field"] == field
    assert ran.out == ""
    # What is refused leaves nothing behind.
    assert live("subscriptions", "list", "--topic", "refused", "--json").result["items"] == []


def test_without_acks_everything_is_delivered_again_and_counted(live: Danube) -> None:
    live("produce", "peeked", stdin=b"one\ntwo\nthree\n")
    read = ["consume", "peeked", "-s", "s", "--ack", "none", "--count", "2", "--for", "60s", "--json"]
    first = lines(live(*read))
    assert [(line["payload"], line["delivery_count"]) for line in first] == [("one", 1), ("two", 1)]
    assert lag(live, "peeked") == 3
    again = lines(live(*read))
    assert [(line["payload"], line["delivery_count"]) for line in again] == [("one", 2), ("two", 2)]
    taken = lines(live("consume", "peeked", "-s", "s", "--exit", "--json"))
    assert [line["payload"] for line in taken] == ["one", "two", "three"]
    assert lag(live, "peeked") == 0


def test_word_that_is_no_way_to_ack_is_refused(live: Danube) -> None:
    ran = live("consume", "peeked", "-s", "s", "--ack", "maybe", "--json")
    assert (ran.code, ran.error["code"]) == (2, "INVALID_ARGUMENT")


def test_skip_is_of_one_partition_and_the_refusal_names_it(live: Danube) -> None:
    assert live("topics", "create", "parted", "--partitions", "2").code == 0
    assert live("subscriptions", "create", "parted", "s").code == 0
    assert live("produce", "parted", stdin=b"".join(b"%d\n" % n for n in range(10))).code == 0
    before = lag(live, "parted")
    assert before == 10
    ran = live("subscriptions", "skip", "parted", "s", "--count", "3", "--yes", "--json")
    assert (ran.code, ran.error["code"]) == (2, "INVALID_ARGUMENT"), ran.err
    assert "parted-part-0" in ran.error["message"]
    assert lag(live, "parted") == 10
    done = live("subscriptions", "skip", "parted-part-0", "s", "--count", "3", "--yes", "--json")
    assert done.code == 0, done.err
    assert done.result["skipped_messages"] == 3
    assert lag(live, "parted") == 7
