from __future__ import annotations

import json
import re

import pytest
from jsonschema import Draft202012Validator
from pydanube_admin.arguments import parse_call
from pydanube_admin.engine.models import Effect
from pydanube_admin.registry import OPERATIONS, TOOLS


def test_the_operations_and_their_tools() -> None:
    assert {operation.name: operation.tool for operation in OPERATIONS.values()} == {
        "reports.lag": "run_lag_report",
        "reports.balance": "run_balance_report",
        "reports.traffic": "run_traffic_report",
        "topics.list": "list_topics",
        "topics.describe": "describe_topic",
        "topics.chart": "chart_topic",
        "topics.create": "create_topic",
        "topics.delete": "delete_topic",
        "topics.set_policies": "set_topic_policies",
        "topics.get_policies": "get_topic_policies",
        "subscriptions.list": "list_subscriptions",
        "subscriptions.lag": "get_consumer_lag",
        "subscriptions.create": "create_subscription",
        "subscriptions.seek": "seek_subscription",
        "subscriptions.skip": "skip_messages",
        "subscriptions.purge": "purge_subscription",
        "subscriptions.delete": "unsubscribe",
        "subscriptions.set_failure_policy": "set_subscription_failure_policy",
        "subscriptions.get_failure_policy": "get_subscription_failure_policy",
        "namespaces.list": "list_namespaces",
        "namespaces.create": "create_namespace",
        "namespaces.get_policies": "get_namespace_policies",
        "namespaces.set_policies": "set_namespace_policies",
        "objects.list": "list_objects",
        "objects.verify": "verify_objects",
        "objects.flush": "flush_objects",
        "objects.compact": "compact_objects",
        "objects.collect": "collect_objects",
        "objects.export": "export_objects",
        "topics.replay": "replay_topic",
        "journal.describe": "describe_journal",
        "schemas.list": "list_subjects",
        "schemas.get": "get_schema",
        "schemas.get_by_id": "get_schema_by_id",
        "schemas.versions": "list_schema_versions",
        "schemas.check": "check_schema_compatibility",
        "schemas.get_compatibility": "get_schema_compatibility_mode",
        "schemas.register": "register_schema",
        "schemas.set_compatibility": "set_schema_compatibility_mode",
        "schemas.delete_version": "delete_schema_version",
        "topics.configure_schema": "configure_topic_schema",
        "topics.set_validation_policy": "set_topic_validation_policy",
        "topics.get_schema_config": "get_topic_schema_config",
        "brokers.status": "get_broker_status",
        "diagnose.cluster": "health_check",
        "diagnose.subscription": "analyze_consumer_lag",
        "diagnose.topic": "diagnose_topic",
        "diagnose.producer": "diagnose_producer",
        "alerts.list": "list_alerts",
        "namespaces.delete": "delete_namespace",
        "plans.create": "plan_operation",
        "plans.list": "list_plans",
        "plans.show": "show_plan",
        "plans.apply": "apply_plan",
        "plans.discard": "discard_plan",
        "changes.undo": "undo_change",
        "audit.query": "query_audit",
        "audit.verify": "verify_audit",
        "audit.export": "export_audit",
        "topics.truncate": "truncate_topic",
        "topics.unload": "unload_topic",
        "topics.add_partitions": "add_partitions",
        "topics.move": "move_topic",
        "topics.metrics": "get_topic_metrics",
        "subscriptions.describe": "describe_subscription",
        "dead_letters.list": "list_dead_letters",
        "dead_letters.replay": "replay_dead_letters",
        "messages.peek": "peek_messages",
        "messages.search": "search_messages",
        "messages.publish": "publish_message",
        "brokers.list": "list_brokers",
        "brokers.describe": "describe_broker",
        "brokers.config": "get_broker_config",
        "brokers.logs": "get_broker_logs",
        "brokers.leader": "get_leader",
        "brokers.unload": "unload_broker",
        "brokers.activate": "activate_broker",
        "brokers.remove": "remove_broker",
        "brokers.metrics": "get_broker_metrics",
        "cluster.metrics": "get_cluster_metrics",
        "cluster.balance": "get_cluster_balance",
        "cluster.rebalance": "rebalance_cluster",
        "producers.list": "list_producers",
        "producers.disconnect": "disconnect_producer",
        "consumers.list": "list_consumers",
        "consumers.disconnect": "disconnect_consumer",
        "tasks.list": "list_tasks",
        "tasks.get": "get_task",
        "tasks.cancel": "cancel_task",
        "security.whoami": "whoami",
        "security.explain": "explain_permission",
        "roles.list": "list_roles",
        "roles.get": "get_role",
        "roles.create": "create_role",
        "roles.delete": "delete_role",
        "bindings.list": "list_bindings",
        "bindings.create": "create_binding",
        "bindings.delete": "delete_binding",
        "revocations.list": "list_revocations",
        "revocations.create": "create_revocation",
        "revocations.delete": "delete_revocation",
        "tokens.list": "list_tokens",
        "tokens.create": "create_token",
        "tokens.rotate": "rotate_token",
        "tokens.revoke": "revoke_token",
        "quotas.list": "list_quotas",
        "quotas.set": "set_quota",
        "operations.find": "find_operations",
        "operations.read": "read_operation",
    }
    assert all(re.fullmatch(r"[a-z][a-z0-9_]{0,63}", tool) for tool in TOOLS)


def test_required_names_are_positional_and_the_rest_are_flags() -> None:
    create = OPERATIONS["topics.create"]
    assert [(a.name, a.positional, a.default) for a in create.arguments] == [
        ("topic", True, None),
        ("partitions", False, 0),
        ("dispatch_strategy", False, "reliable"),
        ("durability", False, "fsynced"),
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
        assert '"title"' not in text
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
    destroying = [
        "brokers.remove",
        "namespaces.delete",
        "objects.collect",
        "plans.apply",
        "roles.delete",
        "schemas.delete_version",
        "subscriptions.delete",
        "subscriptions.purge",
        "subscriptions.seek",
        "subscriptions.skip",
        "topics.delete",
        "topics.truncate",
    ]
    assert [o.name for o in OPERATIONS.values() if o.effect is Effect.DESTROY] == destroying
    assert [o.name for o in OPERATIONS.values() if o.plans_itself] == [
        "plans.apply",
        "plans.create",
        "plans.discard",
        "tokens.create",
        "tokens.rotate",
    ]
