"""Messages that are read and written by hand, held against the generated classes."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from pydanube_broker.services.official.hot_messages import (
    SentMessage,
    encode_delivery,
    read_answer,
    read_sent,
    request_id_only,
)
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
    msg_id=maybe(IDENTS),
    payload=st.binary(max_size=200),
    publish_time=NUMBERS,
    producer_name=TEXTS,
    attributes=st.just({}) | st.dictionaries(TEXTS, TEXTS, max_size=2),
    schema_id=maybe(NUMBERS),
    schema_version=maybe(WORDS),
    routing_key=maybe(TEXTS),
)
ANSWERS = st.builds(pb.AckRequest, request_id=NUMBERS, msg_id=maybe(IDENTS), subscription_name=TEXTS)
# Fields of any number and kind, some of them ours, some cut short.
FIELDS = st.builds(
    lambda key, rest: bytes((key,)) + rest, st.sampled_from(range(256)), st.binary(max_size=14)
) | st.sampled_from(
    [
        b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",  # ten bytes
        b"\x08\x81\x00",  # more bytes than needed
        b"\x1a\x81\x80\x80\x80\x80\x80\x80\x80\x00x",  # a length in nine bytes
        b"\x1a\x85\x00abcde",
        b"\x12\x02\x08\x05",
        b"\x12\x04\x28\x28\x28\x05",
        b"\x12\x03\x12\x01\xff",
        b"\x2a\x01\xff",
        b"\x52\x02\xc3\x28",
        b"\x48\xff\xff\xff\xff\xff\xff\x01",
        b"\x32\x01s",
        b"\x7a\x01s",
        b"\x00\x00",
    ]
)


def facts(message: SentMessage) -> tuple[Any, ...]:
    return tuple(getattr(message, name) for name in SentMessage.__slots__)


def check_sent(data: bytes) -> None:
    """Whatever is read by hand is what the generated class reads; what that refuses is not read by hand."""
    read = read_sent(data)
    if read is not None:
        generated = pb.StreamMessage.FromString(data)
        assert generated.HasField("msg_id")
        assert facts(read) == facts(SentMessage.of(generated))


def check_answer(data: bytes) -> None:
    read = read_answer(data)
    if read is not None:
        generated = pb.AckRequest.FromString(data)
        assert generated.HasField("msg_id")
        assert (read.request_id, read.topic_name, read.offset, read.subscription_name) == (
            generated.request_id,
            generated.msg_id.topic_name,
            generated.msg_id.topic_offset,
            generated.subscription_name,
        )


@given(MESSAGES)
def test_a_sent_message_is_read_as_the_generated_class_reads_it(message: pb.StreamMessage) -> None:
    check_sent(message.SerializeToString())


@given(ANSWERS)
def test_an_answer_is_read_as_the_generated_class_reads_it(answer: pb.AckRequest) -> None:
    check_answer(answer.SerializeToString())


@example([b"*\x01\xff", b"\x12\x06\x1a\x04a(b(", b"*\x010"], 0)  # a name twice, the first of them no text
@example([b"\x1a\x01\xff", b"\x12\x00", b"\x1a\x010"], 0)  # an answer's subscription likewise
@given(st.lists(FIELDS | MESSAGES.map(pb.StreamMessage.SerializeToString), max_size=4), st.integers(0, 60))
def test_what_is_cut_unknown_or_malformed_is_read_alike_or_left_to_the_generated_class(
    fields: list[bytes], cut: int
) -> None:
    whole = b"".join(fields)
    for data in (whole, whole[: max(0, len(whole) - cut)]):
        check_sent(data)
        check_answer(data)


@given(ANSWERS.map(pb.AckRequest.SerializeToString), st.data())
def test_an_answer_with_bytes_changed_is_read_alike_or_left_to_the_generated_class(
    data: bytes, draw: st.DataObject
) -> None:
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(0, 3))):
        if changed:
            changed[draw.draw(st.integers(0, len(changed) - 1))] = draw.draw(st.integers(0, 255))
    check_answer(bytes(changed))
    check_sent(bytes(changed))


def test_what_clients_send_is_read_by_hand() -> None:
    ident = pb.MsgID(producer_id=1 << 62, topic_name="/default/t", broker_addr="http://b:6650")
    sent = pb.StreamMessage(
        request_id=300, msg_id=ident, payload=b"x" * 5000, publish_time=1_700_000_000_000, producer_name="p"
    )
    assert read_sent(sent.SerializeToString()) is not None
    for offset in (0, 1, 127, 128, 300, 1 << 40):
        ident.topic_offset = offset
        answer = pb.AckRequest(request_id=300, msg_id=ident, subscription_name="s")
        read = read_answer(answer.SerializeToString())
        assert read is not None
        assert read.offset == offset


def test_malformed_input_is_left_to_the_generated_class_which_refuses_it() -> None:
    for data in (b"\x12\x05\x08", b"\x12\x00\x2a\x01\xff", b"\x08", b"\x12\x00\x1a\x05abc"):
        assert read_sent(data) is None
        with pytest.raises(DecodeError):
            pb.StreamMessage.FromString(data)


@given(NUMBERS)
def test_an_answer_to_a_call_is_what_the_generated_class_writes(request_id: int) -> None:
    expected = pb.MessageResponse(request_id=request_id).SerializeToString()
    assert request_id_only(request_id) == expected


@given(
    MESSAGES.filter(lambda message: message.HasField("msg_id")),
)
def test_a_delivery_says_what_the_generated_class_would(message: pb.StreamMessage) -> None:
    ident = message.msg_id
    written = encode_delivery(
        message.request_id,
        ident.producer_id,
        ident.topic_name,
        ident.broker_addr,
        ident.topic_offset,
        message.payload,
        message.publish_time,
        message.producer_name,
        dict(message.attributes),
        message.schema_id,
        message.schema_version,
        message.routing_key.encode() if message.HasField("routing_key") else None,
    )
    expected = pb.StreamMessage()
    expected.CopyFrom(message)
    if not message.schema_id:  # 0 is none
        expected.ClearField("schema_id")
    if not message.schema_version:
        expected.ClearField("schema_version")
    assert pb.StreamMessage.FromString(written) == expected
