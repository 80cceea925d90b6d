"""Argument errors are ours: field, value, remedy, and nothing of the library that checks."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_admin.arguments import parse_call
from pydanube_admin.engine.models import Effect
from pydanube_admin.operations.finding import ranking
from pydanube_admin.registry import OPERATIONS
from pydanube_core.errors import ClusterError, InvalidArgument


def fault(operation: str, arguments: Any) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        parse_call(operation, arguments)
    return caught.value


def test_an_unknown_argument_is_named_with_the_one_that_was_meant() -> None:
    error = fault("topics.create", {"topic": "x", "partition": 3})
    assert isinstance(error, InvalidArgument)
    assert error.message == "topics.create: there is no argument 'partition'; did you mean 'partitions'?"
    assert error.details["field"] == "partition"
    assert error.details["value"] == 3
    assert error.details["did_you_mean"] == ["partitions"]
    [step] = error.next
    assert step["arguments"] == {"topic": "x", "partitions": 3}
    assert step["command"] == "danube topics create x --partitions 3"


def test_an_operation_of_another_name_is_looked_for_by_its_words() -> None:
    """`brokers.drain` is spelled like nothing here: `brokers.unload` is found by what it does."""
    step = fault("brokers.drain", {"broker_id": "2"}).next[-1]
    assert (step["operation"], step["arguments"]) == ("operations.find", {"query": "brokers.drain"})
    assert ranking().rank("brokers.drain") == ranking().rank("brokers drain")
    assert fault("drain the broker!", {}).next[-1]["arguments"] == {"query": "drain the broker"}
    assert fault("", {}).next[-1]["arguments"] == {"query": "help"}


def test_the_call_that_was_meant_keeps_its_plan_and_is_only_told_when_it_is_good() -> None:
    error = fault("topics.delete", {"topics": "/default/x", "plan_only": True})
    assert [step["arguments"] for step in error.next] == [{"topic": "/default/x", "plan_only": True}]
    for operation, arguments in (
        ("topics.create", {"topic": "x", "partition": "three"}),  # a wrong value under a wrong name
        ("topics.create", {"topic": "x", "partition": 3, "partitions": 4}),  # which of the two?
        ("topics.create", {"partition": 3}),  # something is missing besides
        (
            "schemas.register",
            {"subjet": "s", "schema_type": "json_schema", "schema_definition": "{}" + " " * 5000},
        ),
        ("topics.create", {"topic": "x", "colour": "red"}),
    ):
        assert fault(operation, arguments).next == []


def test_a_missing_argument_says_what_it_is() -> None:
    error = fault("topics.describe", {})
    assert error.message.startswith("topics.describe: the argument 'topic' is required: /namespace/topic")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": "ten"}, "limit must be an integer from 1 to 1000, not the string 'ten'"),
        ({"limit": 0}, "limit must be an integer from 1 to 1000, not 0"),
        ({"limit": 1001}, "limit must be an integer from 1 to 1000, not 1001"),
        ({"limit": True}, "limit must be an integer from 1 to 1000, not true"),
        ({"limit": 2.5}, "limit must be an integer from 1 to 1000, not 2.5"),
        ({"limit": None}, "limit must be an integer from 1 to 1000, not null"),
        ({"namespace": ["a"]}, "namespace must be a string of 0 to 256 characters, not a list"),
        (
            {"filter": "x" * 300},
            "filter must be a string of 0 to 256 characters, not the string '" + "x" * 200 + "…'",
        ),
    ],
)
def test_a_wrong_value_says_what_it_must_be(arguments: dict[str, Any], message: str) -> None:
    assert fault("topics.list", arguments).message == f"topics.list: {message}"


def test_a_wrong_choice_names_the_choices() -> None:
    error = fault("topics.create", {"topic": "x", "dispatch_strategy": "relyable"})
    assert "one of reliable, non_reliable" in error.message
    assert "did you mean 'reliable'" in error.message
    assert error.details["allowed"] == ["reliable", "non_reliable"]


def test_several_faults_are_all_told() -> None:
    error = fault("topics.create", {"partitions": -1, "colour": "red"})
    assert {error.details["field"], *(more["field"] for more in error.details["more"])} == {
        "topic",
        "partitions",
        "colour",
    }


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"null",
        b"3",
        b"{",
        b'{"limit": NaN}',
        b'{"namespace": "\\ud800"}',
        b"\xff",
        b"[" * 100_000,
        b"9" * 5000,
    ],
)
def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    assert fault("topics.list", text).code == "INVALID_ARGUMENT"


def test_no_arguments_are_an_empty_object() -> None:
    assert parse_call("topics.list", b"").request == parse_call("topics.list", {}).request


def test_an_unknown_operation_names_the_one_that_was_meant() -> None:
    for given_name in ("topic.list", "topics-list", "topics list", "list_topics"):
        error = fault(given_name, {})
        assert error.code == "INVALID_ARGUMENT"
        assert error.details["did_you_mean"][0] == "topics.list", given_name
        assert error.next[0]["operation"] == "topics.list"


@pytest.mark.parametrize(
    ("given_name", "meant"), [("topics.lisst", "topics.list"), ("topics.delet", "topics.delete")]
)
def test_only_a_name_like_that_of_a_destructive_operation_suggests_one(given_name: str, meant: str) -> None:
    close = fault(given_name, {}).details["did_you_mean"]
    assert close[0] == meant
    assert all(OPERATIONS[each].effect is not Effect.DESTROY for each in close[1:])


@given(
    st.sampled_from(sorted(OPERATIONS)),
    st.dictionaries(
        st.sampled_from(["topic", "limit", "page", "filter", "partitions", "x", "plan_only", "durability"])
        | st.text(),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text(), max_size=2),
        max_size=4,
    ),
)
def test_any_arguments_are_taken_or_refused_in_our_words(operation: str, arguments: dict[str, Any]) -> None:
    try:
        parse_call(operation, arguments)
    except ClusterError as error:
        text = error.to_json()
        text.encode()
        assert "pydantic" not in text
        assert "errors.pydantic.dev" not in text
        assert "validation error" not in text
        assert len(text) < 8000


def test_many_faults_are_counted_and_some_of_them_told() -> None:
    error = fault("topics.list", {f"a{number}": 1 for number in range(500)})
    assert error.details["field"] == "a0"
    assert len(error.details["more"]) == 9
    assert error.details["more_omitted"] == 490
    assert len(error.to_json()) < 4096


@pytest.mark.parametrize(
    ("operation", "arguments", "field"),
    [
        ("topics.list", {f"a{number}": 1 for number in range(200_000)}, "arguments"),
        ("topics.set_policies", {"topic": "a", "policies": dict.fromkeys(map(str, range(100_000)), 1)}, "policies"),
        ("messages.publish", {"topic": "a", "attributes": dict.fromkeys(map(str, range(1001)), "v")}, "attributes"),
        ("dead_letters.replay", {"topic": "a", "offsets": ["x"] * 400_000}, "offsets"),
    ],
)  # fmt: skip
def test_more_values_than_a_thousand_are_refused_before_they_are_looked_at(
    operation: str, arguments: dict[str, Any], field: str
) -> None:
    began = time.thread_time()
    error = fault(operation, arguments)
    assert time.thread_time() - began < 0.5, "each of them would cost 50 µs"
    assert (error.code, error.details["field"], error.details["limit"]) == ("INVALID_ARGUMENT", field, 1000)
    assert len(error.to_json()) < 1024


@pytest.mark.parametrize("operation", ["t" * 3_000_000, "topics.list " * 250_000])
def test_a_name_as_long_as_a_book_is_not_compared_with_others(operation: str) -> None:
    began = time.thread_time()
    error = fault(operation, {})
    assert time.thread_time() - began < 0.5
    assert (error.code, error.details["did_you_mean"]) == ("INVALID_ARGUMENT", [])
