"""Schemas in the SDK: registering, producers that carry one, payloads read by theirs; over a real broker."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import fastavro
import pydanube
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from pydanube import SchemaRef
from pydanube import sync as sync_client
from pydanube_core.errors import (
    InvalidArgument,
    PayloadInvalid,
    SchemaIncompatible,
    SchemaInvalid,
    SchemaNotFound,
    TopicNotFound,
)

pytestmark = pytest.mark.anyio

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
LIST = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}


@pytest.fixture(scope="module")
def url(start_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    found: str = start_broker(tmp_path_factory.mktemp("broker"), 0).url
    return found


@dataclass(frozen=True)
class Order:
    id: int


class Stored:
    """What decode looks at."""

    is_null = False

    def __init__(self, schema: SchemaRef | None, payload: bytes) -> None:
        self.schema = schema
        self.payload = payload


def encoded(schema: Any, datum: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(json.loads(json.dumps(schema))), datum)
    return target.getvalue()


async def test_a_producers_messages_carry_the_schema_and_are_read_by_it(url: str) -> None:
    async with pydanube.connect(url) as client:
        first = await client.schemas.register("orders", "avro", json.dumps(AVRO))
        wider = {**AVRO, "fields": [*AVRO["fields"], {"name": "n", "type": "int", "default": 0}]}  # type: ignore[misc]
        second = await client.schemas.register("orders", "avro", json.dumps(wider).encode())
        assert (first.ref.schema_version, second.ref.schema_version, second.is_new_version) == (1, 2, True)
        async with client.producer("orders", schema=("orders", 1)) as producer:
            await producer.send(encoded(AVRO, {"id": 7}))
        async with client.producer("orders", schema="orders") as producer:
            await producer.send(encoded(wider, {"id": 8, "n": 9}))
        async with client.reader("orders", stop="head") as reader:
            messages = [message async for message in reader]
            assert [message.schema for message in messages] == [first.ref, second.ref]
            assert [await client.schemas.decode(message) for message in messages] == [
                {"id": 7},
                {"id": 8, "n": 9},
            ]
            assert await client.schemas.decode(messages[0], into=Order) == Order(id=7)
        latest = await client.schemas.latest("orders")
        assert (latest.ref, json.loads(latest.definition)) == (second.ref, wider)


async def test_every_format(url: str) -> None:
    async with pydanube.connect(url) as client:
        schemas = client.schemas
        refs = {}
        for kind, definition in (
            ("string", ""),
            ("number", ""),
            ("bytes", ""),
            ("json_schema", "{}"),
            ("protobuf", 'syntax = "proto3"; message Text { string value = 1; }'),
        ):
            refs[kind] = (await schemas.register(f"f-{kind}", kind, definition)).ref
        wire = StringValue(value="x").SerializeToString()
        assert await schemas.decode(Stored(refs["string"], "Größe".encode())) == "Größe"
        assert await schemas.decode(Stored(refs["number"], b"1234")) == b"1234"
        assert await schemas.decode(Stored(refs["bytes"], b"\xff")) == b"\xff"
        assert await schemas.decode(Stored(None, b"\xff")) == b"\xff"
        assert await schemas.decode(Stored(refs["json_schema"], b'{"a": [1]}')) == {"a": [1]}
        assert await schemas.decode(Stored(refs["protobuf"], wire), into=StringValue) == StringValue(
            value="x"
        )
        with pytest.raises(InvalidArgument, match="into=YourMessage"):
            await schemas.decode(Stored(refs["protobuf"], wire))
        for kind, bad in (("string", b"\xff"), ("json_schema", b"{")):
            with pytest.raises(PayloadInvalid):
                await schemas.decode(Stored(refs[kind], bad))
        with pytest.raises(PayloadInvalid):
            await schemas.decode(Stored(refs["protobuf"], b"\xff"), into=StringValue)


async def test_a_fixed_that_begins_like_a_container_file_is_read(url: str) -> None:
    async with pydanube.connect(url) as client:
        ref = (
            await client.schemas.register("fixed", "avro", '{"type": "fixed", "name": "F", "size": 4}')
        ).ref
        message: Any = Stored(ref, b"Obj\x01")
        assert await client.schemas.decode(message) == b"Obj\x01"


async def test_hostile_avro_is_refused_and_the_process_lives(url: str) -> None:
    async with pydanube.connect(url) as client:
        ref = (await client.schemas.register("list", "avro", json.dumps(LIST))).ref
        assert await client.schemas.decode(Stored(ref, b"\x02\x00")) == {"next": {"next": None}}
        for payload in (b"\x02" * 1_000_000 + b"\x00", b"", b"\x07", b"\x00\x00"):
            with pytest.raises(PayloadInvalid):
                await client.schemas.decode(Stored(ref, payload))


async def test_a_version_is_asked_for_once(url: str) -> None:
    async with pydanube.connect(url) as client:
        ref = (await client.schemas.register("once", "string", "")).ref
        assert await client.schemas.get(ref) is await client.schemas.get(ref)


async def test_what_is_refused(url: str) -> None:
    async with pydanube.connect(url) as client:
        await client.schemas.register("refused", "avro", '"int"')
        with pytest.raises(SchemaInvalid, match="line 1"):
            await client.schemas.register("refused", "avro", "{")
        with pytest.raises(SchemaIncompatible) as caught:
            await client.schemas.register("refused", "avro", '"string"')
        assert caught.value.details["differences"][0]["rule"] == "type_changed"
        with pytest.raises(SchemaNotFound):
            await client.schemas.get(SchemaRef(999_999, 1))
        with pytest.raises(SchemaNotFound):
            async with client.producer("refused", schema=("refused", 9)):
                pass
        with pytest.raises(TopicNotFound):  # and nothing was left behind by the refusal
            async with client.reader("refused", stop="head"):
                pass
        with pytest.raises(SchemaNotFound):
            async with client.producer("refused-parts", partitions=2, schema="nobody-s"):
                pass
        with pytest.raises(TopicNotFound):
            async with client.reader("refused-parts", stop="head"):
                pass
        for bad in ("", ("refused", 0), ("", 1)):
            with pytest.raises(InvalidArgument, match="schema"):
                client.producer("refused", schema=bad)


def test_without_await(url: str) -> None:
    with sync_client.connect(url) as client:
        made = client.schemas.register("sync", "json_schema", "{}")
        with client.producer("sync", schema="sync") as producer:
            producer.send(b'{"a": 1}')
        with client.reader("sync", stop="head") as reader:
            (message,) = list(reader)
            assert message.schema == made.ref
            assert client.schemas.decode(message) == {"a": 1}
        assert client.schemas.latest("sync").ref == client.schemas.get(made.ref).ref
