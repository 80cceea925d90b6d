"""The audit: every call leaves its records, in a chain that shows what was altered; without it nothing changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_admin.engine.audit.audit_chain import FIRST, ChainCheck, KeyTerms, linked, redacted
from pydanube_admin.operations.audit import MAX_LOOKED_AT
from pydanube_core.audit_key import KEY_BYTES, AuditKey
from pydanube_core.errors import DiskFull, JournalReadOnly, Unavailable
from pydanube_core.facts import DataChange

from tests.admin.real_broker import Administered, administered, cluster
from tests.support.waiting import turns_during

__all__ = ["cluster"]
pytestmark = pytest.mark.anyio


KEY = AuditKey(bytes(range(KEY_BYTES)))


def checked(chain: list[bytes]) -> ChainCheck:
    check = ChainCheck(FIRST, KEY, KeyTerms(((0, KEY.key_id),)))
    for offset, payload in enumerate(chain):
        check.take(offset, payload)
    return check


async def test_a_change_has_two_records_and_a_read_one(cluster: Administered) -> None:
    made = await cluster("topics.create", topic="orders")
    await cluster("topics.describe", topic="orders")
    await cluster.refused("topics.delete", topic="orders")
    await cluster.refused("topics.describe", topic="nowhere")
    await cluster.refused("topics.describe", topic=7)
    records = (await cluster("audit.query", hashes=True))["items"][::-1]
    assert [(r["phase"], r["operation"], r["decision"], r["code"]) for r in records] == [
        ("call", "topics.create", "allowed", None),
        ("outcome", "topics.create", "allowed", None),
        ("outcome", "topics.describe", "allowed", None),
        ("call", "topics.delete", "refused", "PLAN_REQUIRED"),
        ("outcome", "topics.delete", "refused", "PLAN_REQUIRED"),
        ("outcome", "topics.describe", "refused", "TOPIC_NOT_FOUND"),
        ("call", "topics.describe", "refused", "INVALID_ARGUMENT"),
        ("outcome", "topics.describe", "refused", "INVALID_ARGUMENT"),
    ]
    assert {r["call_id"] for r in records[:2]} == {made["call_id"]}
    assert (records[0]["principal"], records[0]["authenticated"], records[0]["face"]) == ("ann", False, "cli")
    assert records[1]["after"] == {
        "topics/default/orders": {"partitions": 0, "dispatch_strategy": "reliable", "durability": "fsynced"}
    }
    assert len({r["call_id"] for r in records}) == 5
    assert [r["seq"] for r in records] == list(range(8))
    verified = await cluster("audit.verify")
    assert (verified["intact"], verified["first_bad_seq"]) == (True, None)


async def test_the_audit_is_asked_by_topic_operation_principal_and_page(cluster: Administered) -> None:
    for number in range(6):
        await cluster("topics.create", topic=f"t{number}", by="bob" if number % 2 else "ann")
    by_topic = await cluster("audit.query", topic="t3")
    assert [item["arguments"] for item in by_topic["items"]] == [{"topic": "t3"}]
    assert len((await cluster("audit.query", principal="bob"))["items"]) == 3
    seen, page = [], None
    while True:
        answer = await cluster("audit.query", operation="topics.create", limit=5, page=page, hashes=True)
        seen += [item["seq"] for item in answer["items"]]
        page = answer["next_page"]
        if page is None:
            break
    assert seen == list(range(11, -1, -1))
    assert (await cluster("audit.query", since="time:-1h", limit=1))["items"]
    assert (await cluster.refused("audit.query", since="latest")).code == "INVALID_ARGUMENT"
    assert (await cluster.refused("audit.query", page="x")).code == "PAGE_INVALID"


@pytest.mark.parametrize("limit", [1, 2, 50])
async def test_a_change_is_one_item_its_outcome_with_what_was_before(
    cluster: Administered, limit: int
) -> None:
    """Also where its call is on the next page; reads have no call, and those that are refused have one."""
    calls = []
    for rate in (10, 20, 30):
        calls.append((await cluster("topics.create", topic=f"t{rate}"))["call_id"])
        calls.append(
            (await cluster("topics.set_policies", topic=f"t{rate}", policies={"max_publish_rate": rate}))[
                "call_id"
            ]
        )
        await cluster("topics.describe", topic=f"t{rate}")
        await cluster.refused("topics.describe", topic=7)
    seen: list[Any] = []
    page = None
    while True:
        answer = await cluster("audit.query", limit=limit, page=page)
        seen += answer["items"]
        if (page := answer["next_page"]) is None:
            break
    assert {each["phase"] for each in seen} == {"outcome"}
    assert len({each["call_id"] for each in seen}) == len(seen)
    changed = [each for each in seen if each["call_id"] in calls]
    assert [each["call_id"] for each in changed] == calls[::-1]
    kept = (await cluster("audit.query", hashes=True))["items"]
    begun = {each["call_id"]: each["before"] for each in kept if each["phase"] == "call"}
    assert any(begun.values())
    assert [each["before"] for each in changed] == [begun[each["call_id"]] for each in changed]
    assert all(each["after"] for each in changed)


async def test_the_chain_goes_on_after_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("data")
    for number in range(3):
        async with administered(folder) as cluster:
            await cluster("topics.create", topic=f"t{number}")
            verified = await cluster("audit.verify")
            assert verified["intact"]
            assert verified["records"] >= 2 * (number + 1)


async def test_the_audit_is_hidden_and_nobody_elses(cluster: Administered) -> None:
    await cluster("topics.create", topic="orders")
    assert [item["topic"] for item in (await cluster("topics.list"))["items"]] == ["/default/orders"]
    assert [item["topic"] for item in (await cluster("topics.list", namespace="system"))["items"]] == [
        "/system/audit"
    ]
    assert (await cluster.refused("topics.delete", topic="/system/audit")).code == "PERMISSION_DENIED"
    assert (await cluster("brokers.status"))["topics"] == 1


async def test_without_an_audit_nothing_changes(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(payloads: Sequence[bytes], *, at: int) -> None:
        raise JournalReadOnly("the journal is read-only")

    port = cluster.broker.port
    monkeypatch.setattr("pydanube_admin.engine.audit.audit_log.RETRY_S", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(port, "append_audit", fails)
        for operation, arguments in (
            ("topics.create", {"topic": "orders"}),
            ("namespaces.create", {"namespace": "shop"}),
        ):
            error = await cluster.refused(operation, **arguments)
            assert (error.code, error.details["reason"]) == ("AUDIT_UNAVAILABLE", "JOURNAL_READ_ONLY")
        assert [key.topic for key in await port.topic_index()] == ["/system/audit"]
        await cluster("topics.list")
    await cluster("topics.create", topic="orders")
    await cluster.core.aclose()
    _, records = await port.read_audit(start=0, max_messages=100)
    operations = [json.loads(record)["operation"] for _, record in records]
    assert operations.count("topics.list") == 1  # the read of before was recorded when it could be


async def test_once_the_core_is_closed_no_record_is_retried(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    appends = 0

    async def fails(payloads: Sequence[bytes], *, at: int) -> None:
        nonlocal appends
        appends += 1
        raise JournalReadOnly("the journal is read-only")

    monkeypatch.setattr("pydanube_admin.engine.audit.audit_log.RETRY_S", 0.0)
    monkeypatch.setattr(cluster.broker.port, "append_audit", fails)
    await cluster("topics.list")  # its record waits
    await cluster.core.aclose()
    before = appends
    for operation in ("topics.list", "topics.describe"):
        refused = await cluster.refused(operation, **({} if operation == "topics.list" else {"topic": "x"}))
        assert (refused.code, refused.retryable) == ("DRAINING", True)
    for _ in range(100):
        await asyncio.sleep(0)
    assert appends == before


async def test_a_call_whose_record_hangs_ends_with_the_core(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = asyncio.Event()

    async def hang(payloads: Sequence[bytes], *, at: int) -> None:
        hangs.set()
        await asyncio.Event().wait()

    with anyio.fail_after(60), monkeypatch.context() as patch:
        patch.setattr(cluster.broker.port, "append_audit", hang)
        change = asyncio.create_task(cluster.refused("topics.create", topic="orders"))
        await hangs.wait()
        closing = asyncio.create_task(cluster.core.aclose())
        await asyncio.sleep(0)
        closing.cancel()  # the broker waits no longer
        refused = await change
    assert (refused.code, refused.retryable) == ("DRAINING", True)


async def test_calls_end_also_if_a_task_takes_all_the_time(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, stopping = asyncio.Event(), asyncio.Event()

    async def hang(payloads: Sequence[bytes], *, at: int) -> None:
        hangs.set()
        await asyncio.Event().wait()

    async def slow() -> None:
        stopping.set()
        await asyncio.Event().wait()

    with anyio.fail_after(60), monkeypatch.context() as patch:
        patch.setattr(cluster.broker.port, "append_audit", hang)
        patch.setattr(cluster.core.executor.tasks, "aclose", slow)
        change = asyncio.create_task(cluster.refused("topics.create", topic="orders"))
        await hangs.wait()
        async with anyio.create_task_group() as closing:
            closing.start_soon(cluster.core.aclose)
            await stopping.wait()
            closing.cancel_scope.cancel()
        refused = await change
    assert (refused.code, refused.retryable) == ("DRAINING", True)


def made_by_a_client(topic: str) -> DataChange:
    return DataChange(operation="topics.create", at_ms=0, principal=None, client="", address="a", topic=topic)


async def test_a_clients_change_after_the_end_of_calls_is_recorded_by_the_last_try(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port fails until the last try, and no other one comes: the retry is an hour away."""
    failed = asyncio.Event()
    port = cluster.broker.port

    async def fails(payloads: Sequence[bytes], *, at: int) -> None:
        failed.set()
        raise JournalReadOnly("the journal is read-only")

    monkeypatch.setattr("pydanube_admin.engine.audit.audit_log.RETRY_S", 3600)
    with anyio.fail_after(60):
        await cluster.core.end_calls()
        assert (await cluster.refused("topics.list")).code == "DRAINING"
        cluster.broker.data_changes.note(made_by_a_client("/default/first"))
        with monkeypatch.context() as patch:
            patch.setattr(port, "append_audit", fails)
            cluster.core.audit.collect()
            await failed.wait()
            cluster.broker.data_changes.note(made_by_a_client("/default/second"))
        await cluster.core.aclose()
    _, stored = await port.read_audit(start=0, max_messages=100)
    records = [json.loads(record) for _, record in stored]
    assert [(each["phase"], each["arguments"]["topic"]) for each in records] == [
        (phase, topic) for topic in ("/default/first", "/default/second") for phase in ("call", "outcome")
    ]


async def test_records_that_are_dropped_are_counted_in_the_log(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(payloads: Sequence[bytes], *, at: int) -> None:
        raise JournalReadOnly("the journal is read-only")

    monkeypatch.setattr(cluster.broker.port, "append_audit", fails)
    cluster.broker.data_changes.note(made_by_a_client("/default/first"))
    with anyio.fail_after(60):
        await cluster.core.aclose()
    cluster.broker.data_changes.note(made_by_a_client("/default/second"))
    cluster.core.audit.collect()
    dropped = [each for each in caplog.records if each.message == "audit_records_dropped"]
    assert [each.__dict__["records"] for each in dropped] == [2, 2]


async def test_an_altered_record_is_found(cluster: Administered, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        await cluster("topics.create", topic=f"t{number}")
    stored = cluster.broker.port.read_audit
    altered = 7

    async def read(*, start: int, max_messages: int) -> tuple[int, Sequence[tuple[int, bytes]]]:
        first, records = await stored(start=start, max_messages=max_messages)
        return first, [
            (offset, record.replace(b"t3", b"u3") if offset == altered else record)
            for offset, record in records
        ]

    monkeypatch.setattr(cluster.broker.port, "read_audit", read)
    found = await cluster("audit.verify")
    assert (found["intact"], found["first_bad_seq"], found["records"]) == (False, 7, 7)


async def test_the_audit_is_verified_while_the_metadata_store_takes_no_writes(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed, since it is a task that is kept in that store."""
    await cluster("topics.create", topic="t")

    async def write_state(*_: Any, **__: Any) -> None:
        raise Unavailable("the metadata store is read-only", retry_after_ms=1000)

    with monkeypatch.context() as read_only:
        read_only.setattr(cluster.broker.port, "write_state", write_state)
        assert (await cluster("audit.verify"))["intact"]
        assert (await cluster.refused("audit.verify", detach=True)).code == "UNAVAILABLE"
    assert not (await cluster("tasks.list"))["items"]
    assert (await cluster("audit.verify"))["intact"]
    assert [each["state"] for each in (await cluster("tasks.list"))["items"]] == ["done"]


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20)), min_size=1),
    st.data(),
)
def test_any_flipped_byte_is_found(records: list[dict[str, object]], data: st.DataObject) -> None:
    head, chain = FIRST, []
    for record in records:
        body = {key: value for key, value in record.items() if key not in ("seq", "prev_hash", "hash", "mac")}
        payload, head = linked(body, head, KEY)
        chain.append(payload)
    whole = checked(chain)
    assert (whole.sound, whole.verified, whole.bad) == (len(chain), len(chain), None)
    which = data.draw(st.integers(0, len(chain) - 1))
    at = data.draw(st.integers(0, len(chain[which]) - 1))
    broken = bytearray(chain[which])
    broken[at] ^= 1 << data.draw(st.integers(0, 7))
    chain[which] = bytes(broken)
    check = checked(chain)
    assert check.bad is not None
    assert (check.sound, check.bad.seq) == (which, which)


def test_secrets_do_not_reach_the_audit() -> None:
    arguments = {
        "topic": "orders",
        "plan_token": "p1.abc",
        "settings": {"password": "x", "access_key": "y", "url": "s3://b"},
        "payload": "x" * 10_000,
    }
    kept = redacted(arguments)
    assert kept["topic"] == "orders"
    assert kept["plan_token"] == kept["settings"]["password"] == kept["settings"]["access_key"] == "redacted"
    assert len(kept["payload"]) < 300


async def test_readiness_says_that_no_change_can_be_made(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    def codes() -> list[str]:
        return [reason.code for reason in cluster.broker.health.reasons()]

    async def full(*_: object, **__: object) -> int:
        raise DiskFull("no room")

    await cluster("topics.create", topic="orders")
    assert codes() == []
    port = cluster.broker.port
    with monkeypatch.context() as patch:
        patch.setattr("pydanube_broker.port.administration.append_durably", full)
        refused = await cluster.refused("topics.create", topic="clicks")
        assert (refused.code, codes()) == ("AUDIT_UNAVAILABLE", ["AUDIT_UNWRITABLE"])
    with monkeypatch.context() as patch:
        patch.setattr(cluster.broker.admin_state, "write", full)
        with pytest.raises(DiskFull):
            await port.write_state({"x": b""})
        assert codes() == ["AUDIT_UNWRITABLE", "METADATA_UNWRITABLE"]
        await port.look_whether_changes_are_possible_again()
        assert len(codes()) == 2
    await port.look_whether_changes_are_possible_again()
    assert codes() == []
    await cluster("topics.create", topic="clicks")


async def test_others_have_their_turn_while_the_audit_is_read(cluster: Administered) -> None:
    """Records in memory are read without waiting for anything: a chain of 6000 held the loop for half a second."""
    for _ in range(450):
        await cluster("tasks.list")
    for operation, arguments in (("audit.verify", {}), ("audit.query", {"principal": "nobody"})):
        assert await turns_during(cluster(operation, **arguments)) >= 4, operation


async def test_a_record_far_back_is_found_and_a_page_is_not_empty(cluster: Administered) -> None:
    """One change before forty thousand records of others: the first page has it, and no page is empty and goes on."""
    await cluster("topics.create", topic="orders")
    made = (await cluster("audit.query", operation="topics.create", hashes=True))["items"]
    entry = {**made[0], "operation": "topics.describe", "call_id": "c" + "0" * 24}
    for name in ("seq", "prev_hash", "hash", "mac", "key_id"):
        entry.pop(name)
    audit = cluster.core.audit
    for _ in range(2 * MAX_LOOKED_AT // 500):
        audit.note(*[entry] * 500)
        await audit.settled()
    page = await cluster("audit.query", operation="topics.create", limit=2, hashes=True)
    assert [each["seq"] for each in page["items"]] == [each["seq"] for each in made]
    found = await cluster("audit.query", call_id=made[0]["call_id"], limit=1)
    assert [each["call_id"] for each in found["items"]] == [made[0]["call_id"]]
    none = await cluster("audit.query", operation="topics.delete")
    assert (none["items"], none["next_page"]) == ([], None)
