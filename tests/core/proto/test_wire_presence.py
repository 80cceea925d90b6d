"""Presence, oneofs, unknown fields and unknown enum values: what a peer of another age may send or leave out."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.message import DecodeError
from pydanube_core.generated import danube_admin_pb2, danube_pb2, danube_schema_pb2, danube_stream_pb2

from tests.core.proto.wire_contract import read_tables, tag, varint

TABLES = read_tables()
MODULES = {"danube": danube_pb2, "danube_schema": danube_schema_pb2, "danube_admin": danube_admin_pb2}
SCALARS = {"uint64": 0, "uint32": 0, "string": "", "bool": False}

OPTIONAL = [
    pytest.param(getattr(MODULES[package], name), field, id=f"{package}.{name}.{field.name}")
    for package, facts in TABLES.items()
    for name, fields in facts.messages.items()
    for field in fields
    if field.label == "optional" and field.type in SCALARS
]


@pytest.mark.parametrize(("message_class", "field"), OPTIONAL)
def test_optional_field_tells_zero_from_absent(message_class, field) -> None:  # type: ignore[no-untyped-def]
    zero = SCALARS[field.type]
    absent, present = message_class(), message_class(**{field.name: zero})
    assert not absent.HasField(field.name)
    assert getattr(absent, field.name) == zero
    assert absent.SerializeToString() == b""
    assert present.SerializeToString() == tag(field.number, 2 if field.type == "string" else 0) + b"\x00"
    assert message_class.FromString(present.SerializeToString()).HasField(field.name)
    assert absent != present


def test_plain_field_has_no_presence() -> None:
    message = danube_pb2.AckRequest(request_id=0, subscription_name="")
    assert message.SerializeToString() == b""
    with pytest.raises(ValueError, match="presence"):
        message.HasField("request_id")


def test_empty_sub_message_is_present() -> None:
    request = danube_pb2.AckRequest.FromString(b"\x12\x00")
    assert request.HasField("msg_id")
    assert not danube_pb2.AckRequest().HasField("msg_id")
    answer = danube_admin_pb2.GetSubscriptionDispatchConfigResponse.FromString(b"\x0a\x00")
    assert answer.HasField("dispatch_config")


def test_last_of_a_oneof_wins_and_zero_counts() -> None:
    reference = danube_pb2.SchemaReference(subject="s", use_latest=True)
    reference.pinned_version = 0
    assert reference.WhichOneof("version_ref") == "pinned_version"
    assert not reference.HasField("use_latest")
    wire = b"\x10\x01" + b"\x20\x05" + b"\x18\x00"  # use_latest, min_version, pinned_version
    assert danube_pb2.SchemaReference.FromString(wire) == danube_pb2.SchemaReference(pinned_version=0)
    assert danube_pb2.SchemaReference(subject="s").WhichOneof("version_ref") is None


def test_stream_request_without_a_kind_is_seen_as_such() -> None:
    assert danube_stream_pb2.PublishRequest.FromString(b"").WhichOneof("kind") is None
    assert danube_stream_pb2.PublishRequest(batch=b"").WhichOneof("kind") == "batch"


def test_unknown_fields_are_kept() -> None:
    known = danube_pb2.StreamMessage(request_id=1, payload=b"x")
    unknown = tag(900, 0) + varint(1 << 40) + tag(901, 2) + b"\x03new" + tag(902, 1) + bytes(8)
    message = danube_pb2.StreamMessage.FromString(known.SerializeToString() + unknown)
    message.request_id = 2
    known.request_id = 2
    assert message.SerializeToString() == known.SerializeToString() + unknown
    assert message.payload == b"x"


def test_field_4_of_msg_id_is_kept_free() -> None:
    """The contract says 4 was used once; a peer's 4 is carried as unknown, and no field of ours may take it."""
    described = DescriptorProto()
    danube_pb2.MsgID.DESCRIPTOR.CopyToProto(described)
    assert [(span.start, span.end) for span in described.reserved_range] == [(4, 5)]
    assert danube_pb2.MsgID.FromString(b"\x20\x07").SerializeToString() == b"\x20\x07"


def test_unknown_enum_value_is_kept_as_its_number() -> None:
    request = danube_pb2.ConsumerRequest.FromString(b"\x28\x09")
    assert request.subscription_type == 9
    assert request.SerializeToString() == b"\x28\x09"
    with pytest.raises(ValueError, match="9"):
        danube_pb2.ConsumerRequest.SubscriptionType.Name(request.subscription_type)


@pytest.mark.parametrize(
    "wire", ["08", "12 05 61", "0a ff ff ff ff 0f", "ff ff ff ff ff ff ff ff ff ff ff", "0b"]
)
def test_broken_bytes_are_refused(wire: str) -> None:
    with pytest.raises(DecodeError):
        danube_pb2.StreamMessage.FromString(bytes.fromhex(wire))


def test_text_must_be_utf_8() -> None:
    with pytest.raises(DecodeError):
        danube_pb2.ProducerRequest.FromString(b"\x12\x01\xff")
