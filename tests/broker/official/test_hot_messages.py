"""Messages of the hot calls: what is read is what a client wrote, and a delivery says what was published."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.services.official.hot_messages import encode_delivery, read_sent
from pydanube_core.errors import InvalidArgument
from pydanube_core.generated import danube_pb2 as pb

NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 64) - 1))
WORDS = st.integers(0, (1 << 32) - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
IDENTS = st.builds(
    pb.MsgID, producer_id=NUMBERS, topic_name=TEXTS, broker_addr=TEXTS | st.just("a(b("), topic_offset=NUMBERS
)


def maybe(strategy: Any) -> Any:
    return st.none() | strategy


MESSAGES = st.builds(
    pb.StreamMessage,
    request_id=NUMBERS,
    msg_id=IDENTS,
    payload=st.binary(max_size=200),
    publish_time=NUMBERS,
    producer_name=TEXTS,
    attributes=st.just({}) | st.dictionaries(TEXTS, TEXTS, max_size=2),
    schema_id=maybe(NUMBERS),
    schema_version=maybe(WORDS),
    routing_key=maybe(TEXTS),
)


@given(MESSAGES)
def test_what_is_read_of_a_sent_message_is_delivered_as_it_was_sent(message: pb.StreamMessage) -> None:
    read, ident = read_sent(message.SerializeToString()), message.msg_id
    written = encode_delivery(
        read.request_id,
        read.producer_id,
        read.topic_name,
        ident.broker_addr,
        ident.topic_offset,
        read.payload,
        read.publish_time,
        read.producer_name,
        read.attributes,
        read.schema_id,
        read.schema_version,
        read.routing_key,
    )
    expected = pb.StreamMessage()
    expected.CopyFrom(message)
    if not message.schema_id:  # 0 is none
        expected.ClearField("schema_id")
    if not message.schema_version:
        expected.ClearField("schema_version")
    assert pb.StreamMessage.FromString(written) == expected


@pytest.mark.parametrize(
    "data", [b"\x12\x05\x08", b"\x12\x00\x2a\x01\xff", b"\x08", b"\x12\x00\x1a\x05abc", b""]
)
def test_what_is_malformed_or_names_no_topic_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read_sent(data)


def test_a_key_that_is_no_text_is_delivered_as_text() -> None:
    written = encode_delivery(1, 2, "/default/t", "", 0, b"", 0, "p", routing_key=b"k\xff")
    assert pb.StreamMessage.FromString(written).routing_key == "k\ufffd"
