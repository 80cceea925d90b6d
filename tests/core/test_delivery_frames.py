"""The hot messages written by hand: the same bytes as protobuf's, whole or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.errors import InvalidArgument
from pydanube_core.frames import (
    CONSUME_DELIVERY_FIELD,
    MAX_PARTS,
    PUBLISH_BATCH_FIELD,
    DeliveryPart,
    decode_delivery,
    encode_delivery,
    read_bytes_field,
    write_bytes_field,
)
from pydanube_core.generated import danube_stream_pb2 as pb

from tests.core.batches import steady

u64, u32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
stored = st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=3)
again = st.just(list[bytes]())
part = st.tuples(u64, u64, u32, stored)
frames = st.one_of(
    st.just([]),
    st.tuples(part, st.lists(st.tuples(u64, u64, u32, stored | again), max_size=6)).map(
        lambda t: [t[0], *t[1]]
    ),
)


def test_field_numbers_are_those_of_the_proto() -> None:
    publish, consume = pb.PublishRequest.DESCRIPTOR, pb.ConsumeResponse.DESCRIPTOR
    for field, number in (
        (publish.fields_by_name["batch"], PUBLISH_BATCH_FIELD),
        (consume.fields_by_name["delivery"], CONSUME_DELIVERY_FIELD),
    ):
        assert field.number == number
        assert field.type == field.TYPE_BYTES
        assert field.containing_oneof.name == "kind"
        assert number < 16  # the tag is one byte


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_bytes_fields_are_protobufs(size: int) -> None:
    batch = bytes(size)
    ours = write_bytes_field(PUBLISH_BATCH_FIELD, [batch[:1], memoryview(batch)[1:]])
    theirs = pb.PublishRequest(batch=batch).SerializeToString()
    assert ours == theirs
    assert pb.PublishRequest.FromString(ours).batch == batch
    read = read_bytes_field(PUBLISH_BATCH_FIELD, theirs)
    assert read is not None
    assert read == batch
    delivery = pb.ConsumeResponse(delivery=batch).SerializeToString()
    assert write_bytes_field(CONSUME_DELIVERY_FIELD, [batch]) == delivery


@pytest.mark.parametrize(
    "message",
    [
        pb.PublishRequest(open=pb.OpenProducer(topic="/default/orders", create=True)),
        pb.PublishRequest(open=pb.OpenProducer()),
        pb.PublishRequest(),
        pb.ConsumeResponse(opened=pb.ConsumerOpened(consumer_id=2)),
        pb.ConsumeResponse(end=pb.End(next_offset=1)),
        pb.ConsumeResponse(session=pb.SessionChanged(session=2)),
    ],
)
def test_other_messages_are_left_to_protobuf(message: pb.PublishRequest | pb.ConsumeResponse) -> None:
    assert read_bytes_field(2, message.SerializeToString()) is None


@steady
@given(
    field=st.integers(1, 15),
    data=st.binary(max_size=300),
    cut=st.integers(0, 300),
    tail=st.binary(min_size=1),
)
def test_a_cut_or_lengthened_field_is_refused(field: int, data: bytes, cut: int, tail: bytes) -> None:
    message = write_bytes_field(field, [data])
    assert read_bytes_field(field, message) == data
    short = message[: min(cut, len(message) - 1)]
    if short:
        with pytest.raises(InvalidArgument):
            read_bytes_field(field, short)
    else:
        assert read_bytes_field(field, short) is None
    with pytest.raises(InvalidArgument):
        read_bytes_field(field, message + tail)


@pytest.mark.parametrize(
    "length", [b"\x80", b"\xff\xff\xff\xff\xff", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80\x01x"]
)
def test_hostile_lengths_are_refused(length: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read_bytes_field(2, b"\x12" + length)


@steady
@given(session=u64, parts=frames)
def test_frames_come_back(session: int, parts: list[tuple[int, int, int, list[bytes]]]) -> None:
    message = encode_delivery(session, parts)
    expected: list[DeliveryPart] = []
    batch = b""
    for first, end, count, buffers in parts:
        batch = b"".join(buffers) or batch
        expected.append(DeliveryPart(first, end, count, batch))
    assert decode_delivery(pb.ConsumeResponse.FromString(message).delivery) == (session, expected)
    frame = read_bytes_field(CONSUME_DELIVERY_FIELD, message)
    assert frame is not None
    assert decode_delivery(frame) == (session, expected)


@steady
@given(session=u64, parts=frames, tail=st.binary(min_size=1, max_size=40))
def test_any_cut_of_a_frame_is_refused(
    session: int, parts: list[tuple[int, int, int, list[bytes]]], tail: bytes
) -> None:
    message = encode_delivery(session, parts)
    frame = pb.ConsumeResponse.FromString(message).delivery
    for length in range(len(frame)):
        with pytest.raises(InvalidArgument):
            decode_delivery(frame[:length])
    with pytest.raises(InvalidArgument):
        decode_delivery(frame + tail)
    for length in range(1, len(message)):
        with pytest.raises(InvalidArgument):
            read_bytes_field(CONSUME_DELIVERY_FIELD, message[:length])


def test_the_same_batch_again_is_sent_once_and_shared() -> None:
    message = encode_delivery(7, [(0, 5, 1, [b"head", b"body"]), (8, 9, 2, ()), (9, 12, 1, ())])
    assert message.count(b"headbody") == 1
    frame = read_bytes_field(CONSUME_DELIVERY_FIELD, message)
    assert frame is not None
    _, parts = decode_delivery(frame)
    assert [bytes(part.batch) for part in parts] == [b"headbody"] * 3
    assert parts[0].batch is parts[2].batch  # so a client decodes it once


def test_a_frame_begins_with_a_batch() -> None:
    frame = pb.ConsumeResponse.FromString(encode_delivery(7, [(0, 5, 1, ())])).delivery
    with pytest.raises(InvalidArgument):
        decode_delivery(frame)


def test_parts_are_bounded() -> None:
    head = (7).to_bytes(8, "little") + (MAX_PARTS + 1).to_bytes(8, "little")
    with pytest.raises(InvalidArgument):
        decode_delivery(head + bytes(24 * (MAX_PARTS + 1)))
    with pytest.raises(InvalidArgument):
        decode_delivery((7).to_bytes(8, "little") + b"\xff\xff\xff\xff\0\0\0\0")


@steady
@given(junk=st.binary(max_size=120))
def test_junk_frames_raise_typed_errors_or_stay_within_their_bytes(junk: bytes) -> None:
    try:
        _, parts = decode_delivery(junk)
    except InvalidArgument:
        return
    assert sum(len(part.batch) for part in {id(part.batch): part for part in parts}.values()) <= len(junk)
