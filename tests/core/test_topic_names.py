"""Names of topics and of what connects to them: what is one, what is none, and which topic a name belongs to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.errors import InvalidName
from pydanube_core.names import (
    DEFAULT_NAMESPACE,
    MAX_PART_CHARS,
    TopicName,
    check_client_name,
    check_namespace,
    check_subscription,
)

from tests.core.batches import steady

ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
pieces = st.text(ALPHABET, min_size=1, max_size=MAX_PART_CHARS)


@steady
@given(namespace=pieces, name=pieces)
def test_every_form_of_a_name_is_the_same_topic(namespace: str, name: str) -> None:
    full = TopicName.parse(f"/{namespace}/{name}")
    assert (full.namespace, full.name) == (namespace, name)
    assert TopicName.parse(f"{namespace}/{name}") == full
    assert TopicName.parse(str(full)) == full
    assert str(full) == f"/{namespace}/{name}"
    assert TopicName.parse(name) == TopicName(DEFAULT_NAMESPACE, name)


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "//", "/orders", "/default/", "//orders", "/default//orders", "/a/b/c", "a/b/c", "default/orders/",
        "/default/or ders", "/default/orders\n", "orders\n", "/default/órders", "/def.ault/orders", "orders?", "١٢",
        " orders", "/default/\u212a", "a" * (MAX_PART_CHARS + 1), "/" + "n" * (MAX_PART_CHARS + 1) + "/orders",
        "../orders", "/default/..", "/default/a\0b",
    ],
)  # fmt: skip
def test_what_is_no_topic_name(text: str) -> None:
    with pytest.raises(InvalidName) as refused:
        TopicName.parse(text, field="name")
    assert refused.value.details["field"] == "name"
    assert refused.value.details["value"] == text
    assert "128" in refused.value.details["rule"]
    assert repr(text) in refused.value.message


@steady
@given(text=st.text(max_size=12) | st.text(ALPHABET + "/", max_size=12))
def test_any_text_is_a_name_in_full_form_or_refused(text: str) -> None:
    try:
        name = TopicName.parse(text)
    except InvalidName:
        return
    assert text in (str(name), str(name)[1:], name.name)
    assert set(str(name)) <= set(ALPHABET + "/")


# -- partitions: docs/research/behaviours.md#row-29 ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "base", "partition"),
    [
        ("orders", "orders", None),
        ("orders-eu", "orders-eu", None),
        ("orders-part-1", "orders", 1),
        ("orders-part-0", "orders", 0),
        ("orders-part-999999", "orders", 999_999),
        ("orders-eu-part-1", "orders-eu", 1),
        ("orders-part-1-part-2", "orders-part-1", 2),
        ("orders-part-01", "orders-part-01", None),
        ("orders-part-00", "orders-part-00", None),
        ("orders-part-1000000", "orders-part-1000000", None),
        ("orders-part-", "orders-part-", None),
        ("orders-part-1x", "orders-part-1x", None),
        ("orders-part-1-", "orders-part-1-", None),
        ("orders-part--1", "orders-part--1", None),
        ("orders-Part-1", "orders-Part-1", None),
        ("orders_part_1", "orders_part_1", None),
        ("-part-1", "-part-1", None),
        ("part-1", "part-1", None),
    ],
)
def test_only_an_exact_suffix_makes_a_partition(name: str, base: str, partition: int | None) -> None:
    topic = TopicName.parse(name)
    assert topic.partition == partition
    assert topic.base == TopicName.parse(base)


def test_names_that_begin_alike_are_strangers() -> None:
    orders = TopicName.parse("/default/orders")
    others = [
        TopicName.parse(n) for n in ("/default/orders-eu", "/default/orders-part", "/other/orders-part-1")
    ]
    parts = [orders.part(i) for i in range(3)]
    assert [p for p in (*others, *parts, orders) if p.base == orders] == [*parts, orders]
    assert all(p.partition is None for p in others[:2])


@steady
@given(namespace=pieces, name=st.text(ALPHABET, min_size=1, max_size=110), index=st.integers(0, 999_999))
def test_a_partition_knows_its_topic(namespace: str, name: str, index: int) -> None:
    topic = TopicName(namespace, name)
    part = topic.part(index)
    assert (part.base, part.partition) == (topic, index)
    assert TopicName.parse(str(part)) == part


def test_a_topic_whose_partitions_would_have_no_valid_name() -> None:
    with pytest.raises(InvalidName) as refused:
        TopicName.parse("a" * 125).part(0)
    assert refused.value.details["value"] == "/default/" + "a" * 125


# -- the others ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "namespace"), [("default", "default"), ("/default", "default"), ("a_b-C9", "a_b-C9")]
)
def test_namespaces(text: str, namespace: str) -> None:
    assert check_namespace(text) == namespace


@pytest.mark.parametrize("text", ["", "/", "//default", "default/", "a/b", "a b", "a\n", "é", "a" * 129])
def test_what_is_no_namespace(text: str) -> None:
    with pytest.raises(InvalidName) as refused:
        check_namespace(text, field="ns")
    assert (refused.value.details["field"], refused.value.details["value"]) == ("ns", text)


@pytest.mark.parametrize("text", ["a", "my subscription", "Überwachung", "a.b:c*?", "x" * 256])
def test_client_names_may_be_what_official_clients_send(text: str) -> None:
    assert check_subscription(text) == text
    assert check_client_name(text, field="producer_name") == text


@pytest.mark.parametrize("text", ["", "a/b", "a\nb", "a\0", "\u200b", "\ud800", "x" * 257])
def test_what_is_no_client_name(text: str) -> None:
    with pytest.raises(InvalidName) as refused:
        check_subscription(text)
    assert (refused.value.details["field"], refused.value.details["value"]) == ("subscription", text)
    with pytest.raises(InvalidName):
        check_client_name(text, field="consumer_name")
