"""An independent look at mirrors: what both journals hold, read from their files, and what both brokers say."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
from pydanube_admin.remote import OpsClient
from pydanube_broker.journal.records import (
    FILE_HEADER_BYTES,
    HEADER_BYTES,
    RecordKind,
    read_file_header,
    read_header,
    record_bytes,
)
from pydanube_core.batch import BROKER_PART_BYTES, read_broker_part
from pydanube_core.errors import ClusterError

from tests.support.broker_process import BrokerProcess

DEADLINE_S = 90.0


def stored_batches(data_dir: Path, topic_id: int) -> dict[int, bytes]:
    """Return base offset → bytes of each batch of a topic in a journal, broker part and all. The broker does not run."""
    found: dict[int, bytes] = {}
    for path in sorted((data_dir / "journal").glob("*.journal")):
        data = path.read_bytes()
        head = read_file_header(data)
        if head is None:
            continue
        _, base, _ = head
        at = FILE_HEADER_BYTES
        while (header := read_header(data, at, base + at)) is not None:
            if header.kind is RecordKind.BATCH and header.topic_id == topic_id:
                start = at + HEADER_BYTES
                body = data[start : start + header.body_bytes]
                offset = read_broker_part(body[:BROKER_PART_BYTES]).base_offset
                assert found.setdefault(offset, body) == body, f"two batches at offset {offset} in {path}"
            at += record_bytes(header.body_bytes)
    return found


def until(what: str, look: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """Look until something is found: another process's state, for which there is no event."""
    end = time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"{what} not within {deadline_s:g} s"
        time.sleep(0.05)


def link_to(
    destination: BrokerProcess,
    source: BrokerProcess,
    name: str = "eu",
    topics: str = "/default/*",
    **more: Any,
) -> dict[str, Any]:
    """Create a link. Return the operation's result."""
    address = source.url.replace("http://", "danube://")
    return destination.ask("links.create", link=name, source=address, topics=topics, **more)


def by_socket(broker: BrokerProcess, operation: str, **arguments: Any) -> dict[str, Any]:
    """Call an operation over the broker's own socket, by which its owner may do everything. With its plan if it wants one."""

    async def call() -> dict[str, Any]:
        async with OpsClient(f"unix:{broker.data_dir}/admin.sock") as ops:
            try:
                return await ops.call(operation, arguments)
            except ClusterError as error:
                if error.code != "PLAN_REQUIRED":
                    raise
                return await ops.call(operation, arguments, plan_token=error.details["plan"]["plan_token"])

    return anyio.run(call)


def described(destination: BrokerProcess, name: str = "eu") -> dict[str, Any]:
    return destination.ask("links.describe", link=name)


def ends(broker: BrokerProcess, topic: str) -> dict[str, int]:
    """Return log → its next offset."""
    answer = broker.rpc("topics.describe", topic=topic)
    if "result" not in answer:
        return {}
    found = answer["result"]
    parts = found["parts"] or [found]
    return {each["topic"]: each["next_offset"] for each in parts}


def until_copied(source: BrokerProcess, destination: BrokerProcess, *topics: str) -> Mapping[str, int]:
    """Wait until the mirrors of these topics end where the source's topics do, and return the ends.

    Fails when no mirror has grown for `DEADLINE_S`: however long the copy takes, it is not late while it goes on.
    """
    here: dict[str, int] = {}
    grew_s = time.monotonic()
    while True:
        there = {log: end for topic in topics for log, end in ends(source, topic).items()}
        before, here = here, {log: end for topic in topics for log, end in ends(destination, topic).items()}
        if here and here == there:
            return here
        now_s = time.monotonic()
        if here != before:
            grew_s = now_s
        assert now_s - grew_s < DEADLINE_S, f"no mirror grew for {DEADLINE_S:g} s: {here} of {there}"
        time.sleep(0.05)


def topic_ids(broker: BrokerProcess, topic: str) -> dict[str, int]:
    found = broker.ask("topics.describe", topic=topic)
    if not found["parts"]:
        return {found["topic"]: int(found["topic_id"])}
    return {
        each["topic"]: int(broker.ask("topics.describe", topic=each["topic"])["topic_id"])
        for each in found["parts"]
    }


def check_equal_bytes(
    source: BrokerProcess, destination: BrokerProcess, *topics: str, all_stay: bool = False
) -> int:
    """Kill both brokers, and compare their journals: each batch of a mirror is its source's. Return the batches that both have.

    A broker deletes a segment once all of its messages are in objects, and with more than eight sealed segments it
    flushes at any size. `all_stay`: neither has done so, and both have the same batches.
    """
    there = {log: number for topic in topics for log, number in topic_ids(source, topic).items()}
    here = {log: number for topic in topics for log, number in topic_ids(destination, topic).items()}
    assert there.keys() == here.keys()
    source.kill()
    destination.kill()
    count = 0
    for log, number in here.items():
        originals = stored_batches(source.data_dir, there[log])
        copies = stored_batches(destination.data_dir, number)
        if all_stay:
            assert min(originals, default=0) == min(copies, default=0) == 0, f"{log}: a segment was deleted"
            assert copies.keys() == originals.keys(), log
        both = originals.keys() & copies.keys()
        for offset in both:
            assert copies[offset] == originals[offset], f"{log}: another batch at offset {offset}"
        count += len(both)
    return count
