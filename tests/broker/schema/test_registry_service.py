"""The registry on the wire, and topics that are held against it: a real broker, raw calls.

The calls are those of docs/research/data-plane.md#11-package-danube_schema.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc
import pydanube
import pytest
from pydanube_broker.broker import Broker
from pydanube_broker.schema import guard
from pydanube_broker.settings.load import load_settings
from pydanube_core.errors import ClusterError, SchemaIncompatible, SchemaMismatch, SchemaNotFound

from tests.broker.official.raw_client import RawClient
from tests.broker.schema.registry_client import RegistryClient

pytestmark = pytest.mark.anyio
STATUS = grpc.StatusCode
AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}).encode()
WIDER = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 0}],
    }
).encode()
BROKEN = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}).encode()
ORDER = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}).encode()
PROTO = b'syntax = "proto3"; message Order { int32 id = 1; string note = 2; }'


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Broker]:
    settings = load_settings(
        overrides={
            "data.dir": str(folder / "data"),
            "server.grpc_port": 0,
            "server.admin_port": 0,
            "server.metrics_port": 0,
            "journal.segment_bytes": "4MiB",
        }
    )
    async with Broker(settings) as broker:
        yield broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path) as broker:
        yield broker


@pytest.fixture
async def schemas(broker: Broker) -> AsyncIterator[RegistryClient]:
    async with RegistryClient(broker.broker_url) as client:
        yield client


@pytest.fixture
async def official(broker: Broker) -> AsyncIterator[RawClient]:
    async with RawClient(broker.broker_url) as client:
        yield client


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def register(schemas: RegistryClient, subject: str, kind: str, definition: bytes) -> Any:
    return await schemas.RegisterSchema(subject=subject, schema_type=kind, schema_definition=definition)


async def test_a_subject_from_registration_to_deletion_on_both_ports(broker: Broker) -> None:
    async with RegistryClient(broker.broker_url) as client, RegistryClient(broker.admin_url) as admin:
        made = await client.RegisterSchema(
            subject="orders",
            schema_type="Avro",
            schema_definition=AVRO,
            description="an order",
            created_by="me",
            tags=["x"],
        )
        assert (made.version, made.is_new_version) == (1, True)
        assert made.fingerprint.startswith("sha256:")
        again = await register(admin, "orders", "avro", AVRO)
        assert (again.schema_id, again.version, again.is_new_version) == (made.schema_id, 1, False)
        assert (await register(admin, "orders", "avro", WIDER)).version == 2
        found = await admin.GetSchema(schema_id=made.schema_id, version=1)
        assert (found.subject, found.schema_type, found.schema_definition) == ("orders", "avro", AVRO)
        assert (found.description, found.created_by, list(found.tags)) == ("an order", "me", ["x"])
        assert found.compatibility_mode == "backward"
        assert 1_600_000_000 < found.created_at < 10_000_000_000  # seconds
        assert (await client.GetSchema(schema_id=made.schema_id)).version == 2
        latest = await client.GetLatestSchema(subject="orders")
        assert (latest.version, latest.schema_definition) == (2, WIDER)
        listed = await client.ListVersions(subject="orders")
        assert [(each.version, each.schema_id) for each in listed.versions] == [
            (1, made.schema_id),
            (2, made.schema_id),
        ]
        check = await client.CheckCompatibility(
            subject="orders", schema_type="avro", new_schema_definition=BROKEN
        )
        assert (check.is_compatible, len(check.errors)) == (False, 1)
        assert "R.a" in check.errors[0]
        assert (
            await client.CheckCompatibility(
                subject="orders",
                schema_type="avro",
                new_schema_definition=BROKEN,
                compatibility_mode="NONE",
            )
        ).is_compatible
        assert (await client.SetCompatibilityMode(subject="orders", compatibility_mode="FULL")).success
        (summary,) = (await admin.ListSubjects()).subjects
        assert (summary.subject, summary.schema_type, summary.latest_version) == ("orders", "avro", 2)
        assert (summary.compatibility_mode, summary.schema_id) == ("full", made.schema_id)
        assert (await client.DeleteSchemaVersion(subject="orders", version=2)).success
        assert (await client.GetLatestSchema(subject="orders")).version == 1
        gone = await client.DeleteSchemaVersion(subject="orders", version=2)
        assert gone.success
        assert "nothing was deleted" in gone.message


async def test_every_format_and_its_aliases(schemas: RegistryClient) -> None:
    for spelled, kind, definition in (
        ("BYTES", "bytes", b"\xff"),
        ("string", "string", b""),
        ("int64", "number", b""),
        ("json", "json_schema", ORDER),
        ("proto", "protobuf", PROTO),
        ("Avro", "avro", AVRO),
    ):
        made = await register(schemas, f"s-{kind}", spelled, definition)
        found = await schemas.GetSchema(schema_id=made.schema_id)
        assert (found.schema_type, found.schema_definition) == (kind, definition)


async def test_what_is_refused_and_how(schemas: RegistryClient) -> None:
    await register(schemas, "orders", "avro", AVRO)
    for call, status, text in (
        (register(schemas, "", "avro", AVRO), STATUS.INVALID_ARGUMENT, "subject"),
        (register(schemas, "x", "jsonschema", ORDER), STATUS.INVALID_ARGUMENT, "json_schema"),
        (register(schemas, "x", "avro", b"{"), STATUS.INVALID_ARGUMENT, "line 1"),
        (register(schemas, "x", "protobuf", b"message {"), STATUS.INVALID_ARGUMENT, "line 1, column"),
        (register(schemas, "orders", "avro", BROKEN), STATUS.FAILED_PRECONDITION, "R.a"),
        (schemas.GetSchema(schema_id=999_999), STATUS.NOT_FOUND, "999999"),
        (schemas.GetLatestSchema(subject="order"), STATUS.NOT_FOUND, "orders"),
        (schemas.ListVersions(subject="nothing"), STATUS.NOT_FOUND, "nothing"),
        (
            schemas.SetCompatibilityMode(subject="orders", compatibility_mode="backwards"),
            STATUS.INVALID_ARGUMENT,
            "backward",
        ),
        (
            schemas.ConfigureTopicSchema(
                topic_name="/default/t", schema_subject="orders", validation_policy="strict"
            ),
            STATUS.INVALID_ARGUMENT,
            "enforce",
        ),
        (
            schemas.ConfigureTopicSchema(
                topic_name="/default/t", schema_subject="orders", validation_policy="warn"
            ),
            STATUS.NOT_FOUND,
            "/default/t",
        ),
        (schemas.GetTopicSchemaConfig(topic_name="/default/t"), STATUS.NOT_FOUND, "/default/t"),
    ):
        code, details = await status_of(call)
        assert code is status, details
        assert text in details


async def test_a_topics_configuration_survives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, RegistryClient(broker.broker_url) as schemas:
        made = await register(schemas, "orders", "json", ORDER)
        async with RawClient(broker.broker_url) as official:
            await official.create_producer("/default/t")
        code, text = await status_of(
            schemas.UpdateTopicValidationPolicy(topic_name="/default/t", validation_policy="enforce")
        )
        assert (code, "configure" in text) == (STATUS.FAILED_PRECONDITION, True)
        empty = await schemas.GetTopicSchemaConfig(topic_name="/default/t")
        assert (empty.schema_subject, empty.validation_policy, empty.schema_id) == ("", "none", 0)
        assert (
            await schemas.ConfigureTopicSchema(
                topic_name="/default/t", schema_subject="orders", validation_policy="warn"
            )
        ).success
        await schemas.UpdateTopicValidationPolicy(
            topic_name="/default/t", validation_policy="ENFORCE", enable_payload_validation=True
        )
    async with running(tmp_path) as broker, RegistryClient(broker.broker_url) as schemas:
        found = await schemas.GetTopicSchemaConfig(topic_name="/default/t")
        assert (found.schema_subject, found.schema_id) == ("orders", made.schema_id)
        assert (found.validation_policy, found.enable_payload_validation) == ("enforce", True)
        async with RawClient(broker.broker_url) as official:
            producer = await official.create_producer("/default/t")
            message = official.message("/default/t", producer, b"{}")
            code, _ = await status_of(official.call("ProducerService/SendMessage", message))
            assert code is STATUS.INVALID_ARGUMENT


async def test_a_second_producer_with_another_subject_is_refused_be_it_in_the_same_instant(
    schemas: RegistryClient, official: RawClient
) -> None:
    """The row docs/research/behaviours.md#row-33."""
    for subject in ("one", "two"):
        await register(schemas, subject, "string", b"")
    outcomes: dict[str, Any] = {}

    async def create(subject: str) -> None:
        try:
            outcomes[subject] = await official.create_producer(
                "/default/t", name=f"p-{subject}", schema_ref={"subject": subject, "use_latest": True}
            )
        except grpc.aio.AioRpcError as error:
            outcomes[subject] = error.code()

    async with anyio.create_task_group() as group:
        for subject in ("one", "two"):
            group.start_soon(create, subject)
    assert list(outcomes.values()).count(STATUS.FAILED_PRECONDITION) == 1
    winner = next(subject for subject, outcome in outcomes.items() if isinstance(outcome, int))
    assert (await schemas.GetTopicSchemaConfig(topic_name="/default/t")).schema_subject == winner
    await official.create_producer("/default/t", name="third", schema_ref={"subject": winner})
    await official.create_producer("/default/t", name="without")


async def test_partitions_share_their_topics_subject(schemas: RegistryClient, official: RawClient) -> None:
    for subject in ("one", "two"):
        await register(schemas, subject, "string", b"")
    await official.create_producer("/default/t-part-0", schema_ref={"subject": "one"})
    for reference in ({"subject": "two"}, {"subject": "two", "use_latest": True}):
        code, text = await status_of(official.create_producer("/default/t-part-1", schema_ref=reference))
        assert code is STATUS.FAILED_PRECONDITION
        assert "'one'" in text
    await schemas.ConfigureTopicSchema(
        topic_name="/default/t-part-1",
        schema_subject="one",
        validation_policy="enforce",
        enable_payload_validation=False,
    )
    for partition in ("/default/t-part-0", "/default/t-part-1", "/default/t-part-2"):
        producer = await official.create_producer(partition, name="q")
        message = official.message(partition, producer, b"x", name="q")
        code, text = await status_of(official.call("ProducerService/SendMessage", message))
        assert code is STATUS.INVALID_ARGUMENT
        assert "SCHEMA_MISMATCH" in text


async def test_references_to_versions(broker: Broker, schemas: RegistryClient, official: RawClient) -> None:
    await register(schemas, "orders", "avro", AVRO)
    await register(schemas, "orders", "avro", WIDER)
    for reference in ({"pinned_version": 1}, {"min_version": 2}, {"use_latest": True}):
        await official.create_producer("/default/t", schema_ref={"subject": "orders", **reference})
    for reference in ({"pinned_version": 3}, {"min_version": 3}):
        code, _ = await status_of(
            official.create_producer("/default/new", schema_ref={"subject": "orders", **reference})
        )
        assert code is STATUS.FAILED_PRECONDITION
    code, text = await status_of(official.create_producer("/default/new", schema_ref={"subject": "nothing"}))
    assert code is STATUS.FAILED_PRECONDITION
    assert "nothing" in text
    assert "not found" in text  # what tools of the original look for
    assert [topic.name for topic in broker.registry.topics] == ["/default/t"]  # no topic is left behind


@pytest.mark.parametrize(
    ("kind", "definition", "good", "bad"),
    [
        ("bytes", b"", b"\xff", None),
        ("string", b"", "Grüße".encode(), b"\xff"),
        ("number", b"", b"12345678", b"123"),
        ("json_schema", ORDER, b'{"id": 7}', b'{"id": "7"}'),
        ("json_schema", ORDER, b'{"id": 7, "x": "%s"}' % (b"y" * 100_000), b'{"x": "%s"}' % (b"y" * 100_000)),
        ("avro", AVRO, b"\x0e", b""),
        ("protobuf", PROTO, b"\x08\x07", b"\x0a\x01x"),
    ],
    ids=["bytes", "string", "number", "json", "large json", "avro", "protobuf"],
)
async def test_enforced_payloads_of_every_format(
    broker: Broker,
    schemas: RegistryClient,
    official: RawClient,
    kind: str,
    definition: bytes,
    good: bytes,
    bad: bytes | None,
) -> None:
    """By official clients and by our SDK; docs/research/behaviours.md#row-27: Protobuf works, and never a panic."""
    made = await register(schemas, "s", kind, definition)
    producer = await official.create_producer("/default/t", schema_ref={"subject": "s"})
    await schemas.UpdateTopicValidationPolicy(
        topic_name="/default/t", validation_policy="enforce", enable_payload_validation=True
    )

    def message(payload: bytes) -> Any:
        fields = {"schema_id": made.schema_id, "schema_version": made.version}
        return official.message("/default/t", producer, payload, **fields)

    await official.call("ProducerService/SendMessage", message(good))
    async with (
        pydanube.connect(broker.broker_url) as client,
        client.producer("t", schema="s") as ours,
    ):
        await ours.send(good)
        await ours.send_many([good] * 50)
        if bad is not None:
            code, text = await status_of(official.call("ProducerService/SendMessage", message(bad)))
            assert code is STATUS.INVALID_ARGUMENT
            assert "PAYLOAD_INVALID" in text
            with pytest.raises(ClusterError) as caught:
                await ours.send(bad)
            assert caught.value.code == "PAYLOAD_INVALID"
            assert caught.value.details["index"] == 0
        await ours.send(good)
    assert broker.registry.topics[0].commit == 53


async def test_payloads_are_held_against_the_version_each_names(
    schemas: RegistryClient, official: RawClient, broker: Broker
) -> None:
    """The reference broker takes the version it saw first."""
    await register(schemas, "s", "avro", AVRO)
    made = await register(schemas, "s", "avro", WIDER)
    producer = await official.create_producer("/default/t", schema_ref={"subject": "s"})
    await schemas.UpdateTopicValidationPolicy(
        topic_name="/default/t", validation_policy="enforce", enable_payload_validation=True
    )

    def send(payload: bytes, **fields: Any) -> Any:
        message = official.message("/default/t", producer, payload, **fields)
        return official.call("ProducerService/SendMessage", message)

    await send(b"\x02", schema_id=made.schema_id, schema_version=1)
    await send(b"\x02\x04", schema_id=made.schema_id, schema_version=2)
    await send(b"\x02\x04", schema_id=made.schema_id)  # no version: the latest
    for payload, fields, why in (
        (b"\x02\x04", {"schema_id": made.schema_id, "schema_version": 1}, "PAYLOAD_INVALID"),
        (b"\x02", {"schema_id": made.schema_id, "schema_version": 2}, "PAYLOAD_INVALID"),
        (b"\x02", {"schema_id": made.schema_id, "schema_version": 3}, "SCHEMA_MISMATCH"),
        (b"\x02", {"schema_id": made.schema_id + 1000, "schema_version": 1}, "SCHEMA_MISMATCH"),
        (b"\x02", {}, "SCHEMA_MISMATCH"),
    ):
        code, text = await status_of(send(payload, **fields))
        assert (code, text.split(":")[0]) == (STATUS.INVALID_ARGUMENT, why), "one code, in front"
    assert broker.registry.topics[0].commit == 3
    failures = broker.registry.schemas.counters.failures
    assert failures["/default/t", "missing_schema_id"] == 1
    assert failures["/default/t", "subject_mismatch"] == 2
    assert failures["/default/t", "payload_invalid"] == 2


async def test_warn_lets_through_and_counts_and_none_does_not_look(
    schemas: RegistryClient, official: RawClient, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    await register(schemas, "s", "number", b"")
    producer = await official.create_producer("/default/t", schema_ref={"subject": "s"})
    (topic,) = broker.registry.topics
    assert topic.schema is not None  # the policy of a subject that a producer has set is warn
    await schemas.UpdateTopicValidationPolicy(
        topic_name="/default/t", validation_policy="warn", enable_payload_validation=True
    )
    await official.call("ProducerService/SendMessage", official.message("/default/t", producer, b"abc"))
    failures = broker.registry.schemas.counters.failures
    assert set(failures) == {("/default/t", "missing_schema_id"), ("/default/t", "payload_invalid")}
    assert "schema_violated" in caplog.text
    await schemas.UpdateTopicValidationPolicy(topic_name="/default/t", validation_policy="none")
    assert topic.schema is None
    await official.call("ProducerService/SendMessage", official.message("/default/t", producer, b"abc"))
    assert topic.commit == 2


async def test_warn_makes_an_error_only_for_its_line_in_the_log(
    schemas: RegistryClient, official: RawClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[SchemaMismatch] = []

    def make(*words: Any, **details: Any) -> SchemaMismatch:
        made.append(SchemaMismatch(*words, **details))
        return made[-1]

    monkeypatch.setattr(guard, "SchemaMismatch", make)
    await register(schemas, "s", "string", b"")
    producer = await official.create_producer("/default/t", schema_ref={"subject": "s"})
    for number in range(5):
        message = official.message("/default/t", producer, b"abc", request_id=number)
        await official.call("ProducerService/SendMessage", message)
    assert broker.registry.schemas.counters.failures["/default/t", "missing_schema_id"] == 5
    assert [error.details["field"] for error in made] == ["schema_id"]


async def test_a_topic_without_a_schema_has_nothing_to_pay_for(official: RawClient, broker: Broker) -> None:
    await official.create_producer("/default/t")
    assert [topic.schema for topic in broker.registry.topics] == [None]


async def test_our_sdks_subjects_are_compared_strictly_and_those_of_the_originals_clients_as_there(
    broker: Broker, schemas: RegistryClient
) -> None:
    """A new required field: no message of before can be read with it, and the original lets it pass."""
    before = b'{"type": "object", "properties": {"a": {"type": "string"}}}'
    optional = b'{"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}'
    required = optional[:-1] + b', "required": ["b"]}'
    await register(schemas, "theirs", "json_schema", before)
    assert (await register(schemas, "theirs", "json_schema", required)).version == 2
    async with pydanube.connect(broker.broker_url) as client:
        await client.schemas.register("ours", "json_schema", before)
        assert (await client.schemas.register("theirs", "json_schema", before)).ref.schema_version == 1
        with pytest.raises(SchemaIncompatible, match="property_not_always_written"):
            await client.schemas.register("ours", "json_schema", required)
        assert (await client.schemas.register("ours", "json_schema", optional)).ref.schema_version == 2
    profiles = {name: (await broker.port.schemas.subject(name)).json_profile for name in ("ours", "theirs")}
    assert profiles == {"ours": "strict", "theirs": "default"}


async def test_our_sdk_without_or_with_another_schema(broker: Broker, schemas: RegistryClient) -> None:
    for subject in ("s", "other"):
        await register(schemas, subject, "string", b"")
    async with pydanube.connect(broker.broker_url) as client:
        async with client.producer("t", schema="s") as producer:
            await producer.send(b"x")
        await schemas.UpdateTopicValidationPolicy(topic_name="/default/t", validation_policy="enforce")
        async with client.producer("t") as producer:
            with pytest.raises(ClusterError) as caught:
                await producer.send(b"x")
            assert caught.value.code == "SCHEMA_MISMATCH"
        with pytest.raises(SchemaMismatch, match="'s'"):
            async with client.producer("t", schema="other"):
                pass
        with pytest.raises(SchemaNotFound):
            async with client.producer("fresh", schema="nothing"):
                pass


async def test_a_large_batch_is_checked_while_the_loop_turns_and_keeps_its_order(
    broker: Broker, schemas: RegistryClient
) -> None:
    """Batches behind one that is being checked wait for it; other work goes on meanwhile."""
    await register(schemas, "s", "json", ORDER)
    async with pydanube.connect(broker.broker_url) as client:
        async with client.producer("t", schema="s") as producer:
            await producer.send(b'{"id": 0}')
            await schemas.UpdateTopicValidationPolicy(
                topic_name="/default/t", validation_policy="enforce", enable_payload_validation=True
            )
            payloads = [json.dumps({"id": number, "pad": "x" * 50}).encode() for number in range(1, 5_000)]
            summary = await producer.send_many(payloads)
        assert summary.count == 4_999
        async with client.reader("t", stop="head") as reader:
            found = [json.loads(message.payload)["id"] async for message in reader]
    assert found == list(range(5_000))
