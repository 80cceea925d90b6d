"""The pure rules: layers of policies, failure policies as they are stored, names of dead-letter topics."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.subscription.policy import PoisonPolicy
from pydanube_broker.subscription.subscription_policy import SubscriptionPolicy, default_dead_letter_topic
from pydanube_broker.topics.limits import POLICY_KEYS, Limits, check_policies, effective_policies
from pydanube_core.errors import InvalidArgument, InvalidName, LimitReached
from pydanube_core.names import TopicName

ORDERS = TopicName.parse("/default/orders")


def test_each_policy_comes_from_the_nearest_layer_that_sets_it() -> None:
    topic = {"max_publish_rate": 0}
    namespace = {"max_publish_rate": 10, "max_message_size": 100}
    settings = dict.fromkeys(POLICY_KEYS, 7)
    found = effective_policies(topic, namespace, settings)
    assert (found["max_publish_rate"], found["max_message_size"], found["retention_bytes"]) == (0, 100, 7)
    assert Limits.of(topic, namespace).max_message_size == 100


@pytest.mark.parametrize("policies", [{"nonsense": 1}, {"max_publish_rate": -1}, {"max_publish_rate": True}])
def test_what_is_no_policy_is_refused(policies: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        check_policies(policies)


def test_a_limit_is_reached_at_its_number_and_says_which() -> None:
    limits = Limits(max_producers_per_topic=2)
    limits.check_room("max_producers_per_topic", 1, what="producers", topic="/default/t")
    with pytest.raises(LimitReached) as caught:
        limits.check_room("max_producers_per_topic", 2, what="producers", topic="/default/t")
    assert caught.value.details["field"] == "max_producers_per_topic"
    assert caught.value.retryable
    Limits().check_room("max_producers_per_topic", 1_000_000, what="producers", topic="/default/t")


def test_a_failure_policy_is_the_stored_fields_over_the_defaults() -> None:
    policy = SubscriptionPolicy.of(
        {"poison_policy": "drop"}, {"max_redelivery_count": 9, "poison_policy": "block"}
    )
    assert policy.failure.poison_policy is PoisonPolicy.DROP
    assert policy.failure.max_redelivery_count == 9
    assert policy.as_fields(ORDERS, "s")["dead_letter_topic"] is None


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"poison_policy": "ignore"}, InvalidArgument),
        ({"backoff_strategy": "random"}, InvalidArgument),
        ({"ack_timeout_ms": -1}, InvalidArgument),
        ({"ack_timeout_ms": "30s"}, InvalidArgument),
        ({"base_redelivery_delay_ms": 100_000}, InvalidArgument),
        ({"unknown": 1}, InvalidArgument),
        ({"dead_letter_topic": "no name!"}, InvalidName),
    ],
)
def test_what_a_failure_policy_cannot_be_is_refused_by_field(fields: dict[str, Any], error: type) -> None:
    with pytest.raises(error) as caught:
        SubscriptionPolicy.of(fields, {})
    assert caught.value.details["field"] in fields  # type: ignore[attr-defined]


@pytest.mark.parametrize("target", ["/default/orders", "/default/orders-part-3"])
def test_dead_letters_do_not_go_back_into_their_topic(target: str) -> None:
    policy = SubscriptionPolicy.of({"dead_letter_topic": target, "poison_policy": "dead_letter"}, {})
    with pytest.raises(InvalidArgument):
        policy.check(TopicName.parse("/default/orders-part-1"), "s")


def test_partitions_share_one_dead_letter_topic() -> None:
    assert (
        str(default_dead_letter_topic(TopicName.parse("orders-part-3"), "billing"))
        == "/default/orders-dlq-billing"
    )


@given(
    subscription=st.text(
        st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=256
    )
)
def test_every_subscription_has_a_dead_letter_topic_with_a_valid_name(subscription: str) -> None:
    name = default_dead_letter_topic(TopicName("default", "t" * 128), subscription)
    assert TopicName.parse(str(name)) == name


def test_subscriptions_whose_names_are_cut_do_not_share_a_dead_letter_topic() -> None:
    one, other = (default_dead_letter_topic(ORDERS, name) for name in ("a b", "a-b"))
    assert one != other
