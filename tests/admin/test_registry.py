from __future__ import annotations

import json
import re

import pytest
from jsonschema import Draft202012Validator
from pydanube_admin.arguments import parse_call
from pydanube_admin.engine.models import Effect
from pydanube_admin.registry import OPERATIONS, TOOLS


def test_every_operation_has_a_tool_of_its_own() -> None:
    assert len(TOOLS) == len(OPERATIONS) > 90
    assert all(re.fullmatch(r"[a-z][a-z0-9_]{0,63}", tool) for tool in TOOLS)


def test_required_names_are_positional_and_the_rest_are_flags() -> None:
    create = OPERATIONS["topics.create"]
    assert [(a.name, a.positional, a.default) for a in create.arguments] == [
        ("topic", True, None),
        ("partitions", False, 0),
        ("dispatch_strategy", False, "reliable"),
        ("durability", False, None),
        ("policies", False, None),
        ("schema_subject", False, None),
    ]
    assert create.arguments[2].choices == ("reliable", "non_reliable")
    assert create.arguments[1].maximum == 1000
    lag = OPERATIONS["subscriptions.lag"]
    assert [argument.name for argument in lag.arguments] == [
        "topic",
        "subscription",
        "status",
        "limit",
        "page",
        "filter",
        "sort",
        "top",
        "changed_since",
    ]
    assert not any(argument.positional for argument in lag.arguments)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_schemas_are_sound_and_without_noise(name: str) -> None:
    operation = OPERATIONS[name]
    for schema in (operation.input_schema, operation.output_schema):
        Draft202012Validator.check_schema(schema)
        text = json.dumps(schema)
        assert "$ref" not in text
        assert '"title": "' not in text  # a title; a field may be called so
        assert "anyOf" not in text


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_example_is_a_call_that_would_be_taken(name: str) -> None:
    operation = OPERATIONS[name]
    assert operation.examples
    for example in operation.examples:
        assert parse_call(name, example.arguments).operation is operation
        Draft202012Validator(operation.input_schema).validate(dict(example.arguments))


def test_what_is_required_and_no_name_is_a_flag() -> None:
    seek = OPERATIONS["subscriptions.seek"]
    assert [(a.name, a.positional, a.required) for a in seek.arguments] == [
        ("topic", True, True),
        ("subscription", True, True),
        ("to", False, True),
    ]
    assert (
        seek.command_line({"topic": "orders", "subscription": "s1", "to": "earliest"})
        == "danube subscriptions seek orders s1 --to earliest"
    )
    assert (
        OPERATIONS["topics.set_policies"].command_line(
            {"topic": "orders", "policies": {"max_publish_rate": 10, "max_message_size": None}}
        )
        == "danube topics set-policies orders --policies max_publish_rate=10,max_message_size=none"
    )


def test_a_command_line_is_one_that_can_be_pasted() -> None:
    assert (
        OPERATIONS["topics.list"].command_line({"filter": "orders*", "namespace": "default", "limit": 5})
        == "danube topics list --namespace default --limit 5 --filter 'orders*'"
    )
    assert (
        OPERATIONS["topics.create"].command_line({"partitions": 3, "topic": "a b"})
        == "danube topics create 'a b' --partitions 3"
    )


def test_what_destroys_is_planned() -> None:
    for operation in OPERATIONS.values():
        if operation.effect is Effect.DESTROY:
            assert operation.planned or operation.plans_itself, operation.name
    assert [o.name for o in OPERATIONS.values() if o.plans_itself] == [
        "plans.apply",
        "plans.create",
        "plans.discard",
        "tokens.create",
        "tokens.rotate",
    ]
