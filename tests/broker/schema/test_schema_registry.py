"""The registry over the metadata store: identity, versions, concurrency, and what a restart finds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydanube_broker.cluster.keys import ID_BLOCKS
from pydanube_broker.schema import keys
from pydanube_broker.schema.records import SubjectSpec
from pydanube_broker.schema.registry import SchemaRegistry
from pydanube_broker.schema.vocabulary import CompatibilityMode, JsonProfile, SchemaType
from pydanube_core.errors import InvalidArgument, SchemaIncompatible, SchemaInvalid, SchemaNotFound
from pydanube_core.schema_facts import RegistrationFacts
from pydanube_storage.metadata import CorruptMetadata, Delete, KeyRange, Put, read_all

from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio
AVRO, JSON = SchemaType.AVRO, SchemaType.JSON_SCHEMA


def avro(*names: str, default: int | None = None) -> bytes:
    more = {} if default is None else {"default": default}
    fields = [{"name": name, "type": "int", **more} for name in names]
    return json.dumps({"type": "record", "name": "R", "fields": fields}).encode()


@pytest.fixture
async def store(anyio_backend: str) -> AsyncIterator[MemoryStore]:
    async with MemoryStore(clock=ManualClock(start_ms=1_000)) as opened:
        yield opened


async def opened(store: MemoryStore) -> SchemaRegistry:
    """What a broker that starts now knows."""
    registry = SchemaRegistry(store, wall_ms=lambda: 1_700_000_000_123)
    await registry.load()
    return registry


@pytest.fixture
async def registry(store: MemoryStore) -> SchemaRegistry:
    return await opened(store)


async def test_versions_count_from_one_and_share_the_subjects_id(registry: SchemaRegistry) -> None:
    first = await registry.register("orders", AVRO, avro("a"))
    second = await registry.register("orders", AVRO, avro("a", "b", default=0))
    other = await registry.register("sales", AVRO, avro("a"))
    assert (first.version, second.version, other.version) == (1, 2, 1)
    assert first.schema_id == second.schema_id != other.schema_id
    assert first.schema_id > 0


async def test_the_same_content_is_the_same_version_however_it_is_spelled(registry: SchemaRegistry) -> None:
    first = await registry.register("orders", AVRO, avro("a"))
    await registry.register("orders", AVRO, avro("a", "b", default=0))
    spelled = json.dumps(json.loads(avro("a")), indent=4).encode()
    again = await registry.register("orders", AVRO, spelled)
    assert again == RegistrationFacts(
        subject="orders",
        schema_id=first.schema_id,
        version=1,
        is_new_version=False,
        fingerprint=first.fingerprint,
    )
    assert registry.index.version(first.schema_id, 1).definition == avro("a")


async def test_two_registrations_in_the_same_instant_get_different_versions(store: MemoryStore) -> None:
    one, other = await opened(store), await opened(store)  # two brokers on one store
    made: list[RegistrationFacts] = []

    async def register(registry: SchemaRegistry, name: str) -> None:
        made.append(await registry.register("orders", JSON, json.dumps({"title": name}).encode()))

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(register, one, f"a{number}")
            group.start_soon(register, other, f"b{number}")
    assert sorted(each.version for each in made) == list(range(1, 13))
    assert len({each.schema_id for each in made}) == 1
    fresh = await opened(store)
    subject = fresh.index.subject("orders")
    titles = {json.loads(record.definition)["title"] for record in fresh.index.versions(subject.schema_id)}
    assert len(titles) == 12


async def test_the_same_content_twice_in_the_same_instant_is_one_version(store: MemoryStore) -> None:
    one, other = await opened(store), await opened(store)
    made: list[RegistrationFacts] = []

    async def register(registry: SchemaRegistry) -> None:
        made.append(await registry.register("orders", AVRO, avro("a")))

    async with anyio.create_task_group() as group:
        for registry in (one, other, one, other):
            group.start_soon(register, registry)
    assert {each.version for each in made} == {1}
    assert sum(each.is_new_version for each in made) == 1


async def test_many_new_subjects_at_once(registry: SchemaRegistry) -> None:
    made: list[RegistrationFacts] = []

    async def register(number: int) -> None:
        made.append(await registry.register(f"s{number}", SchemaType.STRING, b""))

    async with anyio.create_task_group() as group:
        for number in range(60):
            group.start_soon(register, number)
    assert len({each.schema_id for each in made}) == 60


async def test_an_incompatible_schema_is_refused_with_every_difference(registry: SchemaRegistry) -> None:
    await registry.register("orders", AVRO, avro("a"))
    with pytest.raises(SchemaIncompatible) as caught:
        await registry.register("orders", AVRO, avro("b", "c"))
    assert [each["path"] for each in caught.value.details["differences"]] == ["R.b", "R.c"]
    assert caught.value.details["compared_with"] == [1]
    assert len(registry.index.versions(registry.index.subject("orders").schema_id)) == 1


async def test_another_format_is_incompatible_unless_nothing_is_asked(registry: SchemaRegistry) -> None:
    await registry.register("orders", AVRO, avro("a"))
    with pytest.raises(SchemaIncompatible, match="schema_type_changed"):
        await registry.register("orders", SchemaType.STRING, b"")
    await registry.set_compatibility("orders", CompatibilityMode.NONE)
    assert (await registry.register("orders", SchemaType.STRING, b"")).version == 2


async def test_only_the_latest_is_compared_unless_the_subject_is_transitive(registry: SchemaRegistry) -> None:
    await registry.register("orders", AVRO, avro("a"))
    await registry.register("orders", AVRO, avro("a", "b", default=0))
    await registry.register("orders", AVRO, avro("a", "b"))  # v2 always has b, v1 does not
    verdict = await registry.check("orders", AVRO, avro("a", "b", "c", default=1))
    assert verdict.compared_with == (3,)
    await registry.set_compatibility("orders", CompatibilityMode.BACKWARD, transitive=True)
    without_default = avro("a", "b") + b" "
    verdict = await registry.check("orders", AVRO, without_default)
    assert [each.path for each in verdict.differences] == ["R.b"]
    assert verdict.compared_with == (3, 2, 1)
    assert (await registry.check("orders", AVRO, without_default, transitive=False)).is_compatible


async def test_the_strict_profile_is_the_subjects_choice(registry: SchemaRegistry) -> None:
    before = json.dumps({"type": "object"}).encode()
    after = json.dumps({"type": "object", "required": ["b"], "properties": {"b": {}}}).encode()
    await registry.register("orders", JSON, before)
    verdict = await registry.check("orders", JSON, after)
    assert [each.rule for each in verdict.differences] == ["property_not_always_written"]
    await registry.set_compatibility("orders", CompatibilityMode.BACKWARD, profile=JsonProfile.DEFAULT)
    assert (await registry.check("orders", JSON, after)).is_compatible


async def test_a_subject_keeps_its_profile_whoever_registers_the_next_version(
    registry: SchemaRegistry, store: MemoryStore
) -> None:
    versions = [json.dumps({"properties": {name: {} for name in "abc"[:count]}}).encode() for count in (1, 2)]
    await registry.register("orders", JSON, versions[0], profile=JsonProfile.DEFAULT)
    await registry.register("orders", JSON, versions[1], profile=JsonProfile.STRICT)
    assert registry.index.subject("orders").spec.json_profile is JsonProfile.DEFAULT
    again = SchemaRegistry(store, wall_ms=lambda: 0)
    await again.load()
    assert again.index.subject("orders").spec.json_profile is JsonProfile.DEFAULT


async def test_a_deleted_version_is_gone_and_its_number_does_not_come_again(store: MemoryStore) -> None:
    registry = await opened(store)
    await registry.register("orders", AVRO, avro("a"))
    made = await registry.register("orders", AVRO, avro("a", "b", default=0))
    await registry.delete_version("orders", 2)
    for view in (registry, await opened(store)):
        assert [record.version for record in view.index.versions(made.schema_id)] == [1]
        assert view.latest("orders").version == 1
        with pytest.raises(SchemaNotFound):
            view.index.version(made.schema_id, 2)
    assert (await registry.register("orders", AVRO, avro("a", "b", default=0))).version == 3
    with pytest.raises(SchemaNotFound):
        await registry.delete_version("orders", 2)


async def test_a_subject_without_versions_says_so(registry: SchemaRegistry) -> None:
    await registry.register("orders", SchemaType.BYTES, b"")
    await registry.delete_version("orders", 1)
    with pytest.raises(SchemaNotFound, match="no version"):
        registry.latest("orders")
    assert (await registry.register("orders", SchemaType.STRING, b"")).version == 2


async def test_everything_is_there_after_a_restart(store: MemoryStore) -> None:
    registry = await opened(store)
    proto = b'syntax = "proto3"; message Order { int32 id = 1; }'
    made = await registry.register(
        "/shop/orders ☕", SchemaType.PROTOBUF, proto, description="d", created_by="me", tags=["x", "y"]
    )
    await registry.set_compatibility("/shop/orders ☕", CompatibilityMode.FULL, transitive=True)
    fresh = await opened(store)
    record = fresh.latest("/shop/orders ☕")
    assert (record.schema_id, record.definition) == (made.schema_id, proto)
    assert (record.spec.description, record.spec.created_by, record.spec.tags) == ("d", "me", ("x", "y"))
    assert record.spec.created_at_ms == 1_700_000_000_123
    subject = fresh.index.subject_by_id(made.schema_id).spec
    assert (subject.compatibility_mode, subject.transitive) == (CompatibilityMode.FULL, True)
    fresh.check_of(made.schema_id, 1)(b"\x08\x07")  # compiled at registration: no compiler is asked


@pytest.mark.parametrize("subject", ["", "  ", "a\nb", "x" * 257, "\ud800"])
async def test_what_is_no_subject_is_refused(registry: SchemaRegistry, subject: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await registry.register(subject, SchemaType.BYTES, b"")
    assert caught.value.details["field"] == "subject"
    caught.value.to_json().encode()  # it can be sent, whatever was given


async def test_what_is_too_large_is_refused_before_anything_is_stored(registry: SchemaRegistry) -> None:
    with pytest.raises(SchemaInvalid, match="at most"):
        await registry.register("orders", SchemaType.STRING, b"x" * 200_001)
    with pytest.raises(InvalidArgument, match="description"):
        await registry.register("orders", SchemaType.STRING, b"", description="x" * 5_000)
    assert registry.index.subjects() == []


async def test_an_unknown_subject_names_those_spelled_alike(registry: SchemaRegistry) -> None:
    await registry.register("orders-value", SchemaType.BYTES, b"")
    with pytest.raises(SchemaNotFound, match="orders-value") as caught:
        registry.latest("order-value")
    assert caught.value.next[0]["operation"] == "schemas.list"


async def test_a_failed_store_changes_nothing_in_the_index(store: MemoryStore) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def transact(self, *arguments: Any, **options: Any) -> Any:
            raise OSError("disk")

    registry = SchemaRegistry(Broken(), wall_ms=lambda: 0)  # type: ignore[arg-type]
    await registry.load()
    with pytest.raises(OSError, match="disk"):
        await registry.register("orders", SchemaType.BYTES, b"")
    assert registry.index.subjects() == []


async def test_a_hot_subject_takes_the_registrations_of_many_at_once(registry: SchemaRegistry) -> None:
    """Each of a hundred is compared with the one before it, and none is told to come again."""
    made: list[RegistrationFacts] = []

    async def register(index: int) -> None:
        made.append(await registry.register("hot", AVRO, avro(f"f{index}", default=0)))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for index in range(100):
                tasks.start_soon(register, index)
                tasks.start_soon(registry.register, "hot", AVRO, avro(f"f{index}", default=0))
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(registry.register, "other", AVRO, avro("a"))
    assert len({each.version for each in made}) == 100
    assert registry.index.subject("hot").spec.last_version == 100


async def test_who_gives_up_waiting_leaves_the_turn_to_the_next(registry: SchemaRegistry) -> None:
    await registry.register("hot", AVRO, avro("a"))
    async with anyio.create_task_group() as tasks, registry.turns.of("hot"):
        tasks.start_soon(registry.set_compatibility, "hot", CompatibilityMode.NONE)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    with anyio.fail_after(30):
        await registry.set_compatibility("hot", CompatibilityMode.FULL)
    assert not registry.turns.locks


async def test_a_schema_that_costs_too_much_is_refused_and_nothing_is_stored(
    registry: SchemaRegistry,
) -> None:
    definitions: dict[str, Any] = {"d0": {"type": "integer"}}
    for level in range(1, 41):
        definitions[f"d{level}"] = {"allOf": [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
    doubling = json.dumps({"$defs": definitions, "$ref": "#/$defs/d40"}).encode()
    with pytest.raises(SchemaInvalid, match="not taken"):
        await registry.register("doubling", JSON, doubling)
    assert registry.index.find_subject("doubling") is None
    await registry.register("doubling", JSON, b'{"multipleOf": 2}')
    with pytest.raises(SchemaInvalid, match="not taken"):
        await registry.check("doubling", JSON, doubling)
    with pytest.raises(SchemaInvalid, match="backtracking"):
        await registry.register("doubling", JSON, b'{"pattern": "^(a|a)*(?=b)$"}')


async def test_a_number_of_four_hundred_digits_is_compared(registry: SchemaRegistry) -> None:
    huge = b'{"multipleOf": 1' + b"0" * 400 + b"}"
    await registry.register("huge", JSON, huge)
    await registry.set_compatibility("huge", CompatibilityMode.FULL, profile=JsonProfile.STRICT)
    with pytest.raises(SchemaIncompatible):
        await registry.register("huge", JSON, b'{"multipleOf": 2.5}')
    assert (await registry.register("huge", JSON, huge[:-1] + b', "title": "huge"}')).version == 2


async def test_a_check_is_made_beside_the_loop_before_it_is_used(registry: SchemaRegistry) -> None:
    made = await registry.register("orders", AVRO, avro("a"))
    assert not registry.has_check(made.schema_id, 1)
    await registry.prepare_check(made.schema_id, 1)
    assert registry.has_check(made.schema_id, 1)
    registry.check_of(made.schema_id, 1)(b"\x02")


async def test_a_schemas_id_is_above_every_revision_and_the_same_at_all_brokers(store: MemoryStore) -> None:
    one, other = await opened(store), await opened(store)
    made = await one.register("orders", AVRO, avro("a"))
    assert 1 << 40 <= made.schema_id < 1 << 53
    await other.know("orders")
    assert other.latest("orders").identity == (made.schema_id, 1)
    assert other.latest("orders").definition == avro("a")


async def test_subject_of_an_earlier_build_keeps_the_revision_that_is_its_id(store: MemoryStore) -> None:
    made = await (await opened(store)).register("orders", AVRO, avro("a"))
    key = keys.subject_key("orders")
    item = await store.get(key)
    assert item is not None
    earlier = replace(SubjectSpec.from_json(item.value, key=key), identity=None)
    await store.transact([Delete(key)])
    revision = await store.transact([Put(key, earlier.to_json())])
    registry = await opened(store)
    assert registry.latest("orders").schema_id == revision != made.schema_id
    assert (await registry.register("orders", AVRO, avro("a", "b", default=0))).schema_id == revision


async def test_version_that_an_earlier_build_writes_after_its_subject_is_not_registered_twice(
    store: MemoryStore,
) -> None:
    """Builds before wrote the subject first; a reader may take in that much of the transaction."""
    source = await opened(store)
    await source.register("orders", AVRO, avro("a"))
    behind = await opened(store)
    made = await source.register("orders", AVRO, avro("a", "b", default=0))
    whole = [
        item
        for item in (await read_all(store, KeyRange.prefix("/schemas/")))[0]
        if item.key == keys.subject_key("orders") or keys.identity_of_key(item.key)[1] == 2
    ]
    whole.sort(key=lambda item: item.key != keys.subject_key("orders"))
    await store.transact([Delete(item.key) for item in whole if item.key != whole[0].key])
    await store.transact([Put(item.key, item.value) for item in whole])
    await behind.records.refresh(keys.subject_key("orders"))
    again = await behind.register("orders", AVRO, avro("a", "b", default=0))
    assert (again.version, again.is_new_version) == (made.version, False)


async def test_damaged_record_of_leased_ids_is_set_aside_and_subjects_are_served(store: MemoryStore) -> None:
    await (await opened(store)).register("orders", AVRO, avro("a"))
    await store.transact([Put(ID_BLOCKS, b"damaged")])
    registry = await opened(store)
    assert registry.latest("orders").version == 1
    assert set(registry.records.quarantine.found) == {ID_BLOCKS}
    with pytest.raises(CorruptMetadata):
        await registry.register("others", AVRO, avro("a"))


async def test_version_without_its_text_is_set_aside_and_the_others_are_served(store: MemoryStore) -> None:
    source = await opened(store)
    await source.register("orders", AVRO, avro("a"))
    await source.register("orders", AVRO, avro("a", "b", default=0))
    await store.transact([Delete(keys.definition_key("orders", 2))])
    registry = await opened(store)
    assert [each.version for each in registry.index.versions(registry.latest("orders").schema_id)] == [1]
    assert set(registry.records.quarantine.found) == {keys.version_key("orders", 2)}
