"""A link's source is another cluster: what it names beyond what the link asks for is not taken."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import grpc
import grpc.aio as aio
import pytest
from anyio import to_thread
from pydanube_broker.cluster.records import TopicSettings
from pydanube_broker.copying.messages import MAX_ANSWER_BYTES, MOST_CURSORS, Marks, SessionMark
from pydanube_broker.copying.piece import Piece
from pydanube_broker.copying.target import Answers, Wire
from pydanube_broker.links.mirror import SourceSubject, SourceTopic, mirrored_options
from pydanube_broker.links.run import LinkRun, Mirrored
from pydanube_broker.schema.records import SubjectSpec, VersionSpec
from pydanube_broker.schema.vocabulary import SchemaType
from pydanube_broker.services.copy_stream import NoWire
from pydanube_broker.services.mirror import MIRROR, MIRRORED, MirroredService, decode_mirrored
from pydanube_broker.subscription.batch_columns import BatchColumns
from pydanube_broker.subscription.cursor import CursorSnapshot, encode_snapshot
from pydanube_broker.topics.producers import MAX_PRODUCERS
from pydanube_broker.topics.reading import read_once
from pydanube_core.batch.encode import broker_part
from pydanube_core.batch.layout import BROKER_PART_BYTES
from pydanube_core.errors import CorruptObject, InvalidArgument, SchemaInvalid, SchemaMismatch, Unavailable
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.links import LinkRecord
from pydanube_core.names import MAX_PART_CHARS, TopicName

from tests.admin.real_broker import administered
from tests.support.broker_process import BrokerProcess
from tests.support.mirrors import described, until
from tests.support.processor import at_most

pytestmark = pytest.mark.anyio


def topic(name: str, *logs: str, partitioned: bool = False) -> SourceTopic:
    return SourceTopic(
        name=TopicName.parse(name), partitioned=partitioned, reliable=True, policies={}, schema=None, options={},
        logs=[(log, 7 + number, "http://127.0.0.1:1") for number, log in enumerate(logs or (name,))], subscriptions={},
    )  # fmt: skip


class Liar:
    """A source that names more than it was asked for."""

    def open_wire(self, url: str, answers: Answers) -> Wire:
        answers.lost(Unavailable("away"))
        return NoWire()

    async def mirrored(self, known: str) -> Mirrored:
        names = ("/shop/orders", "/shop/wages", "/payroll/orders", "/system/orders")
        topics = [topic(name) for name in names]
        topics.append(topic("/shop/other-1", "/payroll/wages"))
        topics.append(topic("/shop/other-2"))
        return Mirrored(state="1", cluster="liar", topics=topics, subjects=(), grants=None)

    async def fence(self, url: str, cluster: str, logs: Mapping[str, int]) -> Mapping[str, int | str]:
        return {}


async def test_only_topics_that_the_link_names_are_mirrored() -> None:
    link = LinkRecord(
        name="eu", source="danube://eu:1", topics=("/shop/orders", "/shop/other-*", "/system/*"), rename="eu-"
    )
    async with administered() as cluster:
        registry = cluster.broker.registry
        before = {str(each.topic) for each in registry.catalog.index.topics()}
        run = LinkRun(link, Liar(), registry, lambda: "here", cluster.broker.links.grants)
        await run.look()
        made = {str(each.topic) for each in registry.catalog.index.topics()} - before
        assert made == {"/shop/eu-orders", "/shop/eu-other-2"}
        assert {each.topic for each in run.facts().left_out} == {"/shop/other-1", "/system/orders"}
        assert registry.catalog.index.find_namespace("payroll") is None


async def test_the_patterns_of_a_mirror_have_a_number() -> None:
    """1 000 of 256 characters were compiled before any right was looked at, and compared with each topic."""
    request = pb.MirroredRequest(patterns=[f"/shop/{'*a' * 120}b{number}" for number in range(1_000)])
    async with administered() as cluster:
        broker = cluster.broker
        service = MirroredService(broker.access, broker.registry, lambda: "here", broker.links.grants)
        with at_most(0.1), pytest.raises(InvalidArgument, match="at most 10"):
            await service.call(request.SerializeToString())


async def test_a_batch_that_no_reader_can_decode_is_not_appended() -> None:
    link = LinkRecord(name="eu", source="danube://eu:1", topics=("/shop/orders",))
    async with administered() as cluster:
        registry = cluster.broker.registry
        await cluster("topics.create", topic="plain")
        await cluster.publish("plain", b"1", b"2")
        own = registry.find(TopicName.parse("plain"))
        assert own is not None
        (found,) = await read_once(own, 0, 2, 1 << 20, cluster.broker.engine.worker_threads) or ()
        batch = b"".join(found.buffers)
        run = LinkRun(link, Liar(), registry, lambda: "here", cluster.broker.links.grants)
        await run.look()
        mirror = registry.find(TopicName.parse("/shop/orders"))
        assert mirror is not None
        pull, task = run.pulls[mirror.topic_id]
        task.cancel()
        for bad in (
            batch[:-8],
            batch[:-1] + b"x",
            batch[:BROKER_PART_BYTES] + bytes(64),
            batch[:BROKER_PART_BYTES],
        ):
            with pytest.raises(CorruptObject, match="not valid"):
                await pull.take(piece(mirror.topic_id, bad))
            assert mirror.state.next_offset == 0
        await pull.take(piece(mirror.topic_id, batch))
        assert mirror.state.next_offset == 2


async def test_a_fail_over_goes_on_above_the_epochs_of_messages_that_only_objects_have(
    tmp_path: Path,
) -> None:
    """Batches that are read from objects have lost their epoch: this cluster began in one that the source had written in."""
    link = LinkRecord(name="eu", source="danube://eu:1", topics=("/shop/orders",))
    async with administered(tmp_path / "data") as cluster:
        broker = cluster.broker
        registry, hub, threads = broker.registry, broker.hub, broker.engine.worker_threads
        await cluster("topics.create", topic="plain")
        await cluster.publish("plain", b"1", b"2")
        own = registry.find(TopicName.parse("plain"))
        assert own is not None
        (found,) = await read_once(own, 0, 2, 1 << 20, threads) or ()
        head = broker_part(base_offset=0, last_offset=1, epoch=9, append_time_ms=found.append_time_ms)
        run = LinkRun(link, Liar(), registry, lambda: "here", broker.links.grants)
        await run.look()
        name = TopicName.parse("/shop/orders")
        mirror = registry.find(name)
        assert mirror is not None
        pull, task = run.pulls[mirror.topic_id]
        task.cancel()
        await pull.take(piece(mirror.topic_id, head + b"".join(found.buffers)[BROKER_PART_BYTES:]))
        await hub.settled()
        await cluster("objects.flush", topic="/shop/orders")
        hub.journal.drop_topic(mirror.topic_id)
        cold = None
        with anyio.fail_after(20):
            while not cold:
                cold = await read_once(mirror, 0, 2, 1 << 20, threads)
        assert BatchColumns(cold[0]).head.epoch < 9, "it is read from an object"
        assert mirror.assigned_epoch < 9
        assert await broker.links.seal(name) == {"/shop/orders": 2}
        assert mirror.assigned_epoch > 9


async def test_cursors_of_subscriptions_that_are_not_there_have_a_number() -> None:
    cursor = encode_snapshot(CursorSnapshot(floor=1 << 40))
    link = LinkRecord(name="eu", source="danube://eu:1", topics=("/shop/orders",))
    async with administered() as cluster:
        registry = cluster.broker.registry
        run = LinkRun(link, Liar(), registry, lambda: "here", cluster.broker.links.grants)
        await run.look()
        mirror = registry.find(TopicName.parse("/shop/orders"))
        assert mirror is not None
        pull, task = run.pulls[mirror.topic_id]
        task.cancel()
        for turn in range(3):
            names = {f"s{turn}-{number}": cursor for number in range(MOST_CURSORS // 2)}
            pull.marked(Marks(topic_id=7, number=0, start=0, end=1, time_ms=1, cursors=names, sessions=()))
        assert len(pull.cursors) == MOST_CURSORS


async def test_sessions_of_a_source_have_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a record of the journal, and needed no credit: a source wrote as many as it liked."""
    link = LinkRecord(name="eu", source="danube://eu:1", topics=("/shop/orders",))
    async with administered() as cluster:
        registry = cluster.broker.registry
        run = LinkRun(link, Liar(), registry, lambda: "here", cluster.broker.links.grants)
        await run.look()
        mirror = registry.find(TopicName.parse("/shop/orders"))
        assert mirror is not None
        pull, task = run.pulls[mirror.topic_id]
        task.cancel()
        second = 5.0
        monkeypatch.setattr("pydanube_broker.links.pull.time", SimpleNamespace(monotonic=lambda: second))
        known = mirror.state.producers

        def opened(first: int, count: int) -> Marks:
            return marks(sessions=[SessionMark(n, 1, 77, f"p{n}") for n in range(first, first + count)])

        with at_most(1.0):
            pull.marked(opened(1, 100_000))
        assert [known.find(n) is not None for n in (1, 99_000, 99_001, 100_000)] == [False, False, True, True]
        pull.marked(opened(99_001, 1000))  # known already
        pull.marked(opened(150_001, 1000))  # a source that opens some just after the first marks is none
        with pytest.raises(CorruptObject, match="within a second"):
            pull.marked(opened(200_001, 1000))
        second = 6.0
        pull.marked(opened(300_001, 1000))
        assert len(known) == MAX_PRODUCERS
        with pytest.raises(CorruptObject, match="name"):
            pull.marked(marks(sessions=[SessionMark(400_000, 1, 77, "x" * 257)]))
        assert known.find(400_000) is None


class Garbler(grpc.GenericRpcHandler):
    """A source that names a topic, and answers everything else with bytes that are no message."""

    def __init__(self, answer: bytes = b"\xff\xff\xff") -> None:
        self.answer = answer
        self.begun_s: list[float] = []  # streams of copies
        self.more = anyio.Event()
        self.url = ""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if handler_call_details.method == MIRRORED:
            return grpc.unary_unary_rpc_method_handler(self.mirrored)
        assert handler_call_details.method == MIRROR
        return grpc.stream_stream_rpc_method_handler(self.mirror)

    async def mirrored(self, request: bytes, context: Any) -> bytes:
        if pb.MirroredRequest.FromString(request).HasField("fence"):
            return b"\xff\xff\xff"
        orders = pb.MirroredTopic(
            topic="/default/orders",
            settings=TopicSettings().to_json(),
            partitions=[pb.Partition(topic="/default/orders", topic_id=7, broker_url=self.url)],
        )
        return pb.MirroredResponse(state="1", cluster="garbler", topics=[orders]).SerializeToString()

    async def mirror(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.begun_s.append(time.monotonic())
        self.more.set()
        async for _ in requests:
            break
        yield self.answer
        await anyio.sleep_forever()


async def test_a_stream_that_cannot_be_read_is_a_state_of_the_link_and_tried_again_ever_later(
    tmp_path: Path,
) -> None:
    """It raised into the connection, which ended with a stack trace in the log and the calls of all others."""
    garbler = Garbler()
    server = aio.server()
    server.add_generic_rpc_handlers((garbler,))
    garbler.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    here = BrokerProcess(tmp_path)
    try:
        await to_thread.run_sync(here.start)
        made = {"link": "eu", "source": garbler.url.replace("http", "danube"), "topics": "/default/*"}
        await to_thread.run_sync(lambda: here.ask("links.create", **made))

        def failed() -> dict[str, Any] | None:
            found: list[dict[str, Any]] = described(here)["mirrors"]
            return found[0] if found and found[0]["state"] == "failed" else None

        mirror = await to_thread.run_sync(until, "the state", failed)
        assert "sent an answer that cannot be read" in mirror["why"]
        found = await to_thread.run_sync(lambda: here.ask("diagnose.cluster"))
        (trouble,) = [each for each in found["findings"] if each["rule"] == "link_not_copying"]
        assert "cannot be read" in json.dumps(trouble)
        while len(garbler.begun_s) < 5:
            garbler.more = anyio.Event()
            await garbler.more.wait()
        assert garbler.begun_s[4] - garbler.begun_s[0] > 5.0, "it waits 0.5, 1, 2 and 4 s"
        done = await to_thread.run_sync(lambda: here.ask("links.fail_over", link="eu"))
        assert done["source_fenced"] is False
        assert "cannot be read" in done["source"]
        await to_thread.run_sync(lambda: here.publish("/default/orders", [b"goes on"]))
        assert "Traceback" not in here.log()
    finally:
        await to_thread.run_sync(here.close)
        await server.stop(None)


@pytest.mark.parametrize("what", ["bytes", "cursors", "sessions"])
async def test_marks_are_bounded_before_they_are_decoded(what: str) -> None:
    """64 MiB of empty cursors were decoded, 1.7 GB of memory, and only then counted."""
    marks = pb.CopyMarks(topic_id=7, round=1)
    if what == "bytes":
        marks.cursors.add(subscription="s", snapshot=bytes(MAX_ANSWER_BYTES))
    elif what == "cursors":
        marks.cursors.extend([pb.CopyCursor()] * (MOST_CURSORS + 1))
    else:
        marks.sessions.extend([pb.CopySession()] * (MOST_CURSORS + 1))
    garbler = Garbler(pb.CopyResponse(marks=marks).SerializeToString())
    server = aio.server(options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((garbler,))
    garbler.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with administered() as cluster:
            source = garbler.url.replace("http", "danube")
            await cluster("links.create", link="eu", source=source, topics="/default/*")

            while len(garbler.begun_s) < 2:  # it tries again after the first failure
                garbler.more = anyio.Event()
                await garbler.more.wait()
            found = await cluster("links.describe", link="eu")
            (mirror,) = found["mirrors"]
            assert mirror["state"] == "failed"
            assert "at most" in mirror["why"].lower()
    finally:
        await server.stop(None)


async def test_a_schema_that_is_refused_when_it_is_registered_is_not_mirrored() -> None:
    """A link wrote what its source sent: any text as a definition, and under any name."""
    async with administered() as cluster:
        registry = cluster.broker.registry.schemas.registry
        text = b'{"type": "integer"}'
        await registry.register("own", SchemaType.JSON_SCHEMA, text)
        own = registry.index.find_subject("own")
        assert own is not None
        (version,) = registry.index.versions(own.schema_id)

        def of(name: str, **changes: Any) -> tuple[SubjectSpec, VersionSpec]:
            return replace(own.spec, subject=name), replace(version.spec, subject=name, **changes)

        for name, definition in (("a\nb", text), ("no-json", b"{"), ("other", b'{"type": "string"}')):
            spec, one = of(name)
            with pytest.raises((InvalidArgument, SchemaInvalid, SchemaMismatch)):
                await registry.mirror(spec, 4242, [(one, definition, None)])
            assert registry.index.find_subject_by_id(4242) is None
        spec, one = of("whole")
        await registry.mirror(spec, 4242, [(one, text, None)])
        assert registry.index.find_subject("whole") is not None


@pytest.mark.parametrize("rename", ["", "eu-"])
async def test_an_id_that_is_another_subjects_here_leaves_its_topics_out(rename: str) -> None:
    """A consumer finds a message's schema by its id, so it cannot have another one here."""

    class Source(Liar):
        subject: SourceSubject

        async def mirrored(self, known: str) -> Mirrored:
            topics = [replace(topic("/shop/orders"), schema={"subject": "theirs", "version": None})]
            return Mirrored(state="1", cluster="eu", topics=topics, subjects=[self.subject], grants=None)

    link = LinkRecord(name="eu", source="danube://eu:1", topics=("/shop/*",), rename=rename)
    async with administered() as cluster:
        registry, source = cluster.broker.registry, Source()
        schemas = registry.schemas.registry
        await schemas.register("own", SchemaType.JSON_SCHEMA, b'{"type": "integer"}')
        own = schemas.index.find_subject("own")
        assert own is not None
        (version,) = schemas.index.versions(own.schema_id)
        source.subject = SourceSubject(
            schema_id=own.schema_id,
            spec=replace(own.spec, subject="theirs"),
            versions=((replace(version.spec, subject="theirs"), b'{"type": "string"}', None),),
        )
        run = LinkRun(link, source, registry, lambda: "here", cluster.broker.links.grants)
        await run.look()
        (left,) = run.facts().left_out
        assert (left.topic, left.state) == ("/shop/orders", "schema_mismatch")
        assert left.why is not None
        assert str(own.schema_id) in left.why
        assert schemas.index.find_subject(f"{rename}theirs") is None
        assert schemas.index.find_subject_by_id(own.schema_id) == own
        assert registry.find(TopicName.parse(f"/shop/{rename}orders")) is None


def marks(**changes: Any) -> Marks:
    return replace(Marks(topic_id=7, number=0, start=0, end=1, time_ms=1, cursors={}, sessions=()), **changes)


LARGEST = (1 << 64) - 1


async def test_numbers_that_leave_no_next_one_are_not_taken() -> None:
    """The journal's heads have the next numbers of all topics: after one of these, none could be written."""
    link = LinkRecord(name="eu", source="danube://eu:1", topics=("/shop/orders",))
    async with administered() as cluster:
        registry = cluster.broker.registry
        await cluster("topics.create", topic="plain")
        await cluster.publish("plain", b"1", b"2")
        own = registry.find(TopicName.parse("plain"))
        assert own is not None
        (found,) = await read_once(own, 0, 2, 1 << 20, cluster.broker.engine.worker_threads) or ()
        sent = b"".join(found.buffers)[BROKER_PART_BYTES:]
        run = LinkRun(link, Liar(), registry, lambda: "here", cluster.broker.links.grants)
        await run.look()
        mirror = registry.find(TopicName.parse("/shop/orders"))
        assert mirror is not None
        pull, task = run.pulls[mirror.topic_id]
        task.cancel()
        cursor = encode_snapshot(CursorSnapshot(generation=LARGEST, floor=0))
        for bad in (
            marks(end=LARGEST),
            marks(start=LARGEST),
            marks(cursors={"s": cursor}),
            marks(sessions=(SessionMark(LARGEST, 1, 77, "a"),)),
            marks(sessions=(SessionMark(1, (1 << 32) - 1, 77, "a"),)),
        ):
            with pytest.raises(CorruptObject, match="at most"):
                pull.marked(bad)
        for base, last, epoch, time_ms in (
            (0, LARGEST - 1, 1, 1),
            (0, 1, LARGEST, 1),
            (0, 1, 1, 1 << 62),
            (0, 1, 1, -1),
            (0, 0, 1, 1),  # of two messages
        ):
            head = broker_part(base_offset=base, last_offset=last, epoch=epoch, append_time_ms=time_ms)
            with pytest.raises(CorruptObject, match="not valid"):
                await pull.take(piece(mirror.topic_id, head + sent))
        with pytest.raises(CorruptObject, match="offset"):
            await pull.take(replace(piece(mirror.topic_id, sent), first_offset=LARGEST, end_offset=LARGEST))
        assert mirror.state.next_offset == 0
        assert mirror.state.producers.next_id == 1
        head = broker_part(base_offset=0, last_offset=1, epoch=1, append_time_ms=1)
        await pull.take(piece(mirror.topic_id, head + sent))
        assert mirror.state.next_offset == 2


@pytest.mark.parametrize(
    ("named", "here"),
    [
        ("/shop/bad", "/shop/eu-bad"),
        ("/shop/other", None),
        ("/payroll/wages", None),
        ("/system/audit", None),
        ("/shop/orders", None),
        ("/shop/orders-part-1", None),
        ("/shop/bad-".ljust(MAX_PART_CHARS + len("/shop/"), "x"), None),
    ],
)
def test_dead_letters_of_a_mirrored_subscription_go_to_a_mirror_or_to_the_default_topic(
    named: str, here: str | None
) -> None:
    """A source chose any topic of this cluster, and wrote it with the broker's rights."""
    link = LinkRecord(name="eu", source="danube://eu:1", topics=("/shop/orders*", "/shop/bad*"), rename="eu-")
    policy = {"max_redelivery_count": 2, "dead_letter_topic": named}
    found = mirrored_options(link, TopicName.parse("/shop/orders"), {"failure_policy": policy, "other": 1})
    expected = {"max_redelivery_count": 2} | ({} if here is None else {"dead_letter_topic": here})
    assert found == {"failure_policy": expected, "other": 1}


def test_a_link_of_everything_leads_no_dead_letters_into_the_system_namespace() -> None:
    link = LinkRecord(name="eu", source="danube://eu:1", topics=("/shop/orders", "/system/*"))
    named = {"failure_policy": {"max_redelivery_count": 2, "dead_letter_topic": "/system/audit"}}
    found = mirrored_options(link, TopicName.parse("/shop/orders"), named)
    assert found == {"failure_policy": {"max_redelivery_count": 2}}


def piece(topic_id: int, batch: bytes) -> Piece:
    return Piece(
        topic_id=topic_id, epoch=1, first_offset=0, end_offset=2, batches=(memoryview(batch),), state=None, handovers=()
    )  # fmt: skip


@pytest.mark.parametrize(
    "subscription",
    [
        {"name": "s", "type": "shared", "options": b"[1, 2]"},
        {"name": "s", "type": "shared", "options": b"[" * 100_000},
        {"name": "s", "type": "shared", "options": b"\xff{"},
        {"name": "a/../b\n", "type": "shared"},
        {"name": "s", "type": "of a kind"},
        {"name": "s", "type": "shared", "options": b'{"failure_policy": [1]}'},
        {"name": "s", "type": "shared", "options": b'{"failure_policy": 1}'},
        {"name": "s", "type": "shared", "options": b'{"failure_policy": {"dead_letter_topic": 1}}'},
        {"name": "s", "type": "shared", "options": b'{"failure_policy": {"dead_letter_topic": []}}'},
        {"name": "s", "type": "shared", "options": b'{"failure_policy": {"poison_policy": {}}}'},
        {"name": "s", "type": "shared", "options": b'{"max_unacked_messages": "many"}'},
    ],
)
def test_a_list_that_cannot_be_read_is_an_error_of_the_source(subscription: dict[str, Any]) -> None:
    """It ended the link's task, without a word and until the next start."""
    answer = pb.MirroredResponse(state="1", cluster="liar")
    made = answer.topics.add(topic="/shop/orders", settings=TopicSettings().to_json())
    made.subscriptions.add(**subscription)
    with pytest.raises(Unavailable, match="cannot be read"):
        decode_mirrored(answer.SerializeToString(), "http://eu:1")
    made.ClearField("subscriptions")
    assert len(decode_mirrored(answer.SerializeToString(), "http://eu:1").topics) == 1


@pytest.mark.parametrize(
    "kept",
    [
        [1],
        {"later": 1},
        {"a/../b": {}},
        {"later": {"failure_policy": {"poison_policy": "never"}}},
        {f"s{number}": {} for number in range(65)},
    ],
)
def test_policies_of_subscriptions_to_come_that_cannot_be_read_are_an_error_of_the_source(kept: Any) -> None:
    made = TopicSettings(options={"kept_subscription_options": kept}).to_json()
    answer = pb.MirroredResponse(
        state="1", cluster="liar", topics=[pb.MirroredTopic(topic="/a/b", settings=made)]
    )
    with pytest.raises(Unavailable, match="cannot be read"):
        decode_mirrored(answer.SerializeToString(), "http://eu:1")


def test_a_subscription_to_come_is_given_no_more_than_a_policy() -> None:
    """With the option of a mirrored subscription, one that is made here would belong to the link."""
    kept = {
        "later": {"mirror": "eu", "max_unacked_messages": 7, "failure_policy": {"max_redelivery_count": 3}}
    }
    made = TopicSettings(options={"kept_subscription_options": kept}).to_json()
    answer = pb.MirroredResponse(
        state="1", cluster="liar", topics=[pb.MirroredTopic(topic="/a/b", settings=made)]
    )
    (topic,) = decode_mirrored(answer.SerializeToString(), "http://eu:1").topics
    assert topic.kept == {"later": {"max_unacked_messages": 7, "failure_policy": {"max_redelivery_count": 3}}}


@pytest.mark.parametrize(
    "records",
    [
        {"roles": [b"[]"]},
        {"roles": [b"[" * 5000]},
        {"roles": [b'{"name": 1, "permissions": ["*"]}']},
        {"roles": [b'{"name": "a", "permissions": [1]}']},
        {"bindings": [b'{"id": "a"}']},
        {
            "bindings": [
                b'{"id":"a","principal":"b","principal_type":"user","roles":[[]],"scope":"cluster","resource":""}'
            ]
        },
        {"roles": [b'{"name": "a", "permissions": ["' + b"a" * 9000 + b'"]}']},
    ],
)
def test_roles_that_cannot_be_read_leave_the_topics_as_they_are(records: dict[str, Any]) -> None:
    answer = pb.MirroredResponse(state="1", cluster="liar", roles=pb.MirroredRoles(**records))
    found = decode_mirrored(answer.SerializeToString(), "http://eu:1").grants
    assert found is not None
    assert "cannot read" in found.refused
    assert not found.roles
    assert not found.bindings
