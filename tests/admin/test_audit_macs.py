"""MACs of audit records: what no broker wrote is found, though it goes on with the chain; the key is in no copy."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pydanube_admin.engine.audit.audit_chain import (
    FIRST,
    KEYS_KEY,
    MAX_TERMS,
    Head,
    KeyTerms,
    head_of,
    linked,
)
from pydanube_admin.engine.audit.audit_log import HEAD_KEY
from pydanube_broker.home.recovery_note import NOTE_FILE, write_note
from pydanube_broker.topics.stored_messages import append_durably
from pydanube_core.audit_key import KEY_BYTES, AuditKey
from pydanube_core.audit_recovery import AuditRecovery
from pydanube_core.errors import Conflict, StoreUnavailable

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio

INVENTED = {"call_id": "0", "phase": "outcome", "operation": "topics.delete", "principal": "somebody"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def cluster(anyio_backend: str, data: Path) -> AsyncIterator[Administered]:
    async with administered(data) as cluster:
        yield cluster


def without_mac(record: dict[str, Any], head: Head) -> bytes:
    """A record as they were before there were MACs; anybody can make one who reads the topic."""
    body = {"seq": head.seq + 1, **record, "prev_hash": head.hash}
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return text[:-1] + f',"hash":"{hashlib.sha256(text).hexdigest()}"}}'.encode()


async def smuggle(cluster: Administered, made: Callable[[Head], bytes]) -> int:
    """Write a record that goes on with the chain, as somebody could who writes the broker's files."""
    await cluster.core.audit.settled()  # what waits is written
    port = cluster.broker.port
    end, last = await port.open_audit()
    head = head_of(last or b"")
    assert head is not None
    topic = await cluster.broker.registry.audit_topic()
    await append_durably(topic, [made(head)], producer="audit", system=True)
    return end


async def counts(cluster: Administered) -> tuple[int, int, int]:
    found = await cluster("audit.verify")
    assert found["intact"] is (found["forged"] == 0)
    return found["verified"], found["chain_only"], found["forged"]


STRANGER = AuditKey(b"x" * KEY_BYTES)


@pytest.mark.parametrize(
    "made",
    [
        lambda head: without_mac(INVENTED, head),
        lambda head: linked(INVENTED, head, STRANGER)[0],
        lambda head: b"a message of somebody else",
    ],
    ids=["without a MAC", "another key's MAC", "no record"],
)
async def test_a_record_that_no_broker_wrote_is_found_and_the_others_are_verified(
    data: Path, made: Callable[[Head], bytes]
) -> None:
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        seq = await smuggle(cluster, made)
    async with administered(data) as cluster:
        await cluster("topics.create", topic="clicks")
        found = await cluster("audit.verify")
        assert (found["intact"], found["first_bad_seq"], found["records"]) == (False, seq, seq)
        assert (found["verified"], found["chain_only"], found["forged"]) == (4, 0, 1), (
            "two records of each creation"
        )


async def test_a_mac_by_the_id_of_the_right_key_is_held_against_the_key(data: Path) -> None:
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        kept = await cluster.broker.port.audit_key()

        def made(head: Head) -> bytes:
            stolen = AuditKey(b"x" * KEY_BYTES)
            object.__setattr__(stolen, "key_id", kept.key_id)
            return linked(INVENTED, head, stolen)[0]

        seq = await smuggle(cluster, made)
        found = await cluster("audit.verify")
        assert (found["first_bad_seq"], found["reason"]) == (seq, "its MAC is wrong: no broker wrote it")


async def test_records_from_before_there_were_macs_are_known_by_the_chain_only(data: Path) -> None:
    async with administered(data) as cluster:
        await smuggle_first(cluster)
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        assert "mac" not in (await cluster("audit.query", operation="topics.delete", hashes=True))["items"][0]
        (newest,) = (await cluster("audit.query", operation="topics.create", limit=1, hashes=True))["items"]
        assert (len(newest["mac"]), newest["key_id"]) == (64, (await cluster.broker.port.audit_key()).key_id)
        verified, chain_only, forged = await counts(cluster)
        assert (chain_only, forged) == (1, 0)
        assert verified >= 2


async def smuggle_first(cluster: Administered) -> None:
    fields = ("time", "face", "decision")
    record = {**INVENTED, **dict.fromkeys(fields, ""), "authenticated": False, "arguments": {}}
    record |= dict.fromkeys(("plan_id", "code", "before", "after"))
    topic = await cluster.broker.registry.audit_topic()
    await append_durably(
        topic, [without_mac(record, Head(seq=-1, hash="0" * 64))], producer="audit", system=True
    )


async def test_a_restored_backup_has_a_new_key_and_the_old_one_verifies_again_where_it_is(data: Path) -> None:
    key = data.with_name("data.audit-key")
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
    first = key.rename(key.with_name("kept"))
    async with administered(data) as cluster:
        before, _ = await cluster.broker.port.open_audit()
        await cluster("topics.create", topic="clicks")
        verified, chain_only, forged = await counts(cluster)
        assert (chain_only, forged) == (before, 0)
        assert verified >= 2
        between = (await cluster.broker.port.open_audit())[0] + 1
    first.replace(key)
    async with administered(data) as cluster:
        await cluster("topics.create", topic="logs")
        await cluster.core.audit.settled()
        end, _ = await cluster.broker.port.open_audit()
        verified, chain_only, forged = await counts(cluster)
        assert (verified, chain_only, forged) == (end - chain_only, chain_only, 0)
        assert before < chain_only + before <= between


def files(folder: Path) -> list[Path]:
    return [part for part in folder.rglob("*") if part.is_file()]


async def test_the_key_is_beside_the_data_and_in_nothing_else(data: Path) -> None:
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        await cluster("audit.verify")
        kept = await cluster.broker.port.audit_key()
    file = data.with_name("data.audit-key")
    assert file.stat().st_mode & 0o777 == 0o600
    key = file.read_text().strip()
    assert (kept.secret.hex(), key in repr(kept)) == (key, False)
    assert len(files(data)) > 3
    for part in files(data):
        content = part.read_bytes()
        assert kept.secret not in content, part
        assert key.encode() not in content, part


@pytest.mark.parametrize("trouble", ["everybody reads it", "it is no key", "it is a folder"])
async def test_a_key_that_cannot_be_used_is_said_and_stops_nothing(
    data: Path, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = data.with_name("elsewhere")
    if trouble == "it is a folder":
        file.mkdir()
    else:
        file.write_text("ab" * KEY_BYTES if trouble == "everybody reads it" else "none")
        os.chmod(file, 0o644 if trouble == "everybody reads it" else 0o600)
    with caplog.at_level(logging.WARNING):
        async with administered(data, **{"admin.audit_key": str(file)}) as cluster:
            await cluster("topics.create", topic="orders")
            assert (await counts(cluster))[1:] == (0, 0)
    (said,) = [record for record in caplog.records if record.message == "audit_key_unusable"]
    assert said.__dict__["path"] == str(file)
    async with administered(data) as cluster:
        assert (await counts(cluster))[2] == 0


def test_the_store_knows_which_key_counts_from_which_record_on() -> None:
    terms = KeyTerms().with_key("a", 5)
    assert terms.with_key("a", 9) == terms
    terms = terms.with_key("b", 9).with_key("a", 12)
    assert [terms.key_of(seq) for seq in (0, 4, 5, 8, 9, 11, 12, 99)] == [
        None,
        None,
        "a",
        "a",
        "b",
        "b",
        "a",
        "a",
    ]
    assert terms.with_key("c", 12) == terms.with_key("c", 12).with_key("c", 12), (
        "nothing was written by the other"
    )
    assert terms.with_key("c", 7).key_of(20) == "c", "a journal that lost its end"
    key = AuditKey(b"k" * KEY_BYTES)
    assert KeyTerms.from_json(terms.to_json(key), key, of_others=False) == terms
    assert KeyTerms.from_json(terms.to_json(STRANGER), key, of_others=True) == terms
    assert KeyTerms.from_json(terms.to_json(STRANGER), key, of_others=False) == KeyTerms()
    many = KeyTerms()
    for number in range(3 * MAX_TERMS):
        many = many.with_key(f"k{number}", number)
    assert (len(many.terms), many.key_of(0), many.key_of(3 * MAX_TERMS)) == (
        MAX_TERMS,
        None,
        f"k{3 * MAX_TERMS - 1}",
    )


async def test_the_terms_are_written_once_a_key(cluster: Administered) -> None:
    for number in range(3):
        await cluster("topics.create", topic=f"t{number}")
    stored = await cluster.broker.port.read_state(KEYS_KEY)
    assert stored is not None
    kept = await cluster.broker.port.audit_key()
    assert KeyTerms.from_json(stored.value, kept, of_others=False).terms == ((0, kept.key_id),)


def terms_without_a_mac(terms: KeyTerms, key_id: str) -> bytes:
    return json.dumps({"terms": terms.terms, "key_id": key_id, "mac": "0" * 64}).encode()


@pytest.mark.parametrize(
    "altered",
    [
        lambda terms, own: None,
        lambda terms, own: b"no JSON",
        lambda terms, own: b"[" * 100_000,
        lambda terms, own: json.dumps(terms.terms).encode(),
        lambda terms, own: terms_without_a_mac(terms, own),
        lambda terms, own: b'{"terms":[[1e999,"a"]],"key_id":"%s","mac":"\\ud800"}' % own.encode(),
        lambda terms, own: terms.to_json(STRANGER),
    ],
    ids=["gone", "no JSON", "too deep", "as before", "wrong MAC", "wrong values", "by another key"],
)
async def test_terms_that_somebody_writes_into_the_store_cover_no_record_of_his(
    data: Path, altered: Callable[[KeyTerms, str], bytes | None]
) -> None:
    """Whoever wrote them could make records of his own count as those of a key that was lost."""
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        key = await cluster.broker.port.audit_key()
        seq = await smuggle(cluster, lambda head: linked(INVENTED, head, STRANGER)[0])
        terms = KeyTerms(((0, key.key_id), (seq, STRANGER.key_id)))
        await cluster.broker.port.write_state({KEYS_KEY: altered(terms, key.key_id)})
        found = await cluster("audit.verify")
        assert (found["intact"], found["first_bad_seq"]) == (False, 0)
        assert found["reason"] == "the metadata store has lost the key valid then, or was altered"


async def test_terms_that_were_taken_away_are_missed_in_later_lives_too(data: Path) -> None:
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        await cluster.core.audit.settled()
        await cluster.broker.port.write_state({KEYS_KEY: None})
    for topic in ("clicks", "logs"):
        async with administered(data) as cluster:
            await cluster("topics.create", topic=topic)
            found = await cluster("audit.verify")
            assert (found["intact"], found["first_bad_seq"], found["forged"]) == (False, 0, 0)
            assert found["chain_only"] == 0, "this broker has the key, and held each record against it"


RECOVERY = AuditRecovery(recovery="r1", by="ada@h", time_ms=1_796_000_000_000)


async def lose_terms(cluster: Administered, *, stored: bytes | None = None) -> None:
    """An older etcd, and the note of `cluster recover` in the data directory."""
    await cluster.core.audit.settled()
    await cluster.broker.port.write_state({KEYS_KEY: stored})
    write_note(cluster.broker.data_dir.path, RECOVERY)


async def test_a_recovery_rebuilds_the_terms_that_an_older_etcd_has_lost_and_is_recorded(data: Path) -> None:
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        await lose_terms(cluster)
    for topic in ("clicks", "logs"):
        async with administered(data) as cluster:
            await cluster("topics.create", topic=topic)
            found = await cluster("audit.verify")
            assert (found["intact"], found["chain_only"], found["forged"]) == (True, 0, 0), found
            assert await cluster.broker.port.audit_recovery() is None
            (record,) = (await cluster("audit.query", filter="cluster.recover"))["items"]
            assert record["principal"] == "ada@h"
            assert record["arguments"] == {"recovery": "r1", "key_terms_rebuilt_from": 0}


@pytest.mark.parametrize(
    "made",
    [
        lambda head, key_id: without_mac(INVENTED, head),
        lambda head, key_id: linked(INVENTED, head, STRANGER)[0],
        lambda head, key_id: without_mac({**INVENTED, "key_id": key_id}, head),
    ],
    ids=["without a MAC", "another key's MAC", "the right key's id"],
)
@pytest.mark.parametrize("terms", ["none", "of the forger's key"])
async def test_a_recovery_takes_in_no_record_that_a_writer_of_etcd_forged(
    data: Path, made: Callable[[Head, str], bytes], terms: str
) -> None:
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        key = await cluster.broker.port.audit_key()
        seq = await smuggle(cluster, lambda head: made(head, key.key_id))
        forged = KeyTerms(((0, key.key_id), (seq, STRANGER.key_id))).to_json(STRANGER)
        await lose_terms(cluster, stored=None if terms == "none" else forged)
    async with administered(data) as cluster:
        await cluster("topics.create", topic="clicks")  # a right record behind the forged one
        found = await cluster("audit.verify")
        assert (found["intact"], found["first_bad_seq"], found["forged"]) == (False, seq, 1), found


async def test_a_recovery_proves_nothing_of_the_records_before_the_first_right_mac(data: Path) -> None:
    async with administered(data) as cluster:
        topic = await cluster.broker.registry.audit_topic()
        await append_durably(topic, [linked(INVENTED, FIRST, STRANGER)[0]], producer="audit", system=True)
        await cluster("topics.create", topic="orders")
        await lose_terms(cluster, stored=KeyTerms(((0, STRANGER.key_id),)).to_json(STRANGER))
    async with administered(data) as cluster:
        await cluster("topics.create", topic="clicks")
        found = await cluster("audit.verify")
        assert (found["intact"], found["first_bad_seq"]) == (False, 0), found


async def test_terms_that_a_writer_of_etcd_removed_are_not_rebuilt_for_a_note_that_it_kept(
    data: Path,
) -> None:
    """Everything that etcd held during the recovery is put back later: it gives no second recovery."""
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        await lose_terms(cluster)
        kept = {item.key: item.value for item in await cluster.broker.port.list_state("audit/")}
        assert KEYS_KEY not in kept
    async with administered(data) as cluster:
        await cluster("topics.create", topic="clicks")
        assert (await cluster("audit.verify"))["intact"]
        await cluster.core.audit.settled()
        await cluster.broker.port.write_state({**kept, KEYS_KEY: None})
    assert not (data / NOTE_FILE).exists()
    async with administered(data) as cluster:
        await cluster("topics.create", topic="logs")
        found = await cluster("audit.verify")
        assert (found["intact"], found["first_bad_seq"]) == (False, 0), found


async def test_a_recovery_waits_while_the_file_of_the_key_is_unusable(data: Path) -> None:
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        await lose_terms(cluster)
    file = data.with_name("data.audit-key")
    file.chmod(0o644)
    async with administered(data) as cluster:
        await cluster("topics.list")
        assert await cluster.broker.port.audit_recovery() == RECOVERY
    file.chmod(0o600)
    async with administered(data) as cluster:
        await cluster("topics.create", topic="logs")
        assert await cluster.broker.port.audit_recovery() is None
        (record,) = (await cluster("audit.query", filter="cluster.recover"))["items"]
        assert record["arguments"]["key_terms_rebuilt_from"] == 0


async def test_an_unreadable_note_of_a_recovery_stops_nothing(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with administered(data) as cluster:
        (data / NOTE_FILE).write_text('{"recovery": "r1", "by": 1}')
        await cluster("topics.create", topic="orders")
        assert (await cluster("audit.verify"))["intact"]
    assert "audit_recovery_unreadable" in [record.message for record in caplog.records]


async def test_a_recovery_is_repeated_if_the_terms_were_written_meanwhile(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        await lose_terms(cluster)
    async with administered(data) as cluster:
        port = cluster.broker.port
        write = port.write_state
        refused: list[Any] = []

        async def write_state(changes: Any, **guards: Any) -> Any:
            if KEYS_KEY in changes and not refused:
                refused.append(changes)
                raise Conflict("another core was faster")
            return await write(changes, **guards)

        monkeypatch.setattr(port, "write_state", write_state)
        await cluster("topics.create", topic="clicks")
        assert refused
        assert (await cluster("audit.verify"))["intact"]


async def test_a_recovery_that_cannot_be_recorded_leaves_the_rest_of_a_start_alone(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with administered(data) as cluster:
        tidied = []
        tidy_up = cluster.core.executor.tidy_up

        async def noted() -> None:
            await tidy_up()
            tidied.append(True)

        async def fail() -> AuditRecovery | None:
            raise StoreUnavailable("the object store is away")

        monkeypatch.setattr(cluster.core.executor, "tidy_up", noted)
        monkeypatch.setattr(cluster.broker.port, "audit_recovery", fail)
        await cluster("topics.create", topic="orders")
        assert tidied


async def test_a_recovery_finds_the_first_record_of_its_key_in_few_reads(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with administered(data) as cluster:
        topic = await cluster.broker.registry.audit_topic()
        payloads, head = [], FIRST
        for _ in range(300):
            payload, head = linked(INVENTED, head, STRANGER)
            payloads.append(payload)
        await append_durably(topic, payloads, producer="audit", system=True)
        await cluster("topics.create", topic="orders")
        await lose_terms(cluster)
    async with administered(data) as cluster:
        port = cluster.broker.port
        read, write = port.read_audit, port.write_state
        reads: list[int] = []
        until_terms: list[int] = []

        async def read_audit(*, start: int, max_messages: int) -> Any:
            reads.append(max_messages)
            return await read(start=start, max_messages=max_messages)

        async def write_state(changes: Any, **guards: Any) -> Any:
            if KEYS_KEY in changes:
                until_terms.append(sum(reads))
            return await write(changes, **guards)

        monkeypatch.setattr(port, "read_audit", read_audit)
        monkeypatch.setattr(port, "write_state", write_state)
        await cluster("topics.create", topic="clicks")
        assert until_terms[0] < 20, "records read before the terms are rebuilt"
        (record,) = (await cluster("audit.query", filter="cluster.recover"))["items"]
        assert record["arguments"]["key_terms_rebuilt_from"] == 300


async def test_a_call_after_the_end_of_a_broker_is_refused_without_an_alarm(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        await cluster.broker.journal.close()
        error = await cluster.refused("topics.create", topic="clicks")
        assert error.code == "AUDIT_UNAVAILABLE"
    assert "audit_failed" not in [record.message for record in caplog.records]


async def test_a_change_of_keys_is_said(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        before = (await cluster.broker.port.audit_key()).key_id
        await cluster.core.audit.settled()
        await cluster.broker.port.write_state({KEYS_KEY: KeyTerms(((0, before), (9, "x"))).to_json(STRANGER)})
    async with administered(data) as cluster:
        await cluster("topics.create", topic="clicks")
    (said,) = [record for record in caplog.records if record.message == "audit_key_changed"]
    assert (said.__dict__["key_before"], said.__dict__["key_id"]) == ("x", before)


@pytest.mark.parametrize(
    "head",
    [b"{", b"5", b'{"seq":1e999,"hash":"0"}', b"[" * 100_000],
    ids=["cut off", "no object", "no number", "too deep"],
)
async def test_a_head_in_the_store_that_is_none_is_said_and_the_audit_goes_on(
    data: Path, head: bytes
) -> None:
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        await cluster.core.audit.settled()
        await cluster.broker.port.write_state({HEAD_KEY: head})
        found = await cluster("audit.verify")
        assert (found["intact"], found["forged"]) == (False, 0)
        assert found["reason"] == "the chain's head in the metadata store is invalid: it was altered"
    async with administered(data) as cluster:
        await cluster("topics.create", topic="clicks")
        assert (await cluster("audit.verify"))["intact"], "the next change keeps the right one"


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 100_000,
        b'{"seq":1e999,"hash":"0","prev_hash":"0"}',
        b'{"hash":"0","mac":"\\ud800","prev_hash":"0","seq":1}',
    ],
    ids=["too deep", "no number", "no text"],
)
async def test_what_cannot_be_read_stops_neither_the_audit_nor_asking_it(data: Path, payload: bytes) -> None:
    async with administered(data) as cluster:
        await cluster("topics.create", topic="orders")
        seq = await smuggle(cluster, lambda head: payload)
    async with administered(data) as cluster:
        await cluster("topics.create", topic="clicks")
        found = await cluster("audit.verify")
        assert (found["first_bad_seq"], found["forged"]) == (seq, 1)
        items = (await cluster("audit.query", operation="topics.create"))["items"]
        assert len(items) == 2
