"""Rows of docs/research/behaviours.md#the-catalogue-of-defects that one broker and its clients can show, by real processes.

Rows 1 and 2 (acknowledged before a write; never synced) at the level of bytes are in tests/broker/journal; here a
broker is killed, and what its disk need not hold is taken away before it starts again.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from pydanube import ClusterError, Retry, connect
from pydanube_admin.remote import OpsClient
from pydanube_broker.journal.records import (
    FILE_HEADER_BYTES,
    HEADER_BYTES,
    SECTOR,
    RecordKind,
    read_file_header,
    read_header,
    record_bytes,
)
from pydanube_core.batch import BROKER_PART_BYTES, read_broker_part

from tests.support.broker_process import BrokerProcess, client_environment
from tests.support.history import History
from tests.support.load import PATIENCE, Load, read_topic
from tests.support.progress import Progress
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

Make = Callable[..., BrokerProcess]
TOPIC = "/default/rows"
DEADLINE_S = 240.0


def _four_producers(load: Load, tasks: Any, seed: object, topic: str = TOPIC) -> None:
    tasks.start_soon(load.lone, "lone", topic, seed)
    tasks.start_soon(lambda: load.bursts("bursts", topic, seed))
    tasks.start_soon(lambda: load.batches("plain", topic, seed))
    tasks.start_soon(lambda: load.batches("zstd", topic, seed, style="keyed", compression="zstd"))


async def _start(broker: BrokerProcess) -> None:
    await to_thread.run_sync(broker.start)


async def _kill(broker: BrokerProcess) -> None:
    await to_thread.run_sync(broker.kill)


# -- rows 1 and 2 --------------------------------------------------------------------------------------------


def unsynced(journal: Path, acknowledged_end: int) -> list[tuple[Path, int]]:
    """Return the sectors with something in them that no sync is known to cover, as file and position.

    What was certainly synced, by the journal's own records: everything below the largest `synced_lsn` in them, and
    everything up to the batch that holds the last acknowledged message.

    Args:
        acknowledged_end: one past the last acknowledged offset of the only topic with messages.
    """
    end = proven = 0
    segments: list[tuple[Path, int, bytes]] = []
    for path in sorted(journal.glob("*.journal")):
        data = path.read_bytes()
        found = read_file_header(data)
        if found is None:
            continue
        _, base, _ = found
        segments.append((path, base, data))
        at = FILE_HEADER_BYTES
        while (header := read_header(data, at, base + at)) is not None:
            proven = max(proven, header.synced_lsn)
            at += record_bytes(header.body_bytes)
            if header.kind is RecordKind.BATCH:
                body = data[header.lsn - base + HEADER_BYTES :][:BROKER_PART_BYTES]
                if read_broker_part(body).base_offset < acknowledged_end:
                    proven = max(proven, base + at)
            end = max(end, base + at)
    assert proven <= end
    sectors = []
    for path, base, data in segments:
        first = max(0, proven - base)
        first += -first % SECTOR  # a sector that holds proven bytes was synced as a whole
        sectors += [
            (path, at)
            for at in range(first, min(len(data), end - base), SECTOR)
            if data[at : at + SECTOR].strip(b"\0")
        ]
    return sectors


def acknowledged_end(history: History) -> int:
    """Return one past the last offset that a producer was told."""
    told = (outcome.acknowledged.values() for outcome in history.producers.values())
    return max((offset for each in told for offset in each if offset), default=0) + 1


async def _settled(history: History) -> None:
    """Return when nothing was sent or acknowledged for a second."""
    last: tuple[int, int] | None = None
    while last != (now := (sum(each.sent for each in history.producers.values()), acknowledged_end(history))):
        last = now
        await anyio.sleep(1)


def drop_unsynced(journal: Path, acknowledged_end: int, rng: random.Random) -> int:
    """Do to a killed broker's journal what a power cut may do: sectors behind the last sync are as they were, zeros.

    Returns:
        how many sectors with something in them were zeroed: about half of those there were, one at least.
    """
    sectors = unsynced(journal, acknowledged_end)
    dropped = [each for each in sectors if rng.random() < 0.5] or sectors[:1]
    for path, at in dropped:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes(SECTOR))
    return len(dropped)


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 12))])
async def test_row_02_a_power_cut_drops_what_was_not_synced_and_nothing_acknowledged(
    make_broker: Make, seed: int
) -> None:
    rng = random.Random(seed)
    broker = make_broker(
        face="broker",
        environment={"DANUBE_JOURNAL__SEGMENT_BYTES": "4MiB"},
    )
    history, progress = History(f"row 2, {seed}"), Progress()
    with anyio.fail_after(DEADLINE_S):
        await _start(broker)
        load = Load(broker.url, history, progress.one)
        # The sync helper is stopped now and then: what is written meanwhile is in nobody's sync.
        helper = broker.helper_running()[0]
        for name in ("a", "b", "c"):
            history.producer(name, TOPIC, max_bytes=400)
        async with anyio.create_task_group() as tasks:
            for name in ("a", "b", "c"):
                tasks.start_soon(load.batches, name, TOPIC, seed)
            await progress.more(rng.randrange(30, 90))
            # Every producer waits for the batch that it has sent; the broker has written it, unsynced. Small ones may lie in
            # a sector that was synced: then on, and once more.
            journal = broker.data_dir / "journal"
            os.kill(helper, signal.SIGSTOP)
            await _settled(history)
            while not unsynced(journal, acknowledged_end(history)):
                os.kill(helper, signal.SIGCONT)
                await progress.more(3)
                os.kill(helper, signal.SIGSTOP)
                await _settled(history)
            process = broker.process
            assert process is not None
            process.kill()
            os.kill(helper, signal.SIGKILL)
            await to_thread.run_sync(broker.wait)
            tasks.cancel_scope.cancel()
        dropped = await to_thread.run_sync(drop_unsynced, journal, acknowledged_end(history), rng)
        assert dropped > 0
        await _start(broker)
        async with connect(broker.url, retry=PATIENCE) as client:
            rows = await read_topic(client, TOPIC)
            history.check_log(TOPIC, rows)
            async with client.producer(TOPIC) as producer:
                assert (await producer.send(b"on")).offset == len(rows[None])
    broker.check_log()


async def test_row_01_and_31_sigkill_under_the_load_of_four_producers_then_everything_is_there(
    make_broker: Make,
) -> None:
    broker = make_broker(face="broker")
    history, progress = History("row 31"), Progress()
    with anyio.fail_after(DEADLINE_S):
        await _start(broker)
        load = Load(broker.url, history, progress.one)
        async with anyio.create_task_group() as tasks:
            _four_producers(load, tasks, 31)
            await progress.more(150)
            await _kill(broker)
            tasks.cancel_scope.cancel()
        told = history.acknowledged
        assert told > 1000
        await _start(broker)
        async with connect(broker.url, retry=PATIENCE) as client:
            rows = await read_topic(client, TOPIC)
        # The producers are gone for good: what was in flight may be there or not, what was acknowledged is.
        history.check_log(TOPIC, rows)
        assert len(rows[None]) >= told
    broker.check_log()


# -- row 3 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [True, False])
async def test_row_03_numbering_goes_on_after_a_restart_and_old_cursors_see_new_messages(
    make_broker: Make, orderly: bool
) -> None:
    broker = make_broker(face="broker")
    with anyio.fail_after(DEADLINE_S):
        await _start(broker)
        async with connect(broker.url, retry=PATIENCE) as client:
            async with client.producer("numbers") as producer:
                summary = await producer.send_many([b"old"] * 57)
                assert summary.ranges[-1].last_offset == 56
            async with client.consumer("numbers", "s") as consumer:
                got = await consumer.receive(max_messages=57, max_wait_s=60)
                for message in got:
                    await message.ack()
                await consumer.flush_acks()
        if orderly:
            assert await to_thread.run_sync(broker.stop) == 0
        else:
            await _kill(broker)
        await _start(broker)
        async with connect(broker.url, retry=PATIENCE) as client:
            async with client.producer("numbers") as producer:
                assert (await producer.send(b"new")).offset == 57
            async with client.consumer("numbers", "s") as consumer:
                message = await anext(aiter(consumer))
                assert (message.offset, message.payload) == (57, b"new")
    broker.check_log()


# -- row 10 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_row_10_a_new_subscription_gets_everything_since_it_was_made_though_nothing_was_acked(
    make_broker: Make, start: str
) -> None:
    broker = make_broker(face="broker")
    with anyio.fail_after(DEADLINE_S):
        await _start(broker)
        async with (
            connect(broker.url, retry=PATIENCE) as client,
            client.producer("positions") as producer,
        ):
            await producer.send_many([b"before"] * 10)
            async with client.consumer("positions", "s", start=start):
                pass
            await producer.send_many([b"after"] * 100)
        await _kill(broker)
        await _start(broker)
        first = 0 if start == "earliest" else 10
        async with (
            connect(broker.url, retry=PATIENCE) as client,
            client.consumer("positions", "s") as consumer,
        ):
            got: list[int] = []
            while len(got) < 110 - first:
                got += [message.offset for message in await consumer.receive(max_wait_s=5)]
        assert got == list(range(first, 110))
    broker.check_log()


# -- row 15 --------------------------------------------------------------------------------------------------

_FOLLOWER = """
import sys, anyio, pydanube
async def main():
    async with pydanube.connect(sys.argv[1]) as client, client.consumer("paused", "s") as consumer:
        async for batch in consumer.batches():
            for offset in batch.offsets:
                print(offset)
            sys.stdout.flush()
            await batch.ack()
anyio.run(main)
"""


async def test_row_15_a_consumer_paused_while_ten_thousand_messages_are_published_gets_all(
    make_broker: Make,
) -> None:
    broker = make_broker(face="broker")
    with anyio.fail_after(DEADLINE_S):
        await _start(broker)
        async with connect(broker.url, retry=PATIENCE) as client, client.producer("paused") as producer:
            await producer.send(b"first")
            async with await anyio.open_process(
                [sys.executable, "-c", _FOLLOWER, broker.url], env=client_environment(), stderr=None
            ) as follower:
                try:
                    assert follower.stdout is not None
                    first = b""
                    while first != b"0\n":
                        first += await follower.stdout.receive()
                    follower.send_signal(signal.SIGSTOP)
                    # More bytes than any socket buffer and window holds: the broker has to wait for the consumer.
                    for _ in range(10):
                        await producer.send_many([bytes(3000)] * 1000)
                    follower.send_signal(signal.SIGCONT)
                    seen, rest = [0], b""
                    while len(seen) < 10_001:
                        rest += await follower.stdout.receive()
                        *lines, rest = rest.split(b"\n")
                        seen += map(int, lines)
                    assert seen == list(range(10_001))
                finally:
                    follower.kill()
    broker.check_log()


# -- row 18 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guard", "durability"),
    [("1MiB", "fsynced"), ("12MiB", "fsynced"), ("12MiB", "stored")],
    ids=["out-of-space", "disk-guard", "disk-guard-stored"],
)
async def test_row_18_a_full_disk_refuses_publishes_loses_nothing_and_clears_itself(
    make_broker: Make, small_disk: Path, tmp_path: Path, guard: str, durability: str
) -> None:
    environment = {"DANUBE_JOURNAL__SEGMENT_BYTES": "4MiB", "DANUBE_DATA__MIN_FREE_BYTES": guard}
    if durability == "stored":
        environment["DANUBE_TIER__URL"] = str(tmp_path / "objects")
    broker = make_broker(data_dir=small_disk / "data", environment=environment)
    history = History("row 18")
    impatient = Retry(max_elapsed_s=0)
    ballast = small_disk / "ballast"
    with anyio.fail_after(DEADLINE_S):
        await _start(broker)
        async with OpsClient(broker.admin) as ops:
            await ops.call("topics.create", {"topic": TOPIC, "durability": durability})
        # Somebody else fills most of the disk.
        ballast.write_bytes(bytes(24 << 20))
        outcome = history.producer("filler", TOPIC, max_bytes=60_000)
        refusal: ClusterError | None = None
        async with connect(broker.url, retry=impatient) as client:
            async with client.producer(TOPIC) as producer:
                while refusal is None:
                    stamp = history.stamp("filler")
                    try:
                        receipt = await producer.send(stamp.payload)
                    except ClusterError as error:
                        refusal = error
                        if error.details.get("outcome") == "not_stored":
                            outcome.not_stored.add(stamp.number)
                    else:
                        outcome.acknowledged[stamp.number] = receipt.offset
                        assert receipt.durability == durability
                        if durability == "stored" and len(outcome.acknowledged) == 150:
                            # What the store has leaves the journal, which does not fill the rest of the disk.
                            with ballast.open("ab") as file:
                                file.write(bytes(14 << 20))
            assert (refusal.code, refusal.retryable) == ("DISK_FULL", True)
            assert len(outcome.acknowledged) > 100
            # Reads go on, and cursors: nothing that was acknowledged is gone.
            history.check_log(TOPIC, await read_topic(client, TOPIC))
            async with client.consumer(TOPIC, "s") as consumer:
                taken = 0
                while taken < 10:
                    for message in await consumer.receive(max_messages=10 - taken, max_wait_s=60):
                        await message.ack()
                        taken += 1
                await consumer.flush_acks()
            status = await to_thread.run_sync(broker.status)
            assert [reason["code"] for reason in status["reasons"]] == ["DISK_GUARD"]
            assert not status["read_only"]
            # It dies while the disk is full, and starts on it.
            await _kill(broker)
            await _start(broker)
        async with connect(broker.url, retry=PATIENCE) as client:
            history.check_log(TOPIC, await read_topic(client, TOPIC))
            # Space comes back: a producer that retries notices by itself.
            async with anyio.create_task_group() as tasks:

                async def publish() -> None:
                    async with client.producer(TOPIC) as producer:
                        for _ in range(100):
                            stamp = history.stamp("filler")
                            receipt = await producer.send(stamp.payload)
                            outcome.acknowledged[stamp.number] = receipt.offset

                tasks.start_soon(publish)
                ballast.unlink()
            history.check_log(TOPIC, await read_topic(client, TOPIC))
            async with OpsClient(broker.admin) as ops:
                item = (await ops.call("subscriptions.lag", {"topic": TOPIC}))["items"][0]
                assert item["next_unacked"] == 10
        assert await to_thread.run_sync(broker.stop) == 0
    broker.check_log(allow=["DISK_FULL"])


async def test_row_18_a_disk_that_is_full_to_the_last_byte_refuses_no_start(
    make_broker: Make, small_disk: Path
) -> None:
    broker = make_broker(data_dir=small_disk / "data", environment={"DANUBE_JOURNAL__SEGMENT_BYTES": "4MiB"})
    reserve, ballast = small_disk / "data" / "reserve", small_disk / "ballast"
    with anyio.fail_after(DEADLINE_S):
        await _start(broker)
        async with connect(broker.url, retry=PATIENCE) as client, client.producer(TOPIC) as producer:
            await producer.send_many([b"x" * 1000] * 2000)
        await until(lambda: reserve.exists())
        with ballast.open("wb", buffering=0) as file:
            with contextlib.suppress(OSError):  # as the tier, the metadata or another program would
                while file.write(bytes(64 << 10)):
                    pass
            with contextlib.suppress(OSError):
                while file.write(bytes(512)):
                    pass
        for path in (small_disk / "data" / "journal").glob("*.journal"):
            if not path.read_bytes()[64:].strip(b"\0"):
                path.unlink()  # and what stood ready
                with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
                    while file.write(bytes(64 << 10)):
                        pass
        for _ in range(2):
            await _kill(broker)
            await _start(broker)
            status = await to_thread.run_sync(broker.status)
            assert [reason["code"] for reason in status["reasons"]] == ["DISK_GUARD"]
        async with connect(broker.url, retry=PATIENCE) as client:
            ballast.unlink()
            async with client.producer(TOPIC) as producer:
                assert (await producer.send(b"again")).offset == 2000
        assert await to_thread.run_sync(broker.stop) == 0
    broker.check_log(allow=["DISK_FULL"])


# -- row 24 --------------------------------------------------------------------------------------------------


async def test_row_24_sigterm_under_load_costs_retrying_producers_nothing(make_broker: Make) -> None:
    broker = make_broker(face="broker")
    history, progress = History("row 24"), Progress()
    with anyio.fail_after(DEADLINE_S):
        await _start(broker)
        load = Load(broker.url, history, progress.one)
        log = history.consumer(TOPIC, "s")
        finished = anyio.Event()
        async with anyio.create_task_group() as consuming:
            async with anyio.create_task_group() as tasks:
                _four_producers(load, tasks, 24)
                await progress.more(20)
                consuming.start_soon(load.consume_batches, log, finished.is_set)
                for _ in range(3):
                    await progress.more(60)
                    assert await to_thread.run_sync(broker.stop) == 0
                    await _start(broker)
                    assert broker.info["recovered"]["torn_bytes"] == 0
                await progress.more(20)
                load.stop()
            async with connect(broker.url, retry=PATIENCE) as client:
                rows = await read_topic(client, TOPIC)
            history.check_log(TOPIC, rows)
            history.check_no_failures()
            async with OpsClient(broker.admin) as ops:
                while (await ops.call("subscriptions.lag", {"topic": TOPIC}))["items"][0]["lag_messages"]:  # noqa: ASYNC110
                    await anyio.sleep(0.1)
            finished.set()
        history.check_consumers(TOPIC, {None: len(rows[None])})
        assert await to_thread.run_sync(broker.stop) == 0
    broker.check_log()


# -- row 29 --------------------------------------------------------------------------------------------------


async def test_row_29_names_that_begin_alike_are_strangers(make_broker: Make) -> None:
    names = ["orders", "orders-eu", "orders-eu-2", "order", "orders_", "orders-part-1x"]
    broker = make_broker(face="broker")
    with anyio.fail_after(DEADLINE_S):
        await _start(broker)
        async with connect(broker.url, retry=PATIENCE) as client:
            for name in reversed(names):
                async with client.producer(name) as producer:
                    for text in (name, "second"):
                        await producer.send(f"{name}: {text}".encode())
                async with client.consumer(name, "s") as consumer:
                    (message,) = await consumer.receive(max_messages=1, max_wait_s=60)
                    await message.ack()
            async with client.producer("orders-eu-parts", partitions=2) as producer:
                await producer.send_many([b"x"] * 4)
        await _kill(broker)
        await _start(broker)
        deleted = await to_thread.run_sync(
            lambda: broker.command("topics", "delete", "orders", "--yes", check=False)
        )
        assert deleted.returncode == 0, deleted.stderr
        await _kill(broker)
        await _start(broker)
        async with connect(broker.url, retry=PATIENCE) as client:
            for name in names[1:]:
                async with client.reader(name, stop="head") as reader:
                    payloads = [message.payload async for message in reader]
                assert payloads == [f"{name}: {name}".encode(), f"{name}: second".encode()]
                async with client.consumer(name, "s") as consumer:
                    (message,) = await consumer.receive(max_messages=1, max_wait_s=60)
                    assert message.offset == 1
            # Made again, the deleted name is empty, and begins at 0.
            async with client.producer("orders") as producer:
                assert (await producer.send(b"again")).offset == 0
        listed = await to_thread.run_sync(lambda: broker.json_command("topics", "list"))
        assert {item["topic"] for item in listed["items"]} >= {f"/default/{name}" for name in names}
    broker.check_log()
